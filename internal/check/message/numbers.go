package message

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Integers reads the integers among the values of a map with text keys.
func Integers(raw []byte) (map[string]int64, error) {
	values := map[string]int64{}
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	for ; err == nil && n > 0; n-- {
		var key string
		if key, err = cur.StrString(); err != nil {
			break
		}
		if cur.Kind() == pack.Int {
			values[key], err = cur.Int()
		} else {
			err = cur.Skip()
		}
	}
	return values, err
}

// FloatOf reads a number out of a map with text keys, 0 when it is not there.
func FloatOf(raw []byte, name string) float64 {
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	for ; err == nil && n > 0; n-- {
		var key string
		if key, err = cur.StrString(); err == nil && key == name {
			value, _ := cur.Float()
			return value
		}
		if err == nil {
			err = cur.Skip()
		}
	}
	return 0
}

// Describe shows a raw msgpack value in a message.
func Describe(raw []byte) string { return strings.TrimSpace(pack.Format(raw)) }

// Window is how many ids either side of a difference a message shows.
const Window = 8

func FirstDifference[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Around shows the values near a position, with dots where more follow.
func Around[T any](values []T, at int) string {
	from, to := max(at-Window, 0), min(at+Window+1, len(values))
	if from > to {
		from = to
	}
	s := fmt.Sprint(values[from:to])
	if from > 0 {
		s = "[…" + s[1:]
	}
	if to < len(values) {
		s = s[:len(s)-1] + "…]"
	}
	return s
}
