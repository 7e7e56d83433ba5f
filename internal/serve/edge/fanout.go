package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Limits of the requests that are made of one.
const (
	maxParts      = 1024
	maxPartsBytes = 128 << 20 // of all their bodies
	partsAtOnce   = 128
)

// A split is a request for several answers: the bodies of its parts are what all have in common, and a member or two.
type split struct {
	common  []byte            // a JSON object without its last brace
	prompts []json.RawMessage // one for each part, or nil where it is in common
	n       int               // answers to each prompt
	seed    *int64
	stream  bool
}

func (s *split) parts() int { return s.n * max(len(s.prompts), 1) }

// body returns the body of a part and its size. Nothing is copied.
func (s *split) body(part int) (io.Reader, int64) {
	pieces := [][]byte{s.common}
	if s.prompts != nil {
		pieces = append(pieces, []byte(`,"prompt":`), s.prompts[part/s.n])
	}
	if s.seed != nil { // as in vLLM: or all answers would be the same
		pieces = append(pieces, strconv.AppendInt([]byte(`,"seed":`), *s.seed+int64(part%s.n), 10))
	}
	pieces = append(pieces, []byte("}"))
	var readers []io.Reader
	size := 0
	for _, p := range pieces {
		readers, size = append(readers, bytes.NewReader(p)), size+len(p)
	}
	return io.MultiReader(readers...), int64(size)
}

// splitRequest returns nil for a request that goes to the frontend as it is. That says what is wrong with a request, so
// a strange one goes there, too.
func splitRequest(r *http.Request, x *exchange) (*split, error) {
	completion := r.URL.Path == "/v1/completions"
	if r.Method != http.MethodPost || x.body == nil || !completion && (r.URL.Path != "/v1/chat/completions" || !bytes.Contains(x.body, []byte(`"n"`))) {
		return nil, nil
	}
	members := maps.Clone(x.ask().members)
	s := &split{n: 1, stream: x.asked.stream}
	if n := members["n"]; n != nil && (json.Unmarshal(n, &s.n) != nil || s.n < 1) {
		return nil, nil
	}
	if completion {
		s.prompts = severalPrompts(members["prompt"])
	}
	if s.n == 1 && s.prompts == nil || s.n > maxParts || len(s.prompts) > maxParts/s.n {
		return nil, nil
	}
	if best := string(members["best_of"]); best != "" && best != "null" && best != strconv.Itoa(s.n) {
		return nil, nil
	}
	if seed := members["seed"]; seed != nil {
		if json.Unmarshal(seed, &s.seed) != nil {
			return nil, nil
		}
		delete(members, "seed")
	}
	delete(members, "n")
	delete(members, "best_of")
	if s.prompts != nil {
		delete(members, "prompt")
	}
	size := 0
	for name, value := range members {
		size += len(name) + len(value)
	}
	if size > maxPartsBytes/s.parts() {
		return nil, fmt.Errorf("the request is for %d answers, each of which is a request of its own to the frontend: all of them would have more than %d MiB", s.parts(), maxPartsBytes>>20)
	}
	var err error
	if s.common, err = json.Marshal(members); err != nil {
		return nil, err
	}
	if s.common = s.common[:len(s.common)-1]; len(members) == 0 {
		s.common = append(s.common, `"model":null`...)
	}
	return s, nil
}

// severalPrompts returns the prompts of an array of texts or of lists of tokens, nil if it is something else: a list of
// tokens is one prompt.
func severalPrompts(raw json.RawMessage) []json.RawMessage {
	var all []json.RawMessage
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &all) != nil {
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	for _, p := range all {
		if p[0] != '"' && p[0] != '[' {
			return nil
		}
	}
	return all
}

// fanOut sends a request for several answers as several requests, and merges their answers.
func (e *Edge) fanOut(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r)
		s, err := splitRequest(r, x)
		if s == nil || err != nil {
			if err != nil {
				apiError{status: http.StatusBadRequest, message: err.Error()}.write(w)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		m := &merger{w: w, ctx: ctx, split: s, heads: make(chan *part), events: make(chan event)}
		sending := m.send(next, r.WithContext(ctx), x.id)
		if s.stream {
			err = m.stream()
		} else {
			err = m.whole()
		}
		cancel()
		sending.Wait()
		if err != nil {
			e.log.Debug("an answer was cut", "id", x.id, "error", err)
			panic(http.ErrAbortHandler) // the client has to notice that the answer is not whole
		}
	})
}

// A merger makes one answer of those of all parts. Parts write in goroutines of their own; the merger alone writes to
// the client.
type merger struct {
	w     http.ResponseWriter
	ctx   context.Context // ends the parts
	split *split
	// heads gets each part once: when the stream begins, or at the end of another answer. events gets what streams
	// have.
	heads  chan *part
	events chan event

	id, at json.RawMessage // of all events
	total  usage
	last   object // the event that has the usage
}

// An event of a stream is one of a part, or the end of its stream.
type event struct {
	part *part
	text []byte // nil at the end
}

