package kvcache

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
