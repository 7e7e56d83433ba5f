package player

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// picker lets only those tokens come that a request allows, where tokens are made up. It
// applies what vLLM's sampler does, to logits that are all equal (vllm/v1/sample/sampler.py
// apply_logits_processors): allowed_token_ids, bad words, min_tokens and logit_bias, then
// min_p, top_k and top_p. With equal logits the last three cut off something only if there
// is a logit_bias. Penalties and the temperature make tokens less likely, and rule none out.
type picker struct {
	seed    uint64
	vocab   uint32
	allowed []uint32              // in order; nil for the whole vocabulary
	bad     map[uint32][][]uint32 // what comes before the last token of bad words, by that token
	early   []uint32              // tokens that do not come before minimum others have
	minimum int
	bias    []protocol.Bias // in the order of tokens
	topK    int
	topP    float64
	minP    float64
}

// Bounds of what a request may ask for: each token is looked for among all of it.
const (
	maxBadWords      = 1024
	maxBadWordTokens = 16384
	maxBiases        = 1024
)

// newPicker returns nil for a request that allows every token.
func newPicker(r *protocol.Request, seed uint64, vocab uint32) (*picker, error) {
	s := &r.Sampling
	early := s.MinTokens > 0 && len(s.AllStops)+len(s.StopTokenIDs) > 0
	if len(s.AllowedTokenIDs) == 0 && len(s.BadWords) == 0 && len(s.LogitBias) == 0 && !early {
		return nil, nil
	}
	p := &picker{
		seed: requestSeed(seed, s.HasSeed, s.Seed, s.Temperature == 0, r.PromptTokenIDs, drawID(r.ID, r.ExternalID)), vocab: vocab, minimum: s.MinTokens,
		topK: s.TopK, topP: s.TopP, minP: s.MinP,
	}
	if len(s.AllowedTokenIDs) > 0 {
		p.allowed = slices.Compact(slices.Sorted(slices.Values(s.AllowedTokenIDs)))
	}
	if early {
		p.early = slices.Concat(s.AllStops, s.StopTokenIDs)
		slices.Sort(p.early)
	}
	if len(s.LogitBias) > maxBiases {
		return nil, fmt.Errorf("logit_bias has %d tokens: %d are allowed", len(s.LogitBias), maxBiases)
	}
	for _, b := range s.LogitBias {
		if !math.IsNaN(b.Logit) {
			b.Logit = min(max(b.Logit, -1e6), 1e6) // no infinite ones to reckon with
			p.bias = append(p.bias, b)
		}
	}
	slices.SortFunc(p.bias, func(a, b protocol.Bias) int { return cmp.Compare(a.Token, b.Token) })
	return p, p.addBadWords(s.BadWords)
}

func (p *picker) addBadWords(words [][]uint32) error {
	tokens := 0
	for _, word := range words {
		if tokens += len(word); len(words) > maxBadWords || tokens > maxBadWordTokens {
			return fmt.Errorf("bad_words are too many: %d of %d tokens are allowed", maxBadWords, maxBadWordTokens)
		}
		if len(word) == 0 {
			continue
		}
		if p.bad == nil {
			p.bad = map[uint32][][]uint32{}
		}
		last := len(word) - 1
		p.bad[word[last]] = append(p.bad[word[last]], word[:last])
	}
	return nil
}

// pick returns the token that comes after those of the output: the proposed one, unless the
// request rules it out or likes another one better. Where it allows none at all, token 0
// comes, as of a real sampler that has nothing to choose from.
func (p *picker) pick(proposed uint32, said []uint32) uint32 {
	draw := scramble(p.seed + uint64(len(said)+1)*0x9e3779b97f4a7c15)
	if token, found := p.pickBiased(draw, said); found {
		return token
	}
	if p.plain(proposed, said) {
		return proposed
	}
	// What is ruled out is bounded, so among so many that follow each other there is one.
	n := p.candidates()
	from := scramble(draw) % n
	for i := range min(n, uint64(maxBadWords+len(p.bias)+len(p.early)+1)) {
		token := uint32((from + i) % n)
		if p.allowed != nil {
			token = p.allowed[token]
		}
		if p.plain(token, said) {
			return token
		}
	}
	return 0
}

