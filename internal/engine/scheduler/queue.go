package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
)

// queue holds the requests that wait. What is removed from the middle stays until
// it comes to the front, so that a hundred thousand aborts cost no search.
type queue[T any] struct {
	priority bool
	front    []*Request[T] // put back: the last one is the next
	back     []*Request[T] // arrived: the one at head is the next
	head     int
	heap     byPriority[T] // in place of both, under priority
	count    int           // of those that still wait
}

func (q *queue[T]) push(r *Request[T]) {
	q.count++
	if q.priority {
		heap.Push(&q.heap, r)
		return
	}
	q.back = append(q.back, r)
}

// putBack makes a request the next one again.
func (q *queue[T]) putBack(r *Request[T]) {
	q.count++
	if q.priority {
		heap.Push(&q.heap, r)
		return
	}
	q.front = append(q.front, r)
}

// removed is called when one of its requests does not wait any more. What is
// left over of such requests never outnumbers the others for long.
func (q *queue[T]) removed() {
	q.count--
	left := len(q.front) + len(q.back) - q.head + len(q.heap)
	if left < 1024 || left < 2*q.count {
		return
	}
	gone := func(r *Request[T]) bool { return !r.waits() }
	q.front = slices.DeleteFunc(q.front, gone)
	q.back, q.head = slices.DeleteFunc(slices.Delete(q.back, 0, q.head), gone), 0
	q.heap = slices.DeleteFunc(q.heap, gone)
	heap.Init(&q.heap)
}

// peek returns the next request, nil when none waits.
func (q *queue[T]) peek() *Request[T] {
	for {
		r := q.first()
		if r == nil || r.waits() {
			return r
		}
		q.drop()
	}
}

func (q *queue[T]) first() *Request[T] {
	switch {
	case q.priority && len(q.heap) > 0:
		return q.heap[0]
	case len(q.front) > 0:
		return q.front[len(q.front)-1]
	case q.head < len(q.back):
		return q.back[q.head]
	}
	return nil
}

// drop takes the first entry away.
func (q *queue[T]) drop() {
	switch {
	case q.priority:
		heap.Pop(&q.heap)
	case len(q.front) > 0:
		q.front[len(q.front)-1] = nil
		q.front = q.front[:len(q.front)-1]
	default:
		q.back[q.head] = nil
		q.head++
		q.compact()
	}
}

// compact gives back the room of what has left the queue.
func (q *queue[T]) compact() {
	if q.head == len(q.back) {
		q.back, q.head = q.back[:0], 0
	} else if q.head >= 1024 && q.head > len(q.back)/2 {
		n := copy(q.back, q.back[q.head:])
		clear(q.back[n:])
		q.back, q.head = q.back[:n], 0
	}
}

func (q *queue[T]) pop() *Request[T] {
	r := q.peek()
	if r != nil {
		q.drop()
		q.count--
	}
	return r
}

// byPriority orders by priority, then arrival (vllm/v1/request.py __lt__).
type byPriority[T any] []*Request[T]

func (h byPriority[T]) Len() int           { return len(h) }
func (h byPriority[T]) Less(i, j int) bool { return precedes(h[i], h[j]) }
func (h byPriority[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byPriority[T]) Push(r any)        { *h = append(*h, r.(*Request[T])) }
func (h *byPriority[T]) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return r
}

func precedes[T any](a, b *Request[T]) bool {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.ID, b.ID)) < 0
}
