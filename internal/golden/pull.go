package golden

import (
	"context"
	"sync"
)

// parallel is how many goldens are downloaded at a time.
const parallel = 4

// Pulled is the result of fetching one golden.
type Pulled struct {
	Object
	From   string // location that it came from, fit for messages; empty if it did not come
	Cached bool   // it was in the cache before
	Bytes  int64  // its size
	Err    error  // as of [Store.Open]
}

// Pull gets goldens into the cache, several at a time in constant memory, and says in the same order what became of each.
// Those of this machine and of a bundle are verified where they are. A cache that cannot be written is an error.
func (s *Store) Pull(ctx context.Context, objects []Object) []Pulled {
	pulled := make([]Pulled, len(objects))
	s.PullEach(ctx, objects, func(i int, p Pulled) { pulled[i] = p })
	return pulled
}

// PullEach is Pull for those who cannot wait for all: done is called with each golden and its index as soon as it is there,
// from several goroutines. Goldens are begun in their order, and PullEach returns after the last.
func (s *Store) PullEach(ctx context.Context, objects []Object, done func(i int, p Pulled)) {
	turns := make(chan int)
	var workers sync.WaitGroup
	for range min(parallel, len(objects)) {
		workers.Go(func() {
			for i := range turns {
				done(i, s.pull(ctx, objects[i]))
			}
		})
	}
	for i := range objects {
		turns <- i
	}
	close(turns)
	workers.Wait()
}

func (s *Store) pull(ctx context.Context, o Object) Pulled {
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.Timeout, &TimeoutError{s.Timeout})
		defer cancel()
	}
	g, err := s.get(ctx, o, checked)
	return Pulled{Object: o, From: g.from, Cached: g.cached, Bytes: g.size, Err: err}
}

// IsRemote reports whether a golden may have to come from the network.
func (s *Store) IsRemote(o Object) bool {
	if s.bundleFile() != "" {
		return false
	}
	src, err := s.source(o.Location)
	return err == nil && src.remote
}
