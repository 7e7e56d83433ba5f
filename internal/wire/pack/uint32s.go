package pack

import (
	"encoding/binary"
	"math"
	"slices"
)

// Uint32s reads an array of integers from 0 to 2^32-1, of any widths, which is
// how token ids travel, and appends them to dst; pass dst[:0] to reuse a buffer.
// The buffer grows to the number of elements, which the bytes that remain bound.
// On an error dst is returned as it was given.
func (c *Cursor) Uint32s(dst []uint32) ([]uint32, error) {
	start := c.off
	n, err := c.ArrayLen()
	if err != nil {
		return dst, err
	}
	had := len(dst)
	out := dst
	if n > cap(dst)-had {
		out = slices.Grow(dst, n)
	}
	out = out[:had+n]
	if err := c.fillUint32s(out[had:]); err != nil {
		c.off = start
		return dst, err
	}
	return out, nil
}

// fillUint32s reads len(out) integers.
func (c *Cursor) fillUint32s(out []uint32) error {
	for {
		read, size := pickUint32s(out, c.b[c.off:])
		out, c.off = out[read:], c.off+size
		if len(out) == 0 {
			return nil
		}
		v, err := c.uint32()
		if err != nil {
			return err
		}
		out[0], out = v, out[1:]
	}
}

// pickUint32s reads integers of the common forms into out, until it is full or
// another form or the last bytes come, and returns how many it read and from how
// many bytes. Random token ids mix three widths, and a branch on the width would
// be mispredicted most of the time, so there is none: eight bytes are read at
// once, shifted and masked by table.
func pickUint32s(out []uint32, b []byte) (read, size int) {
	for read < len(out) && len(b)-size >= 8 {
		tag := b[size]
		step := pickSizes[tag]
		if step == 0 {
			break
		}
		p := picks[tag]
		out[read] = uint32(binary.BigEndian.Uint64(b[size:])>>(p.shift&63)) & p.mask
		read, size = read+1, size+int(step)
	}
	return read, size
}

// uint32 reads one integer in any form.
func (c *Cursor) uint32() (uint32, error) {
	start := c.off
	v, err := c.Uint()
	if err != nil {
		return 0, err
	}
	if v > math.MaxUint32 {
		return 0, valueError(start, "expected an int below 2^32, found %d", v)
	}
	return uint32(v), nil
}

// pick says how to take an integer out of the eight bytes that begin with its
// tag.
type pick struct {
	mask  uint32
	shift uint8
}

// picks and pickSizes map a first byte to its pick and to the size of the value;
// size 0 marks the forms that need the general path. The sizes stand apart
// because finding the next value is what the loop waits for. Neither is written
// after start.
var (
	picks     = makePicks()
	pickSizes = makePickSizes()
)

func makePicks() (t [256]pick) {
	for i := range 0x80 {
		t[i] = pick{mask: math.MaxUint8, shift: 56}
	}
	t[tagUint8] = pick{mask: math.MaxUint8, shift: 48}
	t[tagUint16] = pick{mask: math.MaxUint16, shift: 40}
	t[tagUint32] = pick{mask: math.MaxUint32, shift: 24}
	return t
}

func makePickSizes() (t [256]uint8) {
	for i := range 0x80 {
		t[i] = 1
	}
	t[tagUint8], t[tagUint16], t[tagUint32] = 2, 3, 5
	return t
}
