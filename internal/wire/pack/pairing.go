package pack

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
)

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

// len counts the pairs to compare: every want entry, then the extra got entries.
func (p *pairing) len() int { return len(p.want) + len(p.extra) }

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
