package scheduler_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// schedule is what vLLM's own scheduler did with a seeded load: testdata/schedules.py.
type schedule struct {
	Seed    int
	Options struct {
		BlockSize int     `json:"block_size"`
		Blocks    int     `json:"blocks"`
		Seqs      int     `json:"max_num_seqs"`
		Budget    int     `json:"max_num_batched_tokens"`
		Len       int     `json:"max_model_len"`
		NoChunks  bool    `json:"no_chunks"`
		Priority  bool    `json:"priority"`
		Threshold int     `json:"threshold"`
		Partly    bool    `json:"partly"`
		Caching   bool    `json:"caching"`
		Watermark float64 `json:"watermark"`
		MaxLoRAs  int     `json:"max_loras"`
	}
	Steps []struct {
		Add       [][8]int
		Abort     []int
		Reset     *bool
		Share     [][2]int
		Preempted []int
		Said      []int
		Ended     []int
		Stats     [10]float64
	}
}

// answer is one request of a schedule.
type answer struct {
	scheduler.Request[*answer]
	number, left int
}

// TestSchedulesOfVLLM makes the same steps as the scheduler of a released vLLM: the same requests in the same order, with
// the same tokens, preemptions and statistics.
func TestSchedulesOfVLLM(t *testing.T) {
	f, err := os.Open("testdata/schedules-0.33.0.jsonl.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines, steps, preempted := bufio.NewScanner(z), 0, 0
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var s schedule
		require.NoError(t, json.Unmarshal(lines.Bytes(), &s))
		steps += len(s.Steps)
		for _, step := range s.Steps {
			preempted += len(step.Preempted)
		}
		t.Run(strconv.Itoa(s.Seed), func(t *testing.T) { s.replay(t) })
	}
	if err := lines.Err(); err != nil || steps < 2000 || preempted < 20 {
		t.Fatalf("%d steps with %d preemptions, %v: want more of both", steps, preempted, err)
	}
}

func (s *schedule) replay(t *testing.T) {
	o := s.Options
	pool, err := kvcache.New(kvcache.Options{Blocks: o.Blocks, BlockSize: o.BlockSize, Caching: o.Caching, MaxModelLen: o.Len})
	require.NoError(t, err)
	sched := scheduler.New[*answer](scheduler.Options{
		MaxNumSeqs: o.Seqs, MaxNumBatchedTokens: o.Budget, MaxModelLen: o.Len, LongPrefillTokenThreshold: o.Threshold,
		NoChunks: o.NoChunks, Partly: o.Partly, Priority: o.Priority, Watermark: int(o.Watermark * float64(o.Blocks)),
		MaxLoRAs: o.MaxLoRAs, Caching: o.Caching, Pool: pool,
	})
	alive := map[int]*answer{}
	for i, want := range s.Steps {
		for _, a := range want.Add {
			q := newAnswer(a)
			alive[q.number] = q
			sched.Add(&q.Request)
		}
		for _, n := range want.Abort {
			sched.Remove(&alive[n].Request)
			delete(alive, n)
		}
		if want.Reset != nil {
			sched.PreemptAll()
			if got := pool.Reset(); got != *want.Reset {
				t.Fatalf("step %d: reset %v, want %v", i, got, *want.Reset)
			}
		}
		got := sched.Schedule()
		shares := map[int]int{}
		var order []int
		for _, r := range got.Scheduled {
			n := r.Owner.number
			shares[n] = r.Share
			order = append(order, n)
		}
		wantShares := map[int]int{}
		for _, share := range want.Share {
			wantShares[share[0]] = share[1]
		}
		if diff := cmp.Diff(wantShares, shares); diff != "" {
			t.Fatalf("step %d: tokens of requests (-want +got, in the order %v):\n%s", i, order, diff)
		}
		if want.Reset == nil && len(got.Preempted) != len(want.Preempted) {
			t.Fatalf("step %d: %d preempted, want %v", i, len(got.Preempted), want.Preempted)
		}
		var said, ended []int
		for _, r := range sched.Running() {
			q := r.Owner
			if !r.Complete() {
				continue
			}
			said = append(said, q.number)
			q.Seq.Tokens = append(q.Seq.Tokens, uint32(1000*(100+q.number)+len(q.Seq.Tokens)))
			if q.left--; q.left == 0 || len(q.Seq.Tokens) >= o.Len {
				ended = append(ended, q.number)
				sched.Remove(r)
				delete(alive, q.number)
			}
		}
		if diff := cmp.Diff(set(want.Said), set(said)); diff != "" {
			t.Fatalf("step %d: who says a token (-want +got):\n%s", i, diff)
		}
		if diff := cmp.Diff(set(want.Ended), set(ended)); diff != "" {
			t.Fatalf("step %d: who ends (-want +got):\n%s", i, diff)
		}
		c := sched.TakeStats()
		stats := [10]float64{
			float64(len(sched.Running())), float64(sched.Waiting()), float64(sched.Deferred()), math.Round(pool.Usage()*1e9) / 1e9,
			float64(c.Requests), float64(c.Queries), float64(c.Hits),
			float64(c.PreemptedRequests), float64(c.PreemptedQueries), float64(c.PreemptedHits),
		}
		if diff := cmp.Diff(want.Stats, stats); diff != "" {
			t.Fatalf("step %d: statistics (-want +got):\n%s", i, diff)
		}
	}
}

// newAnswer makes a request of what the script wrote: number, prefix, tokens of it, tokens of the prompt and of the
// answer, priority, adapter, and whether prompt log-probabilities are asked for.
func newAnswer(a [8]int) *answer {
	number, prefix, shared, n := a[0], a[1], a[2], a[3]
	tokens := make([]uint32, n)
	for i := range tokens {
		if i < shared {
			tokens[i] = uint32(1000*prefix + i)
		} else {
			tokens[i] = uint32(1000*(100+number) + i)
		}
	}
	q := &answer{number: number, left: a[4]}
	q.Request = scheduler.Request[*answer]{
		ID: strconv.Itoa(number), Owner: q, Prompt: n, Priority: a[5], Arrival: float64(number), LoRA: int64(a[6]),
		Seq: kvcache.NewSequence(tokens),
	}
	if a[6] > 0 {
		q.Seq.Extra.LoRA = kvcache.LoRA{ID: int64(a[6]), Name: "l" + strconv.Itoa(a[6]), Path: "/p"}
	}
	q.Seq.Uncached = a[7] == 1
	return q
}

func set(numbers []int) map[int]bool {
	s := map[int]bool{}
	for _, n := range numbers {
		s[n] = true
	}
	return s
}
