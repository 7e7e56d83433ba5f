package builtin

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An answer writes the JSON of one HTTP answer, in one piece or as events.
type answer struct {
	w http.ResponseWriter
	*buffer
	id, object, model string
	created           int
	head              []byte // what each event begins with, up to the choices
	flusher           *http.ResponseController
	named             bool // events have names and there is no [DONE], as in the API of Anthropic
	sent              bool // something was written
	failed            func(*apiError)
}

// A buffer is what an answer is written into.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, 4<<10)} }}

func (s *Server) newAnswer(w http.ResponseWriter, id, object, model string, created int) *answer {
	a := &answer{w: w, buffer: buffers.Get().(*buffer), id: id, object: object, model: model, created: created}
	a.b = a.b[:0]
	return a
}

// release gives the buffer back.
func (a *answer) release() {
	if cap(a.b) <= mostKept {
		buffers.Put(a.buffer)
	}
	a.buffer = nil
}

// envelope is what all answers and events begin with.
func (a *answer) envelope(b []byte) []byte {
	b = appendString(append(b, `{"id":`...), a.id)
	b = appendString(append(b, `,"object":`...), a.object)
	b = appendInt(append(b, `,"created":`...), a.created)
	return appendString(append(b, `,"model":`...), a.model)
}

var (
	typeEvents      = []string{"text/event-stream"}
	typeNamedEvents = []string{"text/event-stream; charset=utf-8"}
	noCache         = []string{"no-cache"}
)

// stream sends the head of a stream.
func (a *answer) stream() {
	h := a.w.Header()
	if a.named { // an endpoint of the Python frontend alone
		h["Content-Type"] = typeNamedEvents
	} else {
		h["Content-Type"], h["Cache-Control"] = typeEvents, noCache
	}
	a.flusher = http.NewResponseController(a.w)
	a.head = append(a.envelope(append(a.head[:0], "data: "...)), `,"choices":[`...)
}

// event begins an event of one choice: what follows is the rest of the choice.
func (a *answer) event(index int) {
	a.b = append(append(a.b, a.head...), `{"index":`...)
	a.b = appendInt(a.b, index)
}

// close ends an event. usage is nil without one.
func (a *answer) close(u *usage) {
	a.b = append(a.b, "}]"...)
	a.end(u)
}

func (a *answer) end(u *usage) {
	if u != nil {
		a.b = u.append(append(a.b, `,"usage":`...))
	}
	a.b = append(a.b, "}\n\n"...)
}

// lastUsage is the event that has only the usage.
func (a *answer) lastUsage(u usage) {
	a.b = append(append(a.b, a.head...), ']')
	a.end(&u)
}

func (a *answer) done() {
	if !a.named {
		a.b = append(a.b, "data: [DONE]\n\n"...)
	}
}

// fail ends a stream with an error.
func (a *answer) fail(err *apiError) {
	if a.failed != nil {
		a.failed(err)
		return
	}
	if a.named {
		a.b = append(err.appendNamed(append(a.b, "event: error\ndata: "...)), "\n\n"...)
		return
	}
	a.b = append(err.append(append(a.b, "data: "...)), "\n\n"...)
}

// flush writes all events that there are.
func (a *answer) flush() error {
	if len(a.b) == 0 {
		return nil
	}
	a.sent = true
	if _, err := a.w.Write(a.b); err != nil {
		return err
	}
	a.b = a.b[:0]
	return a.flusher.Flush()
}

// usage counts tokens. cached is -1 where it is not said.
type usage struct{ prompt, completion, cached, reasoning, images int }

func (u *usage) append(b []byte) []byte {
	b = appendInt(append(b, `{"prompt_tokens":`...), u.prompt)
	b = appendInt(append(b, `,"total_tokens":`...), u.prompt+u.completion)
	b = appendInt(append(b, `,"completion_tokens":`...), u.completion)
	if u.cached < 0 {
		b = append(b, `,"prompt_tokens_details":null`...)
	} else {
		b = appendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), u.cached)
		if u.images > 0 {
			b = append(appendInt(append(b, `,"multimodal_tokens":{"image":`...), u.images), '}')
		}
		b = append(b, '}')
	}
	b = append(b, `,"completion_tokens_details":{"reasoning_tokens":`...)
	return append(appendInt(b, u.reasoning), "}}"...)
}

func (g *generation) usage() usage {
	prompt, completion, cached := g.counts()
	if !g.server.opt.Flags.PromptDetails {
		cached = -1
	}
	u := usage{prompt: prompt, completion: completion, cached: cached}
	for _, item := range g.params.media {
		u.images += item.length
	}
	return u
}

// soFar is the usage of one answer up to now.
func (q *sequence) soFar() usage {
	return usage{prompt: len(q.prompt), completion: q.count, cached: -1}
}

func (r stopReason) append(b []byte) []byte {
	switch r.kind {
	case 1:
		return appendString(b, r.text)
	case 2:
		return strconv.AppendInt(b, r.token, 10)
	}
	return append(b, "null"...)
}

// finishReason is how an answer ended, as OpenAI names it.
func finishReason(f protocol.FinishReason) string {
	if f == protocol.Unfinished || f == protocol.FinishError {
		return "error"
	}
	return finishReasons[f]
}

// appendTransfer writes msgpack as JSON.
func appendTransfer(b, raw []byte) []byte {
	if raw == nil {
		return append(b, "null"...)
	}
	cur := pack.NewCursor(raw)
	return appendPacked(b, &cur)
}

func appendPacked(b []byte, cur *pack.Cursor) []byte {
	switch kind := cur.Kind(); kind {
	case pack.Bool:
		v, _ := cur.Bool()
		return strconv.AppendBool(b, v)
	case pack.Int:
		v, _ := cur.Int()
		return strconv.AppendInt(b, v, 10)
	case pack.Float:
		v, _ := cur.Float()
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case pack.String:
		v, _ := cur.StrString()
		return appendString(b, v)
	case pack.Array, pack.Map:
		brackets, size := "[]", cur.ArrayLen
		if kind == pack.Map {
			brackets, size = "{}", cur.MapLen
		}
		n, _ := size()
		b = append(b, brackets[0])
		for i := range n {
			b = comma(b, i)
			if kind == pack.Map {
				key, _ := cur.StrString()
				b = append(appendString(b, key), ':')
			}
			b = appendPacked(b, cur)
		}
		return append(b, brackets[1])
	}
	_ = cur.Skip()
	return append(b, "null"...)
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
	a.done()
	_, _ = a.w.Write(a.b) // with the end of the answer; the client may be gone
}
