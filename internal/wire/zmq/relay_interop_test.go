package zmq

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// libzmq on both ends: what arrives is what was sent.
func TestRelayBetweenLibzmq(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		t.Run("dealer and router", func(t *testing.T) { relayRouter(t, endpoint) })
		t.Run("push and pull", func(t *testing.T) { relayPull(t, endpoint) })
		for _, typ := range []Type{Sub, XSub} {
			t.Run(strings.ToLower(string(typ))+" and xpub", func(t *testing.T) { relayXPub(t, typ, endpoint) })
		}
	})
}

// through starts a libzmq socket and a tap before it.
func through(t *testing.T, py *pyzmq, far Type, gate Type, endpoint string) string {
	t.Helper()
	return tapped{Listen: endpoint, Type: gate, To: py.bind("far", far, another(t, endpoint)), observer: func() (Observer, Observer) {
		return newQueue(patient(t), 1<<30), newQueue(patient(t), 1<<30)
	}}.start(t)
}

func relayRouter(t *testing.T, endpoint string) {
	py := startPyzmq(t)
	endpoint = through(t, py, Router, Router, endpoint)
	identity := []byte{0, 1}
	py.connect("near", Dealer, endpoint, identity)
	for _, m := range append(messages(), [][]byte{{}, {1}, {}, {2, 3}, {}}) {
		py.send("near", m...)
		enveloped := append([][]byte{identity}, m...)
		if d := diff(enveloped, py.recv("far")); d != "" {
			t.Fatalf("there (-want +got):\n%.2000s", d)
		}
		py.send("far", enveloped...)
		if d := diff(m, py.recv("near")); d != "" {
			t.Fatalf("back (-want +got):\n%.2000s", d)
		}
	}
	py.start(command{"op": "echo", "name": "far", "count": 20 * 50})
	crowd := startPyzmq(t)
	if a := crowd.do(command{"op": "crowd", "connect": endpoint, "peers": 20, "messages": 50}); a.Wrong > 0 {
		t.Errorf("%d of 1000 messages did not come back as they were", a.Wrong)
	}
	py.finish()
}

func relayPull(t *testing.T, endpoint string) {
	py := startPyzmq(t)
	near := startPyzmq(t)
	near.connect("near", Push, through(t, py, Pull, Pull, endpoint), nil)
	for _, m := range messages() {
		near.send("near", m...)
		if d := diff(m, py.recv("far")); d != "" {
			t.Fatalf("(-want +got):\n%.2000s", d)
		}
	}
	near.start(command{"op": "blast", "name": "near", "count": 20_000, "size": 200})
	if a := py.do(command{"op": "drain", "name": "far", "count": 20_000}); a.Wrong > 0 {
		t.Errorf("%d of 20000 messages are not the one that was due", a.Wrong)
	}
	near.finish()
	py.start(command{"op": "recv_big", "name": "far"})
	sent := near.do(command{"op": "send_big", "name": "near", "sizes": []int{1, 10 << 20, 0, 10<<20 + 1, 300}})
	require.NoDiff(t, cmp.Diff(sent.Digests, py.finish().Digests), "big frames (-sent +received)")
}

func relayXPub(t *testing.T, typ Type, endpoint string) {
	py := startPyzmq(t)
	endpoint = through(t, py, XPub, XPub, endpoint)
	if typ == Sub {
		py.do(command{"op": "open", "name": "near", "type": Sub, "connect": endpoint, "subscribe": "news"})
	} else {
		py.connect("near", XSub, endpoint, nil)
		py.send("near", []byte("\x01news"))
	}
	if got := py.recv("far"); len(got) != 1 || string(got[0]) != "\x01news" {
		t.Errorf("the publisher is told %q, want the subscription", got)
	}
	py.send("far", []byte("olds"), []byte("not wanted"))
	py.send("far", []byte("news"), []byte("wanted"))
	if d := diff([][]byte{[]byte("news"), []byte("wanted")}, py.recv("near")); d != "" {
		t.Errorf("published (-want +got):\n%s", d)
	}
	if typ == XSub {
		py.send("near", []byte("\x00news"))
		if got := py.recv("far"); len(got) != 1 || !bytes.Equal(got[0], []byte("\x00news")) {
			t.Errorf("the publisher is told %q, want the end of the subscription", got)
		}
	}
}

// PINGs and PONGs pass like everything else, so both ends notice each other's death
// and not the relay's.
func TestRelayHeartbeat(t *testing.T) {
	beat := map[string]int{"HEARTBEAT_IVL": 10, "HEARTBEAT_TIMEOUT": 30_000}
	py := startPyzmq(t)
	far := py.do(command{"op": "open", "name": "far", "type": Pull, "bind": "tcp://127.0.0.1:*", "options": beat}).Endpoint
	behind := startRelay(t, tcpAddr(t, far))
	endpoint := tapped{Listen: "tcp://127.0.0.1:0", Type: Pull, To: behind.endpoint, resets: true}.start(t)
	before := startRelay(t, tcpAddr(t, endpoint))
	py.do(command{"op": "open", "name": "near", "type": Push, "connect": before.endpoint, "options": beat})
	for range 5 {
		for _, way := range []*relay{before, behind} {
			way.wait(t, "\x04PING")
			way.wait(t, "\x04PONG")
		}
	}
	py.send("near", []byte("alive"))
	if got := py.recv("far"); len(got) != 1 || string(got[0]) != "alive" {
		t.Errorf("received %q", got)
	}
}
