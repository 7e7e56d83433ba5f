package player

import (
	"errors"
	"math"
	"slices"
)

// Sentences is a [Source] of readable text: English sentences, in the order that the seed and the request choose. A request
// with temperature 0 is answered by its prompt alone, and one with a seed by that. An answer has up to five sentences and ends
// with a stop, or at the request's limit; with ignore_eos, sentences follow as long as tokens are wanted. It is safe for concurrent use.
type Sentences struct {
	seed uint64
	// opening are the sentences without the space that goes before each but the first.
	opening [][]uint32
	orders  []order
}

// An order is all sentences one after the other, as many as there are, beginning anywhere.
type order struct {
	first  []int // sentence at each place
	starts []int // where it begins in ids
	ids    []uint32
}

// sentenceOrders is in how many orders there are sentences: more of them, and a number of sentences that is prime, make equal
// answers rare.
const sentenceOrders = 16

// maxSentences is how long an answer is at most.
const maxSentences = 5

// NewSentences encodes the sentences, and more ones. It fails where the vocabulary cannot spell them.
func NewSentences(encoder Encoder, seed uint64, more ...string) (*Sentences, error) {
	sentences := append(slices.Clip(sentences), more...)
	s := &Sentences{seed: seed, opening: make([][]uint32, len(sentences))}
	spaced := make([][]uint32, len(sentences))
	for i, text := range sentences {
		var first, later bool
		s.opening[i], first = encoder.EncodeOutput(text)
		spaced[i], later = encoder.EncodeOutput(" " + text)
		if !first || !later {
			return nil, errors.New("the tokenizer has no tokens for English sentences")
		}
	}
	for stride := 1; stride <= sentenceOrders; stride++ {
		var o order
		for place := range sentences {
			at := place * stride % len(sentences)
			o.first, o.starts = append(o.first, at), append(o.starts, len(o.ids))
			o.ids = append(o.ids, spaced[at]...)
		}
		s.orders = append(s.orders, o)
	}
	return s, nil
}

// Script answers with sentences.
func (s *Sentences) Script(r *Request) (Script, error) {
	draw := s.draw(r)
	o := &s.orders[draw%sentenceOrders]
	place := int(draw / sentenceOrders % uint64(len(o.first)))
	count := 1 + int(draw>>32%maxSentences)
	opening, second := s.opening[o.first[place]], o.starts[(place+1)%len(o.starts)]
	end := len(opening)
	for i := 1; i < count; i++ {
		end += o.length((place + i) % len(o.starts))
	}
	stops := r.Sampling.EOSTokenID >= 0 && r.Sampling.EOSTokenID <= math.MaxUint32 && !r.Sampling.IgnoreEOS
	eos := uint32(r.Sampling.EOSTokenID)
	fill := func(position int) uint32 {
		switch {
		case stops && position == end:
			return eos
		case stops && position > end:
			position-- // the request does not end before its min_tokens
		}
		if position < len(opening) {
			return opening[position]
		}
		return o.ids[(second+position-len(opening))%len(o.ids)]
	}
	return Script{Fill: fill, Finish: FinishLength, Stops: true, CachedTokens: LookUp}, nil
}

func (o *order) length(place int) int {
	if place+1 < len(o.starts) {
		return o.starts[place+1] - o.starts[place]
	}
	return len(o.ids) - o.starts[place]
}

// draw is a random number that chooses the answer to a request.
func (s *Sentences) draw(r *Request) uint64 {
	switch {
	case r.Sampling.HasSeed:
		return scramble(s.seed ^ scramble(uint64(r.Sampling.Seed)))
	case r.Sampling.Temperature == 0:
		return hashTokens(s.seed, r.PromptTokenIDs)
	}
	return scramble(hashText(s.seed, drawID(r.ID, r.ExternalID)))
}

// sentences are what answers are made of. Their number is prime.
var sentences = []string{
	"The train leaves the station at nine in the morning.", "A small boat crossed the lake before the rain began.",
	"She wrote the list on a sheet of paper and put it on the table.", "The library is open until eight on weekdays.",
	"Most of the water in the river comes from melting snow.", "He repaired the old clock in less than an hour.",
	"The bread has to rest for two hours before it is baked.", "Nobody had seen the letter before it was read aloud.",
	"The road to the village is closed in winter.", "They planted forty trees along the street last spring.",
	"A good map shows the paths as well as the roads.", "The first answer was short, and the second one was correct.",
	"It takes about ten minutes to walk to the market.", "The window looks out on a garden with a stone wall.",
	"Two of the five lamps were still burning.", "The report names three reasons and gives an example for each.",
	"Rice grows best in warm and wet places.", "Her brother plays the violin in a small orchestra.",
	"The bridge was built more than a hundred years ago.", "You can see the mountains from here on a clear day.",
	"The meeting begins at ten and ends before lunch.", "An apple a day costs less than you might think.",
	"The box was heavier than it looked.", "Every room in the house has a door to the yard.",
	"The teacher asked the class to read the next page.", "Warm air rises, and cold air takes its place.",
	"The ship carried grain, wood and a few passengers.", "His office is on the third floor, next to the stairs.",
	"We counted the birds twice and got the same number.", "The recipe needs flour, salt, water and time.",
	"A red bicycle stood in front of the bakery.", "The test passed after the second change.",
	"Light from the sun needs eight minutes to reach us.",
	"The farmer sold his vegetables at a stand by the road.", "Some questions have more than one good answer.",
	"The children built a tower of wooden blocks.", "It rained for three days, and then the sky was blue again.",
}
