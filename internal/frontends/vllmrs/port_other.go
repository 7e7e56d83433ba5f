//go:build !linux

package vllmrs

import "net"

// port is a TCP port on 127.0.0.1 that nobody listened on a moment ago.
type port struct{ number int }

// reserve cannot hold the port here: bound by us, no other program could listen on it.
func reserve() (*port, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return &port{number: listener.Addr().(*net.TCPAddr).Port}, nil
}

func (*port) release() {}
