package zmq

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseReady(t *testing.T) {
	tests := []struct {
		name string
		body string
		want Peer
		err  error
		text string
	}{
		{name: "libzmq PUSH", body: ready("Socket-Type", "PUSH")[2:], want: Peer{Type: Push}},
		{
			name: "identity of zeros", body: ready("Socket-Type", "DEALER", "Identity", "\x00\x00")[2:],
			want: Peer{Type: Dealer, Identity: []byte{0, 0}},
		},
		{
			name: "names without case, unknown ones", body: ready("X-What", "ever", "socket-type", "ROUTER", "IDENTITY", "a")[2:],
			want: Peer{Type: Router, Identity: []byte("a")},
		},
		{name: "no type", body: ready("Identity", "a")[2:], err: ErrProtocol, text: "names no socket type"},
		{name: "long identity", body: "\x05READY" + "\x08Identity\x00\x00\x01\x00" + strings.Repeat("i", 256) + "\x0bSocket-Type\x00\x00\x00\x04PUSH", err: ErrProtocol, text: "identity of 256 bytes"},
		{name: "empty", body: "", err: ErrProtocol, text: "does not fit its 0 bytes"},
		{name: "name too long", body: "\x06READY", err: ErrProtocol, text: "does not fit its 6 bytes"},
		{name: "another command", body: "\x05HELLO", err: ErrProtocol, text: `"HELLO", want READY`},
		{name: "error command", body: "\x05ERROR\x04nope", err: ErrProtocol, text: `refused by the peer: "nope"`},
		{name: "error command, false length", body: "\x05ERROR\xffnope", err: ErrProtocol, text: `"nope"`},
		{name: "error command, no reason", body: "\x05ERROR", err: ErrProtocol},
		{name: "property name cut", body: "\x05READY\x0bSocket", err: ErrProtocol, text: "cut short at byte 0 of 7"},
		{name: "property value cut", body: "\x05READY\x01X\x00\x00\x00\x02a", err: ErrProtocol, text: "cut short"},
		{name: "property value of 4 GiB", body: "\x05READY\x01X\xff\xff\xff\xffa", err: ErrProtocol, text: "cut short"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseReady([]byte(tt.body))
			if !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("error is %v, want %v saying %q", err, tt.err, tt.text)
			}
			if err != nil {
				return
			}
			require.NoDiff(t, cmp.Diff(tt.want, got), "peer (-want +got)")
		})
	}
}

func FuzzParseReady(f *testing.F) {
	f.Add([]byte(ready("Socket-Type", "DEALER", "Identity", "\x00\x00")[2:]))
	f.Add([]byte("\x05READY\x01X\xff\xff\xff\xffa"))
	f.Add([]byte("\x05ERROR\xffnope"))
	f.Fuzz(func(t *testing.T, body []byte) {
		peer, err := parseReady(body)
		require.True(t, err != nil || (peer.Type != "" && len(peer.Identity) <= maxIdentity), "accepted a %q with an identity of %d bytes", peer.Type, len(peer.Identity))
		// Whatever it is, the table of socket types must not panic on it.
		_ = Router.pairs(peer.Type)
		_, _ = pong(body)
	})
}

func TestPong(t *testing.T) {
	tests := []struct {
		name, command, want string
		err                 error
	}{
		{name: "bare", command: "\x04PING\x00\x0a", want: "\x04PONG"},
		{name: "with context", command: "\x04PING\x00\x0a0123456789abcdef", want: "\x04PONG0123456789abcdef"},
		{name: "long context", command: "\x04PING\x00\x0a0123456789abcdefg", err: ErrProtocol},
		{name: "no time to live", command: "\x04PING\x00", err: ErrProtocol},
		{name: "subscribe", command: "\x09SUBSCRIBEtopic"},
		{name: "a pong", command: "\x04PONG"},
		{name: "nothing", command: "", err: ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := pong([]byte(tt.command))
			require.True(t, errors.Is(err, tt.err) && string(got) == tt.want, "pong is %q, %v, want %q, %v", got, err, tt.want, tt.err)
		})
	}
}
