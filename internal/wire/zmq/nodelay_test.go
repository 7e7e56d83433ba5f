//go:build unix

package zmq

import (
	"net"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestNoDelay(t *testing.T) {
	c, _ := rawPeer(t, Dealer, Options{}, "Socket-Type", "ROUTER")
	sc, err := c.nc.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	value := 0
	if err := sc.Control(func(fd uintptr) {
		value, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
	}); err != nil || value == 0 {
		t.Errorf("TCP_NODELAY is %d, %v", value, err)
	}
}
