package testenv

import (
	"fmt"
	"strings"
	"testing"
)

func TestTailKeepsTheEnd(t *testing.T) {
	tests := []struct {
		name    string
		size    int // bytes written
		dropped int // bytes
	}{
		{name: "nothing", size: 0},
		{name: "one less than it holds", size: tailSize - 1},
		{name: "what it holds", size: tailSize},
		{name: "one more than it holds", size: tailSize + 1, dropped: 1},
		{name: "several times what it holds", size: 3*tailSize + 5, dropped: 2*tailSize + 5},
	}
	text := strings.Repeat("0123456789", tailSize)
	for _, test := range tests {
		for _, chunk := range []int{1, 999, len(text)} {
			t.Run(fmt.Sprintf("%s/chunk %d", test.name, chunk), func(t *testing.T) {
				var tail tail
				for rest := text[:test.size]; rest != ""; {
					n, err := tail.Write([]byte(rest[:min(chunk, len(rest))]))
					if err != nil {
						t.Fatal(err)
					}
					rest = rest[n:]
				}
				want := text[test.dropped:test.size]
				if test.dropped > 0 {
					want = fmt.Sprintf("[%d bytes before this]\n", test.dropped) + want
				}
				if got := tail.String(); got != want {
					t.Errorf("got %d bytes, starting %.40q; want %d, starting %.40q", len(got), got, len(want), want)
				}
			})
		}
	}
}
