package pyclient

import (
	"bytes"
	"sync"
)

// mostLine bounds a line of the driver's, in bytes. A longer one is passed on in pieces, of which none is a message.
const mostLine = 4 << 20

// lines hands on what a process writes, line by line. The process waits until a line is taken, or until nobody will.
type lines struct {
	whole   chan []byte
	dropped chan struct{}
	once    sync.Once
	begun   []byte
}

func newLines() *lines {
	return &lines{whole: make(chan []byte), dropped: make(chan struct{})}
}

// Write never fails: an error would end the reading of a process that goes on writing.
func (l *lines) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			if l.begun = append(l.begun, p...); len(l.begun) > mostLine {
				l.pass()
			}
			break
		}
		l.begun = append(l.begun, p[:end]...)
		p = p[end+1:]
		l.pass()
	}
	return size, nil
}

func (l *lines) pass() {
	line := l.begun
	l.begun = nil
	select {
	case l.whole <- line:
	case <-l.dropped:
	}
}

// drop takes no more lines.
func (l *lines) drop() { l.once.Do(func() { close(l.dropped) }) }
