package inspect

import "container/heap"

// queue hands out what was put into it, the least first.
type queue[T any] struct {
	items []T
	less  func(a, b T) bool
}

func (q *queue[T]) put(item T)    { heap.Push(q, item) }
func (q *queue[T]) take() T       { return heap.Pop(q).(T) }
func (q *queue[T]) Len() int      { return len(q.items) }
func (q *queue[T]) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *queue[T]) Push(item any) { q.items = append(q.items, item.(T)) }

// Less implements [heap.Interface], as the methods above do.
func (q *queue[T]) Less(i, j int) bool { return q.less(q.items[i], q.items[j]) }

// Pop implements [heap.Interface].
func (q *queue[T]) Pop() any {
	last := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	return last
}