// A part writes the answer to one of the requests. It keeps an answer that is not a stream.
type part struct {
	capture
	m       *merger
	index   int
	streams bool
	rest    []byte // of a stream: the beginning of an event
	err     error  // the answer is not whole
}

// deliver sends to a channel until the parts are ended.
func deliver[T any](ctx context.Context, to chan T, value T) error {
	select {
	case to <- value:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *part) WriteHeader(status int) {
	if p.status != 0 || status < http.StatusOK {
		return
	}
	p.status = status
	p.streams = p.m.split.stream && status == http.StatusOK && strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream")
	if p.streams {
		_ = deliver(p.m.ctx, p.m.heads, p) // an end is noticed at the first event
	}
}

func (p *part) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	if !p.streams {
		return p.capture.Write(b)
	}
	seen := len(p.rest)
	if p.rest = append(p.rest, b...); len(p.rest) > maxAnswer {
		return 0, errTooLong
	}
	for {
		text, _ := cutEvent(p.rest, seen)
		if text == nil {
			return len(b), nil
		}
		if err := deliver(p.m.ctx, p.m.events, event{p, bytes.Clone(text)}); err != nil {
			return 0, err
		}
		p.rest, seen = p.rest[len(text):], 0
	}
}

// serve lets the frontend answer.
func (p *part) serve(next http.Handler, r *http.Request) {
	defer func() {
		if gone := recover(); gone != nil {
			if p.err = errors.New("the frontend has cut an answer"); gone != http.ErrAbortHandler {
				p.err = fmt.Errorf("the frontend failed: %v", gone)
			}
		}
		if p.streams {
			_ = deliver(p.m.ctx, p.m.events, event{part: p})
		} else {
			p.WriteHeader(http.StatusOK)
			_ = deliver(p.m.ctx, p.m.heads, p)
		}
	}()
	next.ServeHTTP(p, r)
	if p.over {
		p.err = errTooLong
	}
}

// send sends the parts, a number of them at once.
func (m *merger) send(next http.Handler, r *http.Request, id string) *sync.WaitGroup {
	var sending sync.WaitGroup
	var begun atomic.Int64
	parts := m.split.parts()
	for range min(parts, partsAtOnce) {
		sending.Go(func() {
			for i := int(begun.Add(1)) - 1; i < parts && m.ctx.Err() == nil; i = int(begun.Add(1)) - 1 {
				own := r.Clone(m.ctx)
				if i > 0 {
					own.Header[headerRequestID] = []string{id + "-" + strconv.Itoa(i)}
				}
				own.GetBody = func() (io.ReadCloser, error) {
					body, size := m.split.body(i)
					own.ContentLength = size
					return io.NopCloser(body), nil
				}
				own.Body, _ = own.GetBody()
				(&part{capture: capture{header: http.Header{}}, m: m, index: i}).serve(next, own)
			}
		})
	}
	return &sending
}

