package kvcache

// Sequence is the cache's side of one request. It belongs to one pool.
type Sequence struct {
	// Tokens are those of the prompt and of the output; the owner only appends.
	Tokens []uint32
	// Extra is what else decides about the content of the blocks. It is set before
	// the first call with this sequence.
	Extra Extra
	// Uncached sequences are never looked up, as those whose prompt
	// log-probabilities are asked for; what they compute others find.
	Uncached bool
	// Known tokens of the prompt count as cached whatever the pool holds, as in a
	// recording. What the pool has of them is shared, for the rest there are fresh
	// blocks. A negative number, -1 in a new sequence, lets the pool be looked up.
	Known int
	// Session is the conversation that its events name; empty for none.
	Session string

	prompt  int      // length of the prompt
	hashes  []digest // of the full blocks, as far as anyone has asked
	feature int      // the first feature that the next block can have
	blocks  []int32
	stored  int // blocks from the front that are in the cache
}

// Extra is what the content of KV blocks depends on, other than the tokens.
type Extra struct {
	LoRA LoRA
	// Salt keeps requests without it out of the blocks; empty for none.
	Salt string
	// Features are images and the like, in order of their positions.
	Features []Feature
}

// LoRA is an adapter; without a name there is no adapter.
type LoRA struct {
	ID         int64
	Name, Path string
}

// Feature is a multimodal input.
type Feature struct {
	ID             string // a hash of its content (the identifier of vLLM's MultiModalFeatureSpec)
	Offset, Length int    // the placeholder tokens it replaces
}

// NewSequence returns the sequence of a request without output.
func NewSequence(prompt []uint32) *Sequence {
	return &Sequence{Tokens: prompt, Known: -1, prompt: len(prompt)}
}

// BlockIDs returns the ids of the blocks that s holds, in order.
func (p *Pool) BlockIDs(s *Sequence) []int {
	ids := make([]int, len(s.blocks))
	for i, b := range s.blocks {
		ids[i] = int(b)
	}
	return ids
}

// Lookup returns how many tokens of s need not be computed: whole blocks, or what is
// [Sequence].Known. It is less than all, as the last token is computed to say the
// next. Lookup changes nothing that others see.
func (p *Pool) Lookup(s *Sequence) (cached int) {
	if s.Known >= 0 {
		return max(min(s.Known, len(s.Tokens)-1), 0)
	}
	p.find(s, len(s.Tokens))
	return len(p.hits) * p.blockSize
}

// find puts the cached blocks that s begins with into p.hits, as far as they hold
// so many tokens and not all of s.
func (p *Pool) find(s *Sequence, tokens int) {
	p.hits = p.hits[:0]
	if !p.caching || s.Uncached {
		return
	}
	for i := range max(min(tokens, len(s.Tokens)-1), 0) / p.blockSize {
		b, ok := p.cached[p.hash(s, i)]
		if !ok {
			return
		}
		p.hits = append(p.hits, b)
	}
}

// Admission is what a sequence that is not yet in the batch has to meet.
type Admission struct {
	// Whole demands room for all tokens of the sequence, not only for those of this
	// step (full_sequence_must_fit).
	Whole bool
	// Watermark is the number of blocks to be left free.
	Watermark int
	// Reserve is the number of blocks to be left free that others count on; it does
	// not add to what Whole demands.
	Reserve int
	// Delay keeps the blocks out of the cache until [Pool.Store], as their content
	// arrives from elsewhere later.
	Delay bool
}

// Allocate gives s slots for n tokens after the computed ones, and lookahead more for
// guesses. Of a sequence that holds nothing the computed ones are what was found:
// they are shared with others as far as the pool has them. Blocks that become full
// enter the cache. It returns false if there are not enough free blocks, and has
// changed nothing then.
func (p *Pool) Allocate(s *Sequence, computed, n, lookahead int) bool {
	if room := len(s.blocks) * p.blockSize; room > 0 && computed+n+lookahead <= room &&
		computed+n < (s.stored+1)*p.blockSize {
		return true // a decode, mostly: it begins no block and fills none
	}
	return p.Admit(s, computed, n, lookahead, Admission{})
}

