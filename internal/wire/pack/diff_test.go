package pack

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestDiff(t *testing.T) {
	tests := []struct {
		name      string
		want, got string // hex
		diffs     []string
	}{
		{"the same bytes", "93 01 02 03", "93 01 02 03", nil},
		{"int widths", "94 05 05 05 ff", "94 cc05 d005 d30000000000000005 d1ffff", nil},
		{"ints", "01", "02", []string{"m: want 1, got 2"}},
		{"uint64 max is not -1", "cf ffffffffffffffff", "ff", []string{"m: want 18446744073709551615, got -1"}},
		{"header widths", "81 a161 9101", "df00000001 db0000000161 dd0000000101", nil},
		{"float32 that widens exactly", "ca 3f000000", "cb 3fe0000000000000", nil},
		{"float32 that does not", "ca 3f666666", "cb 3feccccccccccccd", []string{"m: want 0.8999999761581421, got 0.9"}},
		{"zero and minus zero", "cb 0000000000000000", "cb 8000000000000000", nil},
		{"NaN of two widths", "ca 7fc00000", "cb 7ff8000000000001", nil},
		{"int and float", "01", "cb 3ff0000000000000", []string{"m: want 1, got 1.0"}},
		{"nil and false", "c0", "c2", []string{"m: want nil, got false"}},
		{"bools", "c3", "c2", []string{"m: want true, got false"}},
		{"str and bin", "a161", "c40161", []string{`m: want "a", got bin(1 byte)`}},
		{"strings", "a161", "a162", []string{`m: want "a", got "b"`}},
		{"str widths", "a161", "d90161", nil},
		{"bins", "c403 000102", "c403 0001ff", []string{"m: want bin(3 bytes) from byte 2: 02, got bin(3 bytes) from byte 2: ff"}},
		{"a longer bin", "c401 00", "c402 0001", []string{"m: want bin(1 byte) ends at byte 1, got bin(2 bytes) from byte 1: 01"}},
		{"ext codes", "d403ff", "d404ff", []string{"m: want ext(3, 1 byte), got ext(4, 1 byte)"}},
		{"ext data", "d403ff", "d40300", []string{"m: want ext(3, 1 byte) from byte 0: ff, got ext(3, 1 byte) from byte 0: 00"}},
		{"ext widths", "d403ff", "c70103ff", nil},
		{"elements", "92 01 9102", "92 03 9104", []string{"m[0]: want 1, got 3", "m[1][0]: want 2, got 4"}},
		{"lengths", "93 01 02 03", "92 01 05", []string{"m: want array of 3 elements, got array of 2 elements", "m[1]: want 2, got 5"}},
		{"one and none", "91 c0", "90", []string{"m: want array of 1 element, got array of 0 elements"}},
		{"array and scalar", "9101", "01", []string{"m: want [1], got 1"}},
		{"array and map", "90", "80", []string{"m: want [], got {}"}},
		{"after a difference in length", "92 9101 05", "92 90 06", []string{"m[0]: want array of 1 element, got array of 0 elements", "m[1]: want 5, got 6"}},

		{"key order", "82 a161 01 a162 02", "82 a162 02 a161 01", nil},
		{"map values", "82 a161 01 a162 02", "82 a162 03 a161 01", []string{"m.b: want 2, got 3"}},
		{"missing key", "82 a161 01 a162 02", "81 a162 02", []string{"m.a: want 1, got absent"}},
		{"extra key", "81 a162 02", "82 a161 01 a162 02", []string{"m.a: want absent, got 1"}},
		{"renamed key", "81 a161 01", "81 a162 01", []string{"m.a: want 1, got absent", "m.b: want absent, got 1"}},
		{"empty map", "80", "81 a161 01", []string{"m.a: want absent, got 1"}},
		{"nested maps", "81 a161 81 a162 01", "81 a161 81 a162 02", []string{"m.a.b: want 1, got 2"}},
		{"integer keys of two widths", "82 05 01 06 02", "82 cc06 02 cd0005 01", nil},
		{"signed keys", "84 01 00 ff 01 02 02 fe 03", "84 fe 03 02 02 d0ff 01 01 07", []string{"m[1]: want 0, got 7"}},
		{"integer key", "81 05 01", "81 05 02", []string{"m[5]: want 1, got 2"}},
		{"integer and str key", "81 05 01", "81 a135 01", []string{"m[5]: want 1, got absent", "m.5: want absent, got 1"}},
		{"odd str key", "81 a3612e62 01", "81 a3612e62 02", []string{`m["a.b"]: want 1, got 2`}},
		{"empty str key", "81 a0 01", "81 a0 02", []string{`m[""]: want 1, got 2`}},
		{"float keys by value", "82 ca3f000000 01 01 02", "82 01 02 cb3fe0000000000000 01", nil},
		{"zero keys by value", "82 cb8000000000000000 01 01 02", "82 01 02 cb0000000000000000 01", nil},
		{"array keys by value", "82 9105 01 01 02", "82 01 02 91cc05 01", nil},
		{"array key", "81 9105 01", "81 91cc05 02", []string{"m[[5]]: want 1, got 2"}},
		{"bin and str key", "81 a161 01", "81 c40161 01", []string{"m.a: want 1, got absent", "m[bin(1 byte)]: want absent, got 1"}},
		{"duplicate key on one side", "81 a161 01", "82 a161 01 a161 02", []string{"m.a: want absent, got 2 (duplicate key)"}},
		{"duplicate key on the other", "82 a161 01 a161 02", "81 a161 01", []string{"m.a: want 2 (duplicate key), got absent"}},
		{"duplicate keys in another order", "82 a161 01 a161 02", "82 a161 02 a161 01", []string{"m.a: want 1, got 2", "m.a: want 2, got 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want, got := unhex(t, tt.want), unhex(t, tt.got)
			require.NoDiff(t, cmp.Diff(tt.diffs, diffLines(t, want, got, DiffOptions{})), "-want +got")
			same, err := Equal(want, got)
			if err != nil || same != (tt.diffs == nil) {
				t.Errorf("Equal says %v, %v, want %v", same, err, tt.diffs == nil)
			}
			// Swapping the sides may change how a difference reads, not whether there is one.
			if back := diffLines(t, got, want, DiffOptions{}); len(back) != len(tt.diffs) {
				t.Errorf("with the sides swapped: %q", back)
			}
		})
	}
}

