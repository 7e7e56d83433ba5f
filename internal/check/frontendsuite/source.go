package frontendsuite

import (
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// speaker decides what the player says to a frontend under test: what was planned
// for a prompt, else the prompt itself. An echo comes out of HTTP as the text that
// went in, whatever the tokenizer is. It is safe for use by several goroutines.
type speaker struct {
	mu    sync.Mutex
	plans map[string]plan
}

// plan is what to say to one prompt.
type plan struct {
	script player.Script
	refuse error // instead of a script
	// ready, if not nil, is called before the answer begins: the engine waits for it.
	ready func()
}

// Script implements [player.Source].
func (s *speaker) Script(r *player.Request) (player.Script, error) {
	s.mu.Lock()
	p, planned := s.plans[promptKey(r.PromptTokenIDs)]
	s.mu.Unlock()
	switch {
	case !planned:
		return player.Script{Tokens: slices.Clone(r.PromptTokenIDs), Finish: protocol.FinishLength}, nil
	case p.ready != nil:
		p.ready()
	}
	return p.script, p.refuse
}

// plan sets what is said to a prompt from now on.
func (s *speaker) plan(prompt []uint32, p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plans == nil {
		s.plans = map[string]plan{}
	}
	s.plans[promptKey(prompt)] = p
}

func promptKey(prompt []uint32) string {
	key := make([]byte, 0, 4*len(prompt))
	for _, id := range prompt {
		key = append(key, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return string(key)
}

// stuck is the pause before a token that is never said: longer than any run.
const stuck = 1000 * time.Hour

// stalling says the tokens and then nothing more, without an end.
func stalling(tokens []uint32) player.Script {
	s := player.Script{Tokens: append(slices.Clone(tokens), tokens[0]), Finish: protocol.FinishLength}
	s.Gaps = make([]time.Duration, len(tokens))
	s.Gaps[len(tokens)-1] = stuck
	return s
}
