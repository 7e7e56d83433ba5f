package pack

import (
	"bytes"
	"fmt"
	"math"
)

// Difference is one place at which two messages differ.
type Difference struct {
	// Path leads from the root to the value: names of fields and str keys with
	// dots, elements and other keys in brackets, as in
	// EngineCoreOutputs.outputs[0].prefill_stats.num_cached_tokens.
	Path string
	// Want and Got are the two values as [Format] prints them, shorter, or what
	// is there instead: "absent", "array of 3 elements".
	Want, Got string
	// WantOffset and GotOffset are the bytes at which the values begin in their
	// messages, -1 on the side where there is none.
	WantOffset, GotOffset int
}

// String is the difference on one line: "path: want X, got Y".
func (d Difference) String() string {
	return fmt.Sprintf("%s: want %s, got %s", d.Path, d.Want, d.Got)
}

// DiffOptions says how [Diff] compares. The zero value compares everything and
// ignores the order of map keys.
type DiffOptions struct {
	// Names gives the name of element index of the array at path, for structs
	// encoded as arrays; "" leaves the index. Nil names nothing. It is asked only
	// for elements that differ.
	Names func(path string, index int) string
	// Ignore drops the value at path with all it holds, its absence included.
	Ignore func(path string) bool
	// Mask accepts any value of the same kind at path: another number, other
	// bytes. Containers are walked all the same, and ext type codes still count,
	// so a Mask that is always true compares shapes.
	Mask func(path string) bool
	// MapOrder makes the order of keys within a map count.
	MapOrder bool
	// MaxDifferences ends the comparison early; 0 means 100.
	MaxDifferences int
}

const defaultMaxDifferences = 100

// Diff compares two messages by value and returns the differences in the order
// of want. Root is the first part of every path, usually the name of the message.
//
// Integers are equal whatever their widths, floats when float32 widened to
// float64 is the same number (0.5 is, 0.9 is not), NaN equals NaN. Kinds are
// never converted: 1 and 1.0 differ, so do str and bin, and ext type codes.
// Arrays of different lengths give one difference at the array's path with both
// lengths, and their common elements are compared. Of a map key present several
// times, the first is compared with the first of the other side, and so on.
//
// The error says which message is not well formed, and wraps a [*SyntaxError].
func Diff(root string, want, got []byte, opt DiffOptions) ([]Difference, error) {
	if err := Validate(want); err != nil {
		return nil, fmt.Errorf("wanted message: %w", err)
	}
	if bytes.Equal(want, got) {
		return nil, nil
	}
	if err := Validate(got); err != nil {
		return nil, fmt.Errorf("got message: %w", err)
	}
	d := differ{root: root, want: want, got: got, opt: opt}
	if d.opt.MaxDifferences <= 0 {
		d.opt.MaxDifferences = defaultMaxDifferences
	}
	d.run()
	return d.found, d.err
}

// Equal reports whether two messages hold the same value by the rules of [Diff].
func Equal(a, b []byte) (bool, error) {
	found, err := Diff("", a, b, DiffOptions{MaxDifferences: 1})
	return err == nil && len(found) == 0, err
}

// level is a pair of containers being compared. Both have been validated, so no
// more than [DefaultDepth] levels are ever open.
type level struct {
	path string
	w, g int      // arrays: offsets of the current elements
	i, n int      // current element or pair, how many there are to compare
	keys *pairing // maps only
}

type differ struct {
	root      string
	want, got []byte
	opt       DiffOptions
	stack     []level
	found     []Difference
	err       error
}

// run compares the two messages, both validated.
func (d *differ) run() {
	d.value(0, 0)
	for len(d.stack) > 0 && d.err == nil && len(d.found) < d.opt.MaxDifferences {
		at := len(d.stack) - 1
		top := d.stack[at]
		switch {
		case top.i == top.n:
			d.stack = d.stack[:at]
			continue
		case top.keys != nil:
			d.pair(top.keys.at(top.i))
		default:
			d.stack[at].w, d.stack[at].g = d.value(top.w, top.g)
		}
		d.stack[at].i++
	}
}