// diffLines compares two messages rooted at m, as lines.
func diffLines(t *testing.T, want, got []byte, opt DiffOptions) []string {
	t.Helper()
	found, err := Diff("m", want, got, opt)
	require.NoError(t, err)
	var lines []string
	for _, d := range found {
		lines = append(lines, d.String())
	}
	return lines
}

func TestDiffOptions(t *testing.T) {
	under := func(prefix string) func(string) bool {
		return func(path string) bool { return strings.HasPrefix(path, prefix) }
	}
	always := func(string) bool { return true }
	tests := []struct {
		name      string
		want, got string // hex
		opt       DiffOptions
		diffs     []string
	}{
		{"ignored scalar", "92 01 02", "92 03 04", DiffOptions{Ignore: under("m[0]")}, []string{"m[1]: want 2, got 4"}},
		{"ignored container", "92 9101 02", "92 80 04", DiffOptions{Ignore: under("m[0]")}, []string{"m[1]: want 2, got 4"}},
		{"ignored root", "01", "02", DiffOptions{Ignore: always}, nil},
		{"ignored missing key", "81 a161 01", "80", DiffOptions{Ignore: under("m.a")}, nil},
		{"ignored extra key", "80", "81 a161 01", DiffOptions{Ignore: under("m.a")}, nil},
		{"masked number", "01", "05", DiffOptions{Mask: always}, nil},
		{"masked bytes", "92 a161 d403ff", "92 a0 c70003", DiffOptions{Mask: always}, nil},
		{"masked kind", "91 01", "91 cb3ff0000000000000", DiffOptions{Mask: always}, []string{"m[0]: want 1, got 1.0"}},
		{"masked ext code", "d403ff", "d404ff", DiffOptions{Mask: always}, []string{"m: want ext(3, 1 byte), got ext(4, 1 byte)"}},
		{"masked array keeps its length", "91 01", "92 05 06", DiffOptions{Mask: always}, []string{"m: want array of 1 element, got array of 2 elements"}},
		{"masked map keeps its keys", "81 a161 01", "80", DiffOptions{Mask: always}, []string{"m.a: want 1, got absent"}},
		{"mask of one path", "92 01 02", "92 03 04", DiffOptions{Mask: under("m[1]")}, []string{"m[0]: want 1, got 3"}},
		{"order counts", "82 a161 01 a162 02", "82 a162 02 a161 01", DiffOptions{MapOrder: true}, []string{"m: want keys in the order a, b, got keys in the order b, a"}},
		{"order and value", "82 a161 01 a162 02", "82 a162 02 a161 03", DiffOptions{MapOrder: true}, []string{"m: want keys in the order a, b, got keys in the order b, a", "m.a: want 1, got 3"}},
		{"order holds around a missing key", "83 a161 01 a162 02 a163 03", "82 a161 01 a163 03", DiffOptions{MapOrder: true}, []string{"m.b: want 2, got absent"}},
		{"at most two", "93 01 02 03", "93 04 05 06", DiffOptions{MaxDifferences: 2}, []string{"m[0]: want 1, got 4", "m[1]: want 2, got 5"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.diffs, diffLines(t, unhex(t, tt.want), unhex(t, tt.got), tt.opt)), "-want +got")
		})
	}
}

