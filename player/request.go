package player

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// request is one request in the engine, from ADD to its last output.
type request struct {
	id       string
	client   int
	stream   *protocol.Stream
	script   Script
	limit    int // tokens it may say; reaching it before the script ends is a length stop
	said     int
	outputs  int
	prompt   int
	cached   int
	computed int  // tokens of the prompt that are computed or were cached
	share    int  // tokens that the step has room for
	uncached bool // not looked up in the prefix cache
	priority int
	queued   time.Duration
	started  time.Duration
	due      time.Duration // when the next output may leave
	chain    []uint64      // the full blocks of the prompt, see blockPool
	blocks   int           // KV blocks that it holds
	gone     bool          // aborted: leave it out of the next step
	stops    stopRule
	logprobs *logprobs

	tokens []uint32 // scratch for drawn tokens
}

// stopRule is what ends sampled tokens before the limit
// (vllm/v1/core/sched/utils.py check_stop).
type stopRule struct {
	eos       int64
	ids       []uint32
	minTokens int
}

func newRequest(codec *protocol.Codec, r *protocol.Request, script Script, maxModelLen int, vocab uint32) *request {
	q := &request{
		id: r.ID, client: r.ClientIndex, stream: codec.NewStream(r), script: script,
		prompt: len(r.PromptTokenIDs), priority: r.Priority,
		cached:   min(script.CachedTokens, max(len(r.PromptTokenIDs)-1, 0)),
		limit:    tokenLimit(r, maxModelLen),
		stops:    stopRule{eos: r.Sampling.EOSTokenID, minTokens: r.Sampling.MinTokens},
		logprobs: newLogprobs(r, vocab),
	}
	q.computed = q.cached
	q.uncached = r.Sampling.PromptLogprobs != protocol.NoLogprobs
	if q.script.Finish == protocol.Unfinished {
		q.script.Finish = protocol.FinishLength // its tokens end, so must the request
	}
	if r.Sampling.IgnoreEOS {
		q.stops.eos = -1
	}
	q.stops.ids = append(q.stops.ids, r.Sampling.StopTokenIDs...)
	return q
}

// tokenLimit is the smaller of max_tokens and what the context has room for.
func tokenLimit(r *protocol.Request, maxModelLen int) int {
	limit := maxModelLen - len(r.PromptTokenIDs)
	if r.Sampling.HasMaxTokens {
		limit = min(limit, r.Sampling.MaxTokens)
	}
	return max(limit, 0)
}

// needs is how many tokens the request's next output takes to compute: the rest of
// its prompt, or the last one said.
func (q *request) needs() int { return max(q.prompt-q.computed, 1) }

// cutShort tells whether the step has no room for the rest of the prompt. What
// decodes is never kept waiting.
func (q *request) cutShort() bool { return q.computed+q.share < q.prompt }

// end is the number of tokens after which the request finishes.
func (q *request) end() int {
	if q.script.Fill == nil {
		return min(q.limit, len(q.script.Tokens))
	}
	return q.limit
}

// say fills out with the next chunk and tells whether it is the last one.
func (q *request) say(out *protocol.Output) (last bool) {
	left := q.end() - q.said
	n := 0
	if left > 0 {
		n = q.script.chunk(q.outputs, left)
	}
	out.Tokens = q.next(n)
	q.said += len(out.Tokens)
	q.outputs++
	return q.finish(out)
}

// next returns n tokens from the script: recorded ones without a copy.
func (q *request) next(n int) []uint32 {
	if q.said+n <= len(q.script.Tokens) {
		return q.script.Tokens[q.said : q.said+n]
	}
	q.tokens = q.tokens[:0]
	for i := range n {
		token := q.token(q.said + i)
		q.tokens = append(q.tokens, token)
		if q.script.Stops && q.stops.hit(token, q.said+i+1) {
			break
		}
	}
	return q.tokens
}

func (q *request) token(position int) uint32 {
	if position < len(q.script.Tokens) {
		return q.script.Tokens[position]
	}
	return q.script.Fill(position)
}

// finish sets the reason on the last output: a stop id that was drawn, the end
// of the recording with its own reason, or the request's limit.
func (q *request) finish(out *protocol.Output) bool {
	if n := len(out.Tokens); n > 0 && q.script.Stops && q.stops.hit(out.Tokens[n-1], q.said) {
		out.Finish = protocol.FinishStop
	} else if q.said < q.end() {
		return false
	} else if q.script.Fill == nil && q.said == len(q.script.Tokens) {
		out.Finish = q.script.Finish
	} else {
		out.Finish = protocol.FinishLength
	}
	q.setStopToken(out)
	return true
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

func (s *stopRule) hit(token uint32, said int) bool {
	return said >= s.minTokens && (int64(token) == s.eos || s.has(token))
}

func (s *stopRule) has(token uint32) bool {
	for _, id := range s.ids {
		if id == token {
			return true
		}
	}
	return false
}
