package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// peerVariable is the command of another server that BenchmarkBuiltin measures next to serve, without the port:
//
//	VLLM_VCR_BENCH_PEER="llm-d-inference-sim --model m --max-model-len 4096 --max-num-seqs 1024 --force-dummy-tokenizer" \
//	    go test ./cmd/vllm-vcr -run '^$' -bench Builtin -count 6 | tee new.txt; benchstat -col /server new.txt
const peerVariable = "VLLM_VCR_BENCH_PEER"

// BenchmarkBuiltin sends requests to `serve --frontend builtin` in a process of its own. The processor time is that of
// the server alone.
func BenchmarkBuiltin(b *testing.B) {
	servers := [][2]string{{"builtin", buildBinary(b) + " serve m --frontend builtin --quiet --max-model-len 4096 --max-num-seqs 1024"}}
	if peer := os.Getenv(peerVariable); peer != "" {
		servers = append(servers, [2]string{"peer", peer})
	}
	of := func(name string, run func(b *testing.B, command string)) {
		for _, server := range servers {
			b.Run(name+"/server="+server[0], func(b *testing.B) { run(b, server[1]) })
		}
	}
	for _, load := range []struct {
		name, path, body string
		tokens           int
	}{
		{"one_token", "/v1/completions", `{"model":"m","prompt":"Hello there, how are you?","ignore_eos":true,"max_tokens":1}`, 1},
		{"128_tokens", "/v1/completions", `{"model":"m","prompt":"Hello there, how are you?","ignore_eos":true,"max_tokens":128}`, 128},
		{"stream", "/v1/completions", `{"model":"m","prompt":"Hello there, how are you?","ignore_eos":true,"max_tokens":128,"stream":true}`, 128},
		{"chat_stream", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hello there, how are you?"}],"ignore_eos":true,"max_tokens":128,"stream":true}`, 128},
	} {
		of(load.name, func(b *testing.B, command string) {
			hammer(b, startServer(b, command), load.path, load.body, load.tokens)
		})
	}
	of("start", func(b *testing.B, command string) {
		var took time.Duration
		times := min(b.N, 20)
		for range times {
			s := startServer(b, command)
			took += s.took
			s.stop()
		}
		b.ReportMetric(float64(took.Microseconds())/1e3/float64(times), "ms-to-health")
	})
	of("1000_streams", func(b *testing.B, command string) {
		for range min(b.N, 2) {
			s := startServer(b, command+" --inter-token-latency 100ms --max-model-len 131072")
			idle := testenv.Resident(b, s.pid)
			for range 1000 {
				conn := connect(b, s.address)
				defer conn.Close()
				send(b, conn, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hello"}],"ignore_eos":true,"max_tokens":130000,"stream":true}`)
				if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
					b.Fatal(err)
				}
				go func() { _, _ = io.Copy(io.Discard, conn) }()
			}
			b.ReportMetric(idle, "MB-idle")
			b.ReportMetric(testenv.Resident(b, s.pid), "MB-streams")
			s.stop()
		}
	})
	of("interval", func(b *testing.B, command string) {
		tokens := min(b.N, 2000)
		conn := connect(b, startServer(b, command+" --inter-token-latency 1500us").address)
		defer conn.Close()
		send(b, conn, "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"Hello","ignore_eos":true,"max_tokens":%d,"stream":true}`, tokens+1))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(b, err)
		var began time.Time
		events := 0
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if strings.Contains(lines.Text(), `"text"`) {
				if events++; events == 1 {
					began = time.Now()
				}
			}
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/float64(tokens), "µs/token") // 1,500 is right
	})
}

// A benchServer is a server in a process of its own.
type benchServer struct {
	address string
	pid     int
	took    time.Duration // until it was healthy
	stop    func()
}

// startServer starts a server and waits until it is healthy.
func startServer(b *testing.B, command string) benchServer {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	address := l.Addr().String()
	l.Close()
	words := append(strings.Fields(command), "--port", address[strings.LastIndexByte(address, ':')+1:])
	cmd := exec.Command(words[0], words[1:]...)
	began := time.Now()
	require.NoError(b, cmd.Start())
	stop := sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	b.Cleanup(stop)
	for time.Since(began) < time.Minute {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		_, _ = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		conn.Close()
		if err == nil && answer.StatusCode == http.StatusOK {
			return benchServer{address, cmd.Process.Pid, time.Since(began), stop}
		}
	}
	b.Fatalf("%s is not healthy after a minute", command)
	return benchServer{}
}

func connect(b *testing.B, address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	require.NoError(b, err)
	return conn
}

func send(b *testing.B, conn net.Conn, path, body string) {
	_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	require.NoError(b, err)
}

// hammer sends b.N requests by 64 connections.
func hammer(b *testing.B, s benchServer, path, body string, tokens int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	began := cpuOf(b, s.pid)
	b.ResetTimer()
	var sending sync.WaitGroup
	for range 64 {
		conn := connect(b, s.address)
		defer conn.Close()
		sending.Go(func() {
			buffer := make([]byte, 64<<10)
			for left.Add(-1) >= 0 && !b.Failed() {
				send(b, conn, path, body)
				if err := skipAnswer(conn, buffer); err != nil {
					b.Error(err)
				}
			}
		})
	}
	sending.Wait()
	b.StopTimer()
	seconds := b.Elapsed().Seconds()
	b.ReportMetric(float64(b.N)/seconds, "req/s")
	b.ReportMetric(float64(b.N*tokens)/seconds, "tok/s")
	b.ReportMetric(float64((cpuOf(b, s.pid)-began).Microseconds())/float64(b.N), "cpu-µs/req")
}

// skipAnswer reads an answer with a length, or in chunks, and does little more, as the client shares the cores with the
// server.
func skipAnswer(conn net.Conn, buffer []byte) error {
	n, head := 0, -1
	for head < 0 {
		more, err := conn.Read(buffer[n:])
		if err != nil {
			return err
		}
		n += more
		head = bytes.Index(buffer[:n], []byte("\r\n\r\n"))
	}
	if !bytes.HasPrefix(buffer, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("%.300s", buffer[:n])
	}
	if _, length, ok := strings.Cut(string(buffer[:head+2]), "Content-Length: "); ok {
		length, _, _ = strings.Cut(length, "\r\n")
		size, err := strconv.Atoi(length)
		for n -= head + 4; err == nil && n < size; {
			var more int
			more, err = conn.Read(buffer)
			n += more
		}
		return err
	}
	const end = "0\r\n\r\n"
	for !bytes.HasSuffix(buffer[:n], []byte(end)) {
		keep := copy(buffer, buffer[max(0, n-len(end)):n])
		more, err := conn.Read(buffer[keep:])
		if err != nil {
			return err
		}
		n = keep + more
	}
	return nil
}
