package zmq

import (
	"fmt"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The benchmarks measure our side against libzmq's in one run, because the
// machine's mood moves figures more than code does:
//
//	go test -run '^$' -bench . -benchtime 200000x ./internal/wire/zmq
//	go test -run '^$' -bench Big -benchtime 200x ./internal/wire/zmq

// sender sends b.N messages of size bytes to endpoint.
type sender func(b *testing.B, endpoint string, size int)

// receiver opens a PULL socket and returns its endpoint and what waits for the
// time from the first message to the last.
type receiver func(b *testing.B, endpoint string) (string, func() time.Duration)

func oursSend(b *testing.B, endpoint string, size int) {
	ours(b, endpoint, size, func(c *Conn, body []byte) error { return c.Send(body) })
}

func oursWrite(b *testing.B, endpoint string, size int) {
	ours(b, endpoint, size, func(c *Conn, body []byte) error { return c.Write(body) })
}

func ours(b *testing.B, endpoint string, size int, send func(*Conn, []byte) error) {
	b.Helper()
	c, body := dial(b, endpoint, Push, Options{}), make([]byte, size)
	go func() {
		for range b.N {
			if err := send(c, body); err != nil {
				b.Error(err)
				return
			}
		}
		if err := c.Flush(); err != nil {
			b.Error(err)
		}
	}()
}

func theirs(b *testing.B, endpoint string, size int) {
	b.Helper()
	py := startPyzmq(b)
	py.connect("push", Push, endpoint, nil)
	py.start(command{"op": "bench_send", "name": "push", "count": b.N, "size": size, "copy": size < 65536})
}

func oursPull(b *testing.B, endpoint string) (string, func() time.Duration) {
	b.Helper()
	l := listen(b, endpoint, Pull, Options{})
	return l.Endpoint(), func() time.Duration {
		ctx, start := patient(b), time.Time{}
		for n := 0; n < b.N; {
			d, err := l.Recv(ctx)
			switch {
			case err != nil:
				b.Fatal(err)
			case d.Kind == Received && n == 0:
				start = time.Now()
				fallthrough
			case d.Kind == Received:
				n++
			}
		}
		return time.Since(start)
	}
}

func theirsPull(b *testing.B, endpoint string) (string, func() time.Duration) {
	b.Helper()
	py := startPyzmq(b)
	endpoint = py.bind("pull", Pull, endpoint)
	py.start(command{"op": "bench_recv", "name": "pull", "count": b.N, "copy": true})
	return endpoint, func() time.Duration {
		return time.Duration(py.finish().Seconds * float64(time.Second))
	}
}

var pairs = []struct {
	name string
	send sender
	recv receiver
}{
	{name: "pyzmq-pyzmq", send: theirs, recv: theirsPull},
	{name: "pyzmq-ours", send: theirs, recv: oursPull},
	{name: "ours(send)-pyzmq", send: oursSend, recv: theirsPull},
	{name: "ours(write)-pyzmq", send: oursWrite, recv: theirsPull},
	{name: "ours(send)-ours", send: oursSend, recv: oursPull},
	{name: "ours(write)-ours", send: oursWrite, recv: oursPull},
}

func BenchmarkPushPull(b *testing.B) {
	for _, size := range []int{100, 5000} {
		for _, p := range pairs {
			for _, transport := range []string{"tcp", "ipc"} {
				b.Run(fmt.Sprintf("%dB/%s/%s", size, transport, p.name), func(b *testing.B) {
					stream(b, p.send, p.recv, endpointFor(b, transport), size)
				})
			}
		}
	}
}

func BenchmarkBigFrames(b *testing.B) {
	for _, p := range pairs {
		b.Run(p.name, func(b *testing.B) { stream(b, p.send, p.recv, "tcp://127.0.0.1:0", 10<<20) })
	}
}

func endpointFor(b *testing.B, transport string) string {
	b.Helper()
	if transport == "ipc" {
		return ipc(b)
	}
	return "tcp://127.0.0.1:0"
}

func stream(b *testing.B, send sender, recv receiver, endpoint string, size int) {
	b.Helper()
	b.ReportAllocs()
	endpoint, wait := recv(b, endpoint)
	b.ResetTimer()
	send(b, endpoint, size)
	took := wait()
	b.StopTimer()
	rate := float64(b.N-1) / took.Seconds()
	b.ReportMetric(rate, "msg/s")
	b.ReportMetric(rate*float64(size)/1e6, "MB/s")
}

// BenchmarkRoundTrip measures a DEALER that asks and a ROUTER that returns every
// message of 200 bytes.
func BenchmarkRoundTrip(b *testing.B) {
	dealers := []struct {
		name string
		ping func(b *testing.B, endpoint string) time.Duration
	}{{"pyzmq", theirsPing}, {"ours", oursPing}}
	routers := []struct {
		name string
		echo func(b *testing.B, endpoint string) string
	}{{"pyzmq", theirsEcho}, {"ours", oursEcho}}
	for _, dealer := range dealers {
		for _, router := range routers {
			for _, transport := range []string{"tcp", "ipc"} {
				b.Run(transport+"/"+dealer.name+"-"+router.name, func(b *testing.B) {
					endpoint := router.echo(b, endpointFor(b, transport))
					b.ResetTimer()
					took := dealer.ping(b, endpoint)
					b.StopTimer()
					b.ReportMetric(float64(took.Nanoseconds())/1000/float64(b.N), "µs/rtt")
				})
			}
		}
	}
}

func theirsPing(b *testing.B, endpoint string) time.Duration {
	b.Helper()
	py := startPyzmq(b)
	py.connect("dealer", Dealer, endpoint, []byte{0, 0})
	a := py.do(command{"op": "bench_ping", "name": "dealer", "count": b.N, "size": 200})
	return time.Duration(a.Seconds * float64(time.Second))
}

func oursPing(b *testing.B, endpoint string) time.Duration {
	b.Helper()
	c, body := dial(b, endpoint, Dealer, Options{Identity: []byte{0, 0}}), make([]byte, 200)
	start := time.Now()
	for range b.N {
		require.NoError(b, c.Send(body))
		if _, err := c.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

func theirsEcho(b *testing.B, endpoint string) string {
	b.Helper()
	py := startPyzmq(b)
	endpoint = py.bind("router", Router, endpoint)
	py.start(command{"op": "echo", "name": "router", "count": b.N})
	return endpoint
}

func oursEcho(b *testing.B, endpoint string) string {
	b.Helper()
	l, ctx := listen(b, endpoint, Router, Options{}), patient(b)
	go func() {
		for {
			d, err := l.Recv(ctx)
			if err != nil {
				return
			}
			if d.Kind == Received {
				if err := l.Send(d.Peer.Identity, d.Message...); err != nil {
					b.Error(err)
				}
			}
		}
	}()
	return l.Endpoint()
}
