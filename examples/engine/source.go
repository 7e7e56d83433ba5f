// Command engine is an engine core of your own: the player answers the frontend, and a Source of yours decides what it
// says. This one counts up from the last token of the prompt.
package main

import "github.com/vllm-vcr/conformance/player"

// Counter continues a prompt by counting: 7, 8, 9 is followed by 10.
type Counter struct{ Vocab uint32 }

// Script answers a request with as many tokens as it allows, unless one of them is a stop token.
func (c Counter) Script(r *player.Request) (player.Script, error) {
	var last uint32
	if n := len(r.PromptTokenIDs); n > 0 {
		last = r.PromptTokenIDs[n-1]
	}
	return player.Script{
		Fill:         func(position int) uint32 { return (last + 1 + uint32(position)) % c.Vocab },
		Stops:        true,
		CachedTokens: player.LookUp,
	}, nil
}
