package live

import (
	_ "embed"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

const CodeAbort check.Code = "E014" // an abort disturbed others, or left its id unusable

//go:embed abort.md
var abortCodes string

var abort = check.Check{Name: Abort, Codes: abortCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkAbort)}

// checkAbort aborts requests before and after their first output. Others get what
// they asked for, the ids can be used again, and to abort what is unknown, or has
// ended, is nothing. A real engine says nothing of an aborted request; whether an
// engine ends it with an output is left to it, until it has read the abort.
func (l *live) checkAbort() error {
	hit, err := l.tryAborts(l.abortSome)
	if err == nil && !hit {
		l.f.AddNote("every request had ended before the engine read its abort, so only the use of their ids was judged")
	}
	return err
}

// tryAborts aborts requests until one is open when the engine reads its abort: an engine that is quick may be done before.
func (l *live) tryAborts(abort func() (hit bool, err error)) (hit bool, err error) {
	for range 5 {
		if hit, err = abort(); hit || err != nil {
			break
		}
	}
	return hit, err
}

// long is how many tokens a request asks for that is to be open for a while.
func (l *live) long() int { return min(512, max(l.s.Engine.Ready.MaxModelLen/2, 2)) }

// abortSome makes one try, and reports whether a request was open when the engine read
// its abort.
func (l *live) abortSome() (hit bool, err error) {
	var others, victims []*ask
	for i := range 6 {
		list, tokens := &others, 16
		if i%2 == 0 {
			list, tokens = &victims, l.long()
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
