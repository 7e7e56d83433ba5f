package pack

import (
	"bytes"
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"
)

// AppendJSON reads one value and appends it as JSON. Keys that are not strings become strings, bytes become base64, and what JSON has no
// form for (NaN, extensions) becomes null. Values may be nested [DefaultDepth] deep.
func (c *Cursor) AppendJSON(b []byte) ([]byte, error) { return c.appendJSON(b, DefaultDepth) }

func (c *Cursor) appendJSON(b []byte, depth int) ([]byte, error) {
	switch kind := c.Kind(); kind {
	case Bool:
		v, err := c.Bool()
		return strconv.AppendBool(b, v), err
	case Int:
		if v, err := c.Int(); err == nil {
			return strconv.AppendInt(b, v, 10), nil
		}
		v, err := c.Uint()
		return strconv.AppendUint(b, v, 10), err
	case Float:
		return c.appendNumber(b)
	case String:
		s, err := c.Str()
		return AppendJSONString(b, s), err
	case Bin:
		data, err := c.Bin()
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), data), '"'), err
	case Array, Map:
		return c.appendContainer(b, kind, depth)
	}
	return append(b, "null"...), c.Skip()
}

func (c *Cursor) appendContainer(b []byte, kind Kind, depth int) ([]byte, error) {
	if depth == 0 {
		return b, syntaxError(c.off, "nested more than %d deep", DefaultDepth)
	}
	brackets, size := "[]", c.ArrayLen
	if kind == Map {
		brackets, size = "{}", c.MapLen
	}
	n, err := size()
	b = append(b, brackets[0])
	for i := 0; i < n && err == nil; i++ {
		if i > 0 {
			b = append(b, ',')
		}
		if kind == Map {
			if b, err = c.appendKey(b, depth-1); err != nil {
				break
			}
		}
		b, err = c.appendJSON(b, depth-1)
	}
	return append(b, brackets[1]), err
}

func (c *Cursor) appendKey(b []byte, depth int) (_ []byte, err error) {
	if c.Kind() == String {
		b, err = c.appendJSON(b, depth)
	} else {
		var key []byte
		key, err = c.appendJSON(nil, depth)
		b = AppendJSONString(b, key)
	}
	return append(b, ':'), err
}

// appendNumber appends the shortest decimal that reads back at the width of the value: a float32 of 0.9 is 0.9.
func (c *Cursor) appendNumber(b []byte) ([]byte, error) {
	const float32Tag = 0xca
	width := 64
	if c.b[c.off] == float32Tag {
		width = 32
	}
	v, err := c.Float()
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...), err
	}
	start := len(b)
	if b = strconv.AppendFloat(b, v, 'g', -1, width); !bytes.ContainsAny(b[start:], ".e") {
		b = append(b, ".0"...)
	}
	return b, err
}

// AppendJSONString appends a text as a JSON string. Invalid UTF-8 is replaced.
func AppendJSONString[T string | []byte](b []byte, text T) []byte {
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
