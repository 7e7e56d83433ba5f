package monitor

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// whole is a report of a recording without a fault.
func whole() Report {
	stats := busy()
	stats.InFlight, stats.Requests = 0, 120
	stats.Messages = [2]uint64{recorder.FromEngine: 4801, recorder.FromFrontend: 1}
	return Report{
		Summary: recorder.Summary{
			Stats: stats, Ranks: []recorder.RankSummary{{Rank: 0, Files: []string{"run.jsonl.gz", "s3://b/steps.jsonl"}}},
		},
		Duration: 125_678_900 * time.Microsecond, Recorder: "v1.2.3",
	}
}

// poor is one of everything that can be told of a recording.
func poor() Report {
	r := whole()
	s := &r.Stats
	s.InFlight, s.Requests, s.Aborted, s.Unrecorded, s.Lost, s.Steps, s.Stopped = 3, 126, 5, 2, 1, 7, 1
	s.Undecodable, s.TooLarge, s.Refused, s.Unknown, s.Late, s.Duplicates, s.WrongEngine = 10, 11, 12, 13, 14, 15, 16
	r.Ranks = append(r.Ranks, recorder.RankSummary{Rank: 1, EngineClock: trace.ClockConstant, Err: errors.New("disk full\nof \x1b[31mthings")})
	r.Err, r.ExitCode = errors.New("engine 1: disk full"), 3
	return r
}

func TestText(t *testing.T) {
	derived := whole()
	derived.Stats.Messages, derived.Stats.Bytes = [2]uint64{}, [2]uint64{}
	kept := whole()
	kept.Stats.Aborted = 2
	const usual = "1 engine in 2m5.679s: 120 requests, 4800 output tokens, 120 records\n" +
		"forwarded: 4801 messages (3.4 MB) from the engine, 1 message (999 B) from the frontend\n" +
		"engine 0: run.jsonl.gz, s3://b/steps.jsonl\n"
	tests := []struct {
		name   string
		report Report
		want   string
	}{
		{"whole", whole(), usual},
		{"aborted ones kept", kept, usual},
		{"derived", derived, "1 engine in 2m5.679s: 120 requests, 4800 output tokens, 120 records\nengine 0: run.jsonl.gz, s3://b/steps.jsonl\n"},
		{"poor", poor(), "2 engines in 2m5.679s: 126 requests, 4800 output tokens, 120 records\n" +
			"forwarded: 4801 messages (3.4 MB) from the engine, 1 message (999 B) from the frontend\n" +
			"engine 0: run.jsonl.gz, s3://b/steps.jsonl\n" +
			"engine 1: no file is whole: disk full; of things\n" +
			"engine 1: its timestamps are not used (constant): times are by when the recorder received the messages\n" +
			"not recorded: requests that were aborted without an answer, see --record-aborted: 2\n" +
			"not recorded: requests in flight at the end: 3\n" +
			"not recorded: messages that the line's codec refused: 10\n" +
			"not recorded: messages too large to be observed: 11\n" +
			"not recorded: requests with a message that could not be read: 1\n" +
			"not recorded: records that their own writer refused: 12\n" +
			"not recorded: outputs for requests that never arrived here: 13\n" +
			"not recorded: outputs for requests that had ended: 14\n" +
			"not recorded: requests with the id of one in flight: 15\n" +
			"not recorded: messages that name another engine: 16\n" +
			"RECORDING STOPPED before the end, in 1 file\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, Text(&b, test.report))
			require.NoDiff(t, cmp.Diff(test.want, b.String()), "-want +got")
		})
	}
	if err := Text(brokenWriter{}, whole()); err == nil {
		t.Error("a summary that is not written is no error")
	}
}

const poorJSON = `{
  "recorder_version": "v1.2.3",
  "exit_code": 3,
  "whole": false,
  "error": "engine 1: disk full",
  "duration_ms": 125678.9,
  "engines": 2,
  "requests": {
    "seen": 126,
    "done": 120,
    "aborted": 5,
    "lost": 1,
    "in_flight": 3
  },
  "records": 120,
  "steps": 7,
  "output_tokens": 4800,
  "messages": {
    "from_engine": 4801,
    "from_frontend": 1
  },
  "bytes": {
    "from_engine": 3400000,
    "from_frontend": 999
  },
  "not_recorded": {
    "duplicate_requests": 15,
    "late_outputs": 14,
    "lost_requests": 1,
    "refused_records": 12,
    "too_large_messages": 11,
    "undecodable_messages": 10,
    "unknown_outputs": 13,
    "wrong_engine_messages": 16
  },
  "stopped_files": 1,
  "ranks": [
    {
      "rank": 0,
      "files": [
        "run.jsonl.gz",
        "s3://b/steps.jsonl"
      ]
    },
    {
      "rank": 1,
      "files": [],
      "error": "disk full\nof \u001b[31mthings"
    }
  ]
}
`

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, JSON(&b, poor()))
	require.NoDiff(t, cmp.Diff(poorJSON, b.String()), "-want +got")
	b.Reset()
	require.NoError(t, JSON(&b, Report{}))
	for _, part := range []string{`"whole": true`, `"ranks": []`, `"late_outputs": 0`} {
		require.Contains(t, b.String(), part)
	}
	if err := JSON(brokenWriter{}, whole()); err == nil {
		t.Error("a summary that is not written is no error")
	}
}
