package tokenizer

import (
	"context"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

// bpe merges the bytes of a piece of text into tokens.
type bpe struct {
	vocab map[string]uint32 // by name, each byte as its character of the alphabet
	bytes [256]int64        // the ids of single bytes; -1: none
	// merges are by the pair of ids that they join.
	merges map[[2]uint32]merge
	// whole takes a piece that is a token as it is, whether or not merges lead to it (ignore_merges).
	whole bool
	// unknown is the id of bytes that have none; -1 leaves them out.
	unknown int64
	// fuse makes one unknown token of several in a row.
	fuse    bool
	longest int  // bytes of the longest token
	drops   bool // whether any number of bytes may have no token, or one
	// known are pieces that were encoded before, by a hash: texts repeat their words.
	known [1 << 12]atomic.Pointer[encoded]
}

// encoded is a piece with its ids.
type encoded struct {
	piece string
	ids   []uint32
}

// longestKnown is how long a piece may be that is kept, in bytes.
const longestKnown = 32

var hashSeed = maphash.MakeSeed()

type merge struct {
	rank uint32
	id   uint32
}

// symbol is a token of a piece, in a list linked both ways. Pieces may be long, so it is small.
type symbol struct {
	id         uint32
	prev, next int32 // none: there is none
}

const (
	none = -1
	gone = -2 // the next of a symbol that was merged into the one before it
)

// joints is a heap of merges that may be made: the lowest rank first, then the leftmost. A joint is the rank of the merge, and in the
// lower half the place of the left symbol.
type joints []uint64

func (j joints) down(at int) {
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(j); child++ {
			if j[child] < j[least] {
				least = child
			}
		}
		if least == at {
			return
		}
		j[at], j[least] = j[least], j[at]
		at = least
	}
}

func (j joints) up(at int) {
	for parent := (at - 1) / 2; at > 0 && j[at] < j[parent]; at, parent = parent, (parent-1)/2 {
		j[at], j[parent] = j[parent], j[at]
	}
}

func (j *joints) pop() (first uint64) {
	last := len(*j) - 1
	first, (*j)[0] = (*j)[0], (*j)[last]
	*j = (*j)[:last]
	j.down(0)
	return first
}

// encode appends the ids of a piece. It looks at ctx during the work at a long one.
func (m *bpe) encode(ctx context.Context, ids []uint32, piece string) ([]uint32, error) {
	if len(piece) > longestKnown {
		return m.compute(ctx, ids, piece)
	}
	place := &m.known[maphash.String(hashSeed, piece)%uint64(len(m.known))]
	known := place.Load()
	if known == nil || known.piece != piece {
		computed, err := m.compute(ctx, nil, piece)
		if err != nil {
			return nil, err
		}
		known = &encoded{strings.Clone(piece), computed}
		place.Store(known)
	}
	return append(ids, known.ids...), nil
}

func (m *bpe) compute(ctx context.Context, ids []uint32, piece string) ([]uint32, error) {
	if m.whole && len(piece) <= m.longest {
		if id, ok := m.vocab[toAlphabet(piece)]; ok {
			return append(ids, id), nil
		}
	}
	symbols := m.symbols(piece)
	n, err := m.join(ctx, symbols)
	ids = slices.Grow(ids, n)
	for i := range symbols {
		if symbols[i].next != gone {
			ids = append(ids, symbols[i].id)
		}
	}
	return ids, err
}

// symbols makes the list of the bytes of a piece.
func (m *bpe) symbols(piece string) []symbol {
	symbols := make([]symbol, 0, len(piece))
	unknown := false // the last one was
	for i := range len(piece) {
		id := m.bytes[piece[i]]
		if id < 0 {
			again := unknown
			if unknown = true; m.unknown < 0 || again && m.fuse {
				continue
			}
			id = m.unknown
		} else {
			unknown = false
		}
		n := int32(len(symbols))
		symbols = append(symbols, symbol{id: uint32(id), prev: n - 1, next: n + 1})
	}
	if n := len(symbols); n > 0 {
		symbols[n-1].next = none
	}
	return symbols
}

// join makes the merges in their order, and returns how many symbols are left. It takes n log n steps: a text of a megabyte may be one piece.
func (m *bpe) join(ctx context.Context, symbols []symbol) (int, error) {
	count := len(symbols)
	queue := make(joints, 0, len(symbols))
	offer := func(i int32) bool { // the merge of the symbol at i with the next one, if there is one
		next := symbols[i].next
		if next < 0 {
			return false
		}
		merge, ok := m.merges[[2]uint32{symbols[i].id, symbols[next].id}]
		if ok {
			queue = append(queue, uint64(merge.rank)<<32|uint64(i))
		}
		return ok
	}
	for i := range symbols {
		offer(int32(i))
	}
	for i := len(queue)/2 - 1; i >= 0; i-- {
		queue.down(i)
	}
	for steps := 0; len(queue) > 0; steps++ {
		if steps%(1<<14) == 1<<13 {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
		}
		j := queue.pop()
		at := int32(j & (1<<32 - 1))
		left := &symbols[at]
		if left.next < 0 {
			continue
		}
		right := &symbols[left.next]
		merge, ok := m.merges[[2]uint32{left.id, right.id}]
		if !ok || uint64(merge.rank) != j>>32 {
			continue // one of the two has been merged since
		}
		left.id, left.next, right.next = merge.id, right.next, gone
		count--
		if left.next >= 0 {
			symbols[left.next].prev = at
		}
		if offer(at) {
			queue.up(len(queue) - 1)
		}
		if left.prev >= 0 && offer(left.prev) {
			queue.up(len(queue) - 1)
		}
	}
	return count, nil
}

// alphabet names each byte by a character that can be seen: printable ones of Latin-1 by themselves, the others by
// characters from U+0100 on, in their order (bytes_to_unicode of GPT-2).
var alphabet = func() (names [256]rune) {
	next := rune(256)
	for b := range 256 {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			names[b] = rune(b)
		} else {
			names[b], next = next, next+1
		}
	}
	return names
}()

var byteOf = func() map[rune]byte {
	bytes := map[rune]byte{}
	for b, name := range alphabet {
		bytes[name] = byte(b)
	}
	return bytes
}()

// toAlphabet names the bytes of a text.
func toAlphabet(text string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteRune(alphabet[text[i]])
	}
	return b.String()
}
