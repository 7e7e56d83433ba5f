package inspect

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// A sketch of many values is off by less than 0.1 %, in little memory; one of few values is exact.
func TestSketch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all times
	var whole, left, right sketch
	for i := range 3 * fewValues {
		v := math.Exp(3 * rng.NormFloat64())
		switch {
		case i%100 == 0:
			v = 0
		case i%101 == 0:
			v = -v
		}
		all = append(all, v)
		whole.add(v)
		if i%3 == 0 { // left stays exact, right does not
			left.add(v)
		} else {
			right.add(v)
		}
	}
	slices.Sort(all)
	left.merge(&right)
	for name, s := range map[string]*sketch{"whole": &whole, "merged": &left} {
		for _, q := range []float64{0, 0.05, 0.1, 0.5, 0.9, 0.99, 0.9999, 1} {
			want, got := all.quantile(q), s.quantile(q)
			require.True(t, math.Abs(got-want) <= 0.001*math.Abs(want)+minValue || want < 0, "%s: quantile %v is %v, want %v", name, q, got, want)
		}
		if math.Abs(s.mean()-all.mean()) > 1e-9*math.Abs(all.mean()) || s.count != len(all) || s.low != all[0] || s.high != all[len(all)-1] {
			t.Errorf("%s: %d values from %v to %v, mean %v", name, s.count, s.low, s.high, s.mean())
		}
		require.True(t, len(s.few) == 0, "%s: %d values are kept", name, len(s.few))
	}
}

func TestSummaryLevels(t *testing.T) {
	at := func(r trace.Record, inFlight uint64, cached int) trace.Record {
		r.Concurrency, r.CachedTokens = inFlight, cached
		return r
	}
	tr := recorded(
		at(hashed(record(0, 8, 10, 10, 20), 1, 2), 1, 0), at(record(0, 4, 30), 2, 0),
		at(hashed(record(100, 12, 5, 1), 1, 2, 3), 1, 8), at(hashed(record(200, 16, 6, 1), 1, 2, 3, 4), 1, 12),
	)
	s, err := SummarizeReader(readerOf(t, tr))
	require.NoError(t, err)
	want := []Level{
		{
			1, 1, 3,
			Counts{36, 12, 8, 12, 16, 16},
			Counts{7, 7.0 / 3, 2, 2, 3, 3},
			Distribution{3, 7, 6, 10, 10},
			Distribution{4, 8, 1, 20, 20},
			Distribution{3, 17.0 / 3, 1, 15, 15},
			Distribution{3, 53.0 / 3, 7, 40, 40},
		},
		{2, 2, 1, Counts{4, 4, 4, 4, 4, 4}, Counts{1, 1, 1, 1, 1, 1}, Distribution{1, 30, 30, 30, 30}, Distribution{}, Distribution{}, Distribution{1, 30, 30, 30, 30}},
	}
	require.NoDiff(t, cmp.Diff(want, s.Levels), "levels (-want +got)")
	turns := []TurnCache{
		{1, false, 2, 12, 0, Distribution{2, 20, 10, 30, 30}}, {2, false, 1, 12, 8, Distribution{1, 5, 5, 5, 5}}, {3, false, 1, 16, 12, Distribution{1, 6, 6, 6, 6}},
	}
	require.NoDiff(t, cmp.Diff(turns, s.CacheByTurn), "turns (-want +got)")
	require.True(t, s.Turns != nil && *s.Turns == 2 && *s.Seconds == 0.207, "%v turns in %v s", s.Turns, s.Seconds)
}

// More levels than a person reads are put together.
func TestSummaryOfManyLevels(t *testing.T) {
	var records []trace.Record
	for i := range uint64(100) {
		r := record(float64(i), 4, 1)
		r.Concurrency = i + 1
		records = append(records, r)
	}
	records = append(records, record(1000, 4, 1), record(1001, 4, 1))
	records[100].Concurrency, records[101].Concurrency = 1<<63+5, 0
	s := Summarize(recorded(records...))
	var got []string
	for i := range s.Levels {
		got = append(got, fmt.Sprintf("%s: %d", s.Levels[i].name(), s.Levels[i].Requests))
	}
	want := []string{"0: 1", "1: 1", "2: 1", "3-4: 2", "5-8: 4", "9-16: 8", "17-32: 16", "33-64: 32", "65-128: 36", "9223372036854775809-18446744073709551615: 1"}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}

