package protocol

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// nesting is how deep a message can be that a decoder takes: what it skips may
// be pack.DefaultDepth deep, inside the levels that it reads itself.
const nesting = pack.DefaultDepth + 4

// seed adds the real frames of every release whose names contain one of the
// words, and the killers.
func seed(f *testing.F, words ...string) {
	f.Helper()
	for _, v := range loadVectors(f) {
		for _, word := range words {
			if payload := v.Frames[min(1, len(v.Frames)-1)]; strings.Contains(v.Name, word) && len(payload) < 2000 {
				f.Add(payload)
			}
		}
	}
	for _, killer := range killers() {
		if len(killer) < 2000 {
			f.Add(killer)
		}
	}
}

// wellFormed fails when a decoder took bytes that are not one message.
func wellFormed(t *testing.T, data []byte) {
	t.Helper()
	require.NoErrorf(t, pack.ValidateDepth(data, nesting), "taken for a message")
}

// FuzzDecodeRequest: what is read of any bytes, written again, reads the same.
func FuzzDecodeRequest(f *testing.F) {
	seed(f, "-add-", "enc-request-")
	c := codecOf(f, recorded)
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second Request
		if err := c.DecodeRequest(data, &first); err != nil {
			if !strings.HasPrefix(err.Error(), "EngineCoreRequest") {
				t.Fatalf("an error without a place: %v", err)
			}
			return
		}
		wellFormed(t, data)
		again := c.AppendRequest(nil, &first)
		if err := c.DecodeRequest(again, &second); err != nil {
			t.Fatalf("%v in %s, written from %s", err, pack.Format(again), pack.Format(data))
		}
		if diff := cmp.Diff(rewritten(first), second, cmpopts.EquateEmpty(), cmpopts.EquateNaNs(),
			cmpopts.IgnoreFields(Request{}, "Fields", "Unverified"), cmpopts.IgnoreFields(Sampling{}, "Raw")); diff != "" {
			t.Fatalf("-read +read again:\n%s", diff)
		}
	})
}

// rewritten is what AppendRequest keeps of a request: not the fields of newer
// lines, and of the sampling parameters what a Rust frontend sends.
func rewritten(r Request) Request {
	r.Tail = nil
	if r.Sampling.TopP == 0 {
		r.Sampling.TopP = 1
	}
	r.Sampling.TopP, r.Sampling.MinP = float64(float32(r.Sampling.TopP)), float64(float32(r.Sampling.MinP))
	if r.Sampling.Repetition.MaxSize == 0 {
		r.Sampling.Repetition = Repetition{}
	}
	r.Sampling.IgnoreEOS = false // Rust says it by leaving the end of sequence out
	r.Sampling.EOSTokenID = max(r.Sampling.EOSTokenID, -1)
	r.Sampling.Temperature = float64(float32(r.Sampling.Temperature))
	return r
}

// FuzzDecodeOutputs: reading is the same whatever was read before, and what was
// read as tokens, written by a batch, reads the same.
func FuzzDecodeOutputs(f *testing.F) {
	seed(f, "enc-outputs-", "-out-", "-utilres-", "-wave")
	c := codecOf(f, recorded)
	before := everything(f, c)[0]
	f.Fuzz(func(t *testing.T, data []byte) {
		var fresh, reused Outputs
		err := c.DecodeOutputs(data, &fresh)
		if e := c.DecodeOutputs(before, &reused); e != nil {
			t.Fatal(e)
		}
		if e := c.DecodeOutputs(data, &reused); fmt.Sprint(e) != fmt.Sprint(err) {
			t.Fatalf("read afresh: %v, read again: %v", err, e)
		}
		if err != nil {
			return
		}
		wellFormed(t, data)
		if diff := cmp.Diff(fresh, reused, cmpopts.IgnoreUnexported(Outputs{}), cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("-afresh +again:\n%s", diff)
		}
		batchRoundTrip(t, c, &fresh)
	})
}

func batchRoundTrip(t *testing.T, c *Codec, o *Outputs) {
	t.Helper()
	b := c.NewBatch(o.EngineIndex)
	b.WeightVersion = o.WeightVersion
	for _, out := range o.Outputs {
		require.NoError(t, b.Add(c.NewStream(plainRequest(string(out.ID))), &Output{Tokens: out.Tokens, Finish: out.Finish}))
	}
	for _, id := range o.FinishedRequests {
		b.ReportFinished(string(id))
	}
	m, err := b.Finish(nil, o.Timestamp)
	if err != nil {
		return // nothing but what batches do not carry
	}
	got := mustDecode(t, c, m)
	same := got.EngineIndex == o.EngineIndex && got.WeightVersion == o.WeightVersion && len(got.Outputs) == len(o.Outputs) &&
		len(got.FinishedRequests) == len(o.FinishedRequests) && math.Float64bits(got.Timestamp) == math.Float64bits(o.Timestamp)
	for i := range got.Outputs {
		a, b := &o.Outputs[i], &got.Outputs[i]
		same = same && string(a.ID) == string(b.ID) && cmp.Equal(a.Tokens, b.Tokens, cmpopts.EquateEmpty()) && a.Finish == b.Finish
	}
	if !same {
		t.Fatalf("read %+v\nwritten and read %+v", o, got)
	}
}

// FuzzDecodeCall covers what a client sends beside requests: utility calls,
// aborts and waves.
func FuzzDecodeCall(f *testing.F) {
	seed(f, "-util-", "enc-utility-", "-abort", "-coord-msg")
	f.Fuzz(func(t *testing.T, data []byte) {
		if call, err := DecodeUtilityCall(data); err == nil {
			wellFormed(t, data)
			again, err := DecodeUtilityCall(AppendUtilityCall(nil, call))
			if diff := cmp.Diff(call, again); err != nil || diff != "" {
				t.Fatalf("utility call: %v, -read +read again:\n%s", err, diff)
			}
		}
		if ids, err := DecodeAbort(data); err == nil {
			wellFormed(t, data)
			again, err := DecodeAbort(AppendAbort(nil, ids...))
			if diff := cmp.Diff(ids, again); err != nil || diff != "" {
				t.Fatalf("abort: %v, -read +read again:\n%s", err, diff)
			}
		}
		if wave, exclude, err := DecodeStartWave(data); err == nil {
			wellFormed(t, data)
			if wave < 0 || exclude < -1 {
				t.Fatalf("wave %d, engine %d", wave, exclude)
			}
		}
	})
}

// FuzzDecodeHandshake covers the messages of the handshake, of both sides.
func FuzzDecodeHandshake(f *testing.F) {
	seed(f, "-init", "-hello", "-ready", "-register", "enc-ready-response")
	c := codecOf(f, recorded)
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := DecodeInit(data); err == nil {
			wellFormed(t, data)
			again, err := DecodeInit(AppendInit(nil, a))
			if diff := cmp.Diff(a, again); err != nil || diff != "" {
				t.Fatalf("init: %v, -read +read again:\n%s", err, diff)
			}
		}
		if s, err := DecodeStatus(data); err == nil {
			wellFormed(t, data)
			if again, err := DecodeStatus(AppendStatus(nil, s)); again != s || err != nil {
				t.Fatalf("status: read %+v, read again %+v %v", s, again, err)
			}
		}
		if r, err := DecodeReady(data); err == nil {
			wellFormed(t, data)
			again, err := DecodeReady(c.AppendReady(nil, &r))
			if diff := cmp.Diff(r, again); err != nil || diff != "" {
				t.Fatalf("registration: %v, -read +read again:\n%s", err, diff)
			}
		}
	})
}
