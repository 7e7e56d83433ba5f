package player

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// take is one recorded request of a test.
type take struct {
	prompt  []uint32
	output  []uint32
	chunks  []int // default one token each
	finish  trace.FinishReason
	cached  int
	ttft    float64   // ms
	gaps    []float64 // ms, default 0
	without string    // "ids" or "hashes": what the recorder did not keep
	left    bool      // the frontend ended it
	error   *trace.RequestError
}

// blockSize of the traces of tests, in tokens.
const blockSize = 4

// trace makes a trace of takes, which arrive in their order.
func traceOf(t *testing.T, takes ...take) *trace.Trace {
	t.Helper()
	size, version := blockSize, "0.33.0"
	tr := &trace.Trace{Name: "test.jsonl", Meta: trace.Meta{BlockSize: &size, VLLMVersion: &version}}
	for i, k := range takes {
		rec := k.record(float64(i), i+2)
		must(t, rec.Validate())
		tr.Records = append(tr.Records, rec)
	}
	return tr
}

func (k take) record(arrival float64, line int) trace.Record {
	if k.chunks == nil {
		k.chunks = slices.Repeat([]int{1}, len(k.output))
	}
	rec := trace.Record{
		PromptTokens: len(k.prompt), PromptTokenIDs: k.prompt, CachedTokens: k.cached,
		OutputTokens: len(k.output), OutputTokenIDs: k.output, TTFTMs: k.ttft, FinishReason: k.finish,
		EndedByFrontend: k.left, Error: k.error,
		Concurrency: 1, ArrivalMs: &arrival, BlockHashes: trace.BlockHashes(k.prompt, blockSize), Line: line,
	}
	if rec.OutputTokenIDs == nil {
		rec.OutputTokenIDs = []uint32{}
	}
	for i, n := range k.chunks[min(1, len(k.chunks)):] {
		gap := 0.0
		if i < len(k.gaps) {
			gap = k.gaps[i]
		}
		rec.ITLMs, rec.ITLTokens = append(rec.ITLMs, gap), append(rec.ITLTokens, uint32(n))
	}
	switch k.without {
	case "ids":
		rec.OutputTokenIDs = nil
	case "hashes":
		rec.BlockHashes = nil
	}
	return rec
}

// change alters a request of a test.
type change func(*protocol.Request)

// ask makes a request as a frontend does when the client says nothing special:
// it may say maxTokens tokens and stops at no id.
func ask(id string, prompt []uint32, maxTokens int, changes ...change) *protocol.Request {
	r := &protocol.Request{
		ID: id, PromptTokenIDs: prompt, HasSampling: true, DataParallelRank: -1,
		Sampling: protocol.Sampling{
			MaxTokens: maxTokens, HasMaxTokens: true, EOSTokenID: -1, Temperature: 1,
			Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
		},
	}
	for _, c := range changes {
		c(r)
	}
	return r
}

func toClient(index int) change   { return func(r *protocol.Request) { r.ClientIndex = index } }
func priority(p int) change       { return func(r *protocol.Request) { r.Priority = p } }
func eos(id int64) change         { return func(r *protocol.Request) { r.Sampling.EOSTokenID = id } }
func minTokens(n int) change      { return func(r *protocol.Request) { r.Sampling.MinTokens = n } }
func logprobsOf(n int) change     { return func(r *protocol.Request) { r.Sampling.Logprobs = n } }
func promptLogprobs(n int) change { return func(r *protocol.Request) { r.Sampling.PromptLogprobs = n } }

func unlimited(r *protocol.Request) {
	r.Sampling.HasMaxTokens, r.Sampling.MaxTokens = false, 0
}

func stopAt(ids ...uint32) change {
	return func(r *protocol.Request) { r.Sampling.StopTokenIDs = ids }
}

// count returns n ids from first on.
func count(first uint32, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = first + uint32(i)
	}
	return ids
}