// Admit is Allocate for a sequence that has more to meet than room for these tokens.
func (p *Pool) Admit(s *Sequence, computed, n, lookahead int, a Admission) bool {
	p.hits = p.hits[:0]
	if len(s.blocks) == 0 {
		p.find(s, computed)
	}
	held, idle := len(s.blocks)+len(p.hits), p.idleHits()
	if a.Whole && max(p.blocksFor(len(s.Tokens))-held, 0)+idle+a.Watermark > p.free {
		return false
	}
	fresh := max(p.blocksFor(computed+n+lookahead)-held, 0)
	if fresh+idle+a.Watermark > p.free-a.Reserve {
		return false
	}
	if len(p.hits) > 0 {
		p.share(s)
	}
	for range fresh {
		s.blocks = append(s.blocks, p.take())
	}
	if !a.Delay {
		p.Store(s, computed+n)
	}
	return true
}

// idleHits counts the found blocks that are in the free queue.
func (p *Pool) idleHits() int {
	idle := 0
	for _, b := range p.hits {
		if p.blocks[b].refs == 0 {
			idle++
		}
	}
	return idle
}

// share gives s the blocks it found.
func (p *Pool) share(s *Sequence) {
	for _, b := range p.hits {
		if p.blocks[b].refs == 0 {
			p.unqueue(b)
		}
		p.blocks[b].refs++
		if p.lives != nil {
			p.lives.found(b)
		}
	}
	s.blocks = append(s.blocks, p.hits...)
	s.stored = len(s.blocks)
}

// Store puts the full blocks of the computed tokens of s into the cache. Allocate
// does it unless told to delay.
func (p *Pool) Store(s *Sequence, computed int) {
	full := min(min(computed, len(s.Tokens))/p.blockSize, len(s.blocks))
	if !p.caching || full <= s.stored {
		return
	}
	for i := s.stored; i < full; i++ {
		p.insert(p.hash(s, i), s.blocks[i])
	}
	if p.events {
		p.queue = append(p.queue, p.storedEvent(s, s.stored, full))
	}
	s.stored = full
}

// Free gives back the blocks of s, its last first, so that the beginning of a prompt
// is found longest. A sequence that holds nothing is left as it is; one that was
// freed may be allocated again.
func (p *Pool) Free(s *Sequence) {
	front := int32(0) // the last block that this call put to the front
	for i := len(s.blocks) - 1; i >= 0; i-- {
		id := s.blocks[i]
		b := &p.blocks[id]
		if b.refs--; b.refs > 0 {
			continue
		}
		if b.hashed || !p.caching && p.rules.FreedLast {
			p.enqueueAfter(p.blocks[0].prev, id)
			continue
		}
		// It cannot be found: it is the first to be used anew.
		p.enqueueAfter(front, id)
		front = id
	}
	s.blocks, s.stored = s.blocks[:0], 0
}

