package player

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Lengths is a [Source] whose answers have as many tokens as Draw wants: those of a source that makes up as many as a
// request asks for, up to an end of sequence. A request with ignore_eos keeps the length that it asks for.
type Lengths struct {
	Source Source
	Draw   Length
	Seed   uint64
	// Context is the context length. A request for all that it has room for counts as one without max_tokens.
	Context int
}

// A Length draws a number of tokens, from 1. limit is the max_tokens of the request, 0 without one, and room what the
// context has room for.
type Length func(rng *rand.Rand, limit, room int) int

// Script answers with tokens of the source.
func (l Lengths) Script(r *Request) (Script, error) {
	if r.Sampling.IgnoreEOS {
		return l.Source.Script(r)
	}
	endless := *r
	endless.Sampling.IgnoreEOS = true
	s, err := l.Source.Script(&endless)
	if err != nil || s.Fill == nil {
		return s, err
	}
	room := max(l.Context-len(r.PromptTokenIDs), 1)
	limit := 0
	if r.Sampling.HasMaxTokens && r.Sampling.MaxTokens < room {
		limit = r.Sampling.MaxTokens
	}
	seed := requestSeed(l.Seed, r.Sampling.HasSeed, r.Sampling.Seed, r.Sampling.Temperature == 0, r.PromptTokenIDs, drawID(r.ID, r.ExternalID))
	length := max(l.Draw(rand.New(rand.NewPCG(seed, 1)), limit, room), 1)
	fill, eos := s.Fill, r.Sampling.EOSTokenID
	if eos < 0 || eos > math.MaxUint32 { // only the end shows that it has ended
		s.Tokens, s.Fill, s.Finish = make([]uint32, min(length, room)), nil, FinishStop
		for i := range s.Tokens {
			s.Tokens[i] = fill(i)
		}
		return s, nil
	}
	s.Fill = func(position int) uint32 {
		if position == length {
			return uint32(eos)
		}
		return fill(position)
	}
	return s, nil
}

// ParseLength reads how lengths are drawn: N (each), LOW-HIGH (any of them), normal:MEAN:DEVIATION, or simulator, which
// is as llm-d-inference-sim draws them.
func ParseLength(text string) (Length, error) {
	kind, rest, _ := strings.Cut(text, ":")
	if kind == "simulator" && rest == "" {
		return simulatorLength, nil
	}
	if kind == "normal" {
		mean, deviation, _ := strings.Cut(rest, ":")
		m, err := strconv.ParseFloat(mean, 64)
		d, wrong := strconv.ParseFloat(deviation, 64)
		if err == nil && wrong == nil && m >= 1 && m <= maxLength && d >= 0 && d <= maxLength {
			return func(rng *rand.Rand, _, room int) int { return normalLength(rng, m, d, room) }, nil
		}
	} else {
		from, to, between := strings.Cut(text, "-")
		if !between {
			to = from
		}
		low, err := strconv.Atoi(from)
		high, wrong := strconv.Atoi(to)
		if err == nil && wrong == nil && 1 <= low && low <= high && high <= maxLength {
			return func(rng *rand.Rand, _, _ int) int { return low + rng.IntN(high-low+1) }, nil
		}
	}
	return nil, fmt.Errorf("%q is not a length: want a number of tokens, LOW-HIGH, normal:MEAN:DEVIATION, or simulator", text)
}

// maxLength bounds a length, in tokens.
const maxLength = 1 << 30

// AnyOf draws one of the lengths of a list that is not empty.
func AnyOf(lengths []int) Length {
	return func(rng *rand.Rand, _, _ int) int { return lengths[rng.IntN(len(lengths))] }
}

// normalLength draws until a length is from 1 to high, but not for ever.
func normalLength(rng *rand.Rand, mean, deviation float64, high int) int {
	for range 100 {
		if n := int(math.Round(mean + deviation*rng.NormFloat64())); n >= 1 && n <= high {
			return n
		}
	}
	return min(max(int(mean), 1), high)
}

// The histogram of llm-d-inference-sim (pkg/dataset/dataset.go): the percentages of five ranges, and of max_tokens.
// Ranges are at most so wide, but for the one that is stretched.
var simulatorRanges = []int{20, 30, 20, 5, 10, 15}

const (
	simulatorWidth   = 20
	simulatorStretch = 3
	simulatorMean    = 40
	simulatorDev     = 20
)

func simulatorLength(rng *rand.Rand, limit, room int) int {
	last := len(simulatorRanges) - 1
	switch {
	case limit == 0 && room < simulatorDev:
		return 1 + rng.IntN(room)
	case limit == 0:
		return normalLength(rng, simulatorMean, simulatorDev, room)
	case limit <= last+1:
		return 1 + rng.IntN(limit)
	}
	i, drawn := 0, rng.IntN(100)
	for drawn >= simulatorRanges[i] {
		drawn -= simulatorRanges[i]
		i++
	}
	width := min((limit-1)/last, simulatorWidth)
	extra := limit - 1 - width*last
	low := 1 + i*width
	if i > simulatorStretch {
		low += extra
	}
	switch i {
	case last:
		return limit
	case simulatorStretch:
		width += extra
	}
	return low + rng.IntN(width)
}
