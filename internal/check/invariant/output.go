package invariant

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// judgeOutput looks at one output. One of a request that nobody knows, or that has ended, is for others to report.
func (e *Engine) judgeOutput(at string) {
	cur := pack.NewCursor(e.output.get("request_id"))
	name, err := cur.Str()
	r := e.requests[string(name)]
	if err != nil || r == nil || r.finish != protocol.Unfinished {
		return
	}
	id, tokens := r.id, e.tokens[:0]
	if raw := e.output.get("new_token_ids"); raw != nil {
		cur := pack.NewCursor(raw)
		if tokens, err = cur.Uint32s(tokens); err != nil {
			return
		}
		e.tokens = tokens
	}
	e.read = max(e.read, r.asked) // it answers what it has read
	finish := protocol.Unfinished
	if code, ok := e.output.int("finish_reason"); ok {
		if finish, err = protocol.FinishFromWire(code); err != nil {
			return
		}
	}
	if plain := e.output.told == 2 && len(tokens) > 0 && finish == protocol.Unfinished; plain && r.sampling.Logprobs == protocol.NoLogprobs {
		// As most, it has an id and tokens, and no more.
		e.judgeTokens(at, id, r, tokens, finish)
	} else {
		e.judgePrompt(at, id, r, len(tokens), finish)
		e.judgeTables(at, id, r, tokens)
		e.judgeMask(at, tokens)
		e.judgeEvents(at, id, r)
		e.judgeTokens(at, id, r, tokens, finish)
		e.judgeSpeculated(at, id, r, finish)
		e.judgeRest(at, id, r, finish)
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
func (e *Engine) judgePrompt(at, id string, r *request, tokens int, finish protocol.FinishReason) {
	raw := e.output.get("prefill_stats")
	at += ".prefill_stats"
	switch {
	case !e.part.readMap(raw):
		return
	case r.outputs > 0 && !r.session:
		e.fail(CodePrefill, at, "nil", "prefill_stats", "request %s has sent prefill_stats before, and they come once", id)
		return
	}
	prompt, has := e.part.int("num_prompt_tokens")
	if !has {
		return
	}
	if r.length >= 0 && !r.session && int(prompt) != r.length {
		e.fail(CodePrefill, at+".num_prompt_tokens", r.length, prompt, "the length of the prompt of request %s", id)
	}
	computed, cached := e.part.count("num_computed_tokens"), e.part.count("num_cached_tokens")
	local, external := e.part.count("num_local_cached_tokens"), e.part.count("num_external_cached_tokens")
	switch {
	case min(prompt, computed, cached, local, external) < 0:
		e.fail(CodePrefill, at, "counts", check.Describe(raw), "no count may be negative")
	case computed+cached != prompt:
		e.fail(CodePrefill, at+".num_computed_tokens", prompt-cached, computed, "computed and cached tokens have to add up to the prompt, but %d and %d are not %d", computed, cached, prompt)
	case local+external != cached:
		e.fail(CodePrefill, at+".num_cached_tokens", local+external, cached, "local and external cached tokens (%d and %d) have to add up to the cached tokens", local, external)
	}
	if finish == protocol.Unfinished || tokens > 0 {
		e.cache.started(r, prompt, local)
	}
	// max(0, min(tokens in full blocks, prompt) - cached), PrefillStats.finalize; 0 without a prefix cache.
	if created, ok := e.part.int("num_cache_creation_tokens"); ok {
		if created < 0 || created > computed {
			e.fail(CodePrefill, at+".num_cache_creation_tokens", fmt.Sprintf("0 to %d", computed), created, "only computed tokens can be new in the cache")
		} else if want := max(prompt-prompt%max(e.ready.blockSize, 1)-cached, 0); e.ready.single() && created != want && (created > 0 || e.cache.looked) {
			e.fail(CodePrefill, at+".num_cache_creation_tokens", want, created, "the computed tokens that fill blocks of %d tokens", e.ready.blockSize)
		}
	}
	if e.ready.single() && local%e.ready.blockSize != 0 && local != prompt {
		e.fail(CodePrefill, at+".num_local_cached_tokens", fmt.Sprintf("full blocks of %d tokens", e.ready.blockSize), local, "only full blocks can be found in the cache")
	}
}

// judgeEvents: a request is queued, then scheduled, then perhaps preempted and scheduled again
// (vllm/v1/core/sched/scheduler.py). The times are of the clock that the messages are stamped by: none lies behind its
// message, and none before the request was sent.
func (e *Engine) judgeEvents(at, id string, r *request) {
	raw := e.output.get("events")
	if raw == nil {
		return
	}
	const queued, scheduled, preempted = 1, 2, 3
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for i := 0; err == nil && i < n; i++ {
		var one []byte
		if one, err = cur.Raw(); err != nil {
			return
		}
		if !e.part.readMap(one) && !e.part.readArray(e.names["EngineCoreEvent"], one) {
			return
		}
		kind := e.part.count("type")
		when, _ := e.part.float("timestamp")
		place := fmt.Sprintf("%s.events[%d]", at, i)
		before := map[int64][]int64{queued: {0}, scheduled: {queued, preempted}, preempted: {scheduled}}[kind]
		if !r.session && !slices.Contains(before, r.state) {
			e.fail(CodeEvents, place+".type", "queued (1), scheduled (2), preempted (3), scheduled", fmt.Sprintf("%d after %d", kind, r.state), "events of request %s in an impossible order", id)
		}
		earliest := max(r.happened, r.after)
		if when < earliest || when <= 0 {
			e.fail(CodeEvents, place+".timestamp", fmt.Sprintf("at least %v", earliest), when, "an event of request %s is earlier than the event or message before it", id)
		} else if e.now > 0 && when > e.now {
			e.fail(CodeEvents, place+".timestamp", fmt.Sprintf("at most %v", e.now), when, "an event of request %s is later than the message that has it", id)
		}
		r.state, r.happened = kind, max(r.happened, when)
	}
}

// judgeTokens: when and why a request ends follows from its limits and its tokens (vllm/v1/core/sched/utils.py check_stop).
func (e *Engine) judgeTokens(at, id string, r *request, tokens []uint32, finish protocol.FinishReason) {
	s := &r.sampling
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
	reason := e.output.get("stop_reason")
	if finish != protocol.FinishStop && finish != protocol.FinishRepetition && reason != nil {
		e.fail(CodeAnswer, at+".stop_reason", "nil", check.Describe(reason), "request %s did not end with stop", id)
	}
	if finish == protocol.FinishError && len(tokens) > 0 {
		e.fail(CodeAnswer, at+".new_token_ids", "none", len(tokens), "request %s ends with an error, so its last output has no tokens", id)
	}
	if e.output.get("error") != nil && finish != protocol.FinishError {
		e.fail(CodeAnswer, at+".error", "nil", check.Describe(e.output.get("error")), "request %s does not end with an error, so it has none", id)
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
		e.fail(CodeAnswer, at+".new_token_ids", limit, r.tokens, "request %s has reached its token limit", id)
	case stopped >= 0 && stopped < len(tokens)-1:
		e.fail(CodeAnswer, at+".new_token_ids", fmt.Sprintf("%d tokens", stopped+1), len(tokens), "request %s has to stop at position %d, at token id %d", id, before+stopped, tokens[stopped])
	case stopped >= 0 && finish != protocol.FinishStop && finish != protocol.FinishAbort && finish != protocol.FinishError:
		e.fail(CodeAnswer, at+".finish_reason", protocol.FinishStop, finish, "request %s has to stop at token id %d", id, tokens[stopped])
	case finish == protocol.FinishStop && stopped < 0 && len(r.last) > 0 && (s.MinTokens == 0 || r.tokens < s.MinTokens):
		e.fail(CodeAnswer, at+".finish_reason", "none, or another", finish, "request %s ends with stop, but its last token %d is no stop token", id, r.last[0])
	case finish == protocol.FinishLength && r.tokens < limit && len(tokens) > 0:
		e.fail(CodeAnswer, at+".finish_reason", fmt.Sprintf("after %d tokens", limit), fmt.Sprintf("after %d", r.tokens), "request %s ends with length before its token limit", id)
	case finish == protocol.Unfinished && r.tokens == limit && len(tokens) > 0:
		e.fail(CodeAnswer, at+".finish_reason", protocol.FinishLength, "none", "request %s has reached its token limit", id)
	case finish == protocol.FinishRepetition && !bytes.Contains(s.Raw, []byte("repetition_detection")):
		e.fail(CodeAnswer, at+".finish_reason", "another", finish, "request %s does not ask for repetition detection", id)
	case finish == protocol.FinishRepetition && (reason == nil || check.Describe(reason) != `"repetition_detected"`):
		e.fail(CodeAnswer, at+".stop_reason", `"repetition_detected"`, check.Describe(reason), "request %s ends with repetition", id)
	case finish == protocol.FinishStop && stopped >= 0:
		e.judgeStopReason(at, id, r, tokens[stopped], reason)
	}
}

// judgeStopReason: it names the token, unless that is the end of the sequence.
func (e *Engine) judgeStopReason(at, id string, r *request, token uint32, reason []byte) {
	if int64(token) == r.sampling.EOSTokenID {
		if reason != nil {
			e.fail(CodeAnswer, at+".stop_reason", "nil", check.Describe(reason), "request %s stopped at the end of the sequence, so it names no stop token", id)
		}
		return
	}
	named := int64(-1)
	if reason != nil {
		cur := pack.NewCursor(reason)
		if v, err := cur.Int(); err == nil {
			named = v
		}
	}
	if named != int64(token) {
		e.fail(CodeAnswer, at+".stop_reason", token, check.Describe(reason), "request %s stopped at one of its stop_token_ids", id)
	}
}

// judgeSpeculated: a histogram over verified drafts has a place for each number of accepted tokens
// (vllm/v1/metrics/stats.py RequestSpecDecodeMetrics), and comes with the last output.
func (e *Engine) judgeSpeculated(at, id string, r *request, finish protocol.FinishReason) {
	raw := e.output.get("spec_decode_metrics")
	if !e.part.readMap(raw) {
		return
	}
	at += ".spec_decode_metrics"
	if finish == protocol.Unfinished {
		e.fail(CodeSpeculation, at, "nil before the last output", check.Describe(raw), "request %s has not ended, and this comes with its last output", id)
	}
	spec, drafted := e.part.count("num_spec_tokens"), e.part.count("num_draft_tokens")
	histogram, ok := e.part.ints("histogram")
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
		e.fail(CodeSpeculation, at+".histogram", fmt.Sprintf("%d counts", spec+1), check.Describe(raw), "the histogram has one count for each possible number of accepted tokens")
	case e.drafts > 0 && spec != e.drafts:
		e.fail(CodeSpeculation, at+".num_spec_tokens", e.drafts, spec, "the number that the engine drafts")
	case drafted < accepted || drafted > steps*spec:
		e.fail(CodeSpeculation, at+".num_draft_tokens", fmt.Sprintf("%d to %d", accepted, steps*spec), drafted, "accepted tokens are drafted tokens")
	case steps+accepted > int64(r.tokens)+spec:
		// Each verified draft gives its accepted tokens and one more; the last may give more than there is room for.
		e.fail(CodeSpeculation, at+".histogram", fmt.Sprintf("at most %d tokens", int64(r.tokens)+spec), steps+accepted, "request %s has %d tokens only", id, r.tokens)
	}
	for _, name := range []string{"per_step_accepted", "per_step_drafted"} {
		if values, ok := e.part.ints(name); ok && len(values) > 0 {
			want := accepted
			if name == "per_step_drafted" {
				want = drafted
			}
			if int64(len(values)) != steps || sum(values) != want {
				e.fail(CodeSpeculation, at+"."+name, fmt.Sprintf("%d steps, %d in all", steps, want), fmt.Sprintf("%d, %d in all", len(values), sum(values)), "the counts have to agree with the histogram")
			}
		}
	}
}

// judgeRest looks at what an output hands through from its request, and at plain counts.
func (e *Engine) judgeRest(at, id string, r *request, finish protocol.FinishReason) {
	if nans := e.output.count("num_nans_in_logits"); nans < 0 {
		e.fail(CodeAnswer, at+".num_nans_in_logits", "a count", nans, "no count may be negative")
	}
	if headers := e.output.get("trace_headers"); headers != nil && !check.Same(headers, r.headers) {
		// vllm/v1/request.py hands them through.
		e.fail(CodeAnswer, at+".trace_headers", check.Describe(r.headers), check.Describe(headers), "the trace headers of request %s", id)
	}
	if missing := e.output.get("mm_cache_miss_hashes"); missing != nil && !r.images {
		e.fail(CodeAnswer, at+".mm_cache_miss_hashes", "nil", check.Describe(missing), "request %s has no images or other multimodal inputs", id)
	}
	if e.output.get("pooling_output") != nil && !r.pooling {
		e.fail(CodeAnswer, at+".pooling_output", "nil", "a tensor", "request %s asks for tokens, not for pooling", id)
	}
	for _, name := range []string{"kv_transfer_params", "ec_transfer_params"} {
		// What the other side needs comes when the request is done (vllm/v1/core/sched/scheduler.py _free_request).
		if e.output.get(name) != nil && finish == protocol.Unfinished {
			e.fail(CodeAnswer, at+"."+name, "nil before the last output", "a map", "request %s has not ended, and this comes with its last output", id)
		}
	}
}
