package replay

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
)

// Stream is one recorded stream to be replayed, and what came back of it.
type Stream struct {
	Index  int // replay index
	Record *trace.Record
	Prompt []uint32
	Chunks []int // expected sizes, nil when the recording does not tell

	got       []uint32
	gotChunks []int
	Finish    trace.FinishReason // FinishAbsent until the terminal output
	terminals int
	late      int             // outputs after the terminal one
	wrong     []check.Failure // what was seen besides
}

// RecordedStreams lists the streams of a trace in replay order, with the
// prompts to send.
func RecordedStreams(t *trace.Trace) []*Stream {
	var streams []*Stream
	for index, i := range trace.ReplaySubset(t.Records) {
		r := &t.Records[i]
		if r.OutputTokenIDs == nil {
			continue
		}
		streams = append(streams, &Stream{
			Index: index, Record: r, Prompt: PromptOf(r), Chunks: r.Chunks(), Finish: trace.FinishAbsent,
		})
	}
	return streams
}

// ID is the request id that names the record.
func (s *Stream) ID() string { return fmt.Sprintf("replay-%d", s.Index) }

// Take adds one output.
func (s *Stream) Take(tokens []uint32, finished bool, reason trace.FinishReason) {
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
		if s.Record.EndedByFrontend && reason == trace.FinishAbort {
			reason = trace.FinishLength // either is a way to end after the recorded tokens
		}
		if s.terminals == 1 {
			s.Finish = reason
		}
	}
}

// surfeited reports whether the stream has so many more tokens than its record that
// no more are kept.
func (s *Stream) surfeited() bool {
	const spare = 1000
	return len(s.got) > len(s.Record.OutputTokenIDs)+spare
}

// ended reports whether the stream came to an end of its own. An engine that goes
// down aborts what is open, which says nothing about the stream.
func (s *Stream) ended() bool {
	return s.terminals > 0 && (s.Finish != trace.FinishAbort || s.Record.FinishReason == trace.FinishAbort)
}

func (s *Stream) problem(code check.Code, format string, args ...any) check.Failure {
	where := fmt.Sprintf("request %d (line %d): ", s.Index, s.Record.Line)
	return check.Failed(code, "%s%s", where, fmt.Sprintf(format, args...)).Of(s.Index)
}

func (s *Stream) fail(f *check.Outcome, code check.Code, at int, expected, actual any, format string, args ...any) {
	f.Fail(s.problem(code, format, args...).At(at).Compared(expected, actual))
}

// refused notes that the engine would not answer. What is known last is known
// best.
func (s *Stream) refused(reason string) {
	s.wrong = slices.DeleteFunc(s.wrong, func(f check.Failure) bool { return f.Code == CodeRefused })
	s.wrong = append(s.wrong, s.problem(CodeRefused, "%s", reason).Compared("an answer", reason))
}

// compareAll reports every way in which streams differ from their records. If all that differ are the answers of other records, each as far
// away, that is one failure.
func compareAll(f *check.Outcome, streams []*Stream, framed bool) (moved bool) {
	wrong, by := offset(streams)
	if by != 0 {
		f.Fail(wrong[0].problem(CodeToken, "the answers to %d of %d requests are those of other records: record N%+d instead of N", len(wrong), len(streams), by).
			Compared("record N", fmt.Sprintf("record N%+d", by)))
	}
	for _, s := range streams {
		if by == 0 || len(wrong) == 0 || wrong[0] != s {
			s.compare(f, framed)
		} else {
			wrong = wrong[1:]
		}
	}
	return by != 0
}

// offset lists the streams that differ from their records, and returns how far away the records are of which they are the answers. That is 0
// if it is not the same for all, but for those that would need a record that is not among them.
func offset(streams []*Stream) (wrong []*Stream, by int) {
	at := map[int]*Stream{}
	for _, s := range streams {
		at[s.Index] = s
		if !s.answers(s) {
			wrong = append(wrong, s)
		}
	}
	for _, first := range streams {
		if len(wrong) == 0 || !wrong[0].answers(first) {
			continue
		}
		by, matched := first.Index-wrong[0].Index, 0
		others := slices.ContainsFunc(wrong, func(s *Stream) bool {
			to := at[s.Index+by]
			if to == nil {
				return false
			}
			matched++
			return !s.answers(to)
		})
		if !others && matched > 1 && 2*matched > len(wrong) {
			return wrong, by
		}
	}
	return wrong, 0
}

