package vllmrs

import (
	"fmt"
	"os"
	"syscall"
)

// port is a TCP port on 127.0.0.1 that is ours until release.
type port struct {
	number int
	fd     int
}

// reserve takes a port that nobody else gets while it is held. The socket is bound and does not listen, and it allows
// reuse of its address: so the kernel gives the port to nobody who asks for a free one, neither to listen nor to connect
// from, while a program that asks for this very number, allowing reuse as every server does, may listen on it. The
// frontend opens its HTTP port only when the engine has registered, far too late for a port that was merely free before.
func reserve() (*port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &port{fd: fd}
	if p.number, err = bind(fd); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func bind(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	local, ok := address.(*syscall.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("bound to %T, want an IPv4 address", address)
	}
	return local.Port, nil
}

func (p *port) release() { _ = syscall.Close(p.fd) }
