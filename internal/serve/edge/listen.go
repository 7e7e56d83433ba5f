package edge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// A listener can stop listening for a while, so that connections are refused.
type listener struct {
	net.Listener // nil after Close
	network      string
	address      string

	mu     sync.Mutex
	closed bool
	until  time.Time     // of an outage
	up     chan struct{} // closed at the end of an outage; nil without one
	failed error         // to listen again
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, network: l.Addr().Network(), address: l.Addr().String()}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		inner, up := l.Listener, l.up
		failed := l.failed
		if l.closed {
			failed = net.ErrClosed
		}
		l.mu.Unlock()
		if failed != nil {
			return nil, failed
		}
		if up != nil {
			<-up
			continue
		}
		conn, err := inner.Accept()
		if err == nil {
			return conn, nil
		}
		l.mu.Lock()
		again := l.up != nil || l.Listener != inner
		l.mu.Unlock()
		if !again {
			return nil, err
		}
	}
}

func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.up != nil {
		close(l.up)
		l.up = nil
		return nil // it listens no more
	}
	return l.Listener.Close()
}

// refuseFor stops listening for a while, or longer if it has stopped already.
func (l *listener) refuseFor(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := time.Now().Add(d); end.After(l.until) {
		l.until = end
	}
	if l.closed || l.up != nil {
		return
	}
	if unix, ok := l.Listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // a file without a listener refuses connections
	}
	l.up = make(chan struct{})
	_ = l.Listener.Close()
	time.AfterFunc(d, l.listenAgain)
}

func (l *listener) listenAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if left := time.Until(l.until); left > 0 {
		time.AfterFunc(left, l.listenAgain)
		return
	}
	if l.network == "unix" {
		_ = os.Remove(l.address)
	}
	again, err := net.Listen(l.network, l.address)
	if err != nil {
		l.failed = fmt.Errorf("listen again on %s after an injected fault: %w", l.address, err)
	} else {
		l.Listener = again
	}
	close(l.up)
	l.up = nil
}

// refuseFor makes all ports refuse connections for a while. Idle connections are closed.
func (e *Edge) refuseFor(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		s.listener.refuseFor(d)
		s.SetKeepAlivesEnabled(false) // closes idle connections
		s.SetKeepAlivesEnabled(true)
	}
}

// ListenUnix listens on a socket in the file system. It replaces a socket without a listener, and no other file.
func ListenUnix(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err == nil {
		return l, nil
	}
	if info, statErr := os.Lstat(path); statErr == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("listen on %s: it exists and is not a socket: choose another path", path)
	} else if statErr != nil {
		return nil, err
	}
	if conn, dialErr := net.Dial("unix", path); dialErr == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another process listens there", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// LoadTLS reads a certificate and its key. The files are read again when they have changed; a pair that is broken then
// leaves the one before in use.
func LoadTLS(certFile, keyFile string) (*tls.Config, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("both ssl-certfile and ssl-keyfile must be provided together")
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	read := changed(certFile, keyFile)
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			if now := changed(certFile, keyFile); now != read {
				if again, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil {
					pair, read = again, now
				}
			}
			return &pair, nil
		},
	}, nil
}

// changed is when each file changed last.
func changed(certFile, keyFile string) (times [2]time.Time) {
	for i, name := range []string{certFile, keyFile} {
		if info, err := os.Stat(name); err == nil {
			times[i] = info.ModTime()
		}
	}
	return times
}
