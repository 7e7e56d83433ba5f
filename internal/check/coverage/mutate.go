package coverage

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// mutations are messages like this one but for the value of one field, which is another of
// the same kind: what a check has to compare, not only to read, to find it. A value that holds
// structs is there or not: what is in them is a matter of their own fields.
func mutations(v protocol.FieldValue, holdsStructs bool, frames [][]byte, payload int) (all [][][]byte) {
	with := func(raw []byte) {
		changed := slices.Clone(frames)
		changed[payload] = slices.Concat(frames[payload][:v.Offset], raw, frames[payload][v.Offset+len(v.Raw):])
		all = append(all, changed)
	}
	if holdsStructs {
		with(fewer(v.Raw))
		return all
	}
	for _, last := range []bool{true, false} {
		m := mutation{last: last}
		cur := pack.NewCursor(v.Raw)
		if m.value(&cur) {
			with(m.out)
		}
		if m.frame > 0 && payload+m.frame < len(frames) && len(frames[payload+m.frame]) > 0 {
			changed := slices.Clone(frames)
			changed[payload+m.frame] = flipped(frames[payload+m.frame], last)
			all = append(all, changed)
		}
	}
	return all
}

// fewer is a list without its last element, and None in the place of a struct.
func fewer(raw []byte) []byte {
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil || n == 0 {
		return pack.AppendNil(nil)
	}
	begin := cur.Offset()
	for range n - 1 {
		_ = cur.Skip() // well formed
	}
	return append(pack.AppendArrayHeader(nil, n-1), raw[begin:cur.Offset()]...)
}

// flipped are bytes of which the last or the first is another.
func flipped(data []byte, last bool) []byte {
	other := slices.Clone(data)
	at := 0
	if last {
		at = len(other) - 1
	}
	other[at] ^= 1
	return other
}

// mutation writes a value again, and changes the first or the last scalar in it that has
// another of its kind.
type mutation struct {
	last  bool
	out   []byte
	frame int // the auxiliary frame that holds the data of a tensor, 0 for none
}

// value reads and writes a value, and reports whether it has changed it.
func (m *mutation) value(cur *pack.Cursor) bool {
	switch kind := cur.Kind(); kind {
	case pack.Array, pack.Map:
		return m.container(cur, kind)
	case pack.Bool:
		b, _ := cur.Bool()
		m.out = pack.AppendBool(m.out, !b)
	case pack.Int:
		if i, err := cur.Int(); err == nil {
			m.out = pack.AppendInt(m.out, i+1)
		} else {
			u, _ := cur.Uint()
			m.out = pack.AppendUint(m.out, u-1)
		}
	case pack.Float:
		before := cur.Offset()
		f, _ := cur.Float()
		if other := f/2 + 0.25; cur.Offset()-before == len(pack.AppendFloat32(nil, 0)) {
			m.out = pack.AppendFloat32(m.out, float32(other))
		} else {
			m.out = pack.AppendFloat64(m.out, other)
		}
	case pack.String:
		s, _ := cur.StrString()
		m.out = pack.AppendString(m.out, s+"x")
	case pack.Bin:
		b, _ := cur.Bin()
		m.out = pack.AppendBin(m.out, append(slices.Clone(b), 1))
	case pack.Ext:
		code, data, _ := cur.Ext()
		if len(data) > 0 {
			data = flipped(data, m.last)
		}
		m.out = pack.AppendExt(m.out, code, data)
	default: // nil has no other of its kind
		value, _ := cur.Raw()
		m.out = append(m.out, value...)
		return false
	}
	return true
}

// container changes one of the values in an array, or under a key of a map. Of a tensor it is
// the data, [dtype, shape, data]: these may be in a frame of their own.
func (m *mutation) container(cur *pack.Cursor, kind pack.Kind) bool {
	var parts [][]byte
	var n int
	if kind == pack.Map {
		n, _ = cur.MapLen()
		n *= 2
	} else {
		n, _ = cur.ArrayLen()
	}
	for range n {
		part, _ := cur.Raw()
		parts = append(parts, part)
	}
	order := make([]int, 0, n)
	for i := range n {
		if kind == pack.Array || i%2 == 1 {
			order = append(order, i)
		}
	}
	if m.last {
		slices.Reverse(order)
	}
	if isTensor(parts) {
		order = []int{2}
		if data := pack.NewCursor(parts[2]); data.Kind() == pack.Int {
			i, _ := data.Int()
			m.frame = int(i)
			order = nil
		}
	}
	changed := false
	for _, i := range order {
		part := mutation{last: m.last}
		value := pack.NewCursor(parts[i])
		if changed = part.value(&value); changed {
			parts[i], m.frame = part.out, part.frame
			break
		}
		if m.frame = part.frame; m.frame > 0 {
			break
		}
	}
	if kind == pack.Map {
		m.out = pack.AppendMapHeader(m.out, n/2)
	} else {
		m.out = pack.AppendArrayHeader(m.out, n)
	}
	m.out = append(m.out, slices.Concat(parts...)...)
	return changed
}

// isTensor reports whether the elements of an array are those of a tensor.
func isTensor(parts [][]byte) bool {
	if len(parts) != 3 {
		return false
	}
	dtype, shape := pack.NewCursor(parts[0]), pack.NewCursor(parts[1])
	return dtype.Kind() == pack.String && shape.Kind() == pack.Array
}
