package player

import (
	"slices"
	"testing"
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
			if got != tt.want {
				t.Errorf("ReplayIndex(%q, %q) = %d, want %d", tt.id, tt.external, got, tt.want)
			}
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

// Every take of this test says one token that tells it from the others.
func TestPrefixChoice(t *testing.T) {
	turn1 := count(0, 8)                        // 2 blocks
	turn2 := slices.Concat(turn1, count(20, 4)) // 3 blocks
	turn3 := slices.Concat(turn2, count(30, 4)) // 4 blocks
	tail := func(p []uint32, ids ...uint32) []uint32 { return slices.Concat(p, ids) }
	say := func(token uint32, prompt []uint32) take { return take{prompt: prompt, output: []uint32{token}} }
	hashless := say(9, turn1)
	hashless.without = "hashes"
	idless := say(9, turn1)
	idless.without = "ids"
	for _, tt := range []struct {
		name  string
		takes []take
		asks  [][]uint32 // prompts, in order
		want  []uint32   // the take that answered; 0: none
	}{
		{"a deeper record goes before its own prefix", []take{say(1, turn1), say(2, turn2)}, [][]uint32{turn2, turn1}, []uint32{2, 1}},
		{"the order of the recording does not matter", []take{say(2, turn2), say(1, turn1)}, [][]uint32{turn2, turn1}, []uint32{2, 1}},
		{"a longer prompt gets the deepest record", []take{say(1, turn1), say(2, turn2)}, [][]uint32{turn3}, []uint32{2}},
		{
			"a tail that differs after the last block",
			[]take{say(1, tail(turn1, 77, 78))},
			[][]uint32{tail(turn1, 88, 89), tail(turn1, 77)},
			[]uint32{1, 1},
		},
		{
			"equal prompts take one record after the other, a retry the first again",
			[]take{say(1, turn1), say(2, turn1)},
			[][]uint32{turn1, turn1, turn1, turn1},
			[]uint32{1, 2, 1, 1},
		},
		{"a retry is not served a longer record", []take{say(1, turn1), say(2, turn2)}, [][]uint32{turn1, turn1, turn2}, []uint32{1, 1, 2}},
		{
			"the exact prompt goes before the same length",
			[]take{say(1, tail(turn1, 77)), say(2, tail(turn1, 88))},
			[][]uint32{tail(turn1, 88), tail(turn1, 88), tail(turn1, 77)},
			[]uint32{2, 2, 1},
		},
		{
			"the same length goes before the same chain",
			[]take{say(1, tail(turn1, 77)), say(2, tail(turn1, 77, 78))},
			[][]uint32{tail(turn1, 88, 89), tail(turn1, 88)},
			[]uint32{2, 1},
		},
		{
			"the same chain goes before a longer one",
			[]take{say(1, turn2), say(2, tail(turn1, 77, 78))},
			[][]uint32{turn1, turn1},
			[]uint32{2, 2},
		},
		{
			"a longer chain answers when it is all there is",
			[]take{say(1, turn2), say(2, turn3)},
			[][]uint32{turn1, turn1, turn1},
			[]uint32{1, 2, 1},
		},
		{"a record without hashes never answers", []take{hashless, say(2, turn2)}, [][]uint32{turn1}, []uint32{2}},
		{"a record without ids never answers", []take{idless, say(2, turn2)}, [][]uint32{turn1}, []uint32{2}},
		{"nothing shared", []take{say(1, turn1)}, [][]uint32{count(1, 8), turn1[:3], nil}, []uint32{0, 0, 0}},
		{"one block shared is enough", []take{say(1, turn1)}, [][]uint32{tail(turn1[:4], 99, 99, 99, 99)}, []uint32{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Trace: cassette(t, tt.takes...), Replay: ReplayOptions{Match: MatchPrefix, Strict: true}}, 1)
			var got []uint32
			for i, prompt := range tt.asks {
				id := string(rune('a' + i))
				r.submit(ask(id, prompt, 1))
				r.runAll()
				got = append(got, append(r.answer(id).tokens(), 0)[0])
			}
			equal(t, "takes served", tt.want, got)
		})
	}
}

func TestPrefixBlockSizeFromOptionsWhenTheTraceHasNone(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 8), output: []uint32{1}})
	tr.Meta.BlockSize = nil
	r := ran(t, Options{Trace: tr, Replay: ReplayOptions{Match: MatchPrefix, Strict: true}, KVCache: KVCacheOptions{BlockSize: blockSize}}, ask("a", count(0, 8), 1))
	equal(t, "tokens", []uint32{1}, r.answer("a").tokens())
}