// whole writes an answer that is not a stream. Of several refusals the first one is the answer.
func (m *merger) whole() error {
	parts := make([]*part, m.split.parts())
	size := 0
	for range parts {
		select {
		case p := <-m.heads:
			if p.err != nil {
				return p.err
			}
			if p.status != http.StatusOK {
				m.answer(p, p.body.Bytes())
				return nil
			}
			if size += p.body.Len(); size > maxAnswer {
				return errTooLong
			}
			parts[p.index] = p
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
	}
	var choices []object
	var merged object
	for i, p := range parts {
		var one object
		if err := json.Unmarshal(p.body.Bytes(), &one); err != nil || one == nil {
			return fmt.Errorf("the frontend answered with something else than a JSON object: %.80q", p.body.Bytes())
		}
		own, err := number(one, i)
		if err != nil {
			return err
		}
		choices = append(choices, own...)
		if err := m.total.add(one["usage"], i%m.split.n); err != nil {
			return err
		}
		if i == 0 {
			merged = one
		}
	}
	merged["choices"] = marshal(choices)
	if m.total.whole != nil {
		merged["usage"] = m.total.json()
	}
	m.answer(parts[0], marshal(merged))
	return nil
}

// answer writes an answer with the head of a part.
func (m *merger) answer(p *part, body []byte) {
	maps.Copy(m.w.Header(), p.header)
	m.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	m.w.WriteHeader(p.status)
	_, _ = m.w.Write(body) // the client may be gone
}

// stream writes the events of all parts as they come, with one id, one usage and one end. Parts that are refused while
// others are sent make a refusal; a later one ends the stream with an error.
func (m *merger) stream() error {
	parts, begun := m.split.parts(), 0
	for ended := 0; ended < parts; {
		select {
		case p := <-m.heads:
			switch begun++; {
			case p.err != nil:
				return p.err
			case !p.streams && begun <= partsAtOnce:
				m.answer(p, p.body.Bytes())
				return nil
			case !p.streams:
				return m.write(bytes.TrimSpace(p.body.Bytes()), []byte("[DONE]"))
			case begun == min(parts, partsAtOnce):
				maps.Copy(m.w.Header(), p.header)
				m.w.WriteHeader(http.StatusOK)
				if err := http.NewResponseController(m.w).Flush(); err != nil {
					return err
				}
			}
		case ev := <-m.begunEvents(begun):
			if ev.text != nil {
				if failed, err := m.event(ev); failed || err != nil {
					return err
				}
			} else if ended++; ev.part.err != nil {
				return ev.part.err
			}
		case <-m.ctx.Done():
			return context.Cause(m.ctx)
		}
	}
	if m.last != nil {
		m.last["usage"] = m.total.json()
		return m.write(marshal(m.last), []byte("[DONE]"))
	}
	return m.write([]byte("[DONE]"))
}

// begunEvents is nil, and so keeps events waiting, until so many parts have begun that the head is written.
func (m *merger) begunEvents(begun int) chan event {
	if begun < min(m.split.parts(), partsAtOnce) {
		return nil
	}
	return m.events
}

func (m *merger) write(events ...[]byte) error {
	for _, text := range events {
		if _, err := fmt.Fprintf(m.w, "data: %s\n\n", text); err != nil {
			return err
		}
	}
	return http.NewResponseController(m.w).Flush()
}

// event writes one event. Nothing but the end comes after one with an error.
func (m *merger) event(ev event) (failed bool, err error) {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(ev.text), []byte("data:"))
	if data = bytes.TrimSpace(data); !ok || string(data) == "[DONE]" {
		return false, nil
	}
	var chunk object
	if err := json.Unmarshal(data, &chunk); err != nil || chunk == nil {
		return false, fmt.Errorf("the frontend sent an event that is not a JSON object: %.80q", data)
	}
	if chunk["error"] != nil {
		return true, m.write(data, []byte("[DONE]"))
	}
	if m.id == nil {
		// The frontend makes the id of that of the request, which ends with the number of the part.
		m.id = bytes.Replace(chunk["id"], []byte("-"+strconv.Itoa(ev.part.index)+`"`), []byte(`"`), min(ev.part.index, 1))
		m.at = chunk["created"]
	}
	for name, value := range map[string]json.RawMessage{"id": m.id, "created": m.at} {
		if value != nil && chunk[name] != nil {
			chunk[name] = value
		}
	}
	choices, err := number(chunk, ev.part.index)
	if err != nil {
		return false, err
	}
	if len(choices) == 0 && chunk["usage"] != nil {
		m.last = chunk
		return false, m.total.add(chunk["usage"], ev.part.index%m.split.n)
	}
	chunk["choices"] = marshal(choices)
	return false, m.write(marshal(chunk))
}

// An object is a JSON object.
type object = map[string]json.RawMessage

// number gives the choices of an answer, or of an event, the index that they have in the whole.
func number(answer object, index int) (choices []object, err error) {
	if err := json.Unmarshal(answer["choices"], &choices); err != nil {
		return nil, fmt.Errorf("choices of the frontend: %w", err)
	}
	for _, c := range choices {
		if c == nil {
			return nil, errors.New("choices of the frontend: want objects")
		}
		c["index"] = strconv.AppendInt(nil, int64(index), 10)
	}
	return choices, nil
}

// marshal encodes what was decoded before.
func marshal(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // it is a part of valid JSON
	}
	return text
}

// A usage adds up what parts have used. A prompt counts once, however many answers it has.
type usage struct {
	whole                      object // nil without any
	prompt, completion         int64
	promptDetail, outputDetail map[string]int64
}

func (u *usage) add(raw json.RawMessage, sample int) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var one struct {
		Prompt       int64          `json:"prompt_tokens"`
		Completion   int64          `json:"completion_tokens"`
		PromptDetail map[string]any `json:"prompt_tokens_details"`
		OutputDetail map[string]any `json:"completion_tokens_details"`
	}
	if err := json.Unmarshal(raw, &one); err != nil {
		return fmt.Errorf("usage of the frontend: %w", err)
	}
	if u.whole == nil {
		_ = json.Unmarshal(raw, &u.whole) // as above
	}
	u.completion += one.Completion
	u.outputDetail = addNumbers(u.outputDetail, one.OutputDetail)
	if sample == 0 {
		u.prompt += one.Prompt
		u.promptDetail = addNumbers(u.promptDetail, one.PromptDetail)
	}
	return nil
}

func addNumbers(to map[string]int64, from map[string]any) map[string]int64 {
	for name, value := range from {
		if n, ok := value.(float64); ok {
			if to == nil {
				to = make(map[string]int64)
			}
			to[name] += int64(n)
		}
	}
	return to
}

func (u *usage) json() json.RawMessage {
	for name, n := range map[string]int64{"prompt_tokens": u.prompt, "completion_tokens": u.completion, "total_tokens": u.prompt + u.completion} {
		u.whole[name] = strconv.AppendInt(nil, n, 10)
	}
	for name, detail := range map[string]map[string]int64{"prompt_tokens_details": u.promptDetail, "completion_tokens_details": u.outputDetail} {
		if detail != nil {
			u.whole[name] = marshal(detail)
		}
	}
	return marshal(u.whole)
}
