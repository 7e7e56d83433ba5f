package player

import (
	"container/heap"
	"time"
)

// never is a moment that does not come.
const never = time.Duration(1<<63 - 1)

// timers are what an engine does at moments that no step brings about: a KV cache
// has come, a lease has ended, a fault holds something back no longer. What is not
// wanted any more stays, and finds out when its time has come.
type timers []timer

type timer struct {
	at     time.Duration
	number uint64 // those of one moment in the order in which they were set
	do     func()
}

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].number < t[j].number
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*t = old[:len(old)-1]
	return last
}

// after has something done at a moment, between two steps.
func (e *engine) after(at time.Duration, do func()) {
	e.timed++
	heap.Push(&e.timers, timer{at: at, number: e.timed, do: do})
}

// ring does what is due, and reports whether there was anything.
func (e *engine) ring(now time.Duration) bool {
	rung := false
	for len(e.timers) > 0 && e.timers[0].at <= now {
		heap.Pop(&e.timers).(timer).do()
		rung = true
	}
	return rung
}
