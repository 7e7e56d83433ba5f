package player

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// request is one request in the engine, from ADD to its last output.
type request struct {
	scheduler.Request[*request]
	id       string
	number   uint64 // of its arrival
	client   int
	stream   *protocol.Stream
	script   Script
	limit    int // of its tokens; reaching it before the script ends is a length stop
	sent     int
	outputs  int
	answered bool // its client has got an output
	queued   time.Duration
	due      time.Duration // when the next output may leave, at PaceRecorded
	timing   *latency.Request
	sampled  int // tokens in the last output, with those that a stop cut off
	modelled int // tokens of this step by the latency model; 0 leaves it open
	stops    stopRule
	picker   *picker     // nil if it allows every token
	repeats  *repetition // nil if it may repeat itself
	logprobs *logprobs
	pooling  *pooling         // nil of one that generates
	events   []protocol.Event // to be sent with the next output
	first    [2]protocol.Event
	transfer *kvtransfer.Params // nil when no other engine is involved
	pulled   time.Duration      // when its KV cache was asked for
	stage    fetchStage
	awaited  func() // ends the wait for its KV cache; nil if it does not wait
	// keepsBlocks leaves its blocks to another engine when it ends.
	keepsBlocks  bool
	faults       *requestFaults          // nil without any
	traceHeaders []byte                  // as its client sent them
	drafted      *protocol.RequestDrafts // nil unless that is reported
	// unneeded ends the work at its answer; nil when it is not being worked at.
	unneeded context.CancelFunc
}

// stopRule is what ends sampled tokens before the limit
// (vllm/v1/core/sched/utils.py check_stop).
type stopRule struct {
	eos       int64
	ids       []uint32
	minTokens int
}

// newRequest prepares the answer to a request. The error is why there is none.
func (e *engine) newRequest(r *protocol.Request) (*request, error) {
	q := &request{id: r.ID, client: r.ClientIndex}
	if err := e.prepare(q, r); err != nil {
		return nil, err
	}
	seq, err := e.sequence(q, r)
	if err != nil {
		return nil, &Refusal{"bad_request", err}
	}
	q.stream = e.codec.NewStream(r)
	q.Request = scheduler.Request[*request]{
		ID: r.ID, Owner: q, Prompt: len(r.PromptTokenIDs), Priority: r.Priority, Arrival: r.ArrivalTime, Seq: seq,
	}
	if r.LoRA != nil {
		q.LoRA = r.LoRA.ID
	}
	if r.TraceHeaders != nil && !e.opt.Tolerant { // else they may be anything, which could end a frontend
		q.traceHeaders = bytes.Clone(r.TraceHeaders)
	}
	if k, level := e.opt.Decoding.SpeculativeTokens, e.opt.Observability.RequestDrafts; k > 0 && level != "" && level != DraftsNone {
		q.drafted = &protocol.RequestDrafts{SpecTokens: k, Histogram: make([]int, k+1)}
	}
	if q.script.CachedTokens != LookUp {
		q.Seq.Known = min(q.script.CachedTokens, max(q.Prompt-1, 0))
	}
	q.timing = latency.NewRequest(e.opt.Seed, drawID(r.ID, r.ExternalID), q.Prompt, 0)
	q.events = q.first[:0]
	return q, nil
}

