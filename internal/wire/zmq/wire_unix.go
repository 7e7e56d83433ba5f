//go:build unix

package zmq

import (
	"net"
	"syscall"
)

// writeNow writes what the kernel takes without waiting.
func writeNow(nc net.Conn, b []byte) (n int, err error) {
	socket, ok := nc.(syscall.Conn)
	if !ok {
		return 0, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			some, err := syscall.Write(int(fd), b[n:])
			switch {
			case err == syscall.EINTR:
				continue
			case err == syscall.EAGAIN:
				return true
			case err != nil:
				failed = err
				return true
			}
			n += some
		}
		return true
	})
	if err == nil {
		err = failed
	}
	return n, err
}
