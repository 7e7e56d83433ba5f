package tokenizer

import (
	"container/heap"
	"hash/maphash"
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
	fuse bool
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
	rank int
	id   uint32
}

// symbol is a token of a piece, in a list linked both ways.
type symbol struct {
	id         uint32
	prev, next int // -1: none
	gone       bool
}

// joint is a merge that may be made at a place.
type joint struct {
	merge
	at int // the left symbol
}

// joints is a heap: the lowest rank first, then the leftmost.
type joints []joint

func (j joints) Len() int { return len(j) }
func (j joints) Less(a, b int) bool {
	if j[a].rank != j[b].rank {
		return j[a].rank < j[b].rank
	}
	return j[a].at < j[b].at
}
func (j joints) Swap(a, b int) { j[a], j[b] = j[b], j[a] }
func (j *joints) Push(x any)   { *j = append(*j, x.(joint)) }
func (j *joints) Pop() any {
	last := (*j)[len(*j)-1]
	*j = (*j)[:len(*j)-1]
	return last
}

// encode appends the ids of a piece.
func (m *bpe) encode(ids []uint32, piece string) []uint32 {
	if len(piece) > longestKnown {
		return m.compute(ids, piece)
	}
	place := &m.known[maphash.String(hashSeed, piece)%uint64(len(m.known))]
	known := place.Load()
	if known == nil || known.piece != piece {
		known = &encoded{strings.Clone(piece), m.compute(nil, piece)}
		place.Store(known)
	}
	return append(ids, known.ids...)
}

func (m *bpe) compute(ids []uint32, piece string) []uint32 {
	if m.whole {
		if id, ok := m.vocab[toAlphabet(piece)]; ok {
			return append(ids, id)
		}
	}
	symbols := m.symbols(piece)
	m.join(symbols)
	for i := range symbols {
		if !symbols[i].gone {
			ids = append(ids, symbols[i].id)
		}
	}
	return ids
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
		n := len(symbols)
		symbols = append(symbols, symbol{id: uint32(id), prev: n - 1, next: n + 1})
	}
	if n := len(symbols); n > 0 {
		symbols[n-1].next = -1
	}
	return symbols
}

// join makes the merges in their order. It takes n log n steps: a text of a megabyte may be one piece.
func (m *bpe) join(symbols []symbol) {
	var queue joints
	for i := range symbols {
		m.offer(&queue, symbols, i)
	}
	heap.Init(&queue)
	for len(queue) > 0 {
		j := heap.Pop(&queue).(joint)
		left := &symbols[j.at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &symbols[left.next]
		if now, ok := m.merges[[2]uint32{left.id, right.id}]; !ok || now.id != j.id {
			continue // one of the two has been merged since
		}
		left.id, left.next, right.gone = j.id, right.next, true
		if left.next >= 0 {
			symbols[left.next].prev = j.at
		}
		before := len(queue)
		m.offer(&queue, symbols, j.at)
		if left.prev >= 0 {
			m.offer(&queue, symbols, left.prev)
		}
		for i := before; i < len(queue); i++ {
			heap.Fix(&queue, i)
		}
	}
}

// offer appends the merge of the symbol at i with the next one, if there is one.
func (m *bpe) offer(queue *joints, symbols []symbol, i int) {
	next := symbols[i].next
	if next < 0 {
		return
	}
	if merge, ok := m.merges[[2]uint32{symbols[i].id, symbols[next].id}]; ok {
		*queue = append(*queue, joint{merge, i})
	}
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
