package vllmrs

import (
	"net"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Whoever asks for any free port does not get a reserved one; whoever asks for its number does.
func TestReservedPortsAreLeftAlone(t *testing.T) {
	const n = 300 // of the 28,232 that Linux gives out by default
	reserved := map[int]bool{}
	for range n {
		p, err := Reserve()
		require.NoError(t, err)
		defer p.Release()
		if reserved[p.number] {
			t.Fatalf("port %d reserved twice", p.number)
		}
		reserved[p.number] = true
	}
	target := listen(t, 0)
	go func() {
		for {
			conn, err := target.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	for range n {
		if port := listen(t, 0).Addr().(*net.TCPAddr).Port; reserved[port] {
			t.Fatalf("a listener got the reserved port %d", port)
		}
		conn, err := net.Dial("tcp", target.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		if port := conn.LocalAddr().(*net.TCPAddr).Port; reserved[port] {
			t.Fatalf("a connection got the reserved port %d", port)
		}
	}
	for port := range reserved {
		listen(t, port)
	}
}
