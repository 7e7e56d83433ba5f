package selftest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/trace"
)

// edits are the tokens that stand in the place of those at some positions.
type edits map[int][]uint32

// apply returns the stream as it comes out.
func (e edits) apply(tokens []uint32) []uint32 {
	var out []uint32
	for i, t := range tokens {
		if in, edited := e[i]; edited {
			out = append(out, in...)
		} else {
			out = append(out, t)
		}
	}
	return out
}

// tamper makes the edits on the wire.
func (e edits) tamper(s *scene) tamper {
	return s.hit(func(o *spoken) {
		var tokens []*node
		for i, t := range o.tokens.items {
			if in, edited := e[o.first+i]; edited {
				tokens = append(tokens, numbers(in).items...)
			} else {
				tokens = append(tokens, t)
			}
		}
		o.tokens.items = tokens
	})
}

// otherToken is what an altered token becomes.
const otherToken = 31337

// tokenFaults lose, exchange, repeat and alter a token at the begin, in the middle
// and at the end of a stream.
func tokenFaults(s *scene) []Fault {
	t := s.target.tokens
	var faults []Fault
	for _, place := range []struct {
		name     string
		position int
		pair     int // the first of the two that are exchanged
	}{{"first", 0, 0}, {"middle", s.target.middle(), s.target.middle()}, {"last", s.target.last(), s.target.last() - 1}} {
		p, q := place.position, place.pair
		for _, kind := range []struct {
			name, says string
			edits      edits
		}{
			{"dropped-token-", "token of a stream is lost", edits{p: nil}},
			{"swapped-tokens-", "two tokens of a stream are exchanged", edits{q: {t[q+1]}, q + 1: {t[q]}}},
			{"repeated-token-", "token of a stream comes twice", edits{p: {t[p], t[p]}}},
			{"altered-token-", "token of a stream is another", edits{p: {otherToken}}},
		} {
			faults = append(faults, Fault{
				Name: kind.name + place.name, Says: "the " + place.name + " " + kind.says,
				red: only(conformance.Fidelity, s.differs(kind.edits.apply(t))), wire: kind.edits.tamper,
			})
		}
	}
	return faults
}

// differs is what is wanted when the target's tokens come out as others.
func (s *scene) differs(got []uint32) want {
	expected := s.target.tokens
	at := 0
	for at < len(expected) && at < len(got) && expected[at] == got[at] {
		at++
	}
	w := about(replay.CodeToken, s.target.index, at)
	w.says = append(w.says, fmt.Sprintf("token %d differs", at), fmt.Sprintf("(%d expected, %d received)", len(expected), len(got)))
	return w.compares(tokenAt(expected, at), tokenAt(got, at))
}

// tokenAt is what a message must show of a stream: its token at a position, or
// that it has ended.
func tokenAt(tokens []uint32, at int) string {
	if at < len(tokens) {
		return strconv.Itoa(int(tokens[at]))
	}
	return "]"
}

// streamFaults are about the ends of streams.
func streamFaults(s *scene) []Fault {
	r, n := s.target.index, len(s.target.tokens)
	reason := trace.FinishStop
	if s.target.finish == trace.FinishStop {
		reason = trace.FinishLength
	}
	finish := about(replay.CodeFinishReason, r, n).compares(s.target.finish.String(), reason.String())
	const finishAt = "EngineCoreOutputs.outputs[0].finish_reason"
	twice := about(replay.CodeTerminals, r, n)
	twice.expected, twice.actual = "1", "2"
	twice.says = append(twice.says, "expected exactly one")
	late := about(replay.CodeLate, r, n)
	late.expected, late.actual = "0", "1"
	open := func(tokens int) want {
		w := about(check.CodeSilence, r, tokens)
		w.says = append(w.says, "no output for ", fmt.Sprintf("after %d of %d tokens", tokens, n))
		return w
	}
	return []Fault{
		{
			Name: "wrong-finish-reason", Says: "a stream ends for another reason",
			red:  and(only(conformance.Fidelity, finish), conformance.Wire, differingOutput(replay.CodeWireValue, finishAt)),
			wire: atEnd(func(o *spoken) { o.finish().become(o.otherFinish()) }),
		},
		{
			Name: "missing-terminal", Says: "the last output of a stream does not say that it ends",
			red: and(only(conformance.Fidelity, open(n)), conformance.Wire, differingOutput(replay.CodeWireKind, finishAt)), waits: idle,
			wire: atEnd(func(o *spoken) { o.finish().become(null()) }),
		},
		{
			Name: "truncated-stream", Says: "the second half of a stream never comes",
			red: only(conformance.Fidelity, open(s.boundary())), waits: idle,
			wire: func(s *scene) tamper {
				return s.hit(func(o *spoken) {
					if o.first >= s.boundary() {
						o.take()
					}
				})
			},
		},
		{
			Name: "second-terminal", Says: "a stream ends twice",
			red:  only(conformance.Fidelity, twice),
			wire: atEnd(func(o *spoken) { o.after = append(o.after, o.alone(o.copy())) }),
		},
		{
			Name: "late-output", Says: "an output without tokens comes after the end of its stream",
			red:  only(conformance.Fidelity, late),
			wire: atEnd(func(o *spoken) { o.after = append(o.after, o.alone(o.unfinished())) }),
		},
		{
			Name: "late-token", Says: "a token comes after the end of its stream",
			red: only(conformance.Fidelity, s.differs(append(slices.Clone(s.target.tokens), otherToken))),
			wire: atEnd(func(o *spoken) {
				o.after = append(o.after, o.alone(o.unfinished(otherToken)))
			}),
		},
		{
			Name: "early-terminal", Says: "a stream ends before its last token",
			red: only(conformance.Fidelity, twice),
			wire: func(s *scene) tamper {
				return s.hit(func(o *spoken) {
					if o.covers(s.target.middle()) {
						o.finish().become(number(1))
					}
				})
			},
		},
	}
}

// otherFinish is stop, or length in its place.
func (o *spoken) otherFinish() *node {
	if stop := number(0); !bytes.Equal(o.finish().leaf, stop.leaf) {
		return stop
	}
	return number(1)
}

// boundary is the position at which the chunk of the middle begins.
func (s *scene) boundary() int {
	_, begin := s.target.chunkAt(s.target.middle())
	return begin
}

// unfinished is an output like it, with other tokens, that ends nothing.
func (o *spoken) unfinished(tokens ...uint32) *node {
	out := o.copy(tokens...)
	out.items[o.scene.field("EngineCoreOutput", "finish_reason")] = null()
	return out
}

// once edits the first output that will do.
func once(does func(*spoken) bool, edit func(*spoken)) func(*scene) tamper {
	return func(s *scene) tamper {
		done := false
		look := s.hit(func(o *spoken) {
			if does(o) {
				done = true
				edit(o)
			}
		})
		return func(m message) ([]message, error) {
			if done {
				return faithful(m)
			}
			return look(m)
		}
	}
}

// atEnd edits the last output of the target.
func atEnd(edit func(*spoken)) func(*scene) tamper { return once((*spoken).terminal, edit) }

// inMiddle edits the output of the target that has the token in its middle. Where
// any will do, it is one that is neither the first nor the last of its request.
func inMiddle(edit func(*spoken)) func(*scene) tamper {
	return once(func(o *spoken) bool {
		if o.scene.any {
			return o.first > 1 && len(o.tokens.items) > 0 && !o.terminal()
		}
		return o.covers(o.scene.target.middle())
	}, edit)
}
