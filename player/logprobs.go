package player

import (
	"fmt"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// defaultVocab is the vocabulary that ids are drawn from by default.
const defaultVocab = 32000

// logprobs makes up the log-probabilities that a request wants, as no trace holds
// them and a frontend answers HTTP 500 without. The k-th most likely id, from 0, has the
// probability 1/((k+1)(k+2)). A sampled token is the most likely one; the tokens of
// the prompt have other ranks, as in a real engine, so most are not among the most likely
// ids that come with them.
type logprobs struct {
	vocab  uint32 // as far as it is known to the frontend: up to the highest id of the prompt
	count  int    // besides the sampled token; protocol.NoLogprobs if not wanted
	prompt int    // likewise for the prompt
	wanted []uint32
	ids    []uint32 // the prompt
	scores *protocol.PromptScores
	start  int       // place that the first row of scores follows
	chosen []float32 // of the tokens that were not sent yet, past them the last one; nil makes them up
}

// maxCells bounds one table, in ids. A request for more, such as the whole
// vocabulary for each token of a long prompt, ends with an error: a player that is
// out of memory answers no request.
const maxCells = 1 << 24

// newLogprobs returns nil when the request wants none.
func newLogprobs(r *protocol.Request, vocab uint32) (*logprobs, error) {
	s := &r.Sampling
	if s.Logprobs == protocol.NoLogprobs && s.PromptLogprobs == protocol.NoLogprobs && s.PromptScores == nil {
		return nil, nil
	}
	if lowest := min(s.Logprobs, s.PromptLogprobs); lowest < protocol.AllLogprobs {
		return nil, fmt.Errorf("logprobs are %d: want at least -1", lowest) // of a frontend in this process: the wire has none
	}
	l := &logprobs{count: within(s.Logprobs, vocab), prompt: within(s.PromptLogprobs, vocab)}
	if len(s.LogprobTokenIDs) > 0 {
		l.count, l.wanted = len(s.LogprobTokenIDs), append(l.wanted, s.LogprobTokenIDs...)
	}
	if s.PromptScores != nil {
		var err error
		if l.scores, err = protocol.DecodePromptScores(s.PromptScores, r.Aux); err != nil {
			return nil, err
		}
		l.start = s.PromptScoreStart
	}
	if len(r.PromptTokenIDs) > 0 && (l.prompt != protocol.NoLogprobs || l.scores != nil) {
		l.vocab = slices.Max(r.PromptTokenIDs) + 1
		l.ids = append(l.ids, r.PromptTokenIDs...)
	}
	return l, nil
}

// within bounds how many ids are named by how many there are.
func within(count int, vocab uint32) int {
	if count == protocol.AllLogprobs {
		return int(vocab)
	}
	return min(count, int(vocab))
}

// attach adds what the request wants to an output. All that it wants of the
// prompt comes with the first one, however many steps the prompt took
// (vllm/v1/worker/gpu_model_runner.py _get_prompt_logprobs_dict).
func (l *logprobs) attach(out *protocol.Output, first bool) {
	if l == nil {
		return
	}
	if l.count != protocol.NoLogprobs && len(out.Tokens) > 0 {
		out.Logprobs = logprobTable(out.Tokens, l.count, l.wanted, func(int, uint32) int64 { return 1 })
		l.choose(out.Logprobs)
	}
	if !first {
		return
	}
	if l.prompt != protocol.NoLogprobs {
		out.PromptLogprobs = logprobTable(l.ids[min(1, len(l.ids)):], l.prompt, nil, l.promptRank)
	}
	if l.scores != nil {
		out.PromptScores = l.scored()
	}
	l.ids, l.scores = nil, nil
}

// choose shifts the rows of a table so that the sampled tokens have the log-probabilities that were chosen.
func (l *logprobs) choose(t *protocol.Logprobs) {
	if t == nil || len(l.chosen) == 0 {
		return
	}
	for row := range slices.Chunk(t.Values, t.Width) {
		shift := l.chosen[0] - row[0]
		for i := range row {
			row[i] += shift
		}
		row[0] = l.chosen[0] // exactly
		l.chosen = l.chosen[min(1, len(l.chosen)-1):]
	}
}

// promptRank is the rank of a token of the prompt, from 1: half of them are within the
// square root of the vocabulary. The argument place is 0 for the prompt's second token.
func (l *logprobs) promptRank(place int, token uint32) int64 {
	rank := uint32(math.Pow(float64(l.vocab), float64(unit(uint64(token), place))))
	// So that the most likely id, rank-1 above the token, is one of the vocabulary: frontends
	// fail with ids that their model has not.
	return int64(min(max(rank, 1), l.vocab-token))
}

// logprobTable has a row for each token: the token itself, then as many ids, the most
// likely ones unless others are wanted. It is nil when it would be too large.
func logprobTable(tokens []uint32, count int, wanted []uint32, rankOf func(row int, token uint32) int64) *protocol.Logprobs {
	if len(tokens)*(count+1) > maxCells {
		return nil
	}
	cells := len(tokens) * (count + 1)
	t := &protocol.Logprobs{
		Width: count + 1, Ranks: make([]int64, 0, len(tokens)),
		TokenIDs: make([]uint32, 0, cells), Values: make([]float32, 0, cells),
	}
	for row, token := range tokens {
		rank := rankOf(row, token)
		best := token + uint32(rank-1)
		t.Ranks = append(t.Ranks, rank)
		t.TokenIDs, t.Values = append(t.TokenIDs, token), append(t.Values, likelihood(uint32(rank-1)))
		for k := range uint32(count) {
			id := neighbour(best, k)
			if wanted != nil {
				id = wanted[k]
			}
			t.TokenIDs, t.Values = append(t.TokenIDs, id), append(t.Values, likelihood(neighbour(best, id)))
		}
	}
	return t
}

// scored has a row for each place of the prompt that is to be scored; -inf stands
// for the ids that pad a row (vllm/v1/worker/gpu/sample/prompt_logprob.py).
func (l *logprobs) scored() *protocol.Tensor {
	p := l.scores
	rows := max(len(l.ids)-1-l.start, 0)
	if p.Rows > 0 {
		rows = min(rows, p.Rows)
	}
	if rows*p.Width > maxCells {
		return nil
	}
	t := &protocol.Tensor{Shape: []int{rows, p.Width}, Values: make([]float32, 0, rows*p.Width)}
	for row := range rows {
		ids := p.IDs
		if p.Rows > 0 {
			ids = p.IDs[row*p.Width:]
		}
		for _, id := range ids[:p.Width] {
			value := float32(math.Inf(-1))
			if id >= 0 {
				place := l.start + row
				token := l.ids[place+1]
				best := token + uint32(l.promptRank(place, token)-1)
				value = likelihood(neighbour(best, uint32(id)))
			}
			t.Values = append(t.Values, value)
		}
	}
	return t
}

// likelihood is the logarithm of the probability of the k-th most likely id, from 0. The
// probabilities of all k add up to 1.
func likelihood(k uint32) float32 { return float32(-math.Log(float64(k)+1) - math.Log(float64(k)+2)) }

// neighbour returns the k-th most likely id: the best one first, then the ids below it,
// then those above, so that no id is named twice or lies past the vocabulary. It is
// its own inverse: given an id, it returns how likely that is.
func neighbour(best, k uint32) uint32 {
	if k <= best {
		return best - k
	}
	return k
}
