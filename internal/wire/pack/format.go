package pack

import (
	"math"
	"strconv"
	"strings"
)

// Bounds, in bytes, on what is printed.
const (
	formatLimit = 512 // one message
	valueLimit  = 160 // one side of a Difference
	quoteLimit  = 80  // one str
)

// Format prints a message on one line of about 500 bytes at most, for people:
//
//	[0, "cmpl-1", nil, 1.5, {"seed": 7, 5: -1}, bin(12 bytes), ext(3, 256 bytes)]
//
// Equal values print alike whatever their width; floats always show a point or
// an exponent. What does not fit is replaced by "…"; where the bytes stop being
// well formed, the reason is in angle brackets.
func Format(b []byte) string {
	f := formatter{b: b, limit: formatLimit}
	if !f.run(0) {
		return string(f.out)
	}
	if rest := len(b) - f.off; rest > 0 {
		f.out = append(f.out, " <"...)
		f.out = strconv.AppendInt(f.out, int64(rest), 10)
		f.out = append(f.out, " trailing bytes>"...)
	}
	return string(f.out)
}

// formatValue prints the value at off, shorter than [Format] does.
func formatValue(b []byte, off int) string {
	f := formatter{b: b, limit: valueLimit}
	f.run(off)
	return string(f.out)
}

// The brackets of containers, by kind.
var (
	openers = [...]byte{Array: '[', Map: '{'}
	closers = [...]byte{Array: ']', Map: '}'}
)

// open is a container being printed.
type open struct {
	kind       Kind
	done, want int // values printed, values in all
}

type formatter struct {
	b     []byte
	off   int
	limit int
	out   []byte
	stack []open
}

// run prints the value at off and reports whether it was printed whole.
func (f *formatter) run(off int) bool {
	f.off = off
	for {
		if len(f.out) >= f.limit {
			f.out = append(f.out, "…"...)
			return false
		}
		h, err := readHead(f.b, f.off)
		if err != nil {
			f.out = append(f.out, '<')
			f.out = append(f.out, strings.TrimPrefix(err.Error(), "msgpack: ")...)
			f.out = append(f.out, '>')
			return false
		}
		f.off = h.next()
		if !h.kind.isContainer() {
			f.scalar(h)
		} else if !f.enter(h) {
			return false
		}
		if !f.leave() {
			return true
		}
	}
}

// enter opens a container.
func (f *formatter) enter(h head) bool {
	if len(f.stack) >= DefaultDepth {
		f.out = append(f.out, "…"...)
		return false
	}
	f.out = append(f.out, openers[h.kind])
	// leave counts a value, but none has been printed inside this one yet.
	f.stack = append(f.stack, open{kind: h.kind, done: -1, want: h.values()})
	return true
}

// leave writes what is between the value just printed and the next one,
// closing the containers that are complete. It reports whether a value follows.
func (f *formatter) leave() bool {
	for len(f.stack) > 0 {
		top := &f.stack[len(f.stack)-1]
		top.done++
		if top.done < top.want {
			f.separate(*top)
			return true
		}
		f.out = append(f.out, closers[top.kind])
		f.stack = f.stack[:len(f.stack)-1]
	}
	return false
}

func (f *formatter) separate(at open) {
	switch {
	case at.done == 0:
	case at.kind == Map && at.done%2 == 1:
		f.out = append(f.out, ": "...)
	default:
		f.out = append(f.out, ", "...)
	}
}

func (f *formatter) scalar(h head) {
	switch h.kind {
	case Nil:
		f.out = append(f.out, "nil"...)
	case Bool:
		f.out = strconv.AppendBool(f.out, h.tag == tagTrue)
	case Int:
		f.out = h.integer(f.b).append(f.out)
	case Float:
		f.out = appendFloatText(f.out, h.float(f.b))
	case String:
		f.out = appendQuoted(f.out, h.payload(f.b))
	case Bin:
		f.out = append(f.out, "bin("...)
		f.out = appendSize(f.out, h.n)
	case Ext:
		f.out = append(f.out, "ext("...)
		f.out = strconv.AppendInt(f.out, int64(h.code), 10)
		f.out = append(f.out, ", "...)
		f.out = appendSize(f.out, h.n)
	}
}

func (i integer) append(out []byte) []byte {
	if i.negative {
		return strconv.AppendInt(out, int64(i.bits), 10)
	}
	return strconv.AppendUint(out, i.bits, 10)
}

// appendFloatText prints a float so that it cannot be taken for an int.
func appendFloatText(out []byte, v float64) []byte {
	from, layout := len(out), byte('g')
	if size := math.Abs(v); 1e-4 <= size && size < 1e15 {
		layout = 'f' // times in seconds keep their digits in one place
	}
	out = strconv.AppendFloat(out, v, layout, -1, 64)
	if math.IsInf(v, 0) || math.IsNaN(v) || strings.ContainsAny(string(out[from:]), ".e") {
		return out
	}
	return append(out, ".0"...)
}

// appendQuoted prints a str as a Go literal, a long one cut.
func appendQuoted(out, p []byte) []byte {
	if len(p) <= quoteLimit {
		return strconv.AppendQuote(out, string(p))
	}
	out = strconv.AppendQuote(out, string(p[:quoteLimit]))
	out = append(out, "…("...)
	return appendSize(out, len(p))
}

func appendSize(out []byte, n int) []byte {
	out = strconv.AppendInt(out, int64(n), 10)
	if n == 1 {
		return append(out, " byte)"...)
	}
	return append(out, " bytes)"...)
}
