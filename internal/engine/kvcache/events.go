package kvcache

// Event is a [BlockStored], [BlockRemoved] or [AllBlocksCleared].
type Event interface{ isEvent() }

// BlockStored says that consecutive blocks of one sequence entered the cache.
type BlockStored struct {
	// Hashes of the blocks: 32 bytes each, or 16 of the xxhash algorithms.
	Hashes [][]byte
	// Parent is the hash of the block before them; nil if they begin the sequence.
	Parent []byte
	// Tokens are those of all the blocks. They are the sequence's own: to be read
	// until its owner uses their memory for something else.
	Tokens    []uint32
	BlockSize int
	// LoRA is the adapter; one without a name is none.
	LoRA LoRA
	// Session is that of the sequence; empty for none.
	Session string
	// Keys are the extra keys of each of the blocks; nil for none.
	Keys [][]Key
}

// BlockRemoved says that a block left the cache. Another with the same hash may
// still be in it.
type BlockRemoved struct {
	Hash []byte
}

// AllBlocksCleared says that the cache was reset.
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

// storedEvent tells of blocks from up to to of s.
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
