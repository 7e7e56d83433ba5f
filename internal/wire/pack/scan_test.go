package pack

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		hex  string
		want string // the error, "" when valid
	}{
		{"positive fixint", "7f", ""},
		{"negative fixint", "e0", ""},
		{"nil", "c0", ""},
		{"bools in an array", "92 c2 c3", ""},
		{"every int width", "98 cc01 cd0001 ce00000001 cf0000000000000001 d001 d10001 d200000001 d30000000000000001", ""},
		{"floats", "92 ca3fc00000 cb3ff8000000000000", ""},
		{"every fixext", "95 d40300 d5030000 d60300000000 d7030000000000000000 d80300000000000000000000000000000000", ""},
		{"ext 8, 16 and 32", "93 c70103ff c8000103ff c90000000103ff", ""},
		{"empty ext 8", "c70003", ""},
		{"bin 8, 16 and 32", "93 c401ff c50001ff c600000001ff", ""},
		{"str 8, 16 and 32", "93 d90141 da000141 db0000000141", ""},
		{"map header wider than needed", "de0001 a161 01", ""},
		{"integer map key", "81 05 01", ""},
		{"duplicate map keys", "82 a161 01 a161 02", ""},
		{"invalid utf-8 in a str", "a2 fffe", ""},
		{"empty array 32", "dd00000000", ""},

		{"nothing", "", "byte 0: empty message"},
		{"the reserved byte", "c1", "byte 0: the byte 0xc1 is never used in MessagePack"},
		{"the reserved byte inside", "92 01 c1", "byte 2: the byte 0xc1 is never used in MessagePack"},
		{"trailing byte", "01 02", "byte 1: 1 trailing bytes after the message"},
		{"trailing message", "90 c0 c0", "byte 1: 2 trailing bytes after the message"},
		{"missing elements", "93 01 02", "byte 0: array of 3 elements needs at least 3 bytes, 2 remain"},
		{"missing last element", "92 92 01 02", "byte 4: message ends where a value is expected (4 bytes in all)"},
		{"missing map value", "82 01 02 03", "byte 0: map of 2 pairs needs at least 4 bytes, 3 remain"},
		{"array 32 of 2^32-1", "dd ffffffff", "byte 0: array of 4294967295 elements needs at least 4294967295 bytes, 0 remain"},
		{"map 32 of 2^32-1", "df ffffffff", "byte 0: map of 4294967295 pairs needs at least 8589934590 bytes, 0 remain"},
		{"bin 32 of 2^32-1", "c6 ffffffff", "byte 0: bin of 4294967295 bytes, 0 remain"},
		{"str 32 of 2^32-1", "db ffffffff", "byte 0: str of 4294967295 bytes, 0 remain"},
		{"ext 32 of 2^32-1", "c9 ffffffff 03", "byte 0: ext of 4294967295 bytes, 0 remain"},
		{"ext without its type", "c7 00", "byte 0: message ends before the type code of an ext"},
		{"fixext without its type", "d4", "byte 0: message ends before the type code of an ext"},
		{"short fixext", "d5 03 00", "byte 0: ext of 2 bytes, 1 remain"},
		{"cut length", "da 00", "byte 0: message ends inside the 2-byte length of a str"},
		{"cut number", "91 ce 000001", "byte 1: int of 4 bytes, 3 remain"},
		{"cut fixstr", "a3 6162", "byte 0: str of 3 bytes, 2 remain"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, Validate(unhex(t, tt.hex)), tt.want)
		})
	}
}

// checkError wants no error, or a syntax error whose text after "msgpack: " is want.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		require.NoErrorf(t, err, "got error: want none")
		return
	}
	if err == nil {
		t.Fatalf("got no error, want %q", want)
	}
	require.Equal(t, err.Error(), "msgpack: "+want, "error")
	if _, ok := errors.AsType[*SyntaxError](err); !ok {
		t.Errorf("error is a %T, want *SyntaxError", err)
	}
}

func TestValidateDepth(t *testing.T) {
	nested := func(n int, wrap string) []byte { return append(bytes.Repeat(unhex(t, wrap), n), tagNil) }
	tests := []struct {
		name  string
		in    []byte
		depth int
		want  string
	}{
		{"scalar at 0", unhex(t, "01"), 0, ""},
		{"scalar below 0", unhex(t, "01"), -1, ""},
		{"empty array at 0", unhex(t, "90"), 0, "byte 0: nested deeper than 0 containers"},
		{"array at 1", unhex(t, "9101"), 1, ""},
		{"siblings do not add up", unhex(t, "92 9101 9101"), 2, ""},
		{"arrays at the default", nested(DefaultDepth, "91"), DefaultDepth, ""},
		{"arrays one too deep", nested(DefaultDepth+1, "91"), DefaultDepth, "byte 64: nested deeper than 64 containers"},
		{"maps one too deep", nested(DefaultDepth+1, "8101"), DefaultDepth, "byte 128: nested deeper than 64 containers"},
		{"maps nested in keys", nested(DefaultDepth+2, "81"), DefaultDepth, "byte 64: nested deeper than 64 containers"},
		{"deeper when asked", nested(1000, "91"), 1000, ""},
		{"5 million arrays", nested(5_000_000, "91"), DefaultDepth, "byte 64: nested deeper than 64 containers"},
		{"5 million maps", nested(5_000_000, "8101"), DefaultDepth, "byte 128: nested deeper than 64 containers"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, ValidateDepth(tt.in, tt.depth), tt.want)
		})
	}
}

func TestValidateRealFrames(t *testing.T) {
	for _, f := range realFrames(t) {
		t.Run(f.name, func(t *testing.T) {
			require.NoError(t, Validate(f.bytes))
			for n := range f.bytes {
				// The capacity is cut too: reading on into the rest must not go unseen.
				require.True(t, Validate(f.bytes[:n:n]) != nil, "the first %d of %d bytes validate", n, len(f.bytes))
			}
			require.True(t, Validate(append(bytes.Clone(f.bytes), 0)) != nil, "validates with a trailing byte")
		})
	}
}

func TestSkip(t *testing.T) {
	in := unhex(t, "92 01 a3616263 c0")
	tests := []struct {
		name      string
		off, next int
		want      string
	}{
		{"the array", 0, 6, ""},
		{"its first element", 1, 2, ""},
		{"its second", 2, 6, ""},
		{"the value after it", 6, 7, ""},
		{"at the end", 7, 7, "message ends where a value is expected"},
		{"past the end", 99, 99, "message ends where a value is expected"},
		{"before the start", -1, -1, "negative offset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next, err := Skip(in, tt.off, DefaultDepth)
			require.True(t, tt.want != "" || (err == nil && next == tt.next), "got %d, %v, want %d", next, err, tt.next)
			require.True(t, tt.want == "" || (err != nil && strings.Contains(err.Error(), tt.want)), "got error %v, want one with %q", err, tt.want)
		})
	}
}

func TestKindString(t *testing.T) {
	want := "invalid nil bool int float str bin array map ext invalid"
	var got []string
	for k := Invalid; k <= Ext+1; k++ {
		got = append(got, k.String())
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
