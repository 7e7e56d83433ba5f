package kvcache

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// model follows a pool and knows what each block holds.
type model struct {
	t        testing.TB
	pool     *Pool
	computed []int
	all      []*Sequence
	content  map[int32]string // of the stored blocks: all tokens up to their end, and what is extra
}

// FuzzPool does what the bytes say to a small pool, and checks after each operation
// that every block is where it belongs.
func FuzzPool(f *testing.F) {
	f.Add([]byte("0123456789"), uint8(0))
	f.Add([]byte("\x00\x10\x20\x30\x41\x51\x01\x02\x03\x04\x05\x06\x07\xff\xfe\x00\x01\x02"), uint8(1))
	f.Add([]byte("allocate, grow, store, free, free again, and reset what is not held any more; then all of it again"), uint8(2))
	f.Fuzz(func(t *testing.T, ops []byte, flags uint8) {
		pool, err := New(Options{
			Blocks: 2 + int(flags>>3), BlockSize: 1 + int(flags&1), Caching: flags&2 == 0, Events: flags&4 != 0,
		})
		require.NoError(t, err)
		m := model{t: t, pool: pool, content: map[int32]string{}}
		for i := 0; i+2 < len(ops); i += 3 {
			m.operation(ops[i], ops[i+1], ops[i+2])
			m.check()
		}
		for _, s := range m.all {
			pool.Free(s)
		}
		if m.check(); !pool.Reset() {
			t.Errorf("nobody holds anything, but %d of %d blocks are free", pool.free, len(pool.blocks)-1)
		}
		m.check()
	})
}

func (m *model) operation(op, a, b byte) {
	if op%8 == 0 || len(m.all) == 0 {
		s := NewSequence(nil)
		for i := range int(a % 16) {
			s.Tokens = append(s.Tokens, uint32(i)*uint32(b%3))
		}
		s.Uncached, s.Known = b%5 == 4, int(b%7)-4
		m.all, m.computed = append(m.all, s), append(m.computed, 0)
		return
	}
	i := int(a) % len(m.all)
	s := m.all[i]
	switch op % 8 {
	case 1, 2:
		m.admit(i, b)
	case 3, 4, 5:
		s.Tokens = append(s.Tokens, uint32(b%2))
		if len(s.blocks) > 0 {
			n := len(s.Tokens) - m.computed[i]
			m.allocate(i, m.computed[i], n, m.pool.Allocate(s, m.computed[i], n, int(b%3)))
		}
	case 6:
		m.pool.Free(s)
		m.computed[i] = 0
	case 7:
		if m.pool.Reset() != (m.pool.free == len(m.pool.blocks)-1) {
			m.t.Error("reset of a pool in use, or not of an unused one")
		}
	}
}

func (m *model) admit(i int, b byte) {
	s := m.all[i]
	if len(s.blocks) > 0 {
		m.pool.Store(s, m.computed[i])
		return
	}
	cached := m.pool.Lookup(s)
	if cached < 0 || cached > max(len(s.Tokens)-1, 0) {
		m.t.Fatalf("%d of %d tokens are cached", cached, len(s.Tokens))
	}
	if s.Known < 0 {
		m.holds(s, m.pool.hits)
	}
	n := len(s.Tokens) - cached
	a := Admission{Whole: b&1 != 0, Watermark: int(b >> 6), Reserve: int(b >> 4 & 3), Delay: b&2 != 0}
	m.allocate(i, cached, n, m.pool.Admit(s, cached, n, 0, a))
}

func (m *model) allocate(i, computed, n int, ok bool) {
	s := m.all[i]
	if !ok {
		return
	}
	m.computed[i] = computed + n
	if len(s.blocks)*m.pool.blockSize < computed+n {
		m.t.Fatalf("%d blocks for %d tokens", len(s.blocks), computed+n)
	}
}

// holds checks that found blocks hold what the sequence says.
func (m *model) holds(s *Sequence, found []int32) {
	for i, id := range found {
		if want := contentOf(s, (i+1)*m.pool.blockSize); m.content[id] != want {
			m.t.Fatalf("block %d holds %s, found for %s", id, m.content[id], want)
		}
	}
}

func contentOf(s *Sequence, tokens int) string { return fmt.Sprint(s.Tokens[:tokens]) }

// check compares all that the pool knows of its blocks with who holds them.
func (m *model) check() {
	m.t.Helper()
	p := m.pool
	refs := make([]int32, len(p.blocks))
	for _, s := range m.all {
		for i, id := range s.blocks {
			refs[id]++
			if i < s.stored {
				m.content[id] = contentOf(s, (i+1)*p.blockSize)
			}
		}
	}
	free := 0
	for id := p.blocks[0].next; id != 0; id = p.blocks[id].next {
		if free++; refs[id] != 0 || p.blocks[p.blocks[id].next].prev != id || free > len(p.blocks) {
			m.t.Fatalf("block %d is held by %d and in the free queue", id, refs[id])
		}
	}
	held, hashed := 0, 0
	for id := range p.blocks {
		if p.blocks[id].refs != refs[id] {
			m.t.Fatalf("block %d is held by %d, counted %d", id, refs[id], p.blocks[id].refs)
		}
		held += min(int(refs[id]), 1)
		if p.blocks[id].hashed {
			hashed++
		}
	}
	if free != p.free || free+held != len(p.blocks)-1 || refs[0] != 0 {
		m.t.Fatalf("%d blocks free, counted %d, and %d held, of %d", free, p.free, held, len(p.blocks)-1)
	}
	for hash, first := range p.cached {
		hashed -= m.twins(hash, first)
	}
	if hashed != 0 {
		m.t.Fatalf("%d hashed blocks nobody can find", hashed)
	}
}

// twins counts the blocks with a hash.
func (m *model) twins(hash digest, first int32) int {
	var seen []int32
	for id := first; len(seen) == 0 || id != first; id = m.pool.blocks[id].nextTwin {
		b := &m.pool.blocks[id]
		if !b.hashed || b.hash != hash || m.pool.blocks[b.nextTwin].prevTwin != id || slices.Contains(seen, id) {
			m.t.Fatalf("block %d is a twin that is none", id)
		}
		seen = append(seen, id)
	}
	return len(seen)
}
