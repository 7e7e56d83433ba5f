package kvcache

import "time"

// Lives follows how long blocks keep their content, as vLLM's --kv-cache-metrics does
// (vllm/v1/core/kv_cache_metrics.py). It belongs to one pool.
type Lives struct {
	// Now is the time since any fixed moment.
	Now func() time.Duration
	// Sampled decides for each block that is given to a sequence whether it is followed.
	Sampled func() bool

	blocks map[int32]*life
	ended  []Life
}

// life is that of a block since it was last given to a sequence.
type life struct {
	begin, last time.Duration
	found       []time.Duration // the last maxFound times at which another sequence found it
}

// maxFound is the length of the access history of vLLM.
const maxFound = 4

// Life is that of a block whose content was overwritten.
type Life struct {
	Lifetime time.Duration
	Idle     time.Duration   // since another sequence found it last
	Gaps     []time.Duration // between the last times at which others found it, at most 3
}

// taken notes that a block is given to a sequence, which overwrites it. Without caching it held nothing that others
// could find, and its end is not an eviction.
func (l *Lives) taken(id int32, caching bool) {
	now := l.Now()
	if old := l.blocks[id]; old != nil && caching {
		ended := Life{Lifetime: now - old.begin, Idle: now - old.last}
		for i := 1; i < len(old.found); i++ {
			ended.Gaps = append(ended.Gaps, old.found[i]-old.found[i-1])
		}
		l.ended = append(l.ended, ended)
		delete(l.blocks, id)
	}
	if l.Sampled() {
		if l.blocks == nil {
			l.blocks = map[int32]*life{}
		}
		l.blocks[id] = &life{begin: now, last: now}
	}
}

// found notes that another sequence shares a block.
func (l *Lives) found(id int32) {
	b := l.blocks[id]
	if b == nil {
		return
	}
	b.last = l.Now()
	if len(b.found) == maxFound {
		b.found = append(b.found[:0], b.found[1:]...)
	}
	b.found = append(b.found, b.last)
}

// TakeLives returns the lives that ended since the last call. The slice is valid until the next call of a method of p.
func (p *Pool) TakeLives() []Life {
	if p.lives == nil {
		return nil
	}
	ended := p.lives.ended
	p.lives.ended = p.lives.ended[:0]
	return ended
}
