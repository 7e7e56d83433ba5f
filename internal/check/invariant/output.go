package invariant

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// judgeOutput looks at one output. One of a request that is not known, or that has ended, is reported elsewhere.
func (e *Engine) judgeOutput(o *protocol.RequestOutput, output protocol.Value) {
	r, tokens, finish := e.requests[string(o.ID)], o.Tokens, o.Finish
	if r == nil || r.finish != protocol.Unfinished {
		return
	}
	e.read = max(e.read, r.asked) // it answers what it has read
	if o.Plain && len(tokens) > 0 && r.sampling.Logprobs == protocol.NoLogprobs {
		e.judgeTokens(o, output, r)
	} else {
		e.judgePrompt(output.Field("prefill_stats"), r, len(tokens), finish)
		if r.outputs == 0 || r.session {
			e.judgeKeys(output.Field("prefill_stats"), "PrefillStats")
		}
		e.judgeTables(output, r, tokens)
		e.judgeMask(output.Field("new_sampling_mask"), tokens)
		e.judgeEvents(output.Field("events"), r)
		e.judgeTokens(o, output, r)
		e.judgeSpeculated(output.Field("spec_decode_metrics"), r, finish)
		e.judgeRest(output, r, finish)
	}
	r.outputs++
	if r.finish = finish; finish != protocol.Unfinished && r.outputs > 1 || len(tokens) > 0 && finish != protocol.Unfinished {
		e.cache.ended++
	}
	e.sizes = append(e.sizes, len(tokens))
	if r.answeredIn = -1; finish == protocol.Unfinished && len(tokens) > 0 {
		r.answeredIn = e.number
	}
}

// judgePrompt: computed + cached = prompt, and local + external = cached (vllm/v1/metrics/stats.py PrefillStats.set). They
// come with the first output and with no other (vllm/v1/request.py take_prefill_stats), unless the prompt goes on.
func (e *Engine) judgePrompt(stats protocol.Value, r *request, tokens int, finish protocol.FinishReason) {
	switch {
	case stats.Kind() != pack.Map:
		return
	case r.outputs > 0 && !r.session:
		e.fail(CodePrefill, stats, "nil", "prefill_stats", "request %s has sent prefill_stats before, and they come once", r.id)
		return
	}
	prompt, has := stats.Field("num_prompt_tokens").Int()
	if !has {
		return
	}
	if r.length >= 0 && !r.session && int(prompt) != r.length {
		e.fail(CodePrefill, stats.Field("num_prompt_tokens"), r.length, prompt, "the length of the prompt of request %s", r.id)
	}
	computed, cached := stats.Field("num_computed_tokens").Count(), stats.Field("num_cached_tokens").Count()
	local, external := stats.Field("num_local_cached_tokens").Count(), stats.Field("num_external_cached_tokens").Count()
	switch {
	case min(prompt, computed, cached, local, external) < 0:
		e.fail(CodePrefill, stats, "counts", check.Describe(stats.Bytes()), "no count may be negative")
	case computed+cached != prompt:
		e.fail(CodePrefill, stats.Field("num_computed_tokens"), prompt-cached, computed, "computed and cached tokens have to add up to the prompt, but %d and %d are not %d", computed, cached, prompt)
	case local+external != cached:
		e.fail(CodePrefill, stats.Field("num_cached_tokens"), local+external, cached, "local and external cached tokens (%d and %d) have to add up to the cached tokens", local, external)
	}
	if finish == protocol.Unfinished || tokens > 0 {
		e.cache.started(r, prompt, local)
	}
	// max(0, min(tokens in full blocks, prompt) - cached), PrefillStats.finalize; 0 without a prefix cache.
	if created, ok := stats.Field("num_cache_creation_tokens").Int(); ok {
		if created < 0 || created > computed {
			e.fail(CodePrefill, stats.Field("num_cache_creation_tokens"), fmt.Sprintf("0 to %d", computed), created, "only computed tokens can be new in the cache")
		} else if want := max(prompt-prompt%max(e.ready.blockSize, 1)-cached, 0); e.ready.single() && created != want && (created > 0 || e.cache.looked) {
			e.fail(CodePrefill, stats.Field("num_cache_creation_tokens"), want, created, "the computed tokens that fill blocks of %d tokens", e.ready.blockSize)
		}
	}
	if e.ready.single() && local%e.ready.blockSize != 0 && local != prompt {
		e.fail(CodePrefill, stats.Field("num_local_cached_tokens"), fmt.Sprintf("full blocks of %d tokens", e.ready.blockSize), local, "only full blocks can be found in the cache")
	}
}

