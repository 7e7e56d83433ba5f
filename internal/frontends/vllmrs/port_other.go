//go:build !linux

package vllmrs

import "net"

// A Port is a TCP port on 127.0.0.1 that nobody listened on a moment ago.
type Port struct{ number int }

// Number returns the number of the port.
func (p Port) Number() int { return p.number }

// Release does nothing here.
func (Port) Release() {}

// Reserve cannot hold the port here: bound by us, no other program could listen on it.
func Reserve() (Port, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return Port{}, err
	}
	defer listener.Close()
	return Port{number: listener.Addr().(*net.TCPAddr).Port}, nil
}
