package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
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
	late      int       // outputs after the terminal one
	wrong     []Failure // what was seen besides
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
	if s.surfeited() {
		tokens = nil
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

// surfeited tells whether the stream has so many more tokens than its record that
// no more are kept.
func (s *stream) surfeited() bool {
	const spare = 1000
	return len(s.got) > len(s.record.OutputTokenIDs)+spare
}

// ended tells whether the stream came to an end of its own. An engine that goes
// down aborts what is open, which says nothing about the stream.
func (s *stream) ended() bool {
	return s.terminals > 0 && (s.finish != trace.FinishAbort || s.record.FinishReason == trace.FinishAbort)
}

// problem makes a failure about the stream.
func (s *stream) problem(code Code, format string, args ...any) Failure {
	where := fmt.Sprintf("request %d (line %d): ", s.index, s.record.Line)
	return check.Failed(code, "%s%s", where, fmt.Sprintf(format, args...)).Of(s.index)
}

func (s *stream) fail(f *check.Outcome, code Code, at int, expected, actual any, format string, args ...any) {
	f.Fail(s.problem(code, format, args...).At(at).Compared(expected, actual))
}

// refused notes that the engine would not answer. What is known last is known
// best.
func (s *stream) refused(reason string) {
	s.wrong = slices.DeleteFunc(s.wrong, func(f Failure) bool { return f.Code == check.CodeRefused })
	s.wrong = append(s.wrong, s.problem(check.CodeRefused, "%s", reason).Compared("an answer", reason))
}

// window is how many ids either side of a difference a message shows.
const window = 8

// compare reports every way in which the stream differs from its record.
// Chunks are only compared when they were seen one by one.
func (s *stream) compare(f *check.Outcome, framed bool) {
	f.Asserted++
	f.Tokens += len(s.record.OutputTokenIDs)
	want := s.record.OutputTokenIDs
	f.Failures = append(f.Failures, s.wrong...)
	if !slices.Equal(s.got, want) {
		at := firstDifference(want, s.got)
		s.fail(f, check.CodeToken, at, around(want, at), around(s.got, at), "token %d differs: expected %s, got %s (%d expected, %d received)",
			at, around(want, at), around(s.got, at), len(want), len(s.got))
	}
	expected := s.record.FinishReason
	if expected == trace.FinishAbsent {
		expected = trace.FinishLength
	}
	switch {
	case s.terminals == 0:
		s.fail(f, check.CodeNoTerminal, len(s.got), "a terminal output", "none", "no terminal output after %d of %d tokens", len(s.got), len(want))
	case s.terminals > 1:
		s.fail(f, check.CodeTerminals, len(s.got), 1, s.terminals, "%d terminal outputs, expected exactly one", s.terminals)
	case s.finish != expected:
		s.fail(f, check.CodeFinishReason, len(s.got), expected, s.finish, "finish reason is %v, expected %v", s.finish, expected)
	}
	if s.late > 0 {
		s.fail(f, check.CodeLate, len(want), 0, s.late, "%d outputs after the terminal one, expected 0", s.late)
	}
	if framed && s.chunks != nil && !slices.Equal(s.gotChunks, s.chunks) {
		at := firstDifference(s.chunks, s.gotChunks)
		s.fail(f, check.CodeChunks, at, around(s.chunks, at), around(s.gotChunks, at), "chunk %d differs: expected sizes %s, got %s", at, around(s.chunks, at), around(s.gotChunks, at))
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