// value compares the values at w and g, opening a level when both are alike
// containers, and returns the offsets after them.
func (d *differ) value(w, g int) (nextW, nextG int) {
	hw, hg := d.head(d.want, w), d.head(d.got, g)
	if !hw.kind.isContainer() && !hg.kind.isContainer() {
		d.scalar(w, g, hw, hg)
		return hw.next(), hg.next()
	}
	nextW, nextG = d.skip(d.want, w), d.skip(d.got, g)
	if d.err != nil || bytes.Equal(d.want[w:nextW], d.got[g:nextG]) {
		return nextW, nextG
	}
	path := d.here()
	switch {
	case d.ignored(path):
	case hw.kind != hg.kind:
		d.report(path, w, g, formatValue(d.want, w), formatValue(d.got, g))
	case hw.kind == Array:
		d.openArray(path, w, g, hw, hg)
	default:
		d.openMap(path, w, g, hw, hg)
	}
	return nextW, nextG
}

func (d *differ) openArray(path string, w, g int, hw, hg head) {
	if hw.n != hg.n {
		d.report(path, w, g, lengthText(hw.n), lengthText(hg.n))
	}
	d.stack = append(d.stack, level{path: path, w: hw.body, g: hg.body, n: min(hw.n, hg.n)})
}

func lengthText(n int) string {
	if n == 1 {
		return "array of 1 element"
	}
	return fmt.Sprintf("array of %d elements", n)
}

func (d *differ) openMap(path string, w, g int, hw, hg head) {
	keys, err := pairKeys(d.want, d.got, hw, hg)
	if err != nil {
		d.err = err
		return
	}
	if d.opt.MapOrder && !keys.inOrder() {
		d.report(path, w, g, formatKeys(d.want, keys.want), formatKeys(d.got, keys.got))
	}
	d.stack = append(d.stack, level{path: path, n: keys.len(), keys: keys})
}

// pair compares the values of one key; either may be missing.
func (d *differ) pair(want, got *entry) {
	if want != nil && got != nil {
		d.value(want.value, got.value)
		return
	}
	path := d.here()
	switch {
	case d.ignored(path):
	case got == nil:
		d.report(path, want.value, -1, want.text(d.want), "absent")
	default:
		d.report(path, -1, got.value, "absent", got.text(d.got))
	}
}

// scalar compares two values of which neither holds others.
func (d *differ) scalar(w, g int, hw, hg head) {
	if d.err != nil || d.sameScalar(hw, hg) {
		return
	}
	path := d.here()
	if d.ignored(path) {
		return
	}
	if hw.kind == hg.kind && hw.code == hg.code && d.opt.Mask != nil && d.opt.Mask(path) {
		return
	}
	wantText, gotText := d.describe(w, g, hw, hg)
	d.report(path, w, g, wantText, gotText)
}

func (d *differ) sameScalar(hw, hg head) bool {
	if hw.kind != hg.kind {
		return false
	}
	switch hw.kind {
	case Nil:
		return true
	case Bool:
		return hw.tag == hg.tag
	case Int:
		return hw.integer(d.want) == hg.integer(d.got)
	case Float:
		w, g := hw.float(d.want), hg.float(d.got)
		return w == g || math.IsNaN(w) && math.IsNaN(g)
	default:
		return hw.code == hg.code && bytes.Equal(hw.payload(d.want), hg.payload(d.got))
	}
}

// describe prints two unequal scalars so that the difference shows: bytes that
// [Format] would not print, or cut off, are printed from the first that differs.
func (d *differ) describe(w, g int, hw, hg head) (string, string) {
	want, got := formatValue(d.want, w), formatValue(d.got, g)
	hidden := hw.kind == Bin || hw.kind == Ext || hw.n > quoteLimit || hg.n > quoteLimit
	if hw.kind != hg.kind || !hidden || hw.code != hg.code {
		return want, got
	}
	pw, pg := hw.payload(d.want), hg.payload(d.got)
	at := commonPrefix(pw, pg)
	return want + " " + excerpt(hw.kind, pw, at), got + " " + excerpt(hg.kind, pg, at)
}

func (d *differ) report(path string, w, g int, want, got string) {
	d.found = append(d.found, Difference{Path: path, Want: want, Got: got, WantOffset: w, GotOffset: g})
}

func (d *differ) ignored(path string) bool { return d.opt.Ignore != nil && d.opt.Ignore(path) }

// head and skip cannot fail after Validate; should they, the comparison ends with
// their error instead of a wrong answer.
func (d *differ) head(b []byte, off int) head {
	h, err := readHead(b, off)
	if err != nil && d.err == nil {
		d.err = err
	}
	return h
}

func (d *differ) skip(b []byte, off int) int {
	next, err := Skip(b, off, DefaultDepth)
	if err != nil && d.err == nil {
		d.err = err
	}
	return next
}
