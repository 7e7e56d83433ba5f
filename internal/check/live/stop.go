package live

import (
	_ "embed"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeStopRule   check.Code = "E010" // a stop token was not obeyed, or something else was taken for one
	CodeStopReason check.Code = "E011" // stop_reason does not name the token that ended the request
	CodeMinTokens  check.Code = "E012" // a request stopped before min_tokens
)

//go:embed stop.md
var stopCodes string

var stop = check.Check{Name: Stop, Codes: stopCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkStop)}

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
	even := evenTokens()
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

func evenTokens() (even []uint32) {
	for id := uint32(0); id < lowestVocabulary; id += 2 {
		even = append(even, id)
	}
	return even
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

// askAgain sends the prompt of an ended request once more and awaits the end, under
// the same id: an engine without a model may make its tokens of that. What comes
// late of the first belongs to the first.
func (l *live) askAgain(first *ask, sampling protocol.Sampling) (*ask, error) {
	if err := l.barrier(); err != nil {
		return nil, err
	}
	again, err := l.askAs(first.id, first.prompt, sampling)
	if err != nil {
		return nil, err
	}
	return again, l.await(again)
}
