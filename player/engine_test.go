package player

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// said lists, envelope by envelope, which requests got an output.
func (r *rig) said() [][]string {
	var all [][]string
	for _, e := range r.envelopes {
		var ids []string
		for _, out := range e.Outputs.Outputs {
			ids = append(ids, string(out.ID))
		}
		all = append(all, ids)
	}
	return all
}

func TestRequestsAreQueuedAndAdmittedInOrder(t *testing.T) {
	for _, tt := range []struct {
		name   string
		seqs   int
		policy SchedulingPolicy
		asks   []*protocol.Request
		want   [][]string // the ids in each step
	}{
		{
			"room for all", 8, PolicyFCFS,
			[]*protocol.Request{ask("a", count(0, 4), 2), ask("b", count(0, 4), 1)},
			[][]string{{"a", "b"}, {"a"}},
		},
		{
			"arrival decides", 2, PolicyFCFS,
			[]*protocol.Request{ask("a", count(0, 4), 1), ask("b", count(0, 4), 3), ask("c", count(0, 4), 1), ask("d", count(0, 4), 1)},
			[][]string{{"a", "b"}, {"b", "c"}, {"b", "d"}},
		},
		{
			"one at a time", 1, PolicyFCFS,
			[]*protocol.Request{ask("a", count(0, 4), 2), ask("b", count(0, 4), 1)},
			[][]string{{"a"}, {"a"}, {"b"}},
		},
		{
			"priorities count only where they are asked for", 1, "",
			[]*protocol.Request{ask("late", count(0, 4), 1, priority(5)), ask("first", count(0, 4), 1, priority(-3))},
			[][]string{{"late"}, {"first"}},
		},
		{
			"priority, then arrival", 1, PolicyPriority,
			[]*protocol.Request{
				ask("late", count(0, 4), 1, priority(5)), ask("a", count(0, 4), 1, priority(1)),
				ask("first", count(0, 4), 1, priority(-3)), ask("b", count(0, 4), 1, priority(1)),
				ask("plain", count(0, 4), 1),
			},
			[][]string{{"first"}, {"plain"}, {"a"}, {"b"}, {"late"}},
		},
		{
			"a running request is not displaced", 1, PolicyPriority,
			[]*protocol.Request{ask("a", count(0, 4), 2, priority(9))},
			[][]string{{"a"}, {"a"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Limits: Limits{MaxNumSeqs: tt.seqs}, SchedulingPolicy: tt.policy}, tt.asks...)
			equal(t, "steps", tt.want, r.said())
		})
	}
}

func TestAbort(t *testing.T) {
	for _, tt := range []struct {
		name  string
		seqs  int
		steps int // before the abort
		ids   []string
		want  [][]string
	}{
		{"running", 2, 1, []string{"a"}, [][]string{{"a", "b"}, {"b", "c"}, {"b"}}},
		{"running, the last of its batch", 1, 1, []string{"a"}, [][]string{{"a"}, {"b"}, {"b"}, {"b"}, {"c"}}},
		{"waiting", 1, 1, []string{"b"}, [][]string{{"a"}, {"a"}, {"a"}, {"c"}}},
		{"before the first step", 2, 0, []string{"a"}, [][]string{{"b", "c"}, {"b"}, {"b"}}},
		{"all", 2, 1, []string{"c", "b", "a"}, [][]string{{"a", "b"}}},
		{"twice", 2, 1, []string{"a", "a"}, [][]string{{"a", "b"}, {"b", "c"}, {"b"}}},
		{"unknown ids", 2, 1, []string{"x", ""}, [][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}, {"c"}}},
		{"nothing", 2, 1, nil, [][]string{{"a", "b"}, {"a", "b"}, {"a", "b"}, {"c"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Limits: Limits{MaxNumSeqs: tt.seqs}}, 1)
			r.submit(ask("a", count(0, 4), 3), ask("b", count(0, 4), 3), ask("c", count(0, 4), 1))
			for range tt.steps {
				r.step()
			}
			r.abort(tt.ids)
			r.runAll()
			equal(t, "steps", tt.want, r.said())
			for _, e := range r.envelopes {
				if len(e.FinishedRequests) != 0 {
					t.Errorf("finished_requests names %q: a real engine says nothing of an aborted request", e.FinishedRequests)
				}
			}
			if len(r.byID) != 0 || r.held() != 0 {
				t.Errorf("left behind: %d requests, %d blocks", len(r.byID), r.held())
			}
		})
	}
}

func TestAnAbortedIDMayBeUsedAgain(t *testing.T) {
	r := newRig(t, Options{Trace: cassette(t, take{prompt: count(0, 4), output: []uint32{1, 2, 3}})}, 1)
	r.submit(ask("replay-0", count(0, 4), 3))
	r.step()
	r.abort([]string{"replay-0"})
	r.submit(ask("replay-0", count(0, 4), 3))
	r.runAll()
	var got []uint32
	for _, e := range r.envelopes {
		got = append(got, e.Outputs.Outputs[0].Tokens...)
	}
	equal(t, "tokens", []uint32{1, 1, 2, 3}, got)
}

func TestAnAbortLetsTheNextOneInWhileOthersWaitForTheirTime(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{1}, ttft: 60_000}, take{prompt: count(0, 4), output: []uint32{2}, ttft: 5})
	r := newRig(t, Options{Trace: tr, Timing: Timing{Pace: PaceRecorded}, Limits: Limits{MaxNumSeqs: 1}}, 1)
	r.submit(ask("replay-0", count(0, 4), 1), ask("replay-1", count(0, 4), 1))
	r.run()
	r.abort([]string{"replay-0"})
	r.runAll()
	equal(t, "tokens", []uint32{2}, r.answer("replay-1").tokens())
}

