package player

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// plane moves nothing, and notes what it is asked for. A pull ends as ends says.
type plane struct {
	mu                           sync.Mutex
	offered, withdrawn, released []string
	taken                        map[string]func()
	ends                         chan error
}

func newPlane() *plane { return &plane{taken: map[string]func(){}, ends: make(chan error, 10)} }

func (p *plane) Offer(c KVCache, taken func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, c.RequestID)
	p.taken[c.RequestID] = taken
}

func (p *plane) Withdraw(c KVCache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdrawn = append(p.withdrawn, c.RequestID)
}

func (p *plane) Pull(ctx context.Context, _ KVCache) error {
	select {
	case err := <-p.ends:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *plane) Release(_ context.Context, c KVCache) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = append(p.released, c.RequestID)
	return nil
}

// transferRig is a rig whose pulls run until the test ends.
func transferRig(t *testing.T, opt Options) *rig {
	t.Helper()
	r := newRig(t, opt, 1)
	t.Cleanup(r.player.startFetching(t.Context()))
	return r
}

// hear waits for something that comes from beside the engine.
func (r *rig) hear() {
	r.t.Helper()
	<-r.player.inbox.wake
	if err := r.player.handle(r.player.inbox.take()); err != nil {
		r.t.Fatal(err)
	}
}

// params packs kv_transfer_params.
func params(members ...any) []byte {
	b := pack.AppendMapHeader(nil, len(members)/2)
	for i := 0; i < len(members); i += 2 {
		b = append(pack.AppendString(b, members[i].(string)), arg(members[i+1])...)
	}
	return b
}

func transferred(b []byte) change { return extra("kv_transfer_params", b) }

// computing asks for the prompt to be computed for another engine, as routers do.
var computing = transferred(params("do_remote_decode", true, "do_remote_prefill", false,
	"remote_engine_id", nil, "remote_block_ids", nil, "remote_host", nil, "remote_port", nil))

// blockIDs packs the blocks of one group.
func blockIDs(n int) []byte {
	b := pack.AppendArrayHeader(pack.AppendArrayHeader(nil, 1), n)
	for i := range n {
		b = pack.AppendInt(b, int64(i+1))
	}
	return b
}

// pulling asks for the KV cache of another engine's request.
func pulling(id string) change {
	return transferred(params("do_remote_prefill", true, "remote_engine_id", "p", "remote_request_id", id,
		"remote_host", "h", "remote_port", 5600, "remote_block_ids", blockIDs(2)))
}

// kvTransfer is what the request's last output says.
func (r *rig) kvTransfer(id string) []byte {
	r.t.Helper()
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			if string(out.ID) == id && out.KVTransfer != nil {
				return out.KVTransfer
			}
		}
	}
	return nil
}