func TestSummaryNotes(t *testing.T) {
	mean := record(0, 4, 5)
	mean.OutputTokens, mean.ITLMs, mean.ITLSummary = 3, nil, &trace.ITLSummary{MeanMs: 10, Count: 2}
	without := record(0, 4, 1)
	without.ArrivalMs, without.EngineClock = nil, trace.ClockConstant
	mean.EngineClock = trace.ClockUsed
	s, err := SummarizeReader(readerOf(t, recorded(record(0, 4, -3), mean, without, record(1, 4, 1, -1))))
	require.NoError(t, err)
	want := []string{
		"2 of 4 records have a negative time, the first in line 2: the clock of the recorder was set back, or the trace was edited",
		`1 of 4 records have times by when the recorder received the messages, which are late on a busy machine: the timestamps of the engine are not used (engine_clock is "constant")`,
		"1 of 4 records have no arrival_ms, so the duration is unknown, and these records are in no turn",
		"1 of 4 records have only the mean of their gaps (itl_summary): they are in TPOT and E2E, and not in ITL",
	}
	require.NoDiff(t, cmp.Diff(want, s.Notes), "(-want +got)")
	require.True(t, s.TPOT.P99 == 10 && s.E2E.P99 == 25 && s.ITL.Count == 1 && s.Seconds == nil, "TPOT %+v, E2E %+v, ITL %+v, %v s", s.TPOT, s.E2E, s.ITL, s.Seconds)
	if _, err := SummarizeReader(readerOf(t, recorded())); err == nil || err.Error() != "t.jsonl: the trace has no records, so there is nothing to summarize" {
		t.Errorf("got %v of no records", err)
	}
}

// What a trace says in words is no markup, no command and no other cell.
func TestSummaryOfForeignWords(t *testing.T) {
	model := "::error::|<b>\x1b[1m"
	tr := recorded(record(0, 4, 1))
	tr.Name, tr.Meta.Model = "a|b\n.jsonl", &model
	s, err := SummarizeReader(readerOf(t, tr))
	require.NoError(t, err)
	for name, write := range map[string]func(Summaries, *bytes.Buffer) error{
		"text":     func(all Summaries, b *bytes.Buffer) error { return all.Text(b) },
		"markdown": func(all Summaries, b *bytes.Buffer) error { return all.Markdown(b) },
		"csv":      func(all Summaries, b *bytes.Buffer) error { return all.CSV(b) },
	} {
		var b bytes.Buffer
		require.NoError(t, write(Summaries{s, s}, &b))
		for line := range strings.Lines(b.String()) {
			require.True(t, !strings.HasPrefix(line, "::") && !strings.Contains(line, "\x1b") && (name != "markdown" || !strings.Contains(line, "<b>")), "%s has %q", name, line)
		}
	}
}

// repeated is a trace of the same line many times over, which is never in memory.
type repeated struct {
	line []byte
	left int
	rest []byte
}

func (r *repeated) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		r.left--
		r.rest = r.line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Of a large trace, no record and no gap is kept.
func TestLargeTraces(t *testing.T) {
	const records = 100_000
	line := []byte(`{"prompt_tokens":64,"output_tokens":33,"ttft_ms":20,"itl_ms":[10` + strings.Repeat(",11", 31) + `],"arrival_ms":0}` + "\n")
	open := func() *trace.Reader {
		r, err := trace.NewReader(&repeated{line: line, left: records}, "large.jsonl", false, trace.Options{})
		require.NoError(t, err)
		return r
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := SummarizeReader(open())
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("a summary of %d records allocates %d bytes", records, n)
	}
	require.True(t, s.Records == records && s.ITL.Count == 32*records && math.Abs(s.ITL.P50-11) <= 0.011, "got %d records, ITL %+v", s.Records, s.ITL)
	r := open()
	runtime.GC()
	runtime.ReadMemStats(&before)
	timeline, err := ReadTimeline(r, TimelineOptions{})
	require.NoError(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 100*records {
		t.Errorf("a timeline of %d records keeps %d bytes", records, n)
	}
	for name, write := range map[string]func(io.Writer) error{
		"text": timeline.Text, "HTML": timeline.HTML, "Perfetto": func(w io.Writer) error { return timeline.Perfetto(w, PerfettoOptions{}) },
	} {
		require.NoErrorf(t, write(io.Discard), "%s", name)
	}
	want := []string{"the trace has more than 2097152 outputs: single outputs and the steps of the engine are left out"}
	require.NoDiff(t, cmp.Diff(want, timeline.Notes), "notes (-want +got)")
}
