//go:build !linux

package vllmrs

import (
	"net"
	"strconv"
)

// A Port is a TCP port on 127.0.0.1 that was free a moment ago.
type Port struct{ number int }

// Number returns the number of the port.
func (p Port) Number() int { return p.number }

// Release does nothing here.
func (Port) Release() {}

// Reserve cannot hold the port here: bound by us, no other program could listen on it.
func Reserve() (Port, error) { return ReserveNumber(0) }

// ReserveNumber is Reserve for a certain port.
func ReserveNumber(number int) (Port, error) {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(number)))
	if err != nil {
		return Port{}, err
	}
	defer listener.Close()
	return Port{number: listener.Addr().(*net.TCPAddr).Port}, nil
}