func TestRefusedRequests(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request *protocol.Request
		client  int // that is answered
		reason  string
	}{
		{"id in use", ask("a", count(0, 4), 1, toClient(1)), 1, "bad_request: the request id is already in use"},
		{"client that is not there", ask("b", count(0, 4), 1, toClient(2)), 0, "bad_request: client_index 2, but there are 2 clients"},
		{
			"pooling", ask("b", count(0, 4), 1, toClient(1), func(r *protocol.Request) { r.HasSampling = false }), 1,
			"bad_request: neither sampling nor pooling parameters",
		},
	} {
		for _, line := range protocol.Lines() {
			t.Run(tt.name+" at "+line, func(t *testing.T) {
				r := newRig(t, Options{VLLMVersion: line}, 2)
				r.submit(ask("a", count(0, 4), 2))
				r.submit(tt.request)
				got := r.envelopes
				if len(got) != 1 || len(got[0].Outputs.Outputs) != 1 {
					t.Fatalf("%d envelopes, want one with one output", len(got))
				}
				out := got[0].Outputs.Outputs[0]
				if string(out.ID) != tt.request.ID || out.Finish != protocol.FinishError || len(out.Tokens) != 0 || got[0].client != tt.client {
					t.Errorf("client %d got %s %v %v, want client %d and an error for %s", got[0].client, out.ID, out.Finish, out.Tokens, tt.client, tt.request.ID)
				}
				want := tt.reason
				if codec, err := protocol.CodecFor(line); err != nil || !codec.HasRequestError() {
					want = "" // older lines have no place for it
				}
				if e := r.errorOf(out); e != want {
					t.Errorf("error %q, want %q", e, want)
				}
				equal(t, "finished_requests", [][]byte{[]byte(tt.request.ID)}, got[0].FinishedRequests)
				if len(r.refused) != 1 || !strings.HasPrefix(r.refused[0], tt.request.ID+": ") {
					t.Errorf("OnRefused was told %q, want one refusal of %s", r.refused, tt.request.ID)
				}
				r.envelopes = nil
				r.runAll()
				equal(t, "the request in flight", [][]string{{"a"}, {"a"}}, r.said())
			})
		}
	}
}

func TestARequestToAbortImmediatelyIsNotAnswered(t *testing.T) {
	r := ran(t, Options{}, ask("a", count(0, 4), 2, func(q *protocol.Request) { q.AbortImmediately = true }))
	if len(r.envelopes) != 0 || len(r.byID) != 0 {
		t.Errorf("%d envelopes and %d requests, want nothing", len(r.envelopes), len(r.byID))
	}
}

// declaredLengths are those of a line that nobody has counted: what its profile declares.
func declaredLengths(t *testing.T, line string) [2]int {
	t.Helper()
	p, err := protocol.LoadProfile(line)
	must(t, err)
	return [2]int{len(p.Structs["EngineCoreOutputs"].Fields), len(p.Structs["EngineCoreOutput"].Fields)}
}

// Every envelope of this test is decoded as the line's frontend decodes it.
func TestEveryLineReadsWhatItGets(t *testing.T) {
	lengths := map[string][2]int{ // of EngineCoreOutputs and EngineCoreOutput, vllm/v1/engine/__init__.py
		"0.25": {8, 13}, "0.26": {8, 14}, "0.27": {8, 14}, "0.28": {8, 16}, "0.29": {8, 17}, "0.30": {8, 17}, "0.31": {8, 18},
		"0.32": {9, 18}, "0.33": {9, 19},
	}
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			want, counted := lengths[line]
			if !counted {
				want = declaredLengths(t, line)
			}
			tr := cassette(t, take{prompt: count(0, 300), output: count(7, 90), chunks: []int{1, 80, 9}, cached: 8})
			r := newRig(t, Options{VLLMVersion: line, Trace: tr}, 1)
			r.submit(
				ask("replay-0", count(0, 300), 99, logprobsOf(2), promptLogprobs(1), stopAt(96)),
				ask("random-x", count(0, 3), 3), ask("zero-x", count(0, 3), 0),
				ask("refused-x", count(0, 3), 3, func(r *protocol.Request) { r.HasSampling = false }),
			)
			r.runAll()
			r.abortAll()
			for _, e := range r.envelopes {
				version := ""
				if want[0] > 8 && e.SchedulerStats != nil {
					version = "default"
				}
				if e.Fields != want[0] || e.WeightVersion != version {
					t.Errorf("EngineCoreOutputs of %d fields, weight version %q, want %d, %q", e.Fields, e.WeightVersion, want[0], version)
				}
				for _, out := range e.Outputs.Outputs {
					if out.Fields != want[1] {
						t.Errorf("EngineCoreOutput of %d fields, want %d", out.Fields, want[1])
					}
				}
				if e.WaveComplete != -1 || e.StartWave != -1 {
					t.Error("a wave on a client socket ends a Rust frontend")
				}
			}
			a := r.answer("replay-0")
			if diff := cmp.Diff(count(7, 90), a.tokens()); diff != "" || a.finish != protocol.FinishStop || a.stop != "96" {
				t.Errorf("finished by %v, stop_reason %q, tokens (-want +got):\n%s", a.finish, a.stop, diff)
			}
		})
	}
}
