package zmq

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseEndpoint(t *testing.T) {
	tests := []struct {
		name, endpoint string
		want           address // of a listener
		text           string  // of the error
	}{
		{name: "tcp", endpoint: "tcp://127.0.0.1:5555", want: address{"tcp", "127.0.0.1:5555"}},
		{name: "host name", endpoint: "tcp://localhost:0", want: address{"tcp", "localhost:0"}},
		{name: "any address", endpoint: "tcp://*:5555", want: address{"tcp4", "0.0.0.0:5555"}},
		{name: "any port", endpoint: "tcp://127.0.0.1:*", want: address{"tcp", "127.0.0.1:0"}},
		{name: "IPv6", endpoint: "tcp://[::1]:1", want: address{"tcp", "[::1]:1"}},
		{name: "ipc", endpoint: "ipc:///tmp/a b.sock", want: address{"unix", "/tmp/a b.sock"}},
		{name: "longest ipc", endpoint: "ipc://" + strings.Repeat("p", maxPath), want: address{"unix", strings.Repeat("p", maxPath)}},
		{name: "empty", endpoint: "", text: `endpoint "": want tcp://host:port or ipc://path`},
		{name: "no scheme", endpoint: "127.0.0.1:5555", text: "want tcp://host:port"},
		{name: "no port", endpoint: "tcp://127.0.0.1", text: "want tcp://host:port"},
		{name: "no host", endpoint: "tcp://:1", text: "want tcp://host:port"},
		{name: "empty port", endpoint: "tcp://a:", text: "want tcp://host:port"},
		{name: "other transport", endpoint: "inproc://a", text: `"inproc" is not supported`},
		{name: "empty path", endpoint: "ipc://", text: "the path of a socket"},
		{name: "wildcard path", endpoint: "ipc://*", text: "the path of a socket"},
		{name: "long path", endpoint: "ipc://" + strings.Repeat("p", maxPath+1), text: "has 108 bytes, a Unix socket allows 107"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEndpoint(tt.endpoint)
			if tt.text != "" {
				require.ErrorContains(t, err, tt.text)
				return
			}
			if err != nil || got.forListening() != tt.want {
				t.Errorf("address is %v, %v, want %v", got.forListening(), err, tt.want)
			}
		})
	}
}

func TestListenOnAnyAddress(t *testing.T) {
	l := listen(t, "tcp://*:*", Pull, Options{})
	if !strings.HasPrefix(l.Endpoint(), "tcp://0.0.0.0:") || strings.HasSuffix(l.Endpoint(), ":0") {
		t.Errorf("endpoint is %s, want the address and the port chosen", l.Endpoint())
	}
	dial(t, l.Endpoint(), Push, Options{})
	expect(t, l, Joined)
}

// A socket file whose listener died is in nobody's way, one in use is.
func TestListenOnUsedPath(t *testing.T) {
	endpoint := ipc(t)
	path := strings.TrimPrefix(endpoint, "ipc://")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}

	first := listen(t, endpoint, Pull, Options{})
	require.Equal(t, first.Endpoint(), endpoint, "endpoint")
	if l, err := Listen(endpoint, Pull, Options{}); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("second listener: %v, %v, want address in use, naming %s", l, err, endpoint)
	}
	dial(t, endpoint, Push, Options{})
	first.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v, want no file", err)
	}
}

func TestListenSparesFiles(t *testing.T) {
	endpoint := ipc(t)
	path := strings.TrimPrefix(endpoint, "ipc://")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := Listen(endpoint, Pull, Options{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen: %v, want address in use", err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}
