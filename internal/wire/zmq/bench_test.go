package zmq

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The benchmarks measure our side against libzmq's in one run, because the
// machine's mood moves figures more than code does:
//
//	go test -run '^$' -bench PushPull -benchtime 200000x ./internal/wire/zmq
//	go test -run '^$' -bench PushPull/10485760B -benchtime 200x ./internal/wire/zmq
//	go test -run '^$' -bench Relay -benchtime 9x ./internal/wire/zmq

func BenchmarkPushPull(b *testing.B) {
	for _, size := range []int{100, 5000, 10 << 20} {
		for _, from := range []string{"pyzmq", "ours"} {
			for _, to := range []string{"pyzmq", "ours"} {
				b.Run(fmt.Sprintf("%dB/%s-%s", size, from, to), func(b *testing.B) {
					b.ReportAllocs()
					endpoint, wait := pull(b, to == "ours")
					b.ResetTimer()
					push(b, from == "ours", endpoint, size)
					took := wait()
					b.StopTimer()
					rate := float64(b.N-1) / took
					b.ReportMetric(rate, "msg/s")
					b.ReportMetric(rate*float64(size)/1e6, "MB/s")
				})
			}
		}
	}
}

// push sends b.N messages of size bytes, behind the caller's back.
func push(b *testing.B, ours bool, endpoint string, size int) {
	if !ours {
		py := startPyzmq(b)
		py.connect("push", Push, endpoint, nil)
		py.start(command{"op": "bench_send", "name": "push", "count": b.N, "size": size, "copy": size < 65536})
		return
	}
	c, body := dial(b, endpoint, Push, Options{}), make([]byte, size)
	go func() {
		for range b.N {
			if err := c.Write(body); err != nil {
				b.Error(err)
				return
			}
		}
		if err := c.Flush(); err != nil {
			b.Error(err)
		}
	}()
}

// pull receives b.N messages; wait returns the seconds from the first to the last.
func pull(b *testing.B, ours bool) (endpoint string, wait func() float64) {
	if !ours {
		py := startPyzmq(b)
		endpoint = py.bind("pull", Pull, tcp)
		py.start(command{"op": "bench_recv", "name": "pull", "count": b.N, "copy": true})
		return endpoint, func() float64 { return py.finish().Seconds }
	}
	l := listen(b, tcp, Pull, Options{})
	return l.Endpoint(), func() float64 {
		ctx, start := patient(b), time.Time{}
		for n := 0; n < b.N; {
			d, err := l.Recv(ctx)
			require.NoError(b, err)
			if d.Kind != Received {
				continue
			}
			if n++; n == 1 {
				start = time.Now()
			}
		}
		return time.Since(start).Seconds()
	}
}

// BenchmarkRelay measures a relay with an observer against libzmq's own proxy, between the same pyzmq ends. They take
// turns, b.N times, and what is reported are medians, and the ratio of ours to libzmq's.
func BenchmarkRelay(b *testing.B) {
	ways := []struct {
		name                  string
		near, far, gate, back Type
		sender, receiver      string
	}{
		{name: "round-trip", near: Dealer, far: Router, gate: Router, back: Dealer},
		{name: "to-frontend", near: Push, far: Pull, gate: Pull, back: Push, sender: "near", receiver: "far"},
		// DEALER to DEALER: to a ROUTER the two would need envelopes of different length.
		{name: "to-engine", near: Dealer, far: Dealer, gate: Dealer, back: Dealer, sender: "far", receiver: "near"},
	}
	for _, transport := range []string{"tcp", "ipc"} {
		for _, way := range ways {
			for size, count := range map[int]int{200: 50_000, 10 << 20: 40} {
				if way.sender == "" && size > 200 {
					continue
				}
				b.Run(fmt.Sprintf("%s/%dB/%s", way.name, size, transport), func(b *testing.B) {
					free := func() string { return tcp }
					if transport == "ipc" {
						free = func() string { return ipc(b) }
					}
					ends := map[string]*pyzmq{"near": startPyzmq(b), "far": startPyzmq(b)}
					if way.sender == "" {
						ends["far"] = ends["near"] // one process measures both
					}
					hwm := max(4, min(1000, 64<<20/size))
					bind := func(name string) string {
						return ends["far"].bind("far "+name, way.far, free(), "SNDHWM", hwm, "RCVHWM", hwm)
					}
					gate := way.gate
					if gate == Dealer {
						gate = Router
					}
					ours := startRelays(b, free(), gate, bind("ours"), func() Observer { return newQueue(patient(b), 64<<20) })
					libzmq := startPyzmq(b).do(command{
						"op": "proxy", "front": way.gate, "back": way.back, "hwm": hwm,
						"bind": strings.Replace(free(), ":0", ":*", 1), "connect": bind("libzmq"),
					}).Endpoint
					for name, endpoint := range map[string]string{"ours": ours, "libzmq": libzmq} {
						ends["near"].connect("near "+name, way.near, endpoint, nil, "SNDHWM", hwm, "RCVHWM", hwm)
					}
					turn := func(name string) float64 {
						if way.sender == "" {
							return ends["near"].do(command{"op": "bench_rtt", "near": "near " + name, "far": "far " + name, "count": 3000, "size": size}).Seconds * 1e6
						}
						ends[way.receiver].start(command{"op": "bench_recv", "name": way.receiver + " " + name, "count": count, "copy": size == 200})
						ends[way.sender].do(command{"op": "bench_send", "name": way.sender + " " + name, "count": count, "size": size, "copy": size == 200})
						return float64(count-1) / ends[way.receiver].finish().Seconds
					}
					got := map[string][]float64{}
					names := []string{"ours", "libzmq"}
					for i := range b.N + 1 { // the first turn warms up
						for _, name := range names {
							if value := turn(name); i > 0 {
								got[name] = append(got[name], value)
							}
						}
						slices.Reverse(names)
					}
					unit := "msg/s"
					if way.sender == "" {
						unit = "p50-µs"
					}
					x, y := median(got["ours"]), median(got["libzmq"])
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(x, unit)
					b.ReportMetric(y, "libzmq-"+unit)
					b.ReportMetric(x/y, "ratio")
				})
			}
		}
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
