package pack

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// cursorReads are the typed reads, each as one call with a printable result.
var cursorReads = []struct {
	name string
	read func(*Cursor) (any, error)
}{
	{"ArrayLen", func(c *Cursor) (any, error) { return c.ArrayLen() }},
	{"MapLen", func(c *Cursor) (any, error) { return c.MapLen() }},
	{"Int", func(c *Cursor) (any, error) { return c.Int() }},
	{"Uint", func(c *Cursor) (any, error) { return c.Uint() }},
	{"Float", func(c *Cursor) (any, error) { return c.Float() }},
	{"Bool", func(c *Cursor) (any, error) { return c.Bool() }},
	{"Str", func(c *Cursor) (any, error) { return c.Str() }},
	{"StrString", func(c *Cursor) (any, error) { return c.StrString() }},
	{"Bin", func(c *Cursor) (any, error) { return c.Bin() }},
	{"Ext", func(c *Cursor) (any, error) {
		code, data, err := c.Ext()
		return []any{code, data}, err
	}},
	{"Raw", func(c *Cursor) (any, error) { return c.Raw() }},
	{"Skip", func(c *Cursor) (any, error) { return nil, c.Skip() }},
	{"Uint32s", func(c *Cursor) (any, error) { return c.Uint32s(nil) }},
}

func TestCursorReads(t *testing.T) {
	tests := []struct {
		name string // the read, then what it meets
		hex  string
		want any // a value, or the error's text after "msgpack: " as an error
	}{
		{"Int zero", "00", int64(0)},
		{"Int largest fixint", "7f", int64(127)},
		{"Int smallest fixint", "e0", int64(-32)},
		{"Int uint8", "cc ff", int64(255)},
		{"Int uint16", "cd ffff", int64(65535)},
		{"Int uint32", "ce ffffffff", int64(math.MaxUint32)},
		{"Int uint64 at the top", "cf 7fffffffffffffff", int64(math.MaxInt64)},
		{"Int uint64 above", "cf 8000000000000000", errors.New("byte 0: expected a signed 64-bit int, found 9223372036854775808")},
		{"Int uint64 max", "cf ffffffffffffffff", errors.New("byte 0: expected a signed 64-bit int, found 18446744073709551615")},
		{"Int int8", "d0 80", int64(-128)},
		{"Int int16", "d1 8000", int64(-32768)},
		{"Int int32", "d2 80000000", int64(math.MinInt32)},
		{"Int int64", "d3 8000000000000000", int64(math.MinInt64)},
		{"Int wider than needed", "d3 0000000000000005", int64(5)},
		{"Int float", "cb 3ff0000000000000", errors.New("byte 0: expected int, found float")},
		{"Int nil", "c0", errors.New("byte 0: expected int, found nil")},
		{"Int end", "", errors.New("byte 0: empty message")},
		{"Int cut", "cd 01", errors.New("byte 0: int of 2 bytes, 1 remain")},
		{"Uint max", "cf ffffffffffffffff", uint64(math.MaxUint64)},
		{"Uint minus one", "ff", errors.New("byte 0: expected a non-negative int, found -1")},
		{"Uint minus one in int64", "d3 ffffffffffffffff", errors.New("byte 0: expected a non-negative int, found -1")},
		{"Uint positive int8", "d0 05", uint64(5)},
		{"Float float32", "ca 3f800000", float64(1)},
		{"Float float64", "cb 3ff8000000000000", 1.5},
		{"Float int", "05", float64(5)},
		{"Float negative int", "d0 80", float64(-128)},
		{"Float uint64 max", "cf ffffffffffffffff", float64(math.MaxUint64)},
		{"Float str", "a131", errors.New("byte 0: expected float, found str")},
		{"Float cut", "ca 3f80", errors.New("byte 0: float of 4 bytes, 2 remain")},
		{"Bool true", "c3", true},
		{"Bool false", "c2", false},
		{"Bool int", "01", errors.New("byte 0: expected bool, found int")},
		{"Str fixstr", "a3 616263", []byte("abc")},
		{"Str str8", "d9 01 61", []byte("a")},
		{"Str bin", "c4 01 61", errors.New("byte 0: expected str, found bin")},
		{"Str of 2^32-1", "db ffffffff", errors.New("byte 0: str of 4294967295 bytes, 0 remain")},
		{"StrString fixstr", "a3 616263", "abc"},
		{"StrString not utf-8", "a1 ff", "\xff"},
		{"Bin bin8", "c4 02 0001", []byte{0, 1}},
		{"Bin str", "a1 61", errors.New("byte 0: expected bin, found str")},
		{"Bin of 2^32-1", "c6 ffffffff", errors.New("byte 0: bin of 4294967295 bytes, 0 remain")},
		{"Ext fixext1", "d4 03 ff", []any{int8(3), []byte{0xff}}},
		{"Ext ext8 of a negative type", "c7 02 ff 0102", []any{int8(-1), []byte{1, 2}}},
		{"Ext bin", "c4 00", errors.New("byte 0: expected ext, found bin")},
		{"ArrayLen fixarray", "93 010203", 3},
		{"ArrayLen array16", "dc 0001 01", 1},
		{"ArrayLen more than there is", "93 0102", errors.New("byte 0: array of 3 elements needs at least 3 bytes, 2 remain")},
		{"ArrayLen of 2^32-1", "dd ffffffff", errors.New("byte 0: array of 4294967295 elements needs at least 4294967295 bytes, 0 remain")},
		{"ArrayLen map", "80", errors.New("byte 0: expected array, found map")},
		{"MapLen fixmap", "81 0102", 1},
		{"MapLen map16 wider than needed", "de 0001 0102", 1},
		{"MapLen more than there is", "82 010203", errors.New("byte 0: map of 2 pairs needs at least 4 bytes, 3 remain")},
		{"MapLen of 2^32-1", "df ffffffff", errors.New("byte 0: map of 4294967295 pairs needs at least 8589934590 bytes, 0 remain")},
		{"MapLen array", "90", errors.New("byte 0: expected map, found array")},
		{"Raw array", "92 01 91c0 c3", []byte{0x92, 1, 0x91, 0xc0}},
		{"Raw ext", "d4 03 ff c3", []byte{0xd4, 3, 0xff}},
		{"Raw cut", "92 01", errors.New("byte 0: array of 2 elements needs at least 2 bytes, 1 remain")},
		{"Skip reserved", "c1", errors.New("byte 0: the byte 0xc1 is never used in MessagePack")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCursor(unhex(t, tt.hex))
			got, err := readNamed(t, &c, tt.name)
			if want, ok := tt.want.(error); ok {
				if err == nil || err.Error() != "msgpack: "+want.Error() {
					t.Fatalf("got %v, error %v\nwant error msgpack: %v", got, err, want)
				}
				require.Equal(t, c.Offset(), 0, "the failed read moved the cursor to")
				return
			}
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(tt.want, got), "-want +got")
		})
	}
}

