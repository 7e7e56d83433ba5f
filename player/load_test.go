package player

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestManyRequestsAtOnce lets 250 and then 1,000 requests run at once. Every
// token must be right, and memory must grow with the requests and not faster.
func TestManyRequestsAtOnce(t *testing.T) {
	const few, many, tokens = 250, 1000, 256
	grown := map[int]uint64{}
	for _, n := range []int{few, many} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { grown[n] = runMany(t, n, tokens) })
	}
	// Four times the requests; twice that for the collector's mood.
	if limit := 8*grown[few] + 2<<20; grown[many] > limit {
		t.Errorf("%d requests took %d bytes, %d took %d: more than linear", few, grown[few], many, grown[many])
	}
}

// runMany returns by how many bytes the heap had grown at its peak.
func runMany(t *testing.T, requests, tokens int) uint64 {
	s := connect(t, Options{Limits: Limits{MaxNumSeqs: 1024}, Seed: 9}, 1)
	base := liveHeap()
	// All run in the same steps, as none begins before all are there.
	s.reply(0, "pause_scheduler", pack.AppendString(nil, "keep"))
	index := map[string]int{}
	for i := range requests {
		id := fmt.Sprintf("r%d-x", i)
		index[id] = i
		s.submit(ask(id, count(0, 16), tokens))
	}
	s.reply(0, "resume_scheduler")
	said := make([][]uint32, requests)
	peak, running := base, 0
	var o protocol.Outputs
	for open, step := requests, 0; open > 0; step++ {
		if _, err := s.front.Next(s.ctx, 0, &o); err != nil {
			t.Fatal(err)
		}
		running = max(running, len(o.Outputs))
		if step%64 == 32 {
			peak = max(peak, liveHeap())
		}
		for _, out := range o.Outputs {
			i, known := index[string(out.ID)]
			if !known || len(said[i]) == tokens {
				t.Fatalf("an output too many, of %s", out.ID)
			}
			if said[i] = append(said[i], out.Tokens...); out.Finish != protocol.Unfinished {
				open--
			}
		}
	}
	if running != requests {
		t.Errorf("at most %d requests spoke in one step, want all %d", running, requests)
	}
	for id, i := range index {
		if want := randomTokens(9, defaultVocab, id, tokens); !slices.Equal(want, said[i]) {
			t.Errorf("%s got %v, want %v", id, said[i], want)
		}
	}
	return peak - base
}

// liveHeap is what the heap holds without garbage.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
