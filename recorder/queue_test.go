package recorder

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// queueMessage is a message that carries its number, and is that long.
func queueMessage(n, size int) []byte {
	return zmq.JoinFrames(nil, zmq.Message{binary.AppendUvarint(make([]byte, 0, size), uint64(n)), make([]byte, size)})
}

func queuePut(q *queue, src *source, wire []byte, owned bool) {
	q.put(src, zmq.Relayed{At: time.Now(), Wire: wire, Owned: owned, Size: int64(len(wire))})
}

// drain takes everything until the queue ends, and returns the numbers.
func (q *queue) drain(t *testing.T, each func()) (numbers []uint64) {
	var b batch
	var frames [][]byte
	for {
		var ok bool
		if b, ok = q.take(b); !ok {
			return numbers
		}
		require.True(t, len(b.entries) != 0, "a batch of nothing")
		for i := range b.entries {
			var ev Event
			var err error
			if ev, frames, err = b.event(&b.entries[i], frames); err != nil {
				t.Error(err)
				return nil
			}
			n, _ := binary.Uvarint(ev.Frames[0])
			numbers = append(numbers, n)
			require.True(t, bytes.Equal(ev.Frames[1], make([]byte, len(ev.Frames[1]))), "message %d has other bytes", n)
			each()
			q.done(&b.entries[i])
		}
	}
}

// TestQueue passes messages of all sizes, some larger than all that may wait, from
// several goroutines: all arrive, those of one source in order, and never more than
// the limit and a message of each source wait.
func TestQueue(t *testing.T) {
	const sources, messages, limit = 3, 2000, 300 << 10
	sizes := []int{0, 40, 700, 9000, 70_000, 400_000}
	var waiting atomic.Int64
	q := newQueue(time.Now(), limit, &waiting)
	src := &source{rank: &rank{}}
	var wg sync.WaitGroup
	for s := range sources {
		wg.Go(func() {
			for i := range messages {
				size := sizes[i%4]
				if i%100 == 99 {
					size = sizes[4+i/100%2]
				}
				queuePut(q, src, queueMessage(s*messages+i, size), size >= 70_000)
				q.signal()
			}
		})
	}
	go func() {
		wg.Wait()
		q.close()
	}()
	most := int64(0)
	var next [sources]uint64
	for _, n := range q.drain(t, func() { most = max(most, waiting.Load()) }) {
		s := n / messages
		if n%messages != next[s] {
			t.Fatalf("source %d: message %d after %d", s, n%messages, next[s])
		}
		next[s]++
	}
	for s, n := range next {
		require.True(t, n == messages, "source %d: %d of %d messages arrived", s, n, messages)
	}
	if bound := int64(limit + (sources+1)*401_000); most > bound || most < limit/2 || waiting.Load() != 0 {
		t.Errorf("%d bytes waited at most, want at most %d and not much less than %d; %d wait at the end", most, bound, limit, waiting.Load())
	}
}

// TestQueueGivesUp: an observer that hangs holds up what is forwarded for as long as
// is allowed, and never again.
func TestQueueGivesUp(t *testing.T) {
	var waiting atomic.Int64
	q := newQueue(time.Now(), 1000, &waiting)
	q.patience = 20 * time.Millisecond
	src := &source{rank: &rank{}}
	queuePut(q, src, queueMessage(0, 10), false)
	b, ok := q.take(batch{}) // and never done
	if !ok {
		t.Fatal("nothing to take")
	}
	for n := 1; !q.given.Load(); n++ { // the test's time-out is the only other end
		queuePut(q, src, queueMessage(n, 100), false)
	}
	queuePut(q, src, queueMessage(0, 100), true)
	require.Equal(t, waiting.Load(), 0, "bytes wait for nobody")
	if _, ok := q.take(b); ok {
		t.Error("there is more to take after the end")
	}
	if err := q.errStuck(); !strings.Contains(err.Error(), "nothing was written for 20ms") {
		t.Error(err)
	}
}
