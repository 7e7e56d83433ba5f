package pack

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestAppendInts(t *testing.T) {
	tests := []struct {
		name string
		got  []byte
		hex  string
	}{
		{"0", AppendInt(nil, 0), "00"},
		{"127", AppendInt(nil, 127), "7f"},
		{"128", AppendInt(nil, 128), "cc80"},
		{"255", AppendInt(nil, 255), "ccff"},
		{"256", AppendInt(nil, 256), "cd0100"},
		{"65535", AppendInt(nil, 65535), "cdffff"},
		{"65536", AppendInt(nil, 65536), "ce00010000"},
		{"2^32-1", AppendInt(nil, math.MaxUint32), "ceffffffff"},
		{"2^32", AppendInt(nil, math.MaxUint32+1), "cf0000000100000000"},
		{"2^64-1", AppendUint(nil, math.MaxUint64), "cfffffffffffffffff"},
		{"-1", AppendInt(nil, -1), "ff"},
		{"-32", AppendInt(nil, -32), "e0"},
		{"-33", AppendInt(nil, -33), "d0df"},
		{"-128", AppendInt(nil, -128), "d080"},
		{"-129", AppendInt(nil, -129), "d1ff7f"},
		{"-32768", AppendInt(nil, -32768), "d18000"},
		{"-32769", AppendInt(nil, -32769), "d2ffff7fff"},
		{"-2^31", AppendInt(nil, math.MinInt32), "d280000000"},
		{"-2^31-1", AppendInt(nil, math.MinInt32-1), "d3ffffffff7fffffff"},
		{"-2^63", AppendInt(nil, math.MinInt64), "d38000000000000000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.True(t, bytes.Equal(tt.got, unhex(t, tt.hex)), "got %x, want %s", tt.got, tt.hex)
		})
	}
}

// TestAppendHeaders walks the sizes at which a header grows.
func TestAppendHeaders(t *testing.T) {
	str := func(n int) []byte { return AppendString(nil, strings.Repeat("x", n)) }
	bin := func(n int) []byte { return AppendBin(nil, make([]byte, n)) }
	ext := func(n int) []byte { return AppendExt(nil, 3, make([]byte, n)) }
	array := func(n int) []byte { return AppendArrayHeader(nil, n) }
	pairs := func(n int) []byte { return AppendMapHeader(nil, n) }
	tests := []struct {
		name string
		got  []byte
		hex  string // what it begins with
	}{
		{"str 0", str(0), "a0"},
		{"str 31", str(31), "bf"},
		{"str 32", str(32), "d920"},
		{"str 255", str(255), "d9ff"},
		{"str 256", str(256), "da0100"},
		{"str 65535", str(65535), "daffff"},
		{"str 65536", str(65536), "db00010000"},
		{"bin 0", bin(0), "c400"},
		{"bin 255", bin(255), "c4ff"},
		{"bin 256", bin(256), "c50100"},
		{"bin 65536", bin(65536), "c600010000"},
		{"ext 0", ext(0), "c70003"},
		{"ext 1", ext(1), "d403"},
		{"ext 2", ext(2), "d503"},
		{"ext 3", ext(3), "c70303"},
		{"ext 4", ext(4), "d603"},
		{"ext 8", ext(8), "d703"},
		{"ext 16", ext(16), "d803"},
		{"ext 17", ext(17), "c71103"},
		{"ext 256", ext(256), "c8010003"},
		{"ext 65536", ext(65536), "c90001000003"},
		{"array 15", array(15), "9f"},
		{"array 16", array(16), "dc0010"},
		{"array 65535", array(65535), "dcffff"},
		{"array 65536", array(65536), "dd00010000"},
		{"array -1 is refused by readers", array(-1), "c1"},
		{"array 2^32 is refused by readers", array(math.MaxUint32 + 1), "c1"},
		{"map 15", pairs(15), "8f"},
		{"map 16", pairs(16), "de0010"},
		{"map 65536", pairs(65536), "df00010000"},
		{"map -1 is refused by readers", pairs(-1), "c1"},
		{"nil", AppendNil(nil), "c0"},
		{"false", AppendBool(nil, false), "c2"},
		{"true", AppendBool(nil, true), "c3"},
		{"float32", AppendFloat32(nil, 1.5), "ca3fc00000"},
		{"float64", AppendFloat64(nil, 1.5), "cb3ff8000000000000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !bytes.HasPrefix(tt.got, unhex(t, tt.hex)) {
				t.Errorf("begins with %x, want %s", tt.got[:min(len(tt.got), 8)], tt.hex)
			}
			isHeader := strings.HasPrefix(tt.name, "array") || strings.HasPrefix(tt.name, "map")
			if !isHeader && Validate(tt.got) != nil {
				t.Errorf("not valid: %v", Validate(tt.got))
			}
		})
	}
}
