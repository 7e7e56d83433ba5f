package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestReplayIndex(t *testing.T) {
	for _, tt := range []struct {
		name, id, external string
		want               int // -1: no index
	}{
		{"plain", "replay-7", "", 7},
		{"wrapped by the Rust frontend", "cmpl-replay-7-1a2b3c4d", "cmpl-replay-7", 7},
		{"the same without an external id", "cmpl-replay-7-1a2b3c4d", "", 7},
		{"wrapped by the Python frontend", "cmpl-replay-7-0-12345678", "cmpl-replay-7-0", 7},
		{"the same without an external id", "cmpl-replay-7-0-12345678", "", 7},
		{"chat", "chatcmpl-replay-12-9f3e21aa", "chatcmpl-replay-12", 12},
		{"decimal digits drawn at random", "cmpl-replay-3-12345678", "", 3},
		{"child of n>1", "1_cmpl-replay-7-0-1a2b3c4d", "cmpl-replay-7-0", 7},
		{"external id is the whole id", "replay-7", "replay-7", 7},
		{"external id of something else", "cmpl-replay-7-1a2b3c4d", "other", 7},
		{"the last name counts", "replay-1-replay-2", "", 2},
		{"zero", "replay-0", "", 0},
		{"leading zeros", "replay-007", "", 7},

		{"number after the last dash", "req-12", "", 12},
		{"only a number", "12", "", 12},
		{"suffix cut off by the external id", "req-12-1a2b3c4d", "req-12", 12},
		{"decimal suffix cut off by the external id", "req-12-12345678", "req-12", 12},
		{"child with a decimal suffix", "1_req-12-12345678", "req-12", 12},
		{"made by the Python frontend", "cmpl-8accf3549d6b8e05-0-8a5c543e", "cmpl-8accf3549d6b8e05-0", -1},
		{"made by the Rust frontend", "chatcmpl-00000012-8a5c543e", "chatcmpl-00000012", -1},
		{"decimal suffix without an external id", "cmpl-12-12345678", "", -1},
		{"decimal suffix that looks small", "cmpl-x-00000003", "", -1},
		{"decimal suffix with an external id without a number", "cmpl-x-12345678", "cmpl-x", -1},

		{"empty", "", "", -1},
		{"no number", "cmpl-abc", "", -1},
		{"hex suffix", "cmpl-1a2b3c4d", "", -1},
		{"nothing after the name", "replay-", "", -1},
		{"negative", "replay--7", "", -1},
		{"signed", "replay-+7", "", -1},
		{"letters after the number", "replay-7x", "", -1},
		{"fraction", "replay-7.5", "", -1},
		{"underscore", "replay-1_0", "", -1},
		{"digits of another script", "replay-٧", "", -1},
		{"space", "replay- 7", "", -1},
		{"largest", "replay-2147483647", "", 1<<31 - 1},
		{"too large", "replay-2147483648", "", -1},
		{"huge", "replay-99999999999999999999999", "", -1},
		{"dash at the end", "cmpl-7-", "", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ReplayIndex(tt.id, tt.external)
			if !ok {
				got = -1
			}
			require.Equal(t, got, tt.want, "ReplayIndex(%q, %q)", tt.id, tt.external)
		})
	}
}

func FuzzReplayIndex(f *testing.F) {
	f.Add("cmpl-replay-7-0-12345678", "cmpl-replay-7-0")
	f.Add("1_cmpl-7-12345678", "cmpl-7")
	f.Add("replay--1", "")
	f.Fuzz(func(t *testing.T, id, external string) {
		if i, ok := ReplayIndex(id, external); i < 0 || !ok && i != 0 {
			t.Errorf("ReplayIndex(%q, %q) = %d, %v", id, external, i, ok)
		}
	})
}