// What an engine says that has computed a prompt is what the line's connector says.
func TestOffer(t *testing.T) {
	keys := map[string][]string{
		"0.33": {"dcp_size", "pp_size", "remote_registration_generation", "transfer_mode"},
		"0.32": {"dcp_size", "pp_size", "transfer_mode"},
		"0.28": {"transfer_mode"},
		"0.27": nil,
	}
	values := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{[]any{int64(1), int64(2)}},
		"remote_engine_id": "me", "remote_request_id": "a", "remote_host": "localhost", "remote_port": int64(5603),
		"tp_size": int64(1), "remote_num_tokens": int64(20), "remote_blocks_expiry_time": nil,
	}
	more := map[string]any{
		"dcp_size": int64(1), "pp_size": int64(1), "remote_registration_generation": int64(1), "transfer_mode": "pull",
	}
	for line, added := range keys {
		t.Run(line, func(t *testing.T) {
			r := transferRig(t, Options{VLLMVersion: line, EngineIndex: 3, Transfer: &Transfer{EngineID: "me"}})
			r.submit(ask("a", count(0, 20), 1, computing))
			r.runAll()
			want := map[string]any{}
			for k, v := range values {
				want[k] = v
			}
			for _, k := range added {
				want[k] = more[k]
			}
			if diff := cmp.Diff(want, decoded(t, r.kvTransfer("a"))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Blocks are kept for another engine until it has pulled them, or the lease ends.
func TestKeep(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *rig, p *plane)
		want []string // withdrawn
	}{
		{name: "pulled", do: func(r *rig, p *plane) {
			p.taken["a"]()
			r.hear()
		}},
		{name: "the lease ends", want: []string{"a"}, do: func(r *rig, _ *plane) { r.clock.advance(time.Second) }},
		{name: "pulled when the lease has ended", want: []string{"a"}, do: func(r *rig, p *plane) {
			r.clock.advance(time.Second)
			r.run()
			p.taken["a"]()
			r.hear()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane()
			r := transferRig(t, Options{Transfer: &Transfer{EngineID: "me", Lease: time.Second, DataPlane: p}})
			r.submit(ask("a", count(0, 20), 1, computing))
			r.run()
			equal(t, "offered", []string{"a"}, p.offered)
			if r.held() != 2 || r.busy() {
				t.Errorf("%d blocks kept, busy %v; want 2, false", r.held(), r.busy())
			}
			r.abort([]string{"a"})
			if got := r.do("reset_prefix_cache", true, true); !strings.Contains(got, "keep, for another engine") {
				t.Errorf("the cache was emptied: %s", got)
			}
			r.submit(ask("a", count(0, 20), 1))
			r.run()
			equal(t, "refused", []string{"a: the request id is already in use"}, r.refused)
			tt.do(r, p)
			r.runAll()
			if r.held() != 0 || len(r.connector.kept) > 0 {
				t.Errorf("%d blocks left behind", r.held())
			}
			equal(t, "withdrawn", tt.want, p.withdrawn)
		})
	}
}

// An id that is used again has a lease of its own: the end of an earlier one does not
// touch it.
func TestKeepAgain(t *testing.T) {
	p := newPlane()
	r := transferRig(t, Options{Transfer: &Transfer{EngineID: "me", Lease: 10 * time.Second, DataPlane: p}})
	r.submit(ask("a", count(0, 20), 1, computing))
	r.run()
	p.taken["a"]()
	r.hear()
	r.clock.advance(time.Second)
	r.submit(ask("a", count(0, 20), 1, computing))
	r.run()
	r.clock.advance(9 * time.Second) // the end of the first lease
	r.run()
	if !r.keepsBlocksOf("a") || r.held() != 2 || len(p.withdrawn) > 0 {
		t.Errorf("kept: %v, %d blocks, withdrawn %q; want all of the second to be there", r.keepsBlocksOf("a"), r.held(), p.withdrawn)
	}
	r.clock.advance(time.Second)
	r.run()
	if r.keepsBlocksOf("a") || r.held() != 0 || len(p.withdrawn) != 1 {
		t.Errorf("kept: %v, %d blocks, withdrawn %q; want nothing of the second to be there", r.keepsBlocksOf("a"), r.held(), p.withdrawn)
	}
}

// Nothing is kept of a request that does not end by itself.
func TestNothingKept(t *testing.T) {
	p := newPlane()
	r := transferRig(t, Options{Transfer: &Transfer{DataPlane: p}})
	r.submit(ask("aborted", count(0, 20), 5, computing), ask("whole", count(100, 20), 1))
	r.step()
	r.abort([]string{"aborted"})
	r.runAll()
	if p.offered != nil || r.held() != 0 || r.kvTransfer("whole") != nil {
		t.Errorf("offered %q, %d blocks kept, %s", p.offered, r.held(), pack.Format(r.kvTransfer("whole")))
	}
	// Who was stopped for repeating itself has no answer that another engine goes on with.
	tr := cassette(t, take{prompt: count(0, 20), output: []uint32{1}, finish: trace.FinishRepetition})
	looped := transferRig(t, Options{Trace: tr, Transfer: &Transfer{DataPlane: p}})
	looped.submit(ask("replay-0", count(0, 20), 5, computing))
	looped.runAll()
	if looped.answer("replay-0").finish != protocol.FinishRepetition || p.offered != nil || looped.held() != 0 {
		t.Errorf("finished by %v, offered %q, %d blocks kept", looped.answer("replay-0").finish, p.offered, looped.held())
	}
	off := newRig(t, Options{}, 1)
	off.submit(ask("a", count(0, 20), 1, computing))
	off.runAll()
	if off.kvTransfer("a") != nil || off.held() != 0 {
		t.Error("an engine without a connector keeps blocks")
	}
}

// prefillOf is what the request's first output says of its prompt.
func (r *rig) prefillOf(id string) map[string]any {
	r.t.Helper()
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			if string(out.ID) == id && out.Prefill != nil {
				return decoded(r.t, out.Prefill).(map[string]any)
			}
		}
	}
	r.t.Fatalf("request %s got no first output", id)
	return nil
}

