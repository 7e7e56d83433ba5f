package process

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestTailKeepsTheEnd(t *testing.T) {
	const size = 1000
	tests := []struct {
		name    string
		size    int // bytes written
		dropped int // bytes
	}{
		{name: "nothing", size: 0},
		{name: "one less than it holds", size: size - 1},
		{name: "what it holds", size: size},
		{name: "one more than it holds", size: size + 1, dropped: 1},
		{name: "several times what it holds", size: 3*size + 5, dropped: 2*size + 5},
	}
	text := strings.Repeat("0123456789", size)
	for _, test := range tests {
		for _, chunk := range []int{1, 99, size - 1, size, size + 1, len(text)} {
			t.Run(fmt.Sprintf("%s/chunk %d", test.name, chunk), func(t *testing.T) {
				var copied bytes.Buffer
				tail := NewTail(size, &copied)
				for rest := text[:test.size]; rest != ""; {
					n, err := tail.Write([]byte(rest[:min(chunk, len(rest))]))
					require.NoError(t, err)
					rest = rest[n:]
				}
				want := text[test.dropped:test.size]
				if test.dropped > 0 {
					want = fmt.Sprintf("[%d bytes before this]\n", test.dropped) + want
				}
				if got := tail.String(); got != want {
					t.Errorf("got %d bytes, starting %.40q; want %d, starting %.40q", len(got), got, len(want), want)
				}
				if got := copied.String(); got != text[:test.size] {
					t.Errorf("copied %d bytes, want all %d", len(got), test.size)
				}
			})
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestTailOutlivesItsCopy(t *testing.T) {
	tail := NewTail(10, fullDisk{})
	if n, err := tail.Write([]byte("still here")); n != 10 || err != nil {
		t.Errorf("Write = %d, %v; want 10 and no error, which would end the reading", n, err)
	}
	require.Equal(t, tail.String(), "still here", "kept")
}
