package player

import (
	"math/rand/v2"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestLengthsOfTheSimulator compares the shares of the ranges with those that llm-d-inference-sim documents.
func TestLengthsOfTheSimulator(t *testing.T) {
	length, err := ParseLength("simulator")
	must(t, err)
	for _, tt := range []struct {
		name        string
		limit, room int
		ends        []int // of the ranges
		percent     []int
	}{
		{"ranges of 20 and one that is stretched", 200, 1000, []int{20, 40, 60, 179, 199, 200}, []int{20, 30, 20, 5, 10, 15}},
		{"equal ranges", 51, 1000, []int{10, 20, 30, 40, 50, 51}, []int{20, 30, 20, 5, 10, 15}},
		{"few tokens", 4, 1000, []int{1, 2, 3, 4}, []int{25, 25, 25, 25}},
		{"no limit", 0, 1000, []int{20, 40, 60, 1000}, []int{15, 35, 34, 16}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 1))
			counts := make([]int, len(tt.ends))
			for range 10_000 {
				n := length(rng, tt.limit, tt.room)
				at := 0
				for at < len(tt.ends) && n > tt.ends[at] {
					at++
				}
				if n < 1 || at == len(tt.ends) {
					t.Fatalf("%d tokens", n)
				}
				counts[at]++
			}
			for i, want := range tt.percent {
				if got := counts[i] / 100; got < want-2 || got > want+2 {
					t.Errorf("up to %d: %d percent, want about %d of %v", tt.ends[i], got, want, counts)
				}
			}
		})
	}
}

func TestParseLength(t *testing.T) {
	for text, want := range map[string][2]int{"7": {7, 7}, "3-5": {3, 5}, "normal:100:0": {100, 100}} {
		length, err := ParseLength(text)
		must(t, err)
		rng := rand.New(rand.NewPCG(1, 1))
		for range 100 {
			if n := length(rng, 0, 1000); n < want[0] || n > want[1] {
				t.Errorf("%s: %d", text, n)
			}
		}
	}
	for _, text := range []string{"", "0", "5-3", "-1", "normal", "normal:0:1", "normal:NaN:1", "normal:1:x", "simulator:1", "99999999999"} {
		if _, err := ParseLength(text); err == nil {
			t.Errorf("%q is a length", text)
		}
	}
}

func TestLengthsEnd(t *testing.T) {
	seven := func(*rand.Rand, int, int) int { return 7 }
	for _, tt := range []struct {
		name     string
		sampling Sampling
		want     int // tokens before the end; 0 is none
	}{
		{"the end of sequence", Sampling{EOSTokenID: 2, HasMaxTokens: true, MaxTokens: 100}, 7},
		{"no end of sequence", Sampling{EOSTokenID: -1}, 7},
		{"a client that wants more", Sampling{EOSTokenID: 2, IgnoreEOS: true}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Lengths{Source: Random{Vocab: 2}, Draw: seven, Context: 50}.Script(&Request{ID: "a", PromptTokenIDs: []uint32{1}, Sampling: tt.sampling})
			must(t, err)
			got := len(s.Tokens)
			if s.Fill != nil {
				for got = 0; got < 40 && s.Fill(got) != 2; got++ {
				}
				got %= 40
			}
			require.True(t, got == tt.want, "%d tokens, want %d", got, tt.want)
		})
	}
}