// A pull takes its time, and the engine does others meanwhile.
func TestPull(t *testing.T) {
	p := newPlane()
	opt := Options{Source: counting{}, Timing: Timing{Pace: PaceModelled}, Transfer: &Transfer{DataPlane: p}}
	opt.Timing.Latency = &latency.Knobs{TimeToFirstToken: 100 * ms, InterTokenLatency: 10 * ms, TransferLatency: 40 * ms}
	r := transferRig(t, opt)
	r.submit(ask("a", count(0, 20), 2, pulling("x")), ask("b", count(50, 20), 2))
	r.run()
	if got := r.connector.stages[1:]; !cmp.Equal(got, []int{0, 1, 0}) {
		t.Errorf("stages %v, want one that pulls", got)
	}
	p.ends <- nil
	r.hear()
	r.runAll()
	equal(t, "the one that pulls", []time.Duration{200 * ms, 210 * ms}, r.answer("a").at)
	equal(t, "the other one", []time.Duration{100 * ms, 200 * ms}, r.answer("b").at)
	got := r.prefillOf("a")
	want := map[string]any{
		"num_prompt_tokens": int64(20), "num_computed_tokens": int64(0), "num_cached_tokens": int64(20),
		"num_local_cached_tokens": int64(0), "num_external_cached_tokens": int64(20), "num_cache_creation_tokens": int64(16),
	}
	equal(t, "prefill_stats", want, got)
	r.submit(ask("again", count(0, 18), 1))
	r.runAll()
	if got := r.prefillOf("again")["num_local_cached_tokens"]; got != int64(16) {
		t.Errorf("%v tokens of what was pulled are found again, want 16", got)
	}
}

// A KV cache that comes, or does not, for a request that was aborted is nobody's.
func TestAPullOfAnAbortedRequest(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{{"comes", nil}, {"does not come", errors.New("gone")}} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane()
			r := transferRig(t, Options{Source: counting{}, Transfer: &Transfer{DataPlane: p}})
			r.submit(ask("a", count(0, 20), 2, pulling("x")))
			r.run()
			r.abort([]string{"a"})
			p.ends <- tt.err
			r.hear()
			r.runAll()
			if got := r.connector.stages[1:]; !cmp.Equal(got, []int{0, 0, 0}) || len(r.envelopes) > 0 || r.held() > 0 {
				t.Errorf("stages %v, %d envelopes, %d blocks; want nothing of the request", got, len(r.envelopes), r.held())
			}
		})
	}
}

// What another engine has computed takes as long as the model says, by a data plane and
// without one, and in scaled time as much less.
func TestTimeOfPulls(t *testing.T) {
	for _, tt := range []struct {
		name  string
		scale float64
		plane bool
		want  []time.Duration
	}{
		{"nothing moves", 1, false, []time.Duration{140 * ms, 150 * ms}},
		{"a data plane", 1, true, []time.Duration{140 * ms, 150 * ms}},
		{"ten times as fast", 10, false, []time.Duration{14 * ms, 15 * ms}},
		{"ten times as fast by a data plane", 10, true, []time.Duration{14 * ms, 15 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane()
			transfer := &Transfer{}
			if tt.plane {
				transfer.DataPlane = p
				p.ends <- nil
			}
			opt := Options{Source: counting{}, Timing: Timing{Pace: PaceModelled, Scale: tt.scale}, Transfer: transfer}
			opt.Timing.Latency = &latency.Knobs{TimeToFirstToken: 100 * ms, InterTokenLatency: 10 * ms, TransferLatency: 40 * ms}
			r := transferRig(t, opt)
			r.submit(ask("a", count(0, 20), 2, pulling("x")))
			r.run()
			if tt.plane {
				r.hear()
			}
			r.runAll()
			equal(t, "outputs left at", tt.want, r.answer("a").at)
		})
	}
}

// What the statistics say of pulls, message by message.
func TestPullStatistics(t *testing.T) {
	for _, line := range []string{"0.33", "0.27"} {
		t.Run(line, func(t *testing.T) {
			p := newPlane()
			r := transferRig(t, Options{VLLMVersion: line, Limits: Limits{MaxNumSeqs: 1}, Transfer: &Transfer{DataPlane: p}})
			r.submit(ask("runs", count(100, 20), 3))
			r.step()
			r.submit(ask("a", count(0, 20), 1, pulling("x")))
			r.step()
			r.step()
			p.ends <- nil
			for r.step() {
			}
			r.hear()
			r.runAll()
			var got []string
			for _, e := range append(r.envelopes, r.quiet...) {
				s := e.stats(t)
				c := s["connector_prefix_cache_stats"].(map[string]any)
				got = append(got, fmt.Sprintf("%v, %d %d %d", stages(s), c["requests"], c["queries"], c["hits"]))
			}
			want := []string{
				"[0 0 0], 1 20 0", "[1 0 0], 0 0 0", "[1 0 0], 0 0 0", "[0 0 0], 0 0 0", // with outputs
				"[0 1 0], 1 20 20", "[0 0 0], 0 0 0", // without
			}
			if line == "0.27" {
				for i := range want {
					want[i] = "[]" + want[i][strings.Index(want[i], ","):]
				}
			}
			equal(t, "stages, look-ups", want, got[:len(want)])
		})
	}
}

