package live

import (
	_ "embed"
	"errors"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

const CodeRepeat check.Code = "E017" // the same greedy request gave other tokens

//go:embed repeat.md
var repeatCodes string

var repeat = check.Check{Name: Repeat, Codes: repeatCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkRepeat)}

// checkRepeat asks twice for the same: greedily, and with a seed.
func (l *live) checkRepeat() error {
	seeded := greedy(16)
	seeded.Temperature, seeded.Seed, seeded.HasSeed = 1, 7, true
	for _, sampling := range []protocol.Sampling{greedy(16), seeded} {
		if err := l.repeat(l.prompt(20), sampling); err != nil {
			return err
		}
	}
	return l.barrier()
}

// repeat sends a request twice, one after the other, with nothing cached of it.
func (l *live) repeat(prompt []uint32, sampling protocol.Sampling) error {
	first, err := l.askAndAwait(prompt, sampling)
	if err != nil {
		return err
	}
	// What is found in the prefix cache is not computed in the same pieces again, and
	// rounds in another way: a real model may choose another token for that.
	if _, err := l.call(resetPrefixCache.method, resetPrefixCache.args...); err != nil && !(errors.Is(err, errUnanswered) && l.mute) {
		return err
	}
	again, err := l.askAgain(first, sampling)
	if err != nil {
		return err
	}
	l.f.Asserted++
	if !slices.Equal(first.tokens, again.tokens) {
		at := check.FirstDifference(first.tokens, again.tokens)
		l.fail(first.id, check.Failed(CodeRepeat, "request %s, temperature %v: the second time token %d differs: first %s, then %s",
			first.id, sampling.Temperature, at, check.Around(first.tokens, at), check.Around(again.tokens, at)).
			At(at).Compared(check.Around(first.tokens, at), check.Around(again.tokens, at)))
	}
	return nil
}
