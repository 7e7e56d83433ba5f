package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/trace"
)

// stream is one recorded stream to be replayed, and what came back of it.
type stream struct {
	index  int // replay index
	record *trace.Record
	prompt []uint32
	chunks []int // expected sizes, nil when the recording does not tell

	got       []uint32
	gotChunks []int
	finish    trace.FinishReason // FinishAbsent until the terminal output
	terminals int
	late      int // outputs after the terminal one
	problem   string
}

// recordedStreams lists the streams of a trace in replay order, with the
// prompts to send.
func recordedStreams(t *trace.Trace) []*stream {
	var streams []*stream
	for index, i := range trace.ReplaySubset(t.Records) {
		r := &t.Records[i]
		if r.OutputTokenIDs == nil {
			continue
		}
		streams = append(streams, &stream{
			index: index, record: r, prompt: promptOf(r), chunks: r.Chunks(), finish: trace.FinishAbsent,
		})
	}
	return streams
}

// id is the request id that names the record.
func (s *stream) id() string { return fmt.Sprintf("replay-%d", s.index) }

// take adds one output.
func (s *stream) take(tokens []uint32, finished bool, reason trace.FinishReason) {
	if s.terminals > 0 {
		s.late++
	}
	s.got = append(s.got, tokens...)
	if len(tokens) > 0 {
		s.gotChunks = append(s.gotChunks, len(tokens))
	}
	if finished {
		s.terminals++
		if s.terminals == 1 {
			s.finish = reason
		}
	}
}

// ended tells whether the stream came to an end of its own. An engine that goes
// down aborts what is open, which says nothing about the stream.
func (s *stream) ended() bool {
	return s.terminals > 0 && (s.finish != trace.FinishAbort || s.record.FinishReason == trace.FinishAbort)
}

// window is how many ids either side of a difference a message shows.
const window = 8

// compare reports every way in which the stream differs from its record.
// Chunks are only compared when they were seen one by one.
func (s *stream) compare(f *finding, framed bool) {
	f.asserted++
	f.tokens += len(s.record.OutputTokenIDs)
	want := s.record.OutputTokenIDs
	where := fmt.Sprintf("request %d (line %d)", s.index, s.record.Line)
	if s.problem != "" {
		f.failRequest(s.index, "%s: %s", where, s.problem)
	}
	if !slices.Equal(s.got, want) {
		at := firstDifference(want, s.got)
		f.failRequest(s.index, "%s: token %d differs: expected %s, got %s (%d expected, %d received)",
			where, at, around(want, at), around(s.got, at), len(want), len(s.got))
	}
	expected := s.record.FinishReason
	if expected == trace.FinishAbsent {
		expected = trace.FinishLength
	}
	switch {
	case s.terminals == 0:
		f.failRequest(s.index, "%s: no terminal output after %d of %d tokens", where, len(s.got), len(want))
	case s.terminals > 1:
		f.failRequest(s.index, "%s: %d terminal outputs, expected exactly one", where, s.terminals)
	case s.finish != expected:
		f.failRequest(s.index, "%s: finish reason is %v, expected %v", where, s.finish, expected)
	}
	if s.late > 0 {
		f.failRequest(s.index, "%s: %d outputs after the terminal one", where, s.late)
	}
	if framed && s.chunks != nil && !slices.Equal(s.gotChunks, s.chunks) {
		at := firstDifference(s.chunks, s.gotChunks)
		f.failRequest(s.index, "%s: chunk %d differs: expected sizes %s, got %s", where, at, around(s.chunks, at), around(s.gotChunks, at))
	}
}

// unfinished names the first of the streams whose end has not come.
func unfinished(sent []*stream) string {
	const shown = 3
	var places []string
	open := 0
	for _, s := range sent {
		if s.ended() {
			continue
		}
		if open++; open <= shown {
			places = append(places, fmt.Sprintf("request %d (line %d) after %d of %d tokens",
				s.index, s.record.Line, len(s.got), len(s.record.OutputTokenIDs)))
		}
	}
	if open == 0 {
		return ""
	}
	if open > shown {
		places = append(places, "…")
	}
	return fmt.Sprintf("%d open: %s", open, strings.Join(places, ", "))
}

func firstDifference[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// around shows the values near a position, with dots where more follow.
func around[T any](values []T, at int) string {
	from, to := max(at-window, 0), min(at+window+1, len(values))
	if from > to {
		from = to
	}
	s := fmt.Sprint(values[from:to])
	if from > 0 {
		s = "[…" + s[1:]
	}
	if to < len(values) {
		s = s[:len(s)-1] + "…]"
	}
	return s
}

// digest is the stream digest of what came back.
func digest(streams []*stream) string {
	d := trace.NewStreamDigest()
	for _, s := range streams {
		d.Add(s.index, s.got, s.finish)
	}
	return d.Hex()
}