// answers reports whether the stream has the tokens of the record of another: as many as this one may have, and at least those that came before
// the frontend ended it.
func (s *Stream) answers(other *Stream) bool {
	want := other.Record.OutputTokenIDs
	if s == other || slices.Equal(s.got, want) {
		return slices.Equal(s.got, want)
	}
	want = want[:min(len(want), len(s.Record.OutputTokenIDs))]
	return slices.Equal(s.got, want) || other.Record.EndedByFrontend && slices.Equal(s.got[:min(len(s.got), len(want))], want)
}

// compare reports every way in which the stream differs from its record.
// Chunks are only compared when they were seen one by one.
func (s *Stream) compare(f *check.Outcome, framed bool) {
	f.Asserted++
	f.Tokens += len(s.Record.OutputTokenIDs)
	want := s.Record.OutputTokenIDs
	f.Failures = append(f.Failures, s.wrong...)
	if !slices.Equal(s.got, want) {
		at := check.FirstDifference(want, s.got)
		s.fail(f, CodeToken, at, check.Around(want, at), check.Around(s.got, at), "token %d differs: expected %s, got %s (%d expected, %d received)",
			at, check.Around(want, at), check.Around(s.got, at), len(want), len(s.got))
	}
	expected := s.Record.ReplayEnd()
	switch {
	case s.terminals == 0:
		s.fail(f, CodeNoTerminal, len(s.got), "a terminal output", "none", "no terminal output after %d of %d tokens", len(s.got), len(want))
	case s.terminals > 1:
		s.fail(f, CodeTerminals, len(s.got), 1, s.terminals, "%d terminal outputs, expected exactly one", s.terminals)
	case s.Finish != expected:
		s.fail(f, CodeFinishReason, len(s.got), expected, s.Finish, "finish reason is %v, expected %v", s.Finish, expected)
	}
	if s.late > 0 {
		s.fail(f, CodeLate, len(want), 0, s.late, "%d outputs after the terminal one, expected 0", s.late)
	}
	if framed && s.Chunks != nil && !slices.Equal(s.gotChunks, s.Chunks) {
		at := check.FirstDifference(s.Chunks, s.gotChunks)
		s.fail(f, CodeChunks, at, check.Around(s.Chunks, at), check.Around(s.gotChunks, at), "chunk %d differs: expected sizes %s, got %s", at, check.Around(s.Chunks, at), check.Around(s.gotChunks, at))
	}
}

// PromptOf is the recorded prompt where the golden carries it, else as many
// tokens: matching by index looks at the length only.
func PromptOf(r *trace.Record) []uint32 {
	if r.PromptTokenIDs != nil {
		return r.PromptTokenIDs
	}
	prompt := make([]uint32, r.PromptTokens)
	for i := range prompt {
		prompt[i] = plainToken
	}
	return prompt
}

// plainToken fills prompts whose content does not matter.
const plainToken = 42

// prefixPrompts prepares a trace for matching by prompt. Where every record
// carries its prompt, these are sent. Otherwise the prompts are made up so that
// they share prefixes exactly where the recorded hash chains do: each recorded
// hash represents one block of tokens, and the chains of the copy are those of
// the made-up prompts. The token streams stay the recorded ones.
func prefixPrompts(t *trace.Trace, blockSize int) *trace.Trace {
	isComplete := true
	for i := range t.Records {
		if t.Records[i].PromptTokenIDs == nil {
			return synthesize(t, blockSize)
		}
		isComplete = isComplete && t.Records[i].BlockHashes != nil
	}
	if isComplete {
		return t
	}
	return rewrite(t, func(r *trace.Record) {
		if r.BlockHashes == nil {
			r.BlockHashes = trace.BlockHashes(r.PromptTokenIDs, blockSize)
		}
	})
}

// rewrite returns a copy of a trace with other records.
func rewrite(t *trace.Trace, change func(*trace.Record)) *trace.Trace {
	rewritten := *t
	rewritten.Records = slices.Clone(t.Records)
	for i := range rewritten.Records {
		change(&rewritten.Records[i])
	}
	return &rewritten
}

func synthesize(t *trace.Trace, blockSize int) *trace.Trace {
	blocks := map[uint64]uint32{} // recorded hash to the number of its block
	number := func(hash uint64) uint32 {
		n, known := blocks[hash]
		if !known {
			n = uint32(len(blocks)) + 1
			blocks[hash] = n
		}
		return n
	}
	return rewrite(t, func(r *trace.Record) {
		prompt := make([]uint32, r.PromptTokens)
		for b, hash := range r.BlockHashes {
			if (b+1)*blockSize <= len(prompt) {
				prompt[b*blockSize] = number(hash)
			}
		}
		r.PromptTokenIDs, r.BlockHashes = prompt, trace.BlockHashes(prompt, blockSize)
	})
}
