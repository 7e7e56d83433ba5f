//go:build unix

package builtin

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkServe sends requests by 64 connections. Client and server share one process, so the processor time is that of both.
func BenchmarkServe(b *testing.B) {
	for _, bench := range []struct {
		name, path, body string
		tokens           int
	}{
		{"one token", "/v1/completions", `{"model":"m","prompt":"Hello there","max_tokens":1,"ignore_eos":true}`, 1},
		{"128 tokens", "/v1/completions", `{"model":"m","prompt":"Hello there","max_tokens":128,"ignore_eos":true}`, 128},
		{"128 tokens streamed", "/v1/completions", `{"model":"m","prompt":"Hello there","max_tokens":128,"ignore_eos":true,"stream":true}`, 128},
		{
			"chat of 128 tokens streamed", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"Hello there"}],"max_tokens":128,"ignore_eos":true,"stream":true}`, 128,
		},
	} {
		b.Run(strings.ReplaceAll(bench.name, " ", "_"), func(b *testing.B) {
			url, _, source := serving(b, nil)
			source.set("...")
			request := []byte(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", bench.path, len(bench.body), bench.body))
			var left atomic.Int64
			left.Store(int64(b.N))
			began := processorTime()
			b.ResetTimer()
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
					if err != nil {
						b.Error(err)
						return
					}
					defer conn.Close()
					r := bufio.NewReaderSize(conn, 32<<10)
					for left.Add(-1) >= 0 {
						_, err := conn.Write(request)
						if err == nil {
							err = readAnswer(r)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(b.N)/seconds, "req/s")
			b.ReportMetric(float64(b.N*bench.tokens)/seconds, "tok/s")
			b.ReportMetric(float64((processorTime()-began).Microseconds())/float64(b.N), "cpu-µs/req")
		})
	}
}

// readAnswer reads an answer with a length, or in chunks, and does little more.
func readAnswer(r *bufio.Reader) error {
	size := -1
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
		if n, found := strings.CutPrefix(string(line), "Content-Length: "); found {
			_, _ = fmt.Sscan(n, &size)
		}
	}
	if size >= 0 {
		_, err := r.Discard(size)
		return err
	}
	for {
		var n int
		line, err := r.ReadSlice('\n')
		if err == nil {
			_, err = fmt.Sscanf(string(line), "%x", &n)
		}
		if err == nil {
			_, err = r.Discard(n + 2)
		}
		if err != nil || n == 0 {
			return err
		}
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDecode is what a token costs without HTTP.
func BenchmarkDecode(b *testing.B) {
	_, s, source := serving(b, nil)
	ids := source.tok.Encode("The train leaves the station at nine in the morning, and nobody has seen the letter. ")
	p := &params{Stream: true, Stop: stringOrList{"zebra"}}
	d := newDecoder(s.opt.Tokenizer, p, false)
	var text []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if stop := d.push(ids[i%len(ids)]); stop != "" {
			b.Fatal(stop)
		}
		text = appendString(text[:0], d.next(false))
	}
	_, err := io.Discard.Write(text)
	require.NoError(b, err)
}