// judgeEvents: a request is queued, then scheduled, then perhaps preempted and scheduled again
// (vllm/v1/core/sched/scheduler.py). The times are of the clock that the messages are stamped by: none is after its
// message, and none before the request was sent.
func (e *Engine) judgeEvents(events protocol.Value, r *request) {
	const queued, scheduled, preempted = 1, 2, 3
	for event := range events.Parts() {
		if kind := event.Kind(); kind != pack.Map && kind != pack.Array {
			return
		}
		kind := event.Field("type").Count()
		when, _ := event.Field("timestamp").Float()
		before := map[int64][]int64{queued: {0}, scheduled: {queued, preempted}, preempted: {scheduled}}[kind]
		if !r.session && !slices.Contains(before, r.state) {
			e.fail(CodeEvents, event.Field("type"), "queued (1), scheduled (2), preempted (3), scheduled", fmt.Sprintf("%d after %d", kind, r.state), "events of request %s in an impossible order", r.id)
		}
		earliest := max(r.happened, r.after)
		if when < earliest || when <= 0 {
			e.fail(CodeEvents, event.Field("timestamp"), fmt.Sprintf("at least %v", earliest), when, "an event of request %s is earlier than the event or message before it", r.id)
		} else if e.now > 0 && when > e.now {
			e.fail(CodeEvents, event.Field("timestamp"), fmt.Sprintf("at most %v", e.now), when, "an event of request %s is later than the message that has it", r.id)
		}
		r.state, r.happened = kind, max(r.happened, when)
	}
}

// judgeTokens: when and why a request ends follows from its limits and its tokens (vllm/v1/core/sched/utils.py check_stop).
func (e *Engine) judgeTokens(o *protocol.RequestOutput, output protocol.Value, r *request) {
	s, tokens, finish := &r.sampling, o.Tokens, o.Finish
	stopped := -1
	for i, token := range tokens {
		if r.tokens+i+1 >= s.MinTokens && (int64(token) == s.EOSTokenID || slices.Contains(s.StopTokenIDs, token)) {
			stopped = i
			break
		}
	}
	before := r.tokens
	r.tokens += len(tokens)
	if len(tokens) > 0 {
		r.last = append(r.last[:0], tokens[len(tokens)-1])
	}
	if finish != protocol.FinishStop && finish != protocol.FinishRepetition && o.StopReason != nil {
		e.fail(CodeAnswer, output.Field("stop_reason"), "nil", check.Describe(o.StopReason), "request %s did not end with stop", r.id)
	}
	if finish == protocol.FinishError && len(tokens) > 0 {
		e.fail(CodeAnswer, output.Field("new_token_ids"), "none", len(tokens), "request %s ends with an error, so its last output has no tokens", r.id)
	}
	if o.Error != nil && finish != protocol.FinishError {
		e.fail(CodeAnswer, output.Field("error"), "nil", check.Describe(o.Error), "request %s does not end with an error, so it has none", r.id)
	}
	if e.opt.Scripted || r.pooling || r.session || r.aborted > 0 || !s.HasMaxTokens {
		return
	}
	limit := s.MaxTokens
	if e.ready.maxModelLen > 0 && r.length >= 0 {
		limit = min(limit, max(e.ready.maxModelLen-r.length, 1))
	}
	switch {
	case r.tokens > limit:
		e.fail(CodeAnswer, output.Field("new_token_ids"), limit, r.tokens, "request %s has reached its token limit", r.id)
	case stopped >= 0 && stopped < len(tokens)-1:
		e.fail(CodeAnswer, output.Field("new_token_ids"), fmt.Sprintf("%d tokens", stopped+1), len(tokens), "request %s has to stop at position %d, at token id %d", r.id, before+stopped, tokens[stopped])
	case stopped >= 0 && finish != protocol.FinishStop && finish != protocol.FinishAbort && finish != protocol.FinishError:
		e.fail(CodeAnswer, output.Field("finish_reason"), protocol.FinishStop, finish, "request %s has to stop at token id %d", r.id, tokens[stopped])
	case finish == protocol.FinishStop && stopped < 0 && len(r.last) > 0 && (s.MinTokens == 0 || r.tokens < s.MinTokens):
		e.fail(CodeAnswer, output.Field("finish_reason"), "none, or another", finish, "request %s ends with stop, but its last token %d is not a stop token", r.id, r.last[0])
	case finish == protocol.FinishLength && r.tokens < limit && len(tokens) > 0:
		e.fail(CodeAnswer, output.Field("finish_reason"), fmt.Sprintf("after %d tokens", limit), fmt.Sprintf("after %d", r.tokens), "request %s ends with length before its token limit", r.id)
	case finish == protocol.Unfinished && r.tokens == limit && len(tokens) > 0:
		e.fail(CodeAnswer, output.Field("finish_reason"), protocol.FinishLength, "none", "request %s has reached its token limit", r.id)
	case finish == protocol.FinishRepetition && !bytes.Contains(s.Raw, []byte("repetition_detection")):
		e.fail(CodeAnswer, output.Field("finish_reason"), "another", finish, "request %s does not ask for repetition detection", r.id)
	case finish == protocol.FinishRepetition && output.Field("stop_reason").Text() != "repetition_detected":
		e.fail(CodeAnswer, output.Field("stop_reason"), `"repetition_detected"`, check.Describe(o.StopReason), "request %s ends with repetition", r.id)
	case finish == protocol.FinishStop && stopped >= 0:
		e.judgeStopReason(output.Field("stop_reason"), r, tokens[stopped])
	}
}

