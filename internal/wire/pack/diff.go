package pack

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
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
		if hw.n != hg.n {
			d.report(path, w, g, lengthText(hw.n), lengthText(hg.n))
		}
		d.stack = append(d.stack, level{path: path, w: hw.body, g: hg.body, n: min(hw.n, hg.n)})
	default:
		d.openMap(path, w, g, hw, hg)
	}
	return nextW, nextG
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
	d.stack = append(d.stack, level{path: path, n: len(keys.want) + len(keys.extra), keys: keys})
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

// here is the path of the value being compared.
func (d *differ) here() string {
	if len(d.stack) == 0 {
		return d.root
	}
	top := d.stack[len(d.stack)-1]
	if top.keys != nil {
		return join(top.path, top.keys.text(d.want, d.got, top.i))
	}
	if d.opt.Names != nil {
		if name := d.opt.Names(top.path, top.i); name != "" {
			return join(top.path, name)
		}
	}
	return top.path + "[" + strconv.Itoa(top.i) + "]"
}

// join appends a field name, or a key already in brackets, to a path.
func join(path, part string) string {
	if path == "" || part[0] == '[' {
		return path + part
	}
	return path + "." + part
}

// keyText is a map key as a part of a path: a plain str bare, anything else in
// brackets, cut like in [Format].
func keyText(b []byte, off int) string {
	h, err := readHead(b, off)
	if err == nil && h.kind == String && isPlain(h.payload(b)) {
		return string(h.payload(b))
	}
	return "[" + formatValue(b, off) + "]"
}