func TestDiffOffsets(t *testing.T) {
	found, err := Diff("", unhex(t, "82 a161 9101 a162 02"), unhex(t, "82 a161 91cc02 a163 02"), DiffOptions{})
	require.NoError(t, err)
	want := []Difference{
		{Path: "a[0]", Want: "1", Got: "2", WantOffset: 4, GotOffset: 4},
		{Path: "b", Want: "2", Got: "absent", WantOffset: 7, GotOffset: -1},
		{Path: "c", Want: "absent", Got: "2", WantOffset: -1, GotOffset: 8},
	}
	require.NoDiff(t, cmp.Diff(want, found), "-want +got")
}

// TestDiffNamesRealFrame changes one counter of a real frame and asks for its name
// in full.
func TestDiffNamesRealFrame(t *testing.T) {
	want := realFrame(t, "0.25.1/enc-outputs-first-token.frame0")
	key := AppendString(nil, "num_cached_tokens")
	got := bytes.Replace(want, append(bytes.Clone(key), 6), append(bytes.Clone(key), 7), 1)
	// The field that holds the map, by its place in the struct of that release.
	names := map[string][]string{
		"EngineCoreOutputs":            {"engine_index", "outputs"},
		"EngineCoreOutputs.outputs[0]": {10: "prefill_stats"},
	}
	opt := DiffOptions{Names: func(path string, i int) string {
		if fields := names[path]; i < len(fields) {
			return fields[i]
		}
		return ""
	}}
	found, err := Diff("EngineCoreOutputs", want, got, opt)
	if err != nil || len(found) != 1 {
		t.Fatalf("got %v, %v, want one difference", found, err)
	}
	line := "EngineCoreOutputs.outputs[0].prefill_stats.num_cached_tokens: want 6, got 7"
	if found[0].String() != line {
		t.Errorf("got  %s\nwant %s", found[0], line)
	}
}

// TestDiffSeesEveryByte flips each value byte of real frames in turn: no flip that
// leaves the message valid and its canonical bytes different may go unseen.
func TestDiffSeesEveryByte(t *testing.T) {
	for _, f := range realFrames(t) {
		t.Run(f.name, func(t *testing.T) {
			compared := 0
			canon := appendCanonical(nil, f.bytes, 0)
			for i := range f.bytes {
				got := bytes.Clone(f.bytes)
				got[i] ^= 1
				if Validate(got) != nil || bytes.Equal(canon, appendCanonical(nil, got, 0)) {
					continue
				}
				compared++
				if same, err := Equal(f.bytes, got); same || err != nil {
					t.Errorf("byte %d flipped: Equal says %v, %v", i, same, err)
				}
			}
			require.True(t, compared != 0, "no byte could be flipped")
		})
	}
}