// prepare decides what a request is answered with.
func (e *engine) prepare(q *request, r *protocol.Request) (err error) {
	if !r.HasSampling {
		q.script.CachedTokens = LookUp
		q.pooling, err = newPooling(e.codec, r, e.opt)
		if err != nil {
			err = &Refusal{"bad_request", err}
		}
		return err
	}
	e.scratch.asked.set(r)
	if q.script, err = e.source.Script(&e.scratch.asked); err != nil {
		return err
	}
	if raw := e.scratch.asked.Sampling.StructuredOutputs; raw != nil && isChoiceOfXgrammar(raw) && !protocol.XgrammarCompilesChoices.Holds(e.codec.Line()) {
		q.script = Script{CachedTokens: LookUp, Later: func(context.Context) (Script, error) {
			return Script{}, refusal(errChoiceOfXgrammar)
		}}
	}
	q.setScript(q.script)
	q.limit = tokenLimit(r, e.ready.MaxModelLen)
	q.stops = stopRule{eos: r.Sampling.EOSTokenID, minTokens: r.Sampling.MinTokens}
	if r.Sampling.IgnoreEOS {
		q.stops.eos = -1
	}
	q.stops.ids = append(q.stops.ids, r.Sampling.StopTokenIDs...)
	q.repeats = newRepetition(r.Sampling.Repetition)
	if q.picker, err = newPicker(r, e.opt.Seed, e.opt.Vocab); err != nil {
		return &Refusal{"validation_error", err}
	}
	if q.logprobs, err = newLogprobs(r, e.opt.Vocab); err != nil {
		return &Refusal{"bad_request", err}
	}
	if q.logprobs != nil {
		q.logprobs.chosen = q.script.Logprobs
	}
	return nil
}

func (q *request) setScript(s Script) {
	q.script = s
	if s.Finish == Unfinished {
		q.script.Finish = FinishLength // its tokens end, so must the request
	}
}

// set makes r what a source gets of a decoded request. Nothing is copied but
// the value itself.
func (r *Request) set(q *protocol.Request) {
	s := &q.Sampling
	*r = Request{
		ID: q.ID, ExternalID: q.ExternalID, PromptTokenIDs: q.PromptTokenIDs, PromptIsEmbeds: q.PromptEmbeds != nil,
		Priority: q.Priority, MMFeatures: q.MMFeatures,
		Sampling: Sampling{
			MaxTokens: s.MaxTokens, HasMaxTokens: s.HasMaxTokens, MinTokens: s.MinTokens,
			StopTokenIDs: s.StopTokenIDs, EOSTokenID: s.EOSTokenID, IgnoreEOS: s.IgnoreEOS,
			Temperature: s.Temperature, Seed: s.Seed, HasSeed: s.HasSeed,
			StructuredOutputs: s.StructuredOutputs, ExtraArgs: s.ExtraArgs,
		},
	}
	if q.LoRA != nil {
		r.LoRA = q.LoRA.Name
	}
}

// longestAnswer is the most tokens that room is made for when a request arrives.
const longestAnswer = 512

// sequence is what the KV cache knows of a request.
func (e *engine) sequence(q *request, r *protocol.Request) (s *kvcache.Sequence, err error) {
	s = kvcache.NewSequence(append(make([]uint32, 0, len(r.PromptTokenIDs)+min(q.limit, longestAnswer)), r.PromptTokenIDs...))
	s.Extra.Salt, s.Session = r.CacheSalt, r.SessionID
	if r.LoRA != nil {
		s.Extra.LoRA = kvcache.LoRA{ID: r.LoRA.ID, Name: r.LoRA.Name, Path: r.LoRA.Path}
	}
	s.Extra.Features, err = featuresOf(r, max(e.ready.BlockSize, 1))
	s.Uncached = r.HasSampling && r.Sampling.SkipsCache() || q.pooling != nil && q.pooling.SkipReading
	return s, err
}

// addEvent keeps an event for the next output.
func (q *request) addEvent(event int, at time.Duration) {
	q.events = append(q.events, protocol.Event{Type: event, Timestamp: seconds(at)})
}

// tokenLimit is the smaller of max_tokens and what the context has room for.
func tokenLimit(r *protocol.Request, maxModelLen int) int {
	limit := maxModelLen - len(r.PromptTokenIDs)
	if r.Sampling.HasMaxTokens {
		limit = min(limit, r.Sampling.MaxTokens)
	}
	return max(limit, 0)
}

