package player

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// SeenRequest is a request as an engine got it, and what has become of it so far.
type SeenRequest struct {
	ID string `json:"request_id"`
	// ExternalID is the id that the HTTP client knows, such as its X-Request-Id; empty if the frontend sends none.
	ExternalID string    `json:"external_id,omitempty"`
	Engine     int       `json:"engine"`
	Arrival    time.Time `json:"arrival"`
	// Prompt is the text of PromptTokenIDs, special tokens included, and Output that of OutputTokenIDs. Both are empty without
	// [RequestLog].Decode.
	Prompt         string   `json:"prompt"`
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	// Params are the sampling or pooling parameters, by vLLM's names, as the frontend sent them.
	Params   json.RawMessage `json:"params"`
	LoRA     string          `json:"lora,omitempty"`
	Priority int             `json:"priority"`
	Output   string          `json:"output"`
	// OutputTokenIDs are those that were sent. A request that was aborted may have got fewer.
	OutputTokenIDs []uint32 `json:"output_token_ids"`
	// TTFTMs is the time from the arrival to the first output, and DurationMs to the end, both in ms; nil before.
	TTFTMs     *float64 `json:"ttft_ms"`
	DurationMs *float64 `json:"duration_ms"`
	// FinishReason is stop, length, error or repetition; abort if the frontend took the request back, as it does when its
	// client leaves; empty while it runs.
	FinishReason string `json:"finish_reason"`
}

// Bounds of what a [RequestLog] keeps.
const (
	maxSeen       = 10_000
	maxSeenTokens = 4 << 20
)

// A RequestLog keeps the requests that engines got: the newest 10,000, and of these as many as have four million tokens in
// prompts and outputs. It is safe for use by several goroutines, and engines may share one.
type RequestLog struct {
	// Decode makes the text of ids; nil leaves it out.
	Decode func(ids []uint32) string

	mu      sync.Mutex
	all     []*SeenRequest // by their arrival
	running map[seenKey]*seen
	tokens  int
	changed chan struct{} // closed when a request has ended; nil if nothing has waited since
}

// seenKey is unique among the requests that run.
type seenKey struct {
	engine int
	id     string
}

// A seen is a request that runs.
type seen struct {
	*SeenRequest
	since time.Duration // of the engine's clock
}

// Requests returns the requests that are kept, by their arrival.
func (l *RequestLog) Requests() []SeenRequest {
	all := l.copy()
	for i := range all {
		if r := &all[i]; l.Decode != nil { // without the lock, for which engines wait
			r.Prompt, r.Output = l.Decode(r.PromptTokenIDs), l.Decode(r.OutputTokenIDs)
		}
	}
	return all
}

// copy copies the requests. The engine appends to OutputTokenIDs of those that run, which changes no copy.
func (l *RequestLog) copy() []SeenRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]SeenRequest, len(l.all))
	for i, r := range l.all {
		all[i] = *r
	}
	return all
}

// ended counts the requests that have ended. changed is closed when another one ends.
func (l *RequestLog) ended() (n int, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.FinishReason != "" {
			n++
		}
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return n, l.changed
}

// Await waits until so many of the requests have ended, and returns all, also when ctx ends before: then with its cause.
func (l *RequestLog) Await(ctx context.Context, ended int) ([]SeenRequest, error) {
	for {
		n, changed := l.ended()
		if n >= ended {
			return l.Requests(), nil
		}
		if ctx.Err() != nil {
			return l.Requests(), context.Cause(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Clear forgets all requests. Those that run are not listed at their end.
func (l *RequestLog) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all, l.running, l.tokens = nil, nil, 0
}

// add is called when a request arrives.
func (l *RequestLog) add(e *engine, r *protocol.Request) {
	if l == nil {
		return
	}
	one := &SeenRequest{
		ID: r.ID, ExternalID: r.ExternalID, Engine: e.index, Arrival: time.Now(), Priority: r.Priority,
		PromptTokenIDs: append([]uint32{}, r.PromptTokenIDs...), OutputTokenIDs: []uint32{}, Params: json.RawMessage("null"),
	}
	if r.LoRA != nil {
		one.LoRA = r.LoRA.Name
	}
	params := r.Pooling
	if r.HasSampling {
		params = e.codec.SamplingParams(r)
	}
	if cur := pack.NewCursor(params); len(params) > 0 {
		if text, err := cur.AppendJSON(nil); err == nil {
			one.Params = text
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == nil {
		l.running = map[seenKey]*seen{}
	}
	l.all, l.running[seenKey{e.index, r.ID}] = append(l.all, one), &seen{one, e.clock.Now()}
	l.tokens += len(one.PromptTokenIDs)
	for len(l.all) > maxSeen || l.tokens > maxSeenTokens && len(l.all) > 1 {
		oldest := l.all[0]
		l.tokens -= len(oldest.PromptTokenIDs) + len(oldest.OutputTokenIDs)
		delete(l.running, seenKey{oldest.Engine, oldest.ID})
		l.all = l.all[1:]
	}
}

// output adds an output of a request, which may end it.
func (l *RequestLog) output(e *engine, id string, tokens []uint32, end protocol.FinishReason) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.running[seenKey{e.index, id}]
	if r == nil {
		return // forgotten
	}
	after := seconds(e.clock.Now()-r.since) * 1000
	if r.TTFTMs == nil && len(tokens) > 0 {
		r.TTFTMs = &after
	}
	r.OutputTokenIDs = append(r.OutputTokenIDs, tokens...)
	l.tokens += len(tokens)
	if end == protocol.Unfinished {
		return
	}
	r.DurationMs, r.FinishReason = &after, end.String()
	delete(l.running, seenKey{e.index, id})
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
