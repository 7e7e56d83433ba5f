package live

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// checkStreaming has 16 requests in flight, of different lengths both ways.
func (l *live) checkStreaming() error {
	const flights = 16
	var asks []*ask
	for i := range flights {
		a, err := l.ask(l.prompt(1+i*5%37), greedy(1+i*7%23))
		if err != nil {
			return err
		}
		asks = append(asks, a)
	}
	if err := l.await(asks...); err != nil {
		return err
	}
	return l.barrier() // what comes late comes before
}

// checkStop asks again for tokens that are known to come, or likely to, with rules
// to stop at them. What is asserted are the rules, whatever tokens came.
func (l *live) checkStop() error {
	const limit = 24
	prompt := l.prompt(12)
	first, err := l.askAndAwait(prompt, greedy(limit))
	if err != nil || len(first.tokens) == 0 {
		return err
	}
	known := laterToken(first.tokens)
	var even []uint32
	for id := uint32(0); id < lowestVocabulary; id += 2 {
		even = append(even, id)
	}
	for _, rule := range []func(*protocol.Sampling){
		func(s *protocol.Sampling) { s.StopTokenIDs = []uint32{known} },
		func(s *protocol.Sampling) { s.EOSTokenID = int64(known) },
		func(s *protocol.Sampling) { s.StopTokenIDs, s.EOSTokenID = []uint32{known}, int64(known) },
		func(s *protocol.Sampling) { s.StopTokenIDs = even },
		func(s *protocol.Sampling) { s.StopTokenIDs, s.MinTokens = even, 8 },
		func(s *protocol.Sampling) { s.EOSTokenID, s.MinTokens = int64(first.tokens[0]), 4 },
		func(s *protocol.Sampling) { s.MinTokens = limit },
	} {
		sampling := greedy(limit)
		rule(&sampling)
		if _, err := l.askAgain(first, sampling); err != nil {
			return err
		}
	}
	return l.barrier()
}

// laterToken is the last token that did not come before.
func laterToken(tokens []uint32) uint32 {
	for i := len(tokens) - 1; i > 0; i-- {
		if !slices.Contains(tokens[:i], tokens[i]) {
			return tokens[i]
		}
	}
	return tokens[0]
}

// checkAbort aborts requests before and after their first output. Others get what
// they asked for, the ids can be used again, and to abort what is unknown, or has
// ended, is nothing. A real engine says nothing of an aborted request; whether an
// engine ends it with an output is left to it, until it has read the abort.
func (l *live) checkAbort() error {
	const tries = 5 // an engine that is quick may be done before it reads an abort
	for range tries {
		hit, err := l.abortSome()
		if err != nil || hit {
			return err
		}
	}
	l.f.AddNote("every request had ended before the engine read its abort, so only the use of their ids was judged")
	return nil
}

// abortSome makes one try, and tells whether a request was open when the engine read
// its abort.
func (l *live) abortSome() (hit bool, err error) {
	long := min(512, max(l.s.Engine.Ready.MaxModelLen/2, 2))
	var others, victims []*ask
	for i := range 6 {
		list, tokens := &others, 16
		if i%2 == 0 {
			list, tokens = &victims, long
		}
		a, err := l.ask(l.prompt(10+i), greedy(tokens))
		if err != nil {
			return false, err
		}
		*list = append(*list, a)
	}
	if err := l.abort(victims[0]); err != nil {
		return false, err
	}
	if err := l.awaitOutput(victims[1]); err != nil {
		return false, err
	}
	if err := l.s.Front.Abort(0, "live-unknown", victims[0].id); err != nil {
		return false, err
	}
	if err := l.abort(victims[1:]...); err != nil {
		return false, err
	}
	if err := l.await(others...); err != nil {
		return false, err
	}
	hit = slices.ContainsFunc(victims, func(a *ask) bool { return a.finish == protocol.Unfinished })
	return hit, l.useAgain(append(victims, others...))
}

// useAgain sends new requests under the ids of ended ones.
func (l *live) useAgain(ended []*ask) error {
	if err := l.barrier(); err != nil { // what comes late belongs to the ended ones
		return err
	}
	var again []*ask
	for _, a := range ended {
		b, err := l.askAs(a.id, l.prompt(7), greedy(5))
		if err != nil {
			return err
		}
		again = append(again, b)
	}
	if err := l.await(again...); err != nil {
		return err
	}
	for _, a := range again {
		l.f.Asserted++
		if a.finish != protocol.FinishLength {
			l.fail(a.id, check.Failed(CodeAbort, "the id %s cannot be used again after an abort: the request ended by %s", a.id, a.finish).
				Compared(protocol.FinishLength, a.finish))
		}
	}
	return l.barrier()
}
