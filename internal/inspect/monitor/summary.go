package monitor

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// Report is what came of a recording.
type Report struct {
	recorder.Summary
	// Duration is that of the run.
	Duration time.Duration
	// Err is why the recording is not whole, nil if it is.
	Err error
	// ExitCode is what the command ends with.
	ExitCode int
	// Recorder is the version of this program.
	Recorder string
}

// A miss is a reason for which something that passed the tap is not in the recording.
type miss struct {
	name  string // in logs, in metrics and in JSON
	short string // behind a count, on one line
	why   string // before a count, in the summary
	count uint64
}

// misses are all reasons, in a fixed order.
func misses(s recorder.Stats) []miss {
	return []miss{
		{"undecodable_messages", "undecodable", "messages that the line's codec refused", s.Undecodable},
		{"too_large_messages", "too large", "messages too large to be observed", s.TooLarge},
		{"lost_requests", "lost", "requests with a message that could not be read", s.Lost},
		{"refused_records", "refused", "records that their own writer refused", s.Refused},
		{"unknown_outputs", "unknown", "outputs for requests that never arrived here", s.Unknown},
		{"late_outputs", "late", "outputs for requests that had ended", s.Late},
		{"duplicate_requests", "duplicate", "requests with the id of one in flight", s.Duplicates},
		{"wrong_engine_messages", "of another engine", "messages that name another engine", s.WrongEngine},
	}
}

// Text writes the report for people: a line each on what was recorded, what passed, where the files of each engine are,
// and what is not in them and why. The error is not in it.
func Text(w io.Writer, r Report) error {
	var b bytes.Buffer
	s := r.Stats
	fmt.Fprintf(&b, "%s in %v: %s, %s, %s\n", safetext.Count(len(r.Ranks), "engine"), r.Duration.Round(time.Millisecond),
		safetext.Count(int(s.Requests), "request"), safetext.Count(int(s.Tokens), "output token"), safetext.Count(int(s.Records), "record"))
	if s.Messages != [2]uint64{} {
		fmt.Fprintf(&b, "forwarded: %s (%s) from the engine, %s (%s) from the frontend\n",
			safetext.Count(int(s.Messages[recorder.FromEngine]), "message"), size(s.Bytes[recorder.FromEngine]),
			safetext.Count(int(s.Messages[recorder.FromFrontend]), "message"), size(s.Bytes[recorder.FromFrontend]))
	}
	for _, rank := range r.Ranks {
		if len(rank.Files) > 0 || rank.Err != nil || s.Stopped > 0 { // record --judge alone writes none
			fmt.Fprintf(&b, "engine %d: %s\n", rank.Rank, files(rank))
		}
		if clock := rank.EngineClock; clock != "" && clock != trace.ClockUsed && clock != trace.ClockUnproven {
			fmt.Fprintf(&b, "engine %d: its timestamps are not used (%s): times are by when the recorder received the messages\n", rank.Rank, clock)
		}
	}
	if s.Unrecorded > 0 {
		fmt.Fprintf(&b, "not recorded: requests that were aborted without an answer, see --record-aborted: %d\n", s.Unrecorded)
	}
	if s.InFlight > 0 {
		fmt.Fprintf(&b, "not recorded: requests in flight at the end: %d\n", s.InFlight)
	}
	for _, m := range misses(s) {
		if m.count > 0 {
			fmt.Fprintf(&b, "not recorded: %s: %d\n", m.why, m.count)
		}
	}
	if s.Stopped > 0 {
		fmt.Fprintf(&b, "RECORDING STOPPED before the end, in %s\n", safetext.Count(int(s.Stopped), "file"))
	}
	_, err := w.Write(b.Bytes())
	return err
}

func files(r recorder.RankSummary) string {
	text := strings.Join(r.Files, ", ")
	text = cmp.Or(text, "no file is whole")
	if r.Err != nil {
		text += ": " + safetext.Line(strings.ReplaceAll(r.Err.Error(), "\n", "; "))
	}
	return text
}

// JSON writes the report for machines. Times are milliseconds; counts are of requests, messages and so on as they are
// named; in not_recorded, reasons that did not occur are there with 0.
func JSON(w io.Writer, r Report) error {
	s := r.Stats
	doc := document{
		Recorder: r.Recorder, ExitCode: r.ExitCode, Whole: r.Err == nil, Error: text(r.Err),
		DurationMS: float64(r.Duration.Microseconds()) / 1e3, Engines: len(r.Ranks),
		Requests: requests{s.Requests, s.Done, s.Aborted, s.Lost, s.InFlight},
		Records:  s.Records, Steps: s.Steps, OutputTokens: s.Tokens,
		Messages:     bothWays{s.Messages[recorder.FromEngine], s.Messages[recorder.FromFrontend]},
		Bytes:        bothWays{s.Bytes[recorder.FromEngine], s.Bytes[recorder.FromFrontend]},
		NotRecorded:  map[string]uint64{},
		StoppedFiles: s.Stopped, Ranks: []rank{},
	}
	for _, m := range misses(s) {
		doc.NotRecorded[m.name] = m.count
	}
	for _, one := range r.Ranks {
		doc.Ranks = append(doc.Ranks, rank{one.Rank, append([]string{}, one.Files...), text(one.Err)})
	}
	return jsonout.Write(w, doc)
}

type document struct {
	Recorder     string            `json:"recorder_version"`
	ExitCode     int               `json:"exit_code"`
	Whole        bool              `json:"whole"`
	Error        string            `json:"error,omitempty"`
	DurationMS   float64           `json:"duration_ms"`
	Engines      int               `json:"engines"`
	Requests     requests          `json:"requests"`
	Records      uint64            `json:"records"`
	Steps        uint64            `json:"steps"`
	OutputTokens uint64            `json:"output_tokens"`
	Messages     bothWays          `json:"messages"`
	Bytes        bothWays          `json:"bytes"`
	NotRecorded  map[string]uint64 `json:"not_recorded"`
	StoppedFiles uint64            `json:"stopped_files"`
	Ranks        []rank            `json:"ranks"`
}

type requests struct {
	Seen     uint64 `json:"seen"`
	Done     uint64 `json:"done"`
	Aborted  uint64 `json:"aborted"`
	Lost     uint64 `json:"lost"`
	InFlight int64  `json:"in_flight"`
}

type bothWays struct {
	FromEngine   uint64 `json:"from_engine"`
	FromFrontend uint64 `json:"from_frontend"`
}

type rank struct {
	Rank  int      `json:"rank"`
	Files []string `json:"files"`
	Error string   `json:"error,omitempty"`
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
