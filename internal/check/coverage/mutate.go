package coverage

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// mutations are messages like this one but for the value of one field, which is another of
// the same kind: what a check has to compare, not only to read, to find it. A value that holds
// structs is there or not: what is in them is a matter of their own fields.
func mutations(v protocol.Value, holdsStructs bool, frames [][]byte, payload int) (all [][][]byte) {
	with := func(frame int, changed []byte) {
		other := slices.Clone(frames)
		other[frame] = changed
		all = append(all, other)
	}
	if holdsStructs {
		with(payload, v.Set(fewer(v)))
		return all
	}
	var scalars []protocol.Value
	v.Walk(func(v protocol.Value) bool {
		switch kind := v.Kind(); {
		case v.IsTensor():
			scalars = append(scalars, v.At(2)) // its data
			return false
		case kind != pack.Array && kind != pack.Map && kind != pack.Nil: // None has no other of its kind
			scalars = append(scalars, v)
		}
		return true
	})
	if scalars == nil {
		return nil
	}
	for _, last := range []bool{true, false} {
		one := scalars[0]
		if last {
			one = scalars[len(scalars)-1]
		}
		if frame := payload + int(one.Count()); one.Name() == "data" && one.Kind() == pack.Int { // they are in a frame of their own
			if frame > payload && frame < len(frames) && len(frames[frame]) > 0 {
				with(frame, flipped(frames[frame], last))
			}
			continue
		}
		with(payload, one.Set(another(one, last)))
	}
	return all
}

// fewer is a list without its last element, and None in the place of a struct.
func fewer(v protocol.Value) []byte {
	parts, err := pack.Elements(v.Bytes())
	if err != nil || len(parts) == 0 {
		return pack.AppendNil(nil)
	}
	return pack.AppendArray(nil, parts[:len(parts)-1]...)
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

// another is a scalar of the same kind and another value.
func another(v protocol.Value, last bool) []byte {
	cur := pack.NewCursor(v.Bytes())
	switch v.Kind() {
	case pack.Bool:
		is, _ := cur.Bool()
		return pack.AppendBool(nil, !is)
	case pack.Int:
		if i, err := cur.Int(); err == nil {
			return pack.AppendInt(nil, i+1)
		}
		u, _ := cur.Uint()
		return pack.AppendUint(nil, u-1)
	case pack.Float:
		f, _ := cur.Float()
		if len(v.Bytes()) == len(pack.AppendFloat32(nil, 0)) {
			return pack.AppendFloat32(nil, float32(f/2+0.25))
		}
		return pack.AppendFloat64(nil, f/2+0.25)
	case pack.String:
		return pack.AppendString(nil, v.Text()+"x")
	case pack.Bin:
		b, _ := cur.Bin()
		return pack.AppendBin(nil, append(slices.Clone(b), 1))
	default:
		code, data, _ := cur.Ext()
		if len(data) > 0 {
			data = flipped(data, last)
		}
		return pack.AppendExt(nil, code, data)
	}
}
