package player

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// randomTokens draws what a player with the seed says to a request.
func randomTokens(seed uint64, vocab uint32, id string, n int) []uint32 {
	s, err := Random{Seed: seed, Vocab: vocab}.Script(&Request{ID: id})
	if err != nil {
		return nil
	}
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = s.Fill(i)
	}
	return tokens
}

// TestRandomTokensOfAClientsID: a frontend appends random digits to the id that its client gave, and tells the latter
// too; what it says must not depend on them, but on everything else.
func TestRandomTokensOfAClientsID(t *testing.T) {
	said := func(id, client string) []uint32 {
		s, err := Random{Seed: 1}.Script(&Request{ID: id, ExternalID: client})
		must(t, err)
		return []uint32{s.Fill(0), s.Fill(1), s.Fill(2)}
	}
	base := said("cmpl-a-0123abcd", "cmpl-a")
	for _, tt := range []struct {
		name, id, client string
		equal            bool
	}{
		{"other digits", "cmpl-a-ffffffff", "cmpl-a", true},
		{"no digits", "cmpl-a", "cmpl-a", true},
		{"another client's", "cmpl-b-0123abcd", "cmpl-b", false},
		{"one of n answers", "1_cmpl-a-0123abcd", "cmpl-a", false},
		{"digits that the client gave", "cmpl-a-0123abcd", "cmpl-a-0123abcd", false},
		{"nobody says whose digits they are", "cmpl-a-ffffffff", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, slices.Equal(base, said(tt.id, tt.client)), tt.equal, "equal")
		})
	}
	require.True(t, base[0] >= 2 || base[1] >= 2 || base[2] >= 2, "%v is no draw from %d tokens", base, defaultVocab)
}
