package acceptance

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// variantNames explains the variants of a place, in the order in which they are listed.
var variantNames = []string{
	"sample",                                             // the place has a value of its type instead of its default
	"nil",                                                // nil
	"missing",                                            // without the key; of an array's field, the array ends before it
	"bool", "int", "float", "str", "bin", "array", "map", // a value of another kind
	"wide",         // the same value behind a header of more bytes than it needs
	"negative",     // -1, or -1.5
	"2^32", "2^63", // integers of more bits
	"float32",         // the same number in fewer bits
	"nan", "infinite", // numbers that are none
	"flipped",           // the other bool
	"empty",             // "", [] or {}
	"longer", "shorter", // the last element twice, or left out; of a struct, one field more
	"other",          // another word, or a number without a meaning
	"notutf8",        // a str that is not text
	"extra", "twice", // an unknown key; the first key once more
	"intkey",          // an integer as a key
	"rows", "columns", // a tensor of one row or one column more
	"type:",   // a tensor of another element type, with as many bytes as that takes
	"frame",   // a tensor's bytes in a frame of their own
	"noframe", // in a frame that does not exist
	"ext1",    // another extension type
}

// variants are what one place is tampered with.
func (n *node) variants() []tamper {
	var all []tamper
	add := func(name string, instead func([]byte) []byte) {
		all = append(all, tamper{at: n, variant: name, instead: instead})
	}
	value := func(name string, raw []byte) { add(name, func([]byte) []byte { return raw }) }
	if n.plain != nil || n.parent == nil {
		add("sample", nil)
	}
	if n.parent == nil && n.form == scalar {
		return all
	}
	value("nil", pack.AppendNil(nil))
	if n.parent != nil && (n.parent.form == structArray || n.parent.form == structMap) {
		all = append(all, tamper{at: n, variant: "missing", missing: true})
	}
	for _, kind := range otherKinds[n.kind] {
		value(kind, ofKind[kind])
	}
	if n.form == tensor {
		for _, dtype := range n.dtypes()[1:] {
			value("type:"+dtype, n.tensorOf(dtype, n.rows, n.columns))
		}
		value("rows", n.tensorOf(n.dtypes()[0], n.rows+1, n.columns))
		if n.columns > 0 {
			value("columns", n.tensorOf(n.dtypes()[0], n.rows, n.columns+1))
		}
		return append(all, n.lengths()...)
	}
	switch n.kind {
	case pack.Int:
		if n.parent != nil && n.parent.isShape() { // of which little is asked
			value("negative", pack.AppendInt(nil, -1))
			value("2^32", pack.AppendInt(nil, 1<<32))
			return all
		}
		add("wide", func(b []byte) []byte { return widened(b) })
		value("negative", pack.AppendInt(nil, -1))
		value("2^32", pack.AppendInt(nil, 1<<32))
		value("2^63", pack.AppendUint(nil, 1<<63))
		if n.words != nil {
			value("other", pack.AppendInt(nil, 99))
		}
	case pack.Float:
		add("float32", func(b []byte) []byte {
			cur := pack.NewCursor(b)
			v, _ := cur.Float()
			return pack.AppendFloat32(nil, float32(v))
		})
		value("negative", pack.AppendFloat64(nil, -1.5))
		value("nan", pack.AppendFloat64(nil, math.NaN()))
		value("infinite", pack.AppendFloat64(nil, math.Inf(1)))
	case pack.Bool:
		add("flipped", func(b []byte) []byte { return pack.AppendBool(nil, b[0] == 0xc2) })
	case pack.String:
		add("wide", widened)
		value("empty", pack.AppendString(nil, ""))
		value("other", pack.AppendString(nil, "another"))
		value("notutf8", pack.AppendString(nil, "\xff\xfe"))
	case pack.Bin:
		value("empty", pack.AppendBin(nil, nil))
	case pack.Ext:
		add("shorter", func(b []byte) []byte { return ext(b, protocol.ExtRawView, -1) })
		add("longer", func(b []byte) []byte { return ext(b, protocol.ExtRawView, 1) })
		add("ext1", func(b []byte) []byte { return ext(b, 1, 0) })
		value("frame", pack.AppendInt(nil, 1))
		value("noframe", pack.AppendInt(nil, 9))
	case pack.Array, pack.Map:
		all = append(all, n.lengths()...)
	}
	return all
}

// otherKinds are kinds that are tried instead of one.
var otherKinds = map[pack.Kind][]string{
	pack.Nil:    {"int", "str"},
	pack.Int:    {"bool", "float", "str"},
	pack.Float:  {"int", "bool", "str"},
	pack.String: {"int", "bin", "array"},
	pack.Bool:   {"int", "str"},
	pack.Bin:    {"int", "str"},
	pack.Ext:    {"bin", "array"},
	pack.Array:  {"map", "str"},
	pack.Map:    {"array", "str"},
}

