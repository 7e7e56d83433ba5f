package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// toyAnswer is one that grows.
type toyAnswer struct {
	y    *toy
	q    *toyRequest
	w    http.ResponseWriter
	text string // all of it
	said int    // bytes that were streamed
	ids  []uint32
	toyOutput
}

// answer waits for the engine and writes the answer, whole or as it comes.
func (y *toy) answer(w http.ResponseWriter, r *http.Request, q *toyRequest, adapter bool) {
	id, outputs := y.add(q, adapter)
	a := &toyAnswer{y: y, q: q, w: w}
	if y.fault == "a blank first" {
		a.text = " "
	}
	if q.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		if y.fault == "plain streams" {
			w.Header().Set("Content-Type", "text/plain")
		}
	}
	for a.finish == protocol.Unfinished {
		select {
		case out, ok := <-outputs:
			if !ok {
				a.failed("the engine is dead")
				return
			}
			if !a.take(out) {
				y.abort(id)
			}
		case <-r.Context().Done():
			y.abort(id)
			return
		}
	}
	y.mu.Lock()
	delete(y.open, id)
	y.mu.Unlock()
	a.end()
}

func (y *toy) abort(id string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.open, id)
	switch y.fault {
	case "no abort":
	case "aborts another":
		_ = y.front.Abort(0, id+"0")
	default:
		_ = y.front.Abort(0, id)
	}
}

// take adds an output; false means that a stop string ended the request.
func (a *toyAnswer) take(out toyOutput) bool {
	a.finish, a.stop, a.transfer = out.finish, out.stop, out.transfer
	a.cached += out.cached
	for _, id := range out.tokens {
		if id >= firstByte {
			a.text += string([]byte{byte(id - firstByte)})
		}
	}
	if a.y.fault == "loses tokens" && len(a.ids) == 3 && len(out.tokens) > 0 {
		out.tokens = out.tokens[1:]
	}
	a.ids = append(a.ids, out.tokens...)
	for _, stop := range a.q.Stop {
		if at := strings.Index(a.text, stop); at >= 0 && a.y.fault != "no stop strings" {
			a.text, a.finish = a.text[:at], protocol.FinishStop
			a.stop, _ = json.Marshal(stop)
			return false
		}
	}
	if a.q.Stream && a.y.fault != "streams at the end" {
		a.event(out.tokens, nil)
	}
	return true
}

// held is how much of the text may still be the beginning of a stop string.
func (a *toyAnswer) held() int {
	longest := 0
	for _, stop := range a.q.Stop {
		longest = max(longest, len(stop)-1)
	}
	return min(longest, len(a.text)-a.said)
}

func (a *toyAnswer) event(ids []uint32, finish *string) {
	text := a.text[a.said:]
	if finish == nil && len(a.q.Stop) > 0 {
		text = text[:len(text)-a.held()]
	}
	a.said += len(text)
	if a.y.fault == "shouts in streams" {
		text = strings.ToUpper(text)
	}
	a.send(map[string]any{"choices": []any{a.choice(text, ids, finish, "delta")}})
}

func (a *toyAnswer) send(v any) {
	text, _ := json.Marshal(v)
	prefix := "data: "
	if a.y.fault == "no space after data" {
		prefix = "data:"
	}
	fmt.Fprintf(a.w, "%s%s\n\n", prefix, text)
	a.w.(http.Flusher).Flush()
}

func (a *toyAnswer) choice(text string, ids []uint32, finish *string, message string) map[string]any {
	if ids == nil {
		ids = []uint32{}
	}
	c := map[string]any{"index": 0, "token_ids": ids, "finish_reason": finish, "text": text}
	if a.y.fault == "no ids" {
		delete(c, "token_ids")
	}
	if a.q.chat {
		delete(c, "text")
		c[message] = map[string]any{"role": "assistant", "content": text}
	}
	if finish != nil {
		c["stop_reason"] = a.stop
	}
	if a.q.Logprobs != nil {
		c["logprobs"] = map[string]any{"tokens": make([]string, len(ids))}
	}
	return c
}

func (a *toyAnswer) failed(message string) {
	if !a.q.Stream {
		http.Error(a.w, `{"error":{"message":"`+message+`"}}`, http.StatusInternalServerError)
		return
	}
	a.send(map[string]any{"error": map[string]any{"message": message}})
	fmt.Fprint(a.w, "data: [DONE]\n\n")
}

// end writes the end of a stream, or the whole answer.
func (a *toyAnswer) end() {
	if a.finish == protocol.FinishError && a.y.fault != "errors are fine" {
		a.failed("the engine refused")
		return
	}
	finish := map[protocol.FinishReason]string{
		protocol.FinishStop: "stop", protocol.FinishLength: "length", protocol.FinishAbort: "abort",
		protocol.FinishError: "stop", protocol.FinishRepetition: "repetition",
	}[a.finish]
	switch {
	case a.y.fault == "always stops":
		finish = "stop"
	case a.y.fault == "no stop reason":
		a.stop = nil
	}
	usage := a.usage()
	if !a.q.Stream {
		answer := map[string]any{"choices": []any{a.choice(a.text, a.ids, &finish, "message")}, "usage": usage}
		if a.transfer != nil && a.y.fault != "forgets kv_transfer_params" {
			answer["kv_transfer_params"] = a.transfer
		}
		a.w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(a.w).Encode(answer)
		return
	}
	a.event(nil, &finish)
	if a.y.fault == "ends twice" {
		a.event(nil, &finish)
	}
	if a.q.StreamUsage.Include && a.y.fault != "no usage in streams" || a.y.fault == "usage unasked" {
		a.send(map[string]any{"choices": []any{}, "usage": usage})
	}
	if a.y.fault != "no DONE" {
		fmt.Fprint(a.w, "data: [DONE]\n\n")
	}
}

func (a *toyAnswer) usage() map[string]any {
	completion := len(a.ids)
	if a.y.fault == "miscounts" {
		completion++
	}
	cached := a.cached
	if a.y.fault == "miscounts the cache" {
		cached++
	}
	prompt := len(a.q.ids)
	return map[string]any{
		"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
		"prompt_tokens_details": map[string]any{"cached_tokens": cached},
	}
}
