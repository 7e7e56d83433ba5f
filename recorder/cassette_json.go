package recorder

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// appendJSON reads one msgpack value, which must be well formed, and appends it
// as JSON. Keys that are no strings become strings, bytes become base64, and
// what JSON has no form for (NaN, extensions) becomes null.
func appendJSON(b []byte, cur *pack.Cursor) []byte {
	switch cur.Kind() {
	case pack.Bool:
		v, _ := cur.Bool()
		return strconv.AppendBool(b, v)
	case pack.Int:
		return appendInteger(b, cur)
	case pack.Float:
		return appendNumber(b, cur)
	case pack.String:
		s, _ := cur.Str()
		return appendText(b, s)
	case pack.Bin:
		data, _ := cur.Bin()
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), data), '"')
	case pack.Array:
		n, _ := cur.ArrayLen()
		b = append(b, '[')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, cur)
		}
		return append(b, ']')
	case pack.Map:
		return appendMap(b, cur)
	default:
		_ = cur.Skip()
		return append(b, "null"...)
	}
}

func appendMap(b []byte, cur *pack.Cursor) []byte {
	n, _ := cur.MapLen()
	b = append(b, '{')
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if cur.Kind() == pack.String {
			b = appendJSON(b, cur)
		} else {
			b = appendText(b, appendJSON(nil, cur))
		}
		b = appendJSON(append(b, ':'), cur)
	}
	return append(b, '}')
}

func appendInteger(b []byte, cur *pack.Cursor) []byte {
	if v, err := cur.Int(); err == nil {
		return strconv.AppendInt(b, v, 10)
	}
	v, _ := cur.Uint()
	return strconv.AppendUint(b, v, 10)
}

// appendNumber writes the shortest decimal that reads back at the width the
// value had: a float32 of 0.9 is 0.9.
func appendNumber(b []byte, cur *pack.Cursor) []byte {
	const float32Tag = 0xca
	width := 64
	if cur.Rest()[0] == float32Tag {
		width = 32
	}
	v, _ := cur.Float()
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, width)
	for _, ch := range b[start:] {
		if ch == '.' || ch == 'e' {
			return b
		}
	}
	return append(b, ".0"...)
}

// appendText appends text as a JSON string. Ids and reasons come from users and
// need not be UTF-8; what is not is replaced.
func appendText[T string | []byte](b []byte, text T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(text); {
		ch := text[i]
		if ch >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))]))
			b = utf8.AppendRune(b, r)
			i += size
			continue
		}
		switch {
		case ch == '"' || ch == '\\':
			b = append(b, '\\', ch)
		case ch < ' ':
			b = append(b, `\u00`...)
			b = append(b, hex[ch>>4], hex[ch&15])
		default:
			b = append(b, ch)
		}
		i++
	}
	return append(b, '"')
}
