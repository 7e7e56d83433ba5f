package player

import (
	"math"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// defaultVocab is the vocabulary that ids are drawn from when nobody names one.
const defaultVocab = 32000

// logprobs makes up the log-probabilities that a request asked for. No
// recording holds them, and a frontend answers HTTP 500 without: each token is
// said to be the most likely one with probability one half, the ids after it to
// be half as likely each.
type logprobs struct {
	count  int // besides the sampled token; protocol.NoLogprobs if not asked
	prompt int // likewise for the prompt
	ids    []uint32
}

func newLogprobs(r *protocol.Request, vocab uint32) *logprobs {
	l := &logprobs{count: within(r.Sampling.Logprobs, vocab), prompt: within(r.Sampling.PromptLogprobs, vocab)}
	if l.count == protocol.NoLogprobs && l.prompt == protocol.NoLogprobs {
		return nil
	}
	if l.prompt != protocol.NoLogprobs {
		l.ids = append(l.ids, r.PromptTokenIDs...)
	}
	return l
}

// within bounds how many ids are named by how many there are.
func within(count int, vocab uint32) int {
	if count == protocol.AllLogprobs {
		return int(vocab)
	}
	return min(count, int(vocab))
}

// attach adds what the request asked for to an output.
func (l *logprobs) attach(out *protocol.Output, first bool) {
	if l == nil {
		return
	}
	if l.count != protocol.NoLogprobs && len(out.Tokens) > 0 {
		out.Logprobs = logprobTable(out.Tokens, l.count)
	}
	if first && l.prompt != protocol.NoLogprobs {
		out.PromptLogprobs = logprobTable(l.ids[min(1, len(l.ids)):], l.prompt)
		l.ids = nil
	}
}

func logprobTable(tokens []uint32, count int) *protocol.Logprobs {
	t := &protocol.Logprobs{Width: count + 1}
	for _, token := range tokens {
		t.Ranks = append(t.Ranks, 1)
		t.TokenIDs, t.Values = append(t.TokenIDs, token), append(t.Values, -math.Ln2)
		for k := range count {
			t.TokenIDs = append(t.TokenIDs, neighbour(token, uint32(k)))
			t.Values = append(t.Values, float32(-math.Ln2*float64(k+1)))
		}
	}
	return t
}

// neighbour returns the k-th most likely id: the sampled one first, as for
// greedy sampling, then the ids below it, then those above, so that no id is
// named twice or lies past the vocabulary.
func neighbour(token, k uint32) uint32 {
	if k <= token {
		return token - k
	}
	return k
}
