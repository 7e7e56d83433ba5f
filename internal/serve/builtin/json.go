package builtin

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON is written by hand: it is most of the work for a token. Package encoding/json would look at the types of each chunk.

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string. What is no UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[start:i]...), "\ufffd"...)
			i++
			start = i
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}

// comma appends one before each of several things but the first, number 0.
func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendIf writes a value where there is one, else null.
func appendIf[T any](b []byte, has bool, write func([]byte, T) []byte, value T) []byte {
	if !has {
		return append(b, "null"...)
	}
	return write(b, value)
}

// appendOptional writes a value, null for nil.
func appendOptional[T any](b []byte, write func([]byte, T) []byte, value *T) []byte {
	if value == nil {
		return append(b, "null"...)
	}
	return write(b, *value)
}

// appendNullable writes a text, null for "".
func appendNullable(b []byte, text string) []byte { return appendIf(b, text != "", appendString, text) }

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		b = comma(b, i)
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// lowestLogprob is the least that an answer says (clamp_logprob of vLLM): JSON has no infinity.
const lowestLogprob = -9999

func appendLogprob(b []byte, v float32) []byte {
	if !(v > lowestLogprob) {
		v = lowestLogprob
	}
	if v == float32(math.Trunc(float64(v))) {
		return strconv.AppendFloat(b, float64(v), 'f', 1, 32)
	}
	format := byte('f')
	if size := math.Abs(float64(v)); size < 1e-5 {
		format = 'e'
	}
	return strconv.AppendFloat(b, float64(v), format, -1, 32)
}

// pythonFloat is a number as Python prints it.
func pythonFloat(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}