// isPlain reports whether a key can stand in a path without quotes.
func isPlain(p []byte) bool {
	for _, c := range p {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return 0 < len(p) && len(p) <= quoteLimit
}

// excerptSize is how many bytes of a payload an excerpt shows.
const excerptSize = 16

// excerpt shows payload p from byte at on.
func excerpt(k Kind, p []byte, at int) string {
	if at >= len(p) {
		return fmt.Sprintf("ends at byte %d", at)
	}
	if k == String {
		for at > 0 && !utf8.RuneStart(p[at]) {
			at--
		}
		return fmt.Sprintf("from byte %d: %q", at, p[at:min(at+excerptSize, len(p))])
	}
	return fmt.Sprintf("from byte %d: %x", at, p[at:min(at+excerptSize, len(p))])
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// entry is one pair of a map: offsets of its key and value.
type entry struct {
	key, value int
	repeat     bool // the key stood before in the same map
}

// text is the value of an entry the other side lacks.
func (e *entry) text(b []byte) string {
	s := formatValue(b, e.value)
	if e.repeat {
		return s + " (duplicate key)"
	}
	return s
}

// pairing matches the entries of two maps by key. Real frames of one struct have
// the same keys in the same order; then nothing is sorted and match is nil.
type pairing struct {
	want, got []entry
	match     []int // of each want entry, its got entry or -1
	extra     []int // got entries no want entry has
}

// at returns pair i; nil on the side that lacks the key.
func (p *pairing) at(i int) (want, got *entry) {
	switch {
	case i >= len(p.want):
		return nil, &p.got[p.extra[i-len(p.want)]]
	case p.match == nil:
		return &p.want[i], &p.got[i]
	case p.match[i] < 0:
		return &p.want[i], nil
	default:
		return &p.want[i], &p.got[p.match[i]]
	}
}

// text is the key of pair i as a part of a path.
func (p *pairing) text(want, got []byte, i int) string {
	w, g := p.at(i)
	if w != nil {
		return keyText(want, w.key)
	}
	return keyText(got, g.key)
}

// inOrder reports whether the keys both maps have come in the same order.
func (p *pairing) inOrder() bool {
	last := -1
	for _, g := range p.match {
		if g >= 0 && g < last {
			return false
		}
		last = max(last, g)
	}
	return true
}

func pairKeys(want, got []byte, hw, hg head) (*pairing, error) {
	w, err := entries(want, hw)
	if err != nil {
		return nil, err
	}
	g, err := entries(got, hg)
	if err != nil {
		return nil, err
	}
	p := &pairing{want: w, got: g}
	k := &keyOrder{}
	if !p.aligned(k, want, got) {
		p.merge(k, want, got)
	}
	return p, nil
}

// entries lists the pairs of a map. Its length has been checked against the bytes.
func entries(b []byte, h head) ([]entry, error) {
	list := make([]entry, 0, h.n)
	off := h.body
	for range h.n {
		value, err := Skip(b, off, DefaultDepth)
		if err != nil {
			return nil, err
		}
		list = append(list, entry{key: off, value: value})
		if off, err = Skip(b, value, DefaultDepth); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (p *pairing) aligned(k *keyOrder, want, got []byte) bool {
	if len(p.want) != len(p.got) {
		return false
	}
	for i := range p.want {
		if k.compare(want, p.want[i].key, got, p.got[i].key) != 0 {
			return false
		}
	}
	return true
}

// merge matches by sorting both sides, so that a map of a million shuffled keys
// costs n log n and a few words a key.
func (p *pairing) merge(k *keyOrder, want, got []byte) {
	ws, gs := k.sort(want, p.want), k.sort(got, p.got)
	p.match = make([]int, len(p.want))
	for len(ws) > 0 && len(gs) > 0 {
		c := k.compare(want, p.want[ws[0]].key, got, p.got[gs[0]].key)
		switch {
		case c < 0:
			p.match[ws[0]], ws = -1, ws[1:]
		case c > 0:
			p.extra, gs = append(p.extra, gs[0]), gs[1:]
		default:
			p.match[ws[0]], ws, gs = gs[0], ws[1:], gs[1:]
		}
	}
	for _, w := range ws {
		p.match[w] = -1
	}
	p.extra = append(p.extra, gs...)
	slices.Sort(p.extra)
}

// keyOrder compares map keys by value. The order itself means nothing.
type keyOrder struct{ a, b []byte } // scratch

// sort returns the positions of the entries by key, equal keys by position, and
// marks the repeated ones.
func (k *keyOrder) sort(b []byte, list []entry) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(k.compare(b, list[i].key, b, list[j].key), cmp.Compare(i, j))
	})
	for n := 1; n < len(order); n++ {
		i, j := order[n-1], order[n]
		list[j].repeat = k.compare(b, list[i].key, b, list[j].key) == 0
	}
	return order
}

// compare orders the keys at a[i] and b[j], both well formed.
func (k *keyOrder) compare(a []byte, i int, b []byte, j int) int {
	ha, _ := readHead(a, i)
	hb, _ := readHead(b, j)
	if ha.kind != hb.kind {
		return cmp.Compare(ha.kind, hb.kind)
	}
	switch ha.kind {
	case String:
		return bytes.Compare(ha.payload(a), hb.payload(b))
	case Int:
		return ha.integer(a).compare(hb.integer(b))
	default:
		k.a, k.b = appendCanonical(k.a[:0], a, i), appendCanonical(k.b[:0], b, j)
		return bytes.Compare(k.a, k.b)
	}
}

// appendCanonical appends the value at off with every part in its one smallest
// form, so that equal values become equal bytes. Maps keep their order.
func appendCanonical(out, b []byte, off int) []byte {
	end, err := Skip(b, off, DefaultDepth)
	if err != nil {
		return out
	}
	for off < end {
		h, err := readHead(b, off)
		if err != nil {
			return out
		}
		out, off = appendSmallest(out, b, h), h.next()
	}
	return out
}

// appendSmallest appends a scalar, or the header of a container.
func appendSmallest(out, b []byte, h head) []byte {
	switch h.kind {
	case Int:
		if i := h.integer(b); i.negative {
			return AppendInt(out, int64(i.bits))
		}
		return AppendUint(out, h.integer(b).bits)
	case Float:
		v := h.float(b)
		if math.IsNaN(v) {
			v = math.NaN()
		}
		return AppendFloat64(out, v+0) // -0 + 0 is 0
	case String:
		return append(appendLength(out, h.n, tagStr8, tagStr16, tagStr32), h.payload(b)...)
	case Bin:
		return AppendBin(out, h.payload(b))
	case Ext:
		return AppendExt(out, h.code, h.payload(b))
	case Array:
		return AppendArrayHeader(out, h.n)
	case Map:
		return AppendMapHeader(out, h.n)
	default:
		return append(out, h.tag)
	}
}

// formatKeys prints the keys of a map in order, bounded.
func formatKeys(b []byte, list []entry) string {
	var s strings.Builder
	s.WriteString("keys in the order ")
	for i, e := range list {
		if i > 0 {
			s.WriteString(", ")
		}
		if s.Len() >= valueLimit {
			s.WriteString("…")
			break
		}
		s.WriteString(keyText(b, e.key))
	}
	return s.String()
}

// compare orders integers by value.
func (i integer) compare(j integer) int {
	switch {
	case i == j:
		return 0
	case i.negative != j.negative:
		if i.negative {
			return -1
		}
		return 1
	case i.bits < j.bits: // two's complement orders negatives too
		return -1
	default:
		return 1
	}
}
