package testenv

import (
	"fmt"
	"sync"
)

const tailSize = 16 << 10

// A tail keeps the last tailSize bytes written to it. Its zero value is empty and ready; it is safe for use by several
// goroutines.
type tail struct {
	mu      sync.Mutex
	buf     []byte
	dropped int // bytes
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.dropped += over
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		return fmt.Sprintf("[%d bytes before this]\n%s", t.dropped, t.buf)
	}
	return string(t.buf)
}
