//go:build linux

package zmq

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkRelay measures a relay with a observer beside libzmq's own proxy, each in
// a process of its own, between the same two pyzmq ends. They take turns, b.N times,
// and what is reported are medians and their ratios, ours to libzmq's, because the
// machine's mood moves figures more than code does:
//
//	go test -run '^$' -bench Relay -benchtime 9x ./internal/wire/zmq
func BenchmarkRelay(b *testing.B) {
	const kept = 64 << 20
	for _, transport := range []string{"tcp", "ipc"} {
		b.Run("round-trip/200B/"+transport, func(b *testing.B) { roundTrips(b, transport) })
		for _, way := range ways {
			b.Run(way.name+"/200B/"+transport, func(b *testing.B) { oneWay(b, transport, way, 200, 50_000, kept) })
			b.Run(way.name+"/10MB/"+transport, func(b *testing.B) { oneWay(b, transport, way, 10<<20, 40, kept) })
			b.Run(way.name+"/10MB-unseen/"+transport, func(b *testing.B) { oneWay(b, transport, way, 10<<20, 40, 1<<20) })
		}
	}
}

// ways are the directions of a stream. Backwards it is DEALER to DEALER: to a ROUTER
// the two candidates would need envelopes of different length.
var ways = []way{
	{name: "there", near: Push, far: Pull, gate: Pull, back: Push, sender: "near", receiver: "far"},
	{name: "back", near: Dealer, far: Dealer, gate: Dealer, back: Dealer, sender: "far", receiver: "near"},
}

type way struct {
	name                  string
	near, far, gate, back Type
	sender, receiver      string
}

// A candidate leads whoever connects to endpoint to another one.
type candidate struct {
	name string // ours or libzmq
	pid  int
	got  map[string][]float64
}

func (c *candidate) add(metric string, value float64) { c.got[metric] = append(c.got[metric], value) }

// candidates start both for one link each; far holds the sockets they lead to, and
// near those that connect to them, both named like the candidate.
func candidates(b *testing.B, transport string, w way, hwm int, limit int64, near, far *pyzmq) []*candidate {
	b.Helper()
	options := map[string]int{"SNDHWM": hwm, "RCVHWM": hwm}
	open := func(name string) string {
		return far.do(command{"op": "open", "name": "far " + name, "type": w.far, "bind": endpointFor(b, transport), "options": options}).Endpoint
	}
	pid, link := startTap(b)
	gate := w.gate
	if gate == Dealer {
		gate = Router
	}
	ours := link(tapped{Listen: endpointFor(b, transport), Type: gate, To: open("ours"), Limit: limit})
	proxy := startPyzmq(b)
	libzmq := proxy.do(command{
		"op": "proxy", "front": w.gate, "back": w.back, "hwm": hwm,
		"bind": endpointFor(b, transport), "connect": open("libzmq"),
	}).Endpoint
	for name, endpoint := range map[string]string{"ours": ours, "libzmq": libzmq} {
		near.do(command{"op": "open", "name": "near " + name, "type": w.near, "connect": endpoint, "options": options})
	}
	return []*candidate{
		{name: "ours", pid: pid, got: map[string][]float64{}},
		{name: "libzmq", pid: proxy.cmd.Process.Pid, got: map[string][]float64{}},
	}
}

func roundTrips(b *testing.B, transport string) {
	const count = 3000
	py := startPyzmq(b)
	w := way{near: Dealer, far: Router, gate: Router, back: Dealer}
	both := candidates(b, transport, w, 1000, 64<<20, py, py)
	measure(b, both, func(c *candidate) {
		py.do(command{"op": "bench_rtt", "near": "near " + c.name, "far": "far " + c.name, "count": 100, "size": 200})
		before := cpu(b, c.pid)
		ns := py.do(command{"op": "bench_rtt", "near": "near " + c.name, "far": "far " + c.name, "count": count, "size": 200}).Nanoseconds
		c.add("cpu-µs", (cpu(b, c.pid)-before)/1000/(2*count))
		c.add("p50-µs", ns[len(ns)/2]/1000)
		c.add("p99-µs", ns[len(ns)*99/100]/1000)
	})
}

func oneWay(b *testing.B, transport string, w way, size, count int, limit int64) {
	near, far := startPyzmq(b), startPyzmq(b)
	ends := map[string]*pyzmq{"near": near, "far": far}
	hwm := max(4, min(1000, 64<<20/size))
	both := candidates(b, transport, w, hwm, limit, near, far)
	small := size < 65536
	measure(b, both, func(c *candidate) {
		before := cpu(b, c.pid)
		ends[w.receiver].start(command{"op": "bench_recv", "name": w.receiver + " " + c.name, "count": count, "copy": small})
		ends[w.sender].start(command{"op": "bench_send", "name": w.sender + " " + c.name, "count": count, "size": size, "copy": small})
		ends[w.sender].finish()
		rate := float64(count-1) / ends[w.receiver].finish().Seconds
		c.add("cpu-µs", (cpu(b, c.pid)-before)/1000/float64(count))
		c.add("msg/s", rate)
	})
}

// measure lets the candidates take turns, and reports.
func measure(b *testing.B, both []*candidate, turn func(*candidate)) {
	b.Helper()
	for _, c := range both {
		turn(c)
		clear(c.got)
	}
	b.ResetTimer()
	for range b.N {
		for _, c := range both {
			turn(c)
		}
		slices.Reverse(both)
	}
	b.StopTimer()
	slices.SortFunc(both, func(x, y *candidate) int { return -cmp.Compare(x.name, y.name) })
	for _, c := range both {
		c.add("rss-MB", resident(b, c.pid))
	}
	ours, libzmq := both[0], both[1]
	b.ReportMetric(0, "ns/op")
	for metric, values := range ours.got {
		x, y := median(values), median(libzmq.got[metric])
		quantity, _, _ := strings.Cut(metric, "-")
		quantity = strings.ReplaceAll(quantity, "msg/s", "rate")
		b.ReportMetric(x, metric)
		b.ReportMetric(y, "libzmq-"+metric)
		b.ReportMetric(x/y, quantity+"-ratio")
	}
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// cpu is the nanoseconds that a process has run, by its clock: the number of that is
// in clock_getcpuclockid(3).
func cpu(b *testing.B, pid int) float64 {
	b.Helper()
	var ran syscall.Timespec
	clock := ^pid<<3 | 2
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&ran)), 0); err != 0 {
		b.Fatalf("cpu time of process %d: %v", pid, err)
	}
	return float64(ran.Nano())
}

// resident is how many MB of memory a process has at most had.
func resident(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "VmHWM:" {
			kb, _ := strconv.ParseFloat(fields[1], 64)
			return kb / 1024
		}
	}
	b.Fatalf("process %d: no VmHWM", pid)
	return 0
}