// unqueue takes a block out of the free queue.
func (p *Pool) unqueue(id int32) {
	b := &p.blocks[id]
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// enqueueAfter puts a block into the free queue behind another. Behind block 0 is
// the front.
func (p *Pool) enqueueAfter(before, id int32) {
	after := p.blocks[before].next
	p.blocks[id].prev, p.blocks[id].next = before, after
	p.blocks[before].next, p.blocks[after].prev = id, id
	p.free++
}

// take returns the block that was free longest, and lets the cache forget it. There
// is a free one.
func (p *Pool) take() int32 {
	id := p.blocks[0].next
	p.unqueue(id)
	b := &p.blocks[id]
	if p.lives != nil {
		p.lives.taken(id, p.caching)
	}
	if b.hashed {
		p.remove(id)
	}
	b.refs = 1
	return id
}

// insert lets a block be found by its hash. Of several with the same content the
// oldest is.
func (p *Pool) insert(hash digest, id int32) {
	b := &p.blocks[id]
	b.hash, b.hashed = hash, true
	first, ok := p.cached[hash]
	if !ok {
		b.prevTwin, b.nextTwin = id, id
		p.cached[hash] = id
		return
	}
	last := p.blocks[first].prevTwin
	b.prevTwin, b.nextTwin = last, first
	p.blocks[last].nextTwin, p.blocks[first].prevTwin = id, id
}

// remove takes a block's hash away.
func (p *Pool) remove(id int32) {
	b := &p.blocks[id]
	if b.nextTwin == id {
		delete(p.cached, b.hash)
	} else {
		if p.cached[b.hash] == id {
			p.cached[b.hash] = b.nextTwin
		}
		p.blocks[b.prevTwin].nextTwin, p.blocks[b.nextTwin].prevTwin = b.nextTwin, b.prevTwin
	}
	b.hashed = false
	if p.events {
		p.queue = append(p.queue, BlockRemoved{Hash: p.hasher.bytes(b.hash)})
	}
}

// Event is a [BlockStored], [BlockRemoved] or [AllBlocksCleared].
type Event interface{ isEvent() }

// BlockStored is the event of consecutive blocks of one sequence that entered the cache.
type BlockStored struct {
	// Hashes of the blocks: 32 bytes each, or 16 of the xxhash algorithms.
	Hashes [][]byte
	// Parent is the hash of the block before them; nil if they begin the sequence.
	Parent []byte
	// Tokens are those of all the blocks. They are the sequence's own: to be read
	// until its owner uses their memory for something else.
	Tokens    []uint32
	BlockSize int
	// LoRA is the adapter; without a name there is no adapter.
	LoRA LoRA
	// Session is that of the sequence; empty for none.
	Session string
	// Keys are the extra keys of each of the blocks; nil for none.
	Keys [][]Key
	Place
}

// Place is where blocks are: in a group of layers of this kind, empty for the group 0 of full attention, and in this medium, empty for GPU.
type Place struct {
	Group        int
	Kind, Medium string
}

// BlockRemoved is the event of a block that left the cache. Another with the same hash may
// still be in it.
type BlockRemoved struct {
	Hash []byte
	Place
}

// AllBlocksCleared is the event of a reset of the cache.
type AllBlocksCleared struct{}

func (BlockStored) isEvent()      {}
func (BlockRemoved) isEvent()     {}
func (AllBlocksCleared) isEvent() {}

// IntHash is the form of a hash that publishers use under
// VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES: its last 8 bytes, big-endian.
func IntHash(hash []byte) uint64 {
	var n uint64
	for _, b := range hash {
		n = n<<8 | uint64(b)
	}
	return n
}

// TakeEvents returns what happened since the last call, in order.
func (p *Pool) TakeEvents() []Event {
	events := p.queue
	p.queue = nil
	return events
}

// storedEvent is the event of the blocks of s from number from up to number to.
func (p *Pool) storedEvent(s *Sequence, from, to int) BlockStored {
	e := BlockStored{
		Hashes: make([][]byte, 0, to-from), Keys: make([][]Key, 0, to-from),
		Tokens:    s.Tokens[from*p.blockSize : to*p.blockSize : to*p.blockSize],
		BlockSize: p.blockSize, LoRA: s.Extra.LoRA, Session: s.Session,
	}
	if from > 0 {
		e.Parent = p.hasher.bytes(s.hashes[from-1])
	}
	feature := 0
	for i := from; i < to; i++ {
		var keys []Key
		keys, feature = s.Extra.keys(nil, i*p.blockSize, (i+1)*p.blockSize, feature)
		e.Keys = append(e.Keys, keys)
		e.Hashes = append(e.Hashes, p.hasher.bytes(s.hashes[i]))
	}
	return e
}