// pickBiased draws among the tokens that have a bias, and all others together: found is
// false where one of those comes.
func (p *picker) pickBiased(draw uint64, said []uint32) (token uint32, found bool) {
	if len(p.bias) == 0 {
		return 0, false
	}
	type share struct {
		weight, n float64
		token     uint32
		others    bool
	}
	others := share{n: float64(p.candidates()), others: true}
	var all []share
	most := 0.0
	for _, b := range p.bias {
		if p.allows(b.Token, said) {
			all = append(all, share{weight: b.Logit, n: 1, token: b.Token})
			most = max(most, b.Logit)
			others.n--
		}
	}
	if others.n > 0 {
		all = append(all, others)
	}
	total, best := 0.0, 0.0
	for i := range all {
		all[i].weight = math.Exp(all[i].weight - most)
		total += all[i].weight * all[i].n
		best = max(best, all[i].weight)
	}
	slices.SortStableFunc(all, func(a, b share) int { return cmp.Compare(b.weight, a.weight) })
	sum, count, kept := 0.0, 0.0, 0
	for i, s := range all {
		equal := i > 0 && s.weight == all[i-1].weight // they stay or go together
		if enough := p.topK > 0 && count >= float64(p.topK) || p.topP > 0 && p.topP < 1 && sum >= p.topP*total; enough && !equal || s.weight < p.minP*best {
			break
		}
		sum, count, kept = sum+s.weight*s.n, count+s.n, i+1
	}
	rest := float64(draw>>11) / (1 << 53) * sum
	for _, s := range all[:kept] {
		if rest -= s.weight * s.n; rest < 0 {
			return s.token, !s.others
		}
	}
	return 0, false
}

// candidates is how many tokens there are before any is ruled out.
func (p *picker) candidates() uint64 {
	if p.allowed != nil {
		return uint64(len(p.allowed))
	}
	return uint64(p.vocab)
}

// plain reports whether a token may come that has no bias.
func (p *picker) plain(token uint32, said []uint32) bool {
	_, biased := slices.BinarySearchFunc(p.bias, token, func(b protocol.Bias, token uint32) int { return cmp.Compare(b.Token, token) })
	return !biased && p.allows(token, said)
}

// allows reports whether a token is not ruled out, whatever its bias.
func (p *picker) allows(token uint32, said []uint32) bool {
	if p.allowed != nil {
		if _, found := slices.BinarySearch(p.allowed, token); !found {
			return false
		}
	}
	if len(said) < p.minimum {
		if _, found := slices.BinarySearch(p.early, token); found {
			return false
		}
	}
	for _, before := range p.bad[token] {
		if at := len(said) - len(before); at >= 0 && slices.Equal(said[at:], before) {
			return false // vllm/v1/sample/ops/bad_words.py
		}
	}
	return true
}

// repetition finds out when a request repeats itself (vllm/v1/core/sched/utils.py
// check_sequence_repetition), one token after the other.
type repetition struct {
	protocol.Repetition
	runs []int32 // by a distance, from 1: how many of the last tokens are those so far before
}

func newRepetition(r protocol.Repetition) *repetition {
	r.MinSize = max(r.MinSize, 1)
	if r.MaxSize <= 0 || r.Count < 2 || r.MinSize > r.MaxSize {
		return nil
	}
	return &repetition{Repetition: r}
}

// found counts the last of the output tokens, and reports whether a pattern came as
// often as it may not.
func (r *repetition) found(said []uint32) (found bool) {
	last := len(said) - 1
	if last > 0 && len(r.runs) < min(r.MaxSize, last) {
		r.runs = append(r.runs, 0)
	}
	for i := range r.runs {
		size := i + 1
		if said[last] != said[last-size] {
			r.runs[i] = 0
			continue
		}
		r.runs[i]++
		found = found || size >= r.MinSize && int(r.runs[i]) >= size*(r.Count-1)
	}
	return found
}