// readNamed does the read that the first word of a test's name names.
func readNamed(t *testing.T, c *Cursor, test string) (any, error) {
	t.Helper()
	word, _, _ := bytes.Cut([]byte(test), []byte(" "))
	for _, r := range cursorReads {
		if r.name == string(word) {
			return r.read(c)
		}
	}
	t.Fatalf("no read is named %s", word)
	return nil, nil
}

func TestCursorNil(t *testing.T) {
	c := NewCursor(unhex(t, "c0 01 c0"))
	got := []bool{c.Nil(), c.Nil(), c.Skip() == nil, c.Nil(), c.Nil(), c.Done()}
	if want := []bool{true, false, true, true, false, true}; !slices.Equal(got, want) {
		t.Errorf("nil, 1, nil read as %v, want %v", got, want)
	}
}

// TestCursorSlicesAreCapped appends to what a read returned: the message must not
// change.
func TestCursorSlicesAreCapped(t *testing.T) {
	in := unhex(t, "a1 61 01")
	reads := map[string]func(*Cursor) []byte{
		"Str": func(c *Cursor) []byte { p, _ := c.Str(); return p },
		"Raw": func(c *Cursor) []byte { p, _ := c.Raw(); return p },
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			c := NewCursor(in)
			p := append(read(&c), 0xff)
			require.True(t, len(p) >= 2 && in[2] == 1, "appending to the result wrote into the message: % x", in)
		})
	}
}

func TestCursorUint32s(t *testing.T) {
	tests := []struct {
		name string
		hex  string
		want []uint32
		err  string
	}{
		{"empty", "90", nil, ""},
		{"empty array 32", "dd 00000000", nil, ""},
		{"shorter than one eight-byte read", "93 01 02 7f", []uint32{1, 2, 127}, ""},
		{"the common forms", "94 05 cc80 cdffff ceffffffff", []uint32{5, 128, 65535, math.MaxUint32}, ""},
		{"wider than needed", "94 cc05 cd0005 ce00000005 cf0000000000000005", []uint32{5, 5, 5, 5}, ""},
		{"signed forms", "95 d005 d10105 d200010005 d30000000000000005 07", []uint32{5, 261, 65541, 5, 7}, ""},
		{"a signed form among others", "dc000a 01 02 03 d104d2 05 06 07 08 09 0a", []uint32{1, 2, 3, 1234, 5, 6, 7, 8, 9, 10}, ""},
		{"negative fixint", "92 01 ff", nil, "byte 2: expected a non-negative int, found -1"},
		{"negative int8 early", "dc000a 01 d0ff 03 04 05 06 07 08 09 0a", nil, "byte 4: expected a non-negative int, found -1"},
		{"2^32", "91 cf 0000000100000000", nil, "byte 1: expected an int below 2^32, found 4294967296"},
		{"nil element", "92 01 c0", nil, "byte 2: expected int, found nil"},
		{"float element", "91 ca 00000000", nil, "byte 1: expected int, found float"},
		{"cut element", "92 cd0001 cd01", nil, "byte 4: int of 2 bytes, 1 remain"},
		{"missing element", "92 cd0001", nil, "byte 4: message ends where a value is expected (4 bytes in all)"},
		{"2^32-1 elements", "dd ffffffff", nil, "byte 0: array of 4294967295 elements needs at least 4294967295 bytes, 0 remain"},
		{"not an array", "c0", nil, "byte 0: expected array, found nil"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCursor(unhex(t, tt.hex))
			got, err := c.Uint32s([]uint32{42})
			if tt.err != "" {
				require.True(t, err != nil && err.Error() == "msgpack: "+tt.err, "got %v, error %v\nwant error msgpack: %s", got, err, tt.err)
				if !slices.Equal(got, []uint32{42}) || c.Offset() != 0 {
					t.Errorf("after the error: %v at byte %d, want [42] at byte 0", got, c.Offset())
				}
				return
			}
			if err != nil || !c.Done() {
				t.Fatalf("error %v, %d bytes left, want none of either", err, len(c.Rest()))
			}
			if want := append([]uint32{42}, tt.want...); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}
