package golden

import (
	"context"
	"sync"
)

// digestLocks lets one goroutine at a time work on a digest. The zero value is ready.
type digestLocks struct {
	mu   sync.Mutex
	done map[string]chan struct{} // by digest; closed by the one who works on it
}

// enter waits until nobody works on the digest, and returns what ends the caller's own work on it.
func (l *digestLocks) enter(ctx context.Context, digest string) (leave func(), err error) {
	for {
		busy := l.claim(digest)
		if busy == nil {
			return func() { l.release(digest) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// claim returns nil if the digest is the caller's now, else what is closed when it is free.
func (l *digestLocks) claim(digest string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy := l.done[digest]; busy != nil {
		return busy
	}
	if l.done == nil {
		l.done = make(map[string]chan struct{})
	}
	l.done[digest] = make(chan struct{})
	return nil
}

func (l *digestLocks) release(digest string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.done[digest])
	delete(l.done, digest)
}
