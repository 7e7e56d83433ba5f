package pack

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestFormat(t *testing.T) {
	float := func(v float64) string { return fmt.Sprintf("%x", AppendFloat64(nil, v)) }
	tests := []struct {
		name string
		hex  string
		want string
	}{
		{"scalars", "95 c0 c3 ff cfffffffffffffffff a161", `[nil, true, -1, 18446744073709551615, "a"]`},
		{"nested", "83 a161 9101 05 80 a162 90", `{"a": [1], 5: {}, "b": []}`},
		{"bin and ext", "93 c400 c40100 c70203 0102", "[bin(0 bytes), bin(1 byte), ext(3, 2 bytes)]"},
		{"negative ext type", "d4ff00", "ext(-1, 1 byte)"},
		{"whole float", float(1), "1.0"},
		{"large float", float(1e300), "1e+300"},
		{"time of day", float(1763711000.25), "1763711000.25"},
		{"small float", float(1e-9), "1e-09"},
		{"minus zero", float(math.Copysign(0, -1)), "-0.0"},
		{"infinite", float(math.Inf(-1)), "-Inf"},
		{"not a number", float(math.NaN()), "NaN"},
		{"float32", "ca3fc00000", "1.5"},
		{"control bytes", "a3 0a22ff", `"\n\"\xff"`},
		{"nothing", "", "<byte 0: empty message>"},
		{"cut", "92 01 a361", `[1, <byte 2: str of 3 bytes, 1 remain>`},
		{"reserved", "92 01 c1", `[1, <byte 2: the byte 0xc1 is never used in MessagePack>`},
		{"trailing", "01 02 03", "1 <2 trailing bytes>"},
		{"huge claim", "dd ffffffff", "<byte 0: array of 4294967295 elements needs at least 4294967295 bytes, 0 remain>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Format(unhex(t, tt.hex)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestFormatIsBounded(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		end  string
	}{
		{"many elements", AppendUint32s(nil, tokenIDs(100_000)), "…"},
		{"long str", AppendString(nil, strings.Repeat("é", 1<<20)), "…(2097152 bytes)"},
		{"many unprintable bytes", AppendString(nil, strings.Repeat("\x00", 1<<20)), "…(1048576 bytes)"},
		{"too deep", bytes.Repeat([]byte{0x91}, 5_000_000), "[…"},
		{"too deep maps", bytes.Repeat([]byte{0x81, 0x01}, 5_000_000), "{1: …"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Format(tt.in)
			if len(got) > formatLimit+4*quoteLimit+100 || !strings.HasSuffix(got, tt.end) {
				t.Errorf("%d bytes, ending in %q, want %q", len(got), got[max(0, len(got)-30):], tt.end)
			}
		})
	}
}
