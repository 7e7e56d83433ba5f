package zmq

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A dialer outlasts peers that are not there, hang up, or are something else.
func TestDialRetries(t *testing.T) {
	transports(t, func(t *testing.T, free func() string) {
		addr, err := parseEndpoint(free())
		require.NoError(t, err)
		ln, err := addr.listen()
		require.NoError(t, err)
		endpoint := endpointOf(ln.Addr())
		dialed := dialLater(t, endpoint, Push, Options{})
		for _, greeting := range []string{"", "HTTP/1.1 200 OK\r\n", greeting[:10], greeting} {
			nc, err := ln.Accept()
			require.NoError(t, err)
			if _, err := nc.Write([]byte(greeting)); err != nil {
				t.Fatal(err)
			}
			nc.Close()
		}
		ln.Close() // and now nobody listens, until:
		l := listen(t, endpoint, Pull, Options{})
		for {
			d, err := l.Recv(patient(t))
			require.NoError(t, err)
			if d.Kind == Joined {
				break
			}
		}
		dialed()
	})
}

func TestDialGivesUp(t *testing.T) {
	dead := listen(t, tcp, Pull, Options{})
	dead.Close()
	silent, _ := rawListen(t, tcp)
	tests := []struct {
		name, endpoint string
		cause          error
	}{
		{name: "nobody listens", endpoint: dead.Endpoint(), cause: syscall.ECONNREFUSED},
		{name: "no such socket", endpoint: ipc(t), cause: os.ErrNotExist},
		{name: "silent peer", endpoint: silent, cause: os.ErrDeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			_, err := Dial(ctx, tt.endpoint, Push, Options{HandshakeTimeout: 5 * time.Millisecond})
			// The end of ctx may also meet an attempt under way: it closes the connection.
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tt.cause) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("dial: %v, want %v and %v", err, context.DeadlineExceeded, tt.cause)
			}
			require.True(t, strings.Contains(err.Error(), tt.endpoint), "dial: %v, want it to name %s", err, tt.endpoint)
		})
	}
}

// The end of ctx ends a handshake in progress, whatever its own timeout.
func TestDialCancelledInHandshake(t *testing.T) {
	endpoint, accept := rawListen(t, tcp)
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("told to stop")
	failed := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, endpoint, Push, Options{HandshakeTimeout: time.Hour})
		failed <- err
	}()
	accept().receive(len(greeting))
	cancel(reason)
	require.ErrorIs(t, <-failed, reason)
}