// judgeStopReason: it names the token, unless that is the end of the sequence.
func (e *Engine) judgeStopReason(reason protocol.Value, r *request, token uint32) {
	if int64(token) == r.sampling.EOSTokenID {
		if reason.Given() {
			e.fail(CodeAnswer, reason, "nil", check.Describe(reason.Bytes()), "request %s stopped at the end of the sequence, so it names no stop token", r.id)
		}
		return
	}
	if named, ok := reason.Int(); !ok || named != int64(token) {
		e.fail(CodeAnswer, reason, token, check.Describe(reason.Bytes()), "request %s stopped at one of its stop_token_ids", r.id)
	}
}

// judgeSpeculated: a histogram over verified drafts has a place for each number of accepted tokens
// (vllm/v1/metrics/stats.py RequestSpecDecodeMetrics), and comes with the last output.
func (e *Engine) judgeSpeculated(counts protocol.Value, r *request, finish protocol.FinishReason) {
	if counts.Kind() != pack.Map {
		return
	}
	if finish == protocol.Unfinished {
		e.fail(CodeSpeculation, counts, "nil before the last output", check.Describe(counts.Bytes()), "request %s has not ended, and this comes with its last output", r.id)
	}
	spec, drafted := counts.Field("num_spec_tokens").Count(), counts.Field("num_draft_tokens").Count()
	histogram, ok := counts.Field("histogram").Ints()
	if !ok {
		return
	}
	var accepted int64
	for j, n := range histogram {
		accepted += int64(j) * n
	}
	steps := sum(histogram)
	switch {
	case spec < 1 || len(histogram) != int(spec)+1 || slices.Min(histogram) < 0:
		e.fail(CodeSpeculation, counts.Field("histogram"), fmt.Sprintf("%d counts", spec+1), check.Describe(counts.Bytes()), "the histogram has one count for each possible number of accepted tokens")
	case e.drafts > 0 && spec != e.drafts:
		e.fail(CodeSpeculation, counts.Field("num_spec_tokens"), e.drafts, spec, "the number that the engine drafts")
	case drafted < accepted || drafted > steps*spec:
		e.fail(CodeSpeculation, counts.Field("num_draft_tokens"), fmt.Sprintf("%d to %d", accepted, steps*spec), drafted, "accepted tokens are drafted tokens")
	case steps+accepted > int64(r.tokens)+spec:
		// Each verified draft gives its accepted tokens and one more; the last may give more than there is room for.
		e.fail(CodeSpeculation, counts.Field("histogram"), fmt.Sprintf("at most %d tokens", int64(r.tokens)+spec), steps+accepted, "request %s has %d tokens only", r.id, r.tokens)
	}
	for _, name := range []string{"per_step_accepted", "per_step_drafted"} {
		if values, ok := counts.Field(name).Ints(); ok && len(values) > 0 {
			want := accepted
			if name == "per_step_drafted" {
				want = drafted
			}
			if int64(len(values)) != steps || sum(values) != want {
				e.fail(CodeSpeculation, counts.Field(name), fmt.Sprintf("%d steps, %d in all", steps, want), fmt.Sprintf("%d, %d in all", len(values), sum(values)), "the counts have to agree with the histogram")
			}
		}
	}
}

// judgeRest looks at what an output hands through from its request, and at plain counts.
func (e *Engine) judgeRest(output protocol.Value, r *request, finish protocol.FinishReason) {
	if nans := output.Field("num_nans_in_logits"); nans.Count() < 0 {
		e.fail(CodeAnswer, nans, "a count", nans.Count(), "no count may be negative")
	}
	if headers := output.Field("trace_headers"); headers.Given() && !check.Same(headers.Bytes(), r.headers) {
		// vllm/v1/request.py hands them through.
		e.fail(CodeAnswer, headers, check.Describe(r.headers), check.Describe(headers.Bytes()), "the trace headers of request %s", r.id)
	}
	if missing := output.Field("mm_cache_miss_hashes"); missing.Given() && !r.images {
		e.fail(CodeAnswer, missing, "nil", check.Describe(missing.Bytes()), "request %s has no images or other multimodal inputs", r.id)
	}
	if pooled := output.Field("pooling_output"); pooled.Given() && !r.pooling {
		e.fail(CodeAnswer, pooled, "nil", "a tensor", "request %s asks for tokens, not for pooling", r.id)
	}
	e.hasConnector = e.hasConnector || output.Field("kv_transfer_params").Given()
	for _, name := range []string{"kv_transfer_params", "ec_transfer_params"} {
		// What the other side needs comes when the request is done (vllm/v1/core/sched/scheduler.py _free_request).
		if v := output.Field(name); v.Given() && finish == protocol.Unfinished {
			e.fail(CodeAnswer, v, "nil before the last output", "a map", "request %s has not ended, and this comes with its last output", r.id)
		}
	}
}

func sum(values []int64) (total int64) {
	for _, v := range values {
		total += v
	}
	return total
}
