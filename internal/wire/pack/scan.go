package pack

// DefaultDepth is how many containers may be nested. vLLM's deepest frames stay
// below ten; the bound exists so that a hostile frame costs nothing.
const DefaultDepth = 64

// Validate reports whether b is exactly one complete message, nothing after it,
// nested at most [DefaultDepth] containers deep. It does not allocate on success.
// The error is a [*SyntaxError].
func Validate(b []byte) error { return ValidateDepth(b, DefaultDepth) }

// ValidateDepth is [Validate] with another bound: depth 0 allows scalars only,
// 1 a container of scalars. Depths above [DefaultDepth] allocate when used.
func ValidateDepth(b []byte, depth int) error {
	end, err := Skip(b, 0, depth)
	if err != nil {
		return err
	}
	if end != len(b) {
		return syntaxError(end, "%d trailing bytes after the message", len(b)-end)
	}
	return nil
}

// Skip returns the offset after the one value that begins at off. Every length
// is checked against the bytes that remain before it is used: an array of n
// needs n bytes, a map of n needs 2n. Empty containers count for depth too.
// The error is a [*SyntaxError].
func Skip(b []byte, off, depth int) (next int, err error) {
	if off < 0 {
		return off, syntaxError(off, "negative offset")
	}
	var room [DefaultDepth]int
	owed := room[:0] // values still owed to each enclosing container
	left := 1        // values still owed to the current one
	for {
		off, left, err = skipFixed(b, off, left)
		if err != nil {
			return off, err
		}
		if n, ok := shortContainer(b, off); ok && left > 0 && len(owed) < depth {
			owed, off, left = append(owed, left-1), off+1, n
		} else if left > 0 {
			h, err := readHead(b, off)
			if err != nil {
				return off, err
			}
			if h.kind.isContainer() && len(owed) >= depth {
				return off, syntaxError(off, "nested deeper than %d containers", depth)
			}
			off, left = h.next(), left-1
			if h.kind.isContainer() {
				owed, left = append(owed, left), h.values()
			}
		}
		for left == 0 {
			if len(owed) == 0 {
				return off, nil
			}
			left, owed = owed[len(owed)-1], owed[:len(owed)-1]
		}
	}
}

// shortContainer is how many values the container at off holds, if its header is one
// byte and the bytes behind it are as many at least.
func shortContainer(b []byte, off int) (n int, ok bool) {
	if off >= len(b) || b[off] < fixMap || b[off] >= fixStr {
		return 0, false
	}
	n = int(b[off] & 0x0f)
	if b[off] < fixArray {
		n *= 2
	}
	return n, n < len(b)-off
}

// skipFixed passes over up to left values whose whole size is in their first
// byte, or that are a str of the next size, which is nearly everything in a real
// frame, and stops at the first that is otherwise. The end of the bytes is looked at
// once, not for every value: an overrun shows as an offset past the end.
func skipFixed(b []byte, off, left int) (int, int, error) {
	last := off
	for left > 0 && off < len(b) {
		size := int(fixedSizes[b[off]])
		if size == 0 {
			if b[off] != tagStr8 || off+1 >= len(b) {
				return off, left, nil
			}
			size = 2 + int(b[off+1])
		}
		last = off
		off += size
		left--
	}
	if off > len(b) {
		_, err := readHead(b, last)
		return last, left, err
	}
	return off, left, nil
}

// values is how many values a container holds, keys included.
func (h head) values() int {
	if h.kind == Map {
		return 2 * h.n
	}
	return h.n
}

// fixedSizes maps a first byte to the size of the whole value, or to 0 when that
// is elsewhere (containers, sized payloads, the invalid byte). It is never
// written after start.
var fixedSizes = makeFixedSizes()

func makeFixedSizes() (t [256]uint8) {
	for i, f := range forms {
		switch {
		case f.kind == Invalid, f.kind.isContainer(), f.width > 0:
		case f.kind == Ext:
			t[i] = 2 + f.fixed
		default:
			t[i] = 1 + f.fixed
		}
	}
	return t
}