// drafts is how many tokens the next step computes as guesses, beside the last one
// said.
func (q *request) drafts(opt *Options) int {
	n := 0
	switch {
	case q.outputs < len(q.script.Chunks):
		n = q.script.Chunks[q.outputs] - 1
	case opt.Decoding.SpeculativeTokens > 0:
		n = opt.Decoding.SpeculativeTokens
	default:
		n = opt.Decoding.TokensPerStep - 1
	}
	return max(min(n, q.end()-q.sent-1), 0)
}

// size is how many tokens the next output has, of which left remain.
func (q *request) size(left int, opt *Options) int {
	n := opt.Decoding.TokensPerStep
	switch {
	case q.outputs < len(q.script.Chunks):
		n = q.script.Chunks[q.outputs]
	case q.outputs == 0 && opt.Decoding.SpeculativeTokens > 0:
		n = 1
	case opt.Decoding.SpeculativeTokens > 0 && opt.Decoding.Acceptance != nil:
		n = 1 + opt.Decoding.Acceptance.Accepted(q.timing, len(q.Seq.Tokens), max(q.Share-1, 0))
	case q.modelled > 0:
		n = min(q.modelled, q.Share)
	case opt.Decoding.SpeculativeTokens > 0:
		n = 1
	case q.outputs > 0:
		n = min(n, q.Share)
	}
	return min(max(n, 1), left)
}

// end is the number of tokens after which the request finishes.
func (q *request) end() int {
	if q.script.Fill == nil {
		return min(q.limit, len(q.script.Tokens))
	}
	return q.limit
}

// next fills out with the next chunk of tokens, recorded ones without a copy, and says
// whether it is the last one: for a stop id that was drawn, at the end of the script,
// or at the request's limit.
func (q *request) next(out *protocol.Output, opt *Options) (last bool) {
	if q.pooling != nil {
		// The whole answer: a pooling request ends with the step that computes the last of
		// its prompt (vllm/v1/core/sched/scheduler.py update_from_output).
		out.Pooling, out.Finish = q.pooling.tensor(q.Seq.Tokens), protocol.FinishStop
		q.outputs++
		return true
	}
	n := 0
	if left := q.end() - q.sent; left > 0 {
		n = q.size(left, opt)
	}
	q.sampled = n
	if q.sent+n <= len(q.script.Tokens) {
		out.Tokens = q.script.Tokens[q.sent : q.sent+n]
		q.Seq.Tokens = append(q.Seq.Tokens, out.Tokens...)
		if n > 0 && q.script.Stops && q.stops.hit(out.Tokens[n-1], q.sent+n) {
			out.Finish = protocol.FinishStop
		}
	} else {
		out.Tokens, out.Finish = q.draw(n)
	}
	q.sent += len(out.Tokens)
	q.outputs++
	if out.Finish != protocol.Unfinished {
	} else if q.sent < q.end() {
		return false
	} else if q.script.Fill == nil && q.sent == len(q.script.Tokens) {
		out.Finish = q.script.Finish
	} else {
		out.Finish = protocol.FinishLength
	}
	q.setStopToken(out)
	return true
}

// draw adds the next n tokens where the script does not have all of them, or fewer if one
// ends the request (vllm/v1/core/sched/utils.py check_stop).
func (q *request) draw(n int) (tokens []uint32, end protocol.FinishReason) {
	start := len(q.Seq.Tokens)
	for at := q.sent; at < q.sent+n && end == protocol.Unfinished; at++ {
		var token uint32
		if at < len(q.script.Tokens) {
			token = q.script.Tokens[at]
		} else if token = q.script.Fill(at); q.picker != nil {
			token = q.picker.pick(token, q.Seq.Tokens[q.Prompt:])
		}
		q.Seq.Tokens = append(q.Seq.Tokens, token)
		repeats := q.repeats != nil && q.repeats.found(q.Seq.Tokens[q.Prompt:])
		switch {
		case q.script.Stops && q.stops.hit(token, at+1):
			end = protocol.FinishStop
		case repeats && at+1 >= q.stops.minTokens && at+1 < q.end():
			end = protocol.FinishRepetition
		}
	}
	return q.Seq.Tokens[start:], end
}

