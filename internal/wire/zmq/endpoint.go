package zmq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// maxPath is the longest path of a Unix socket on Linux, sun_path less its NUL.
const maxPath = 107

// address is an endpoint in the terms of package net.
type address struct {
	network string // tcp, tcp4 or unix
	addr    string
}

// parseEndpoint reads tcp://host:port and ipc://path.
func parseEndpoint(endpoint string) (address, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return address{}, fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
	case scheme == "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" {
			return address{}, fmt.Errorf("endpoint %q: want tcp://host:port", endpoint)
		}
		return address{network: "tcp", addr: net.JoinHostPort(host, port)}, nil
	case scheme == "ipc":
		if rest == "" || rest == "*" {
			return address{}, fmt.Errorf("endpoint %q: want ipc:// and the path of a socket", endpoint)
		}
		if len(rest) > maxPath {
			return address{}, fmt.Errorf("endpoint %q: the path has %d bytes, a Unix socket allows %d; use a shorter directory", endpoint, len(rest), maxPath)
		}
		return address{network: "unix", addr: rest}, nil
	}
	return address{}, fmt.Errorf("endpoint %q: transport %q is not supported, want tcp or ipc", endpoint, scheme)
}

// CheckEndpoint says what is wrong with an endpoint to listen on or to dial, as far as its text shows.
func CheckEndpoint(endpoint string) error {
	a, err := parseEndpoint(endpoint)
	if err != nil || a.network != "tcp" {
		return err
	}
	_, port, _ := net.SplitHostPort(a.addr)
	if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "*" {
		return fmt.Errorf("endpoint %q: port %q: want a number up to 65535, or *", endpoint, port)
	}
	return nil
}

// forListening resolves the wildcards libzmq allows when binding: host * is every
// IPv4 address, port * is any free port.
func (a address) forListening() address {
	if a.network != "tcp" {
		return a
	}
	host, port, _ := net.SplitHostPort(a.addr)
	if port == "*" {
		port = "0"
	}
	if host == "*" {
		return address{network: "tcp4", addr: net.JoinHostPort("0.0.0.0", port)}
	}
	return address{network: "tcp", addr: net.JoinHostPort(host, port)}
}

// listen binds a. An ipc path left behind by a process that is gone is taken
// over; one that somebody listens on is not (libzmq would steal it).
func (a address) listen() (net.Listener, error) {
	ln, err := net.Listen(a.network, a.addr)
	if a.network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if !stale(a.addr) {
		return nil, err
	}
	if err := os.Remove(a.addr); err != nil {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	return net.Listen(a.network, a.addr)
}

// stale reports whether path is a socket without a listener. A file that is no
// socket would refuse connections too, and is not ours to remove.
func stale(path string) bool {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// endpointOf is the endpoint a peer can dial to reach addr.
func endpointOf(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "ipc://" + addr.String()
	}
	return "tcp://" + addr.String()
}
