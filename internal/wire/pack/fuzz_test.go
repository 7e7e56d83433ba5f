package pack

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// killers are messages of a few bytes that take a general decoder down.
var killers = []string{
	"dd ffffffff", "df ffffffff", "c6 ffffffff", "db ffffffff", "c9 ffffffff 03", "c1",
	"cf ffffffffffffffff", "d3 ffffffffffffffff", "91 91 91 91 91", "81 80 80", "82 a161 01 a161 02",
	"93 cc05 cd0005 ce00000005", "9a d005 d10105 d200010005 01 02 03 04 05 06 07", "a2 fffe", "ca 7fc00000",
}

func seed(f *testing.F, add func([]byte)) {
	for _, k := range killers {
		b := unhex(f, k)
		add(b)
	}
	for _, fr := range realFrames(f) {
		add(fr.bytes)
	}
	add(append(bytes.Repeat([]byte{0x91}, DefaultDepth), tagNil))
	add(AppendUint32s(nil, tokenIDs(20)))
}

// FuzzValidate holds Validate against msgpack/v5. What validates must be skipped
// over exactly by v5, and read alike value by value; what v5 skips over exactly
// must validate, unless it is too deep. There is no other exception, but 32-bit
// lengths that fail to validate are not shown to v5.
func FuzzValidate(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return // v5 recurses
		}
		err := Validate(b)
		if err != nil {
			if _, ok := errors.AsType[*SyntaxError](err); !ok {
				t.Fatalf("error is a %T, want *SyntaxError", err)
			}
			is32 := func(c byte) bool { return c == tagBin32 || c == tagExt32 || c == tagStr32 }
			if slices.ContainsFunc(b, is32) {
				return // v5 allocates the 4 GiB such a header may claim
			}
		}
		r := bytes.NewReader(b)
		theirs := msgpack.NewDecoder(r).Skip()
		whole := theirs == nil && r.Len() == 0
		switch {
		case err == nil && !whole:
			t.Fatalf("validates, but v5 says %v with %d bytes left", theirs, r.Len())
		case err == nil:
			sameAsV5(t, b)
		case whole && !strings.Contains(err.Error(), "nested deeper"):
			t.Fatalf("v5 accepts what does not validate: %v", err)
		}
	})
}

// sameAsV5 reads every value of a valid message with a cursor and with v5.
func sameAsV5(t *testing.T, b []byte) {
	t.Helper()
	c, r := NewCursor(b), bytes.NewReader(b)
	d := msgpack.NewDecoder(r)
	for !c.Done() {
		at := c.Offset()
		ours, theirs := readOurs(t, &c), readTheirs(t, d)
		if ours != theirs {
			t.Fatalf("byte %d: the cursor reads %s, v5 reads %s", at, ours, theirs)
		}
		if c.Offset() != len(b)-r.Len() {
			t.Fatalf("byte %d: the cursor reads up to %d, v5 up to %d", at, c.Offset(), len(b)-r.Len())
		}
	}
}

// readOurs reads one scalar, or the header of one container, as text.
func readOurs(t *testing.T, c *Cursor) string {
	t.Helper()
	var v any
	var err error
	k := c.Kind()
	switch k {
	case Nil:
		if !c.Nil() {
			err = errors.New("Nil reads no nil")
		}
	case Bool:
		v, err = c.Bool()
	case Int:
		if v, err = c.Int(); err != nil {
			v, err = c.Uint()
		}
	case Float:
		v, err = c.Float()
	case String:
		v, err = c.StrString()
	case Bin:
		v, err = c.Bin()
	case Array:
		v, err = c.ArrayLen()
	case Map:
		v, err = c.MapLen()
	case Ext:
		var code int8
		var data []byte
		code, data, err = c.Ext()
		v = fmt.Sprint(code, data)
	default:
		err = fmt.Errorf("kind %v in a valid message", k)
	}
	require.NoError(t, err)
	return fmt.Sprint(k, v)
}

func readTheirs(t *testing.T, d *msgpack.Decoder) string {
	t.Helper()
	code, err := d.PeekCode()
	require.NoError(t, err)
	k := forms[code].kind
	var v any
	switch k {
	case Nil:
		err = d.DecodeNil()
	case Bool:
		v, err = d.DecodeBool()
	case Int:
		v, err = d.DecodeInt64()
		if code == msgpcode.Uint64 && v.(int64) < 0 {
			v = uint64(v.(int64)) // v5 wraps where the cursor refuses
		}
	case Float:
		v, err = d.DecodeFloat64()
	case String:
		v, err = d.DecodeString()
	case Bin:
		v, err = d.DecodeBytes()
	case Array:
		v, err = d.DecodeArrayLen()
	case Map:
		v, err = d.DecodeMapLen()
	case Ext:
		var id int8
		var n int
		if id, n, err = d.DecodeExtHeader(); err == nil {
			data := make([]byte, n)
			err = d.ReadFull(data)
			v = fmt.Sprint(id, data)
		}
	}
	require.NoErrorf(t, err, "v5 fails on a valid %v", k)
	return fmt.Sprint(k, v)
}