// setStopToken names the stop id that ended the stream, or the repetition; an
// end-of-sequence token is not named (vllm/v1/core/sched/utils.py check_stop).
func (q *request) setStopToken(out *protocol.Output) {
	if out.Finish == protocol.FinishRepetition {
		out.StopString = "repetition_detected"
	}
	n := len(out.Tokens)
	if out.Finish != protocol.FinishStop || n == 0 {
		return
	}
	token := out.Tokens[n-1]
	if int64(token) != q.stops.eos && q.stops.has(token) {
		out.StopToken, out.HasStopToken = int64(token), true
	}
}

func (s *stopRule) hit(token uint32, sent int) bool {
	return sent >= s.minTokens && (int64(token) == s.eos || s.has(token))
}

func (s *stopRule) has(token uint32) bool { return slices.Contains(s.ids, token) }

// featuresOf is what makes blocks of the same tokens different: images and the like,
// or embeddings.
func featuresOf(r *protocol.Request, blockSize int) ([]kvcache.Feature, error) {
	items, err := protocol.DecodeFeatures(r.MMFeatures)
	if err != nil {
		return nil, err
	}
	if r.PromptEmbeds != nil {
		return embedFeatures(r, items, blockSize)
	}
	var features []kvcache.Feature
	for _, item := range items {
		features = append(features, kvcache.Feature{ID: item.ID, Offset: item.Offset, Length: item.Length})
	}
	return features, nil
}

// imageCache is which images and the like an engine was sent, so that a frontend need not send them again
// (vllm/multimodal/cache). A real engine keeps the last of them up to --mm-processor-cache-gb; the player has only digests, of
// as many as no real one keeps.
type imageCache struct{ recent, older map[[sha256.Size]byte]bool }

const maxImages = 1 << 16

// lostImages are the hashes of images that a request names without their content, and that the engine does not have. Lines
// before 0.28 cannot ask for them. A frontend in this process sends no content at all.
func (e *engine) lostImages(r *protocol.Request) (lost []string) {
	if r.MMFeatures == nil || r.Receiver != nil || !e.codec.HasCacheMisses() {
		return nil
	}
	items, err := protocol.DecodeFeatures(r.MMFeatures)
	if err != nil {
		return nil // the request is refused for it
	}
	for _, item := range items {
		key := sha256.Sum256([]byte(item.Key))
		if c := &e.state.images; !item.Named || c.recent[key] || c.older[key] {
			if c.recent == nil || len(c.recent) == maxImages {
				c.recent, c.older = map[[sha256.Size]byte]bool{}, c.recent
			}
			c.recent[key] = true
		} else {
			lost = append(lost, item.Key)
		}
	}
	return lost
}

// embedFeatures has one for each full block of embeddings, by their content
// (vllm/v1/core/kv_cache_utils.py _gen_prompt_embeds_extra_hash_keys). Images beside
// them count in every block.
func embedFeatures(r *protocol.Request, items []protocol.Feature, blockSize int) ([]kvcache.Feature, error) {
	embeds, err := protocol.DecodeEmbeds(r.PromptEmbeds, r.Aux)
	if err != nil {
		return nil, err
	}
	var features []kvcache.Feature
	for start := 0; start+blockSize <= embeds.Rows; start += blockSize {
		hash := sha256.New()
		hash.Write(embeds.Row(start, start+blockSize))
		for _, item := range items {
			fmt.Fprintf(hash, "%s@%d", item.ID, item.Offset)
		}
		features = append(features, kvcache.Feature{ID: string(hash.Sum(nil)), Offset: start, Length: blockSize})
	}
	return features, nil
}
