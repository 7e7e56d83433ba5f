package edge

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// upstreamVariable makes [TestEdgeProcess] serve.
const upstreamVariable = "VLLM_VCR_TEST_EDGE_UPSTREAM"

// TestEdgeProcess is an edge alone in a process, for BenchmarkStreams. It ends with its input.
func TestEdgeProcess(t *testing.T) {
	upstream := os.Getenv(upstreamVariable)
	if upstream == "" {
		t.Skip("it is for BenchmarkStreams")
	}
	e := start(t, Options{Frontends: []http.Handler{proxyTo(t, upstream)}})
	fmt.Printf("%s\n", e.url)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// BenchmarkStreams is the resident memory of an edge alone, in a process of its own, with open streams that wait for their next
// token, and without any.
func BenchmarkStreams(b *testing.B) {
	for _, streams := range []int{1000, 9900} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			for b.Loop() {
				idle, loaded := withStreams(b, streams)
				b.ReportMetric(idle, "MB-idle")
				b.ReportMetric(loaded, "MB-streams")
				b.ReportMetric((loaded-idle)*1024/float64(streams), "KB/stream")
			}
		})
	}
}

func withStreams(b *testing.B, streams int) (idle, loaded float64) {
	release := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	toy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		flush(w)
		<-release
	})}
	go func() { _ = toy.Serve(l) }()
	defer toy.Close()
	defer close(release)

	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	edge := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEdgeProcess$", "-test.v")
	edge.Env = append(os.Environ(), upstreamVariable+"=http://"+l.Addr().String())
	in, err := edge.StdinPipe()
	require.NoError(b, err)
	defer in.Close()
	out, err := edge.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, edge.Start())
	defer func() { cancel(); _ = edge.Wait() }()
	var address string
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); { // the test framework writes lines of its own
		address, _ = strings.CutPrefix(lines.Text(), "http://")
		if address == lines.Text() {
			address = ""
		}
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	open := func() {
		conn, err := net.Dial("tcp", address)
		require.NoError(b, err)
		conns = append(conns, conn)
		_, _ = io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
		text := make([]byte, 0, 1<<10)
		for !bytes.Contains(text, []byte("data:")) {
			n, err := conn.Read(text[len(text):cap(text)])
			require.NoError(b, err)
			text = text[:len(text)+n]
		}
	}
	open()
	idle = testenv.Resident(b, edge.Process.Pid)
	for range streams {
		open()
	}
	return idle, testenv.Resident(b, edge.Process.Pid)
}
