package vllmrs

import (
	"fmt"
	"os"
	"syscall"
)

// A Port is a TCP port of 127.0.0.1 that is kept for a server that is yet to start. On Linux no other program is given it, and
// the server may listen on it all the same if it allows the reuse of addresses, as servers do; elsewhere it was free a
// moment ago.
type Port struct{ number, fd int }

// Number returns the number of the port.
func (p Port) Number() int { return p.number }

// Release gives the port back.
func (p Port) Release() {
	if p.number != 0 {
		_ = syscall.Close(p.fd)
	}
}

// Reserve takes a port. The caller releases it when the server is gone. The socket is bound and does not listen, and it allows
// reuse of its address: so the kernel does not give the port to a program that asks for a free one, neither to listen nor to connect
// from, while a program that asks for this very number, allowing reuse as every server does, may listen on it. The
// frontend opens its HTTP port only when the engine has registered, far too late for a port that was merely free before.
func Reserve() (Port, error) { return ReserveNumber(0) }

// ReserveNumber is Reserve for a certain port.
func ReserveNumber(number int) (Port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return Port{}, os.NewSyscallError("socket", err)
	}
	p := Port{fd: fd}
	if p.number, err = bind(fd, number); err != nil {
		p.Release()
		return Port{}, err
	}
	return p, nil
}

func bind(fd, number int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
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