// TestDiffShapes compares what two releases write of one outputs message: fields
// were added and moved between them, and every value differs.
func TestDiffShapes(t *testing.T) {
	want, got := realFrame(t, "0.25.1/rust-20-out-logprobs-1"), realFrame(t, "0.33.0/rust-20-out-logprobs-1")
	const stats = `{"num_prompt_tokens": 2, "num_computed_tokens": 2, "num_cached_tokens": 0, ` +
		`"num_local_cached_tokens": 0, "num_external_cached_tokens": 0}`
	shapes := []string{
		"m: want array of 8 elements, got array of 9 elements",
		"m[1][0]: want array of 13 elements, got array of 19 elements",
		"m[1][0][10]: want " + stats + ", got nil",
		"m[1][0][11]: want nil, got " + stats,
		"m[1][0][12]: want 0, got nil",
	}
	mask := DiffOptions{Mask: func(string) bool { return true }}
	require.NoDiff(t, cmp.Diff(shapes, diffLines(t, want, got, mask)), "-want +got")
	if all := diffLines(t, want, got, DiffOptions{}); len(all) <= len(shapes) {
		t.Errorf("unmasked, %d differences, want more than the %d of shape", len(all), len(shapes))
	}
}

func TestDiffMalformed(t *testing.T) {
	_, err := Diff("m", unhex(t, "91"), unhex(t, "90"), DiffOptions{})
	require.True(t, err != nil && strings.HasPrefix(err.Error(), "wanted message: msgpack: byte 0:"), "got %v, want the wanted message blamed", err)
	_, err = Diff("m", unhex(t, "90"), unhex(t, "dd ffffffff"), DiffOptions{})
	require.True(t, err != nil && strings.HasPrefix(err.Error(), "got message: msgpack: byte 0:"), "got %v, want the other message blamed", err)
	if same, err := Equal(unhex(t, "c1"), unhex(t, "c1")); same || err == nil {
		t.Errorf("two invalid messages: got %v, %v, want an error", same, err)
	}
}

// TestDiffIsBounded compares messages made to be expensive.
func TestDiffIsBounded(t *testing.T) {
	const n = 200_000
	numbers := func(add uint64) []byte {
		b := AppendArrayHeader(nil, n)
		for i := range uint64(n) {
			b = AppendUint(b, i+add)
		}
		return b
	}
	reversed := func(up bool) []byte {
		b := AppendMapHeader(nil, n)
		for i := range uint64(n) {
			if !up {
				i = n - 1 - i
			}
			b = AppendNil(AppendUint(b, i))
		}
		return b
	}
	nested := func(v int64) []byte { return AppendInt(bytes.Repeat([]byte{0x81, 0x01}, DefaultDepth), v) }
	long := func(c string) []byte { return AppendString(nil, strings.Repeat("x", 1<<20)+c) }
	bigKey := func(v int64) []byte { return AppendInt(append([]byte{0x81}, long("k")...), v) }
	tests := []struct {
		name      string
		want, got []byte
		count     int
		last      string // how the last difference begins
	}{
		{"every element differs", numbers(0), numbers(1), 100, "m[99]: want 99, got 100"},
		{"keys reversed", reversed(true), reversed(false), 0, ""},
		{"deepest value", nested(1), nested(2), 1, "m" + strings.Repeat("[1]", DefaultDepth) + ": want 1, got 2"},
		{"long strings", long("a"), long("b"), 1, "m: want \"xxx"},
		{"long key", bigKey(1), bigKey(2), 1, "m[\"xxx"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lines := diffLines(t, tt.want, tt.got, DiffOptions{})
			if len(lines) != tt.count {
				t.Fatalf("got %d differences, want %d", len(lines), tt.count)
			}
			if tt.count > 0 && !strings.HasPrefix(lines[len(lines)-1], tt.last) {
				t.Errorf("got %s, want it to begin with %s", lines[len(lines)-1], tt.last)
			}
			for _, line := range lines {
				require.True(t, len(line) <= 1000, "a line of %d bytes", len(line))
			}
		})
	}
}

func TestDiffLongStringsShowTheDifference(t *testing.T) {
	want := AppendString(nil, strings.Repeat("x", 500)+"é left")
	got := AppendString(nil, strings.Repeat("x", 500)+"è right")
	lines := diffLines(t, want, got, DiffOptions{})
	require.True(t, len(lines) == 1 && strings.Contains(lines[0], `from byte 500: "é left"`) && strings.Contains(lines[0], `from byte 500: "è right"`), "the difference does not show: %q", lines)
}
