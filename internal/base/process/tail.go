package process

import (
	"fmt"
	"io"
	"sync"
)

// tail keeps the last bytes written to it and copies everything to a writer. One goroutine writes: package exec reads
// stdout and stderr through one pipe when both have the same writer. Any may read.
type tail struct {
	size   int       // bytes
	copyTo io.Writer // nil: nobody

	mu      sync.Mutex // not held while copying: who asks for the tail must not wait for a slow writer
	buf     []byte
	dropped int // bytes
}

func newTail(size int, copyTo io.Writer) *tail { return &tail{size: size, copyTo: copyTo} }

// Write never fails: an error would end the reading of a process that goes on writing.
func (t *tail) Write(p []byte) (int, error) {
	t.keep(p)
	if t.copyTo != nil {
		_, _ = t.copyTo.Write(p)
	}
	return len(p), nil
}

func (t *tail) keep(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over := len(p) - t.size; over > 0 {
		p = p[over:]
		t.dropped += over
	}
	if over := len(t.buf) + len(p) - t.size; over > 0 {
		t.dropped += over
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, p...)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		return fmt.Sprintf("[%d bytes before this]\n%s", t.dropped, t.buf)
	}
	return string(t.buf)
}