var ofKind = map[string][]byte{
	"bool": pack.AppendBool(nil, true), "int": pack.AppendInt(nil, 1), "float": pack.AppendFloat64(nil, 1),
	"str": pack.AppendString(nil, "x"), "bin": pack.AppendBin(nil, []byte("x")),
	"array": pack.AppendInt(pack.AppendArrayHeader(nil, 1), 1),
	"map":   pack.AppendInt(pack.AppendString(pack.AppendMapHeader(nil, 1), "x"), 1),
}

// lengths are the variants of an array or a map.
func (n *node) lengths() []tamper {
	var all []tamper
	add := func(name string, instead func(parts [][]byte) []byte) {
		all = append(all, tamper{at: n, variant: name, instead: func(b []byte) []byte { return instead(elements(b)) }})
	}
	if n.kind == pack.Map {
		add("wide", func(parts [][]byte) []byte {
			return join(binary.BigEndian.AppendUint32([]byte{0xdf}, uint32(len(parts)/2)), parts)
		})
		add("empty", func([][]byte) []byte { return pack.AppendMapHeader(nil, 0) })
		add("extra", func(parts [][]byte) []byte {
			return mapOf(append(parts, pack.AppendString(nil, "nobody_knows_it"), pack.AppendInt(nil, 1)))
		})
		if len(n.parts) > 0 {
			add("twice", func(parts [][]byte) []byte { return mapOf(append(parts, parts[:min(2, len(parts))]...)) })
		}
		add("intkey", func(parts [][]byte) []byte {
			return mapOf(append(parts, pack.AppendInt(nil, 5), pack.AppendInt(nil, 1)))
		})
		return all
	}
	add("wide", func(parts [][]byte) []byte {
		return join(binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(parts))), parts)
	})
	add("empty", func([][]byte) []byte { return pack.AppendArrayHeader(nil, 0) })
	add("longer", func(parts [][]byte) []byte {
		if n.form == structArray || n.form == tensor || len(parts) == 0 {
			return arrayOf(append(parts, pack.AppendNil(nil)))
		}
		return arrayOf(append(parts, parts[len(parts)-1]))
	})
	if n.form != structArray && len(n.parts) > 1 { // of a struct, its fields have the variant missing
		add("shorter", func(parts [][]byte) []byte { return arrayOf(parts[:len(parts)-1]) })
	}
	return all
}

// elements are the values within an array or a map, keys among them.
func elements(b []byte) (parts [][]byte) {
	cur := pack.NewCursor(b)
	n, err := cur.ArrayLen()
	if err != nil {
		n, _ = cur.MapLen()
		n *= 2
	}
	for range n {
		part, err := cur.Raw()
		if err != nil {
			break
		}
		parts = append(parts, part)
	}
	return parts
}

func join(b []byte, parts [][]byte) []byte { return append(b, slices.Concat(parts...)...) }

func arrayOf(parts [][]byte) []byte { return pack.AppendArray(nil, parts...) }

func mapOf(parts [][]byte) []byte { return join(pack.AppendMapHeader(nil, len(parts)/2), parts) }

// widened is an integer or a str behind the longest header.
func widened(b []byte) []byte {
	cur := pack.NewCursor(b)
	if cur.Kind() == pack.Int {
		v, err := cur.Uint()
		if err != nil {
			signed, _ := cur.Int()
			return binary.BigEndian.AppendUint64([]byte{0xd3}, uint64(signed))
		}
		return binary.BigEndian.AppendUint64([]byte{0xcf}, v)
	}
	s, _ := cur.Str()
	return append(binary.BigEndian.AppendUint32([]byte{0xdb}, uint32(len(s))), s...)
}

// ext is an extension value with another code, and so many bytes more.
func ext(b []byte, code int8, more int) []byte {
	cur := pack.NewCursor(b)
	_, data, _ := cur.Ext()
	if more < 0 {
		data = data[:len(data)+more]
	}
	return pack.AppendExt(nil, code, append(slices.Clone(data), make([]byte, max(more, 0))...))
}

// isShape reports whether a node is the shape of a tensor.
func (n *node) isShape() bool { return n.parent != nil && n.parent.form == tensor && n.form == list }

// tensorOf is the tensor of a sample with elements of another type, or another number of them.
func (n *node) tensorOf(dtype string, rows, columns int) []byte {
	b := pack.AppendString(pack.AppendArrayHeader(nil, 3), dtype)
	if columns == 0 {
		b = pack.AppendInt(pack.AppendArrayHeader(b, 1), int64(rows))
	} else {
		b = pack.AppendInt(pack.AppendInt(pack.AppendArrayHeader(b, 2), int64(rows)), int64(columns))
	}
	return pack.AppendExt(b, protocol.ExtRawView, n.data(dtype, rows, columns))
}

// order sorts names of variants as they are listed.
func order(a, b string) int {
	at := func(name string) int {
		return slices.IndexFunc(variantNames, func(v string) bool {
			return v == name || strings.HasSuffix(v, ":") && strings.HasPrefix(name, v)
		})
	}
	if i, j := at(a), at(b); i != j {
		return i - j
	}
	return strings.Compare(a, b)
}