func stages(stats map[string]any) []any {
	m, _ := stats["num_kv_fetch_reqs_by_stage"].(map[string]any)
	if m == nil {
		return nil
	}
	return []any{m["waiting_to_start"], m["in_progress"], m["completed_waiting"]}
}

// A KV cache that does not come ends its request, or lets it compute its prompt.
func TestFailedPulls(t *testing.T) {
	nobody := transferred(params("do_remote_prefill", true))
	const missing = "kv_transfer_params have do_remote_prefill, but no remote_engine_id, remote_request_id, remote_host, " +
		"remote_port, remote_block_ids: who has computed the prompt?"
	for _, tt := range []struct {
		name   string
		params change
		policy FailurePolicy
		line   string
		want   string
	}{
		{"never computed", nobody, "", "0.33", "[] error internal_error: its KV cache did not come from another engine: " + missing},
		{"never computed", nobody, "", "0.27", "[] error"},
		{"never computed", nobody, RecomputeOnLoadFailure, "0.33", "[20 21] length"},
		{"lost", pulling("x"), FailOnLoadFailure, "0.33", "[] error internal_error: its KV cache did not come from another engine: gone"},
		{"lost", pulling("x"), RecomputeOnLoadFailure, "0.33", "[20 21] length"},
		{"wrong", transferred(params("remote_port", 70000)), "", "0.33", "[] error bad_request: kv_transfer_params: remote_port: 70000: want 1 to 65535"},
		{
			"wrong", transferred(arg("x")), "", "0.33",
			"[] error bad_request: kv_transfer_params: msgpack: byte 0: expected map, found str",
		},
	} {
		t.Run(fmt.Sprint(tt.name, " ", tt.line, " ", tt.policy), func(t *testing.T) {
			p := newPlane()
			r := transferRig(t, Options{VLLMVersion: tt.line, Source: counting{}, Transfer: &Transfer{FailurePolicy: tt.policy, DataPlane: p}})
			r.submit(ask("a", count(0, 20), 2, tt.params), ask("b", count(50, 20), 2))
			r.run()
			if tt.name == "lost" {
				p.ends <- errors.New("gone")
				r.hear()
			}
			r.runAll()
			if got := outcome(r.answer("a")); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
			if got := outcome(r.answer("b")); got != "[70 71] length" {
				t.Errorf("the other one got %s", got)
			}
			if r.held() != 0 || r.busy() || !cmp.Equal(r.connector.stages[1:], []int{0, 0, 0}) {
				t.Errorf("left behind: %d blocks, stages %v", r.held(), r.connector.stages)
			}
			if tt.policy == RecomputeOnLoadFailure {
				if got := r.prefillOf("a")["num_computed_tokens"]; got != int64(20) {
					t.Errorf("%v tokens computed, want 20", got)
				}
			}
		})
	}
}

// Who will not pull a KV cache says so to the engine that keeps it.
func TestRelease(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want []string
	}{
		{"aborted before it pulls", func(r *rig) {
			r.submit(ask("runs", count(0, 20), 1000), ask("a", count(100, 20), 1, pulling("x")))
			r.step()
			r.abort([]string{"a"})
		}, []string{"x"}},
		{"to clean up after", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, pulling("x"), func(r *protocol.Request) { r.AbortImmediately = true }))
		}, []string{"x"}},
		{"too long", func(r *rig) { r.submit(ask("a", count(100, 5000), 1, pulling("x"))) }, []string{"x"}},
		{"refused by a fault", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, transferred(params()), pulling("x"), alsoFault("refuse")))
		}, []string{"x"}},
		{"the engine is paused", func(r *rig) {
			r.do("pause_generation", "abort", false)
			r.submit(ask("a", count(100, 20), 1, pulling("x")))
		}, []string{"x"}},
		{"aborted while it pulls", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, pulling("x")))
			r.step()
			r.abort([]string{"a"})
		}, nil},
		{"nowhere to say so", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, transferred(params("do_remote_prefill", true)), func(r *protocol.Request) { r.AbortImmediately = true }))
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane()
			r := newRig(t, Options{Limits: Limits{MaxModelLen: 4096, MaxNumSeqs: 1}, Transfer: &Transfer{DataPlane: p}, RequestFaults: true}, 1)
			stop := r.player.startFetching(t.Context())
			tt.do(r)
			p.ends <- nil
			r.player.fetches.Wait()
			stop()
			equal(t, "released", tt.want, p.released)
			if tt.name != "aborted before it pulls" && (r.held() != 0 || r.busy()) {
				t.Errorf("left behind: %d blocks", r.held())
			}
		})
	}
}

// alsoFault adds a fault to the extra arguments that are there.
func alsoFault(text string) change {
	return func(r *protocol.Request) {
		b := pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 2), faultArg), text)
		r.Sampling.ExtraArgs = append(b, r.Sampling.ExtraArgs[1:]...)
	}
}
