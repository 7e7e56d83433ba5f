package player

import (
	"strconv"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// benchEngine is an engine with n requests that decode, and says to nobody.
func benchEngine(b *testing.B, opt Options, n int) *engine {
	b.Helper()
	opt.Limits.MaxNumSeqs, opt.Limits.MaxNumBatchedTokens, opt.KVCache.NumGPUBlocks = n, 1<<20, 1<<17
	p, err := New(opt)
	must(b, err)
	e := p.engine
	e.addClients(1)
	e.send = func(int, protocol.ClientMessage) {}
	for i := range n {
		fill(e, i)
	}
	for range 4 {
		e.step()
	}
	return e
}

func fill(e *engine, i int) {
	q := ask("bench-"+strconv.Itoa(i), count(uint32(i)*100, 100), 1<<20)
	e.add(q, 0)
}

// BenchmarkStep is a step of 1,024 requests that decode: composed, said and encoded.
func BenchmarkStep(b *testing.B) {
	const running = 1024
	for _, bb := range []struct {
		name string
		opt  Options
	}{
		{"instant", Options{Limits: Limits{MaxModelLen: 1 << 24}}},
		{"without prefix cache", Options{Limits: Limits{MaxModelLen: 1 << 24}, KVCache: KVCacheOptions{NoPrefixCaching: true}}},
		{"speculative", Options{Limits: Limits{MaxModelLen: 1 << 24}, Decoding: Decoding{SpeculativeTokens: 3, Acceptance: accepting(b)}}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			e := benchEngine(b, bb.opt, running)
			b.ReportAllocs()
			tokens := 0
			for i := 0; b.Loop(); i++ {
				if i%400 == 399 {
					b.StopTimer() // the KV cache would be full: begin anew
					e.abortAll()
					for i := range running {
						fill(e, i)
					}
					e.step()
					b.StartTimer()
				}
				e.step()
				tokens += running
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// BenchmarkAdd is a request from its message to the queue, and its abort.
func BenchmarkAdd(b *testing.B) {
	for _, bb := range []struct {
		name   string
		prompt int
		opt    Options
	}{
		{"short", 10, Options{}},
		{"long", 1000, Options{}},
		{"short, unchecked", 10, Options{Tolerant: true}},
		{"long, unchecked", 1000, Options{Tolerant: true}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			e := benchEngine(b, bb.opt, 1)
			p := &Player{opt: *e.opt, codec: e.codec, engine: e, inbox: newInbox()}
			m := zmq.Message{{protocol.TypeAdd}, e.codec.AppendRequest(nil, ask("a", count(0, bb.prompt), 9, stopAt(1, 2)))}
			b.ReportAllocs()
			for b.Loop() {
				got, _ := p.decode(m)
				e.add(got.request, 0)
				e.abort([]string{"a"})
				p.inbox.recycle(got.request)
			}
		})
	}
}

func accepting(b *testing.B) *latency.Acceptance {
	a, err := latency.NewAcceptance(0.8, 0.6, 0.4)
	must(b, err)
	return a
}

// fixed is a model whose steps take a millisecond.
type fixed struct{}

func (fixed) Duration(*latency.Step) time.Duration    { return time.Millisecond }
func (fixed) Transfer(*latency.Request) time.Duration { return 0 }