// FuzzCursor does the reads that script names, in order. No read may panic, a
// failed one may not move the cursor, a successful one moves it forward, and what
// validates is passed over by Skip.
func FuzzCursor(f *testing.F) {
	seed(f, func(b []byte) {
		f.Add(b, []byte{0, 4, 0, 0, 7, 12})
		f.Add(b, []byte{1, 7, 3, 10, 11})
	})
	f.Fuzz(func(t *testing.T, b, script []byte) {
		whole := NewCursor(b)
		skips := whole.Skip() == nil && whole.Done()
		if valid := Validate(b) == nil; valid != skips {
			t.Fatalf("Validate says %v, Skip to the end says %v", valid, skips)
		}
		c := NewCursor(b)
		for _, op := range script {
			before, kind := c.Offset(), c.Kind()
			_, err := cursorReads[int(op)%len(cursorReads)].read(&c)
			switch {
			case err != nil && c.Offset() != before:
				t.Fatalf("failed read moved from %d to %d", before, c.Offset())
			case err == nil && (c.Offset() <= before || c.Offset() > len(b)):
				t.Fatalf("read of %v moved from %d to %d of %d", kind, before, c.Offset(), len(b))
			case len(c.Rest())+c.Offset() != len(b):
				t.Fatalf("rest of %d bytes at %d of %d", len(c.Rest()), c.Offset(), len(b))
			}
			if err != nil && c.Skip() != nil {
				return
			}
		}
	})
}

// FuzzUint32s holds the tight loop against reading one by one.
func FuzzUint32s(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		fast, slow := NewCursor(b), NewCursor(b)
		got, err := fast.Uint32s(nil)
		want := []uint32{}
		n, wantErr := slow.ArrayLen()
		for range n {
			v, err := slow.uint32()
			if err != nil {
				wantErr = err
				break
			}
			want = append(want, v)
		}
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("error %v, one by one %v", err, wantErr)
		}
		if err == nil && (fmt.Sprint(got) != fmt.Sprint(want) || fast.Offset() != slow.Offset()) {
			t.Fatalf("got %v up to %d, one by one %v up to %d", got, fast.Offset(), want, slow.Offset())
		}
		if err == nil {
			again := NewCursor(AppendUint32s(nil, got))
			if back, err := again.Uint32s(nil); err != nil || fmt.Sprint(back) != fmt.Sprint(got) {
				t.Fatalf("written and read back: %v, %v, want %v", back, err, got)
			}
		}
	})
}

// FuzzDiff: nothing panics, a message equals itself and its canonical form, the
// two directions agree, and shapes differ only where values do.
func FuzzDiff(f *testing.F) {
	frames := realFrames(f)
	seed(f, func(b []byte) { f.Add(b, frames[len(b)%len(frames)].bytes) })
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, text := range []string{Format(a), Format(b)} {
			if len(text) > formatLimit+4*quoteLimit+200 || strings.Contains(text, "\n") {
				t.Fatalf("%d bytes, or several lines: %q", len(text), text)
			}
		}
		found, err := Diff("m", a, b, DiffOptions{})
		back, backErr := Diff("m", b, a, DiffOptions{})
		if (err == nil) != (backErr == nil) || err == nil && (len(found) == 0) != (len(back) == 0) {
			t.Fatalf("the directions disagree: %v %v, %v %v", found, err, back, backErr)
		}
		if valid := Validate(a) == nil && Validate(b) == nil; valid != (err == nil) {
			t.Fatalf("both valid: %v, error %v", valid, err)
		}
		if err != nil {
			return
		}
		masked, err := Diff("m", a, b, DiffOptions{Mask: func(string) bool { return true }, MapOrder: true})
		if len(found) == 0 && err == nil {
			for _, d := range masked {
				if !strings.HasPrefix(d.Want, "keys in the order") {
					t.Fatalf("equal, but not in shape: %v", d)
				}
			}
		}
		if same, err := Equal(a, appendCanonical(nil, a, 0)); !same || err != nil {
			t.Fatalf("the canonical form differs: %v, %v", same, err)
		}
	})
}
