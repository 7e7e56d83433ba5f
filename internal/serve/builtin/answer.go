package builtin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An answer writes the JSON of one HTTP answer, in one piece or as events.
type answer struct {
	w http.ResponseWriter
	*jsonBuffer
	flusher *http.ResponseController
	head    []byte // of each chunk
	named   bool   // events have names and there is no [DONE], as in the API of Anthropic
	sent    bool   // something was written
	failed  func(*apiError)
}

// An envelope is what most answers and events begin with.
type envelope struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int    `json:"created"`
	Model   string `json:"model"`
}

func (s *Server) newEnvelope(id, object, model string) envelope {
	return envelope{id, object, int(time.Now().Unix()), s.answeredBy(model)}
}

func newAnswer(w http.ResponseWriter) *answer { return &answer{w: w, jsonBuffer: newJSONBuffer()} }

var (
	typeEvents      = []string{"text/event-stream"}
	typeNamedEvents = []string{"text/event-stream; charset=utf-8"}
	noCache         = []string{"no-cache"}
	chunked         = []string{"chunked"}
)

// stream sets the headers of a stream. Its chunks begin with the members of head.
func (a *answer) stream(head any) {
	a.head = append([]byte("data: "), toJSON(head)...)
	h := a.w.Header()
	// Without it, net/http gives a short stream a length. Frontends do not, and a proxy that joins two answers would send two.
	h["Transfer-Encoding"] = chunked
	if a.named { // an endpoint of the Python frontend alone
		h["Content-Type"] = typeNamedEvents
	} else {
		h["Content-Type"], h["Cache-Control"] = typeEvents, noCache
	}
	a.flusher = http.NewResponseController(a.w)
}

// event writes an event. Its name is "" where events have none.
func (a *answer) event(name string, v any) {
	if name != "" {
		a.WriteString("event: ")
		a.WriteString(name)
		a.WriteByte('\n')
	}
	a.WriteString("data: ")
	a.value(v)
	a.WriteByte('\n')
}

// chunk writes an event of the members of the head and of those of v, an object that is not empty. The head was encoded
// once, as most of the work for a token would be to encode it.
func (a *answer) chunk(v any) {
	a.Write(a.head[:len(a.head)-1])
	at := a.Len()
	a.value(v)
	a.Bytes()[at] = ',' // in the place of its brace
	a.WriteByte('\n')
}

// fail ends a stream with an error.
func (a *answer) fail(err *apiError) {
	switch {
	case a.failed != nil:
		a.failed(err)
	case a.named:
		a.event("error", err.inNames().body())
	default:
		a.event("", err.body())
	}
}

// flush writes all events that there are.
func (a *answer) flush() error {
	if a.Len() == 0 {
		return nil
	}
	a.sent = true
	if _, err := a.WriteTo(a.w); err != nil {
		return err
	}
	return a.flusher.Flush()
}

// Chosen is what a rule of a test has chosen of an answer that no engine of vLLM makes. The other parts come from the
// engine.
type Chosen struct {
	Refusal   bool // the text is one
	Embedding []float32

	is bool
}

type chosenKey struct{}

// Choose returns the context of a request whose answer is chosen.
func Choose(ctx context.Context, c Chosen) context.Context {
	c.is = true
	return context.WithValue(ctx, chosenKey{}, c)
}

func chosenOf(ctx context.Context) Chosen {
	c, _ := ctx.Value(chosenKey{}).(Chosen)
	return c
}

// usage counts tokens.
type usage struct {
	Prompt     int               `json:"prompt_tokens"`
	Total      int               `json:"total_tokens"`
	Completion int               `json:"completion_tokens"`
	OfPrompt   *promptDetails    `json:"prompt_tokens_details"`
	OfAnswer   completionDetails `json:"completion_tokens_details"`
}

type promptDetails struct {
	Cached int    `json:"cached_tokens"`
	Media  *media `json:"multimodal_tokens,omitempty"`
}

type media struct {
	Image int `json:"image"`
}

type completionDetails struct {
	Reasoning int `json:"reasoning_tokens"`
}

// usage counts the tokens of all answers. A prompt counts once, whatever n is.
func (g *generation) usage() *usage {
	u, cached := &usage{}, 0
	for i, q := range g.all {
		if i%g.params.answers == 0 {
			u.Prompt += len(q.prompt)
			cached += q.cached
		}
		u.Completion += q.count
	}
	u.Total = u.Prompt + u.Completion
	if g.server.opt.Flags.PromptDetails {
		u.OfPrompt = &promptDetails{Cached: cached}
		images := 0
		for _, item := range g.params.media {
			images += item.length
		}
		if images > 0 {
			u.OfPrompt.Media = &media{images}
		}
	}
	return u
}

// soFar is the usage of one answer up to now, nil unless it is wanted.
func (q *sequence) soFar() *usage {
	if !q.gen.params.continuous {
		return nil
	}
	return &usage{Prompt: len(q.prompt), Completion: q.count, Total: len(q.prompt) + q.count}
}

// atBegin is [sequence.soFar] before the first token.
func (q *sequence) atBegin() *usage {
	if !q.gen.params.continuous {
		return nil
	}
	return &usage{Prompt: len(q.prompt), Total: len(q.prompt)}
}

// value is the stop string or the stop token, nil for none.
func (r stopReason) value() any {
	switch r.kind {
	case 1:
		return r.text
	case 2:
		return r.token
	}
	return nil
}

// finishReason is how an answer ended, as OpenAI names it.
func finishReason(f protocol.FinishReason) string {
	if f == protocol.Unfinished || f == protocol.FinishError {
		return "error"
	}
	return finishReasons[f]
}

// unpacked is a value of msgpack as JSON; nil is null.
func unpacked(raw []byte) json.RawMessage {
	cur := pack.NewCursor(raw)
	text, err := cur.AppendJSON(nil)
	if err != nil {
		return nil
	}
	return text
}

// headDelay is how long the head of a stream waits for its first event. Most streams then need one write less.
const headDelay = 2 * time.Millisecond

// await sends the head of a stream if the first event takes longer.
func (g *generation) await(ctx context.Context, a *answer) {
	late := time.NewTimer(headDelay)
	defer late.Stop()
	select {
	case <-g.wake:
		g.notify()
	case <-ctx.Done():
	case <-late.C:
		a.w.WriteHeader(http.StatusOK)
		_ = a.flusher.Flush() // the client may be gone
	}
}

// streamed runs a stream to its end: write writes the events of a piece, and last those of the end of all.
func (g *generation) streamed(ctx context.Context, a *answer, write func(q *sequence, p *piece, text string), last func()) {
	if !a.sent {
		g.await(ctx, a)
	}
	for g.open() {
		err := g.next(ctx, func(q *sequence, p *piece, text string) error {
			write(q, p, text)
			if p.finish == protocol.FinishError {
				return ofEngine(p.failure)
			}
			return nil
		})
		if failed, ok := err.(*apiError); ok {
			a.fail(failed)
		} else if err == errEngine {
			a.fail(errInternal)
		}
		if err == nil && g.open() {
			err = a.flush()
			if err == nil {
				continue
			}
		}
		if err == errGone {
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		}
		if err == nil {
			last()
		}
		break
	}
	if !a.named {
		a.WriteString("data: [DONE]\n\n")
	}
	_, _ = a.WriteTo(a.w) // with the end of the answer; the client may be gone
}
