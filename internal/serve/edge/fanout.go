package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxParts bounds the requests that are made of one.
const maxParts = 1024

// A part is one of the requests that the edge makes of one for several answers.
type part struct {
	body   []byte
	sample int // of the prompt
}

// mayFanOut reports whether a request may be for several answers, as far as can be seen without decoding it.
func mayFanOut(path string, body []byte) bool {
	switch path {
	case "/v1/chat/completions":
		return bytes.Contains(body, []byte(`"n"`))
	case "/v1/completions":
		return bytes.Contains(body, []byte(`"n"`)) || mayHavePrompts(body)
	}
	return false
}

// mayHavePrompts reports whether the prompt may be an array.
func mayHavePrompts(body []byte) bool {
	found := false
	for {
		_, rest, has := bytes.Cut(body, []byte(`"prompt"`))
		if !has {
			return !found // its name may be written in another way
		}
		found, body = true, rest
		if value := bytes.TrimLeft(rest, ": \t\r\n"); len(value) > 0 && value[0] == '[' {
			return true
		}
	}
}

// parts returns the requests that are made of one, nil if it goes to the frontend as it is. That says what is wrong with a
// request, so a strange one goes there, too.
func (e *Edge) parts(r *http.Request, x *exchange) []part {
	if !e.opt.FanOut || r.Method != http.MethodPost || x.body == nil || !mayFanOut(r.URL.Path, x.body) {
		return nil
	}
	n := 1
	if x.asked.N != nil {
		n = *x.asked.N
	}
	var prompts []json.RawMessage
	if r.URL.Path == "/v1/completions" {
		prompts = severalPrompts(x.asked.Prompt)
	}
	if n < 1 || n == 1 && prompts == nil || n > maxParts || n*max(len(prompts), 1) > maxParts {
		return nil
	}
	var whole map[string]json.RawMessage
	if best := string(x.asked.BestOf); json.Unmarshal(x.body, &whole) != nil || best != "" && best != "null" && best != strconv.Itoa(n) {
		return nil
	}
	delete(whole, "n")
	delete(whole, "best_of")
	var all []part
	for i := range max(len(prompts), 1) {
		if prompts != nil {
			whole["prompt"] = prompts[i]
		}
		for sample := range n {
			if x.asked.Seed != nil { // as in vLLM: or all samples would be the same
				whole["seed"] = json.RawMessage(strconv.FormatInt(*x.asked.Seed+int64(sample), 10))
			}
			body, err := json.Marshal(whole)
			if err != nil {
				return nil
			}
			all = append(all, part{body, sample})
		}
	}
	return all
}

// severalPrompts returns the prompts of an array of texts or of lists of tokens, nil if it is something else: a list of tokens is
// one prompt.
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

// fanOut sends the parts of a request and returns their answers as one.
func (e *Edge) fanOut(r *http.Request, x *exchange, parts []part) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	answers, err := e.sendParts(r.WithContext(ctx), x, parts)
	if err != nil {
		cancel()
		return nil, err
	}
	// Of several refusals the first one is the answer.
	for _, a := range answers {
		if a.StatusCode == http.StatusOK {
			continue
		}
		body, err := readPart(a)
		cancel()
		return whole(a, body), err
	}
	if x.asked.Stream && strings.HasPrefix(answers[0].Header.Get("Content-Type"), "text/event-stream") {
		return e.mergeStreams(r.Context(), cancel, answers, parts), nil
	}
	defer cancel()
	merged, err := mergeAnswers(answers, parts)
	if err != nil {
		return nil, err
	}
	return whole(answers[0], merged), nil
}

// sendParts returns when all parts are answered, or one of them failed.
func (e *Edge) sendParts(r *http.Request, x *exchange, parts []part) ([]*http.Response, error) {
	answers, errs := make([]*http.Response, len(parts)), make([]error, len(parts))
	var sending sync.WaitGroup
	for i := range parts {
		sending.Go(func() {
			one := *x
			one.body = parts[i].body
			if i > 0 {
				one.id += "-" + strconv.Itoa(i)
			}
			answers[i], errs[i] = e.send(r, &one)
		})
	}
	sending.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, a := range answers {
			if a != nil {
				a.Body.Close()
			}
		}
		return nil, errs[slices.IndexFunc(errs, func(err error) bool { return err != nil })]
	}
	return answers, nil
}

// readPart reads the body of an answer that is no stream.
func readPart(a *http.Response) ([]byte, error) {
	defer a.Body.Close()
	body, err := io.ReadAll(io.LimitReader(a.Body, maxEvent+1))
	if err == nil && len(body) > maxEvent {
		err = fmt.Errorf("an answer of the frontend has more than %d bytes", maxEvent)
	}
	return body, err
}

// whole is an answer with another body.
func whole(a *http.Response, body []byte) *http.Response {
	merged := *a
	merged.Body, merged.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	merged.Header = a.Header.Clone()
	merged.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return &merged
}

func mergeAnswers(answers []*http.Response, parts []part) ([]byte, error) {
	var merged object
	var choices []json.RawMessage
	var total usage
	for i, a := range answers {
		body, err := readPart(a)
		if err != nil {
			return nil, err
		}
		one, err := parseObject(body)
		if err != nil {
			return nil, fmt.Errorf("the frontend answered with something else than JSON: %w", err)
		}
		own, err := numbered(one.get("choices"), i)
		if err != nil {
			return nil, err
		}
		choices = append(choices, own...)
		if err := total.add(one.get("usage"), parts[i]); err != nil {
			return nil, err
		}
		if i == 0 {
			merged = one
		}
	}
	merged.set("choices", array(choices))
	if total.first != nil {
		merged.set("usage", total.json())
	}
	return merged.json(), nil
}

// numbered is a list of choices with the index that they have in the whole.
func numbered(raw json.RawMessage, index int) ([]json.RawMessage, error) {
	var choices []json.RawMessage
	if err := json.Unmarshal(raw, &choices); err != nil {
		return nil, fmt.Errorf("choices of the frontend: %w", err)
	}
	for i, raw := range choices {
		choice, err := parseObject(raw)
		if err != nil {
			return nil, fmt.Errorf("choice of the frontend: %w", err)
		}
		choice.set("index", json.RawMessage(strconv.Itoa(index)))
		choices[i] = choice.json()
	}
	return choices, nil
}

// A usage adds up what parts have used. A prompt counts once, however many answers it has.
type usage struct {
	first                      object
	prompt, completion         int64
	promptDetail, outputDetail map[string]int64
}

func (u *usage) add(raw json.RawMessage, p part) error {
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
	if u.first == nil {
		var err error
		if u.first, err = parseObject(raw); err != nil {
			return err
		}
	}
	u.completion += one.Completion
	addNumbers(&u.outputDetail, one.OutputDetail)
	if p.sample == 0 {
		u.prompt += one.Prompt
		addNumbers(&u.promptDetail, one.PromptDetail)
	}
	return nil
}

func addNumbers(to *map[string]int64, from map[string]any) {
	for name, value := range from {
		if n, ok := value.(float64); ok {
			if *to == nil {
				*to = make(map[string]int64)
			}
			(*to)[name] += int64(n)
		}
	}
}

func (u *usage) json() json.RawMessage {
	for name, n := range map[string]int64{"prompt_tokens": u.prompt, "completion_tokens": u.completion, "total_tokens": u.prompt + u.completion} {
		u.first.set(name, json.RawMessage(strconv.FormatInt(n, 10)))
	}
	for name, detail := range map[string]map[string]int64{"prompt_tokens_details": u.promptDetail, "completion_tokens_details": u.outputDetail} {
		if detail != nil {
			text, _ := json.Marshal(detail) // names and numbers
			u.first.set(name, text)
		}
	}
	return u.first.json()
}

// A merger makes one stream of several.
type merger struct {
	out    *io.PipeWriter
	cancel context.CancelFunc

	known   chan struct{} // closed when head is known
	once    sync.Once
	id, at  json.RawMessage // of all events
	mu      sync.Mutex
	total   usage
	last    object // the event that has the usage
	failure error
}

// mergeStreams returns a stream of the events of all parts as they come, with the id of the first.
func (e *Edge) mergeStreams(ctx context.Context, cancel context.CancelFunc, answers []*http.Response, parts []part) *http.Response {
	in, out := io.Pipe()
	m := &merger{out: out, cancel: cancel, known: make(chan struct{})}
	context.AfterFunc(ctx, func() { in.CloseWithError(context.Cause(ctx)) }) // the client is gone
	go func() {
		defer cancel()
		var reading sync.WaitGroup
		for i, a := range answers {
			reading.Go(func() {
				defer a.Body.Close()
				if err := m.forward(a, i, parts[i]); err != nil && !errors.Is(err, errStreamFailed) {
					m.fail(err)
				}
				if i == 0 {
					m.once.Do(func() { close(m.known) })
				}
			})
		}
		reading.Wait()
		m.finish()
	}()
	merged := *answers[0]
	merged.ContentLength, merged.Header = -1, answers[0].Header.Clone()
	merged.Body = &merging{in, cancel}
	return &merged
}

// merging ends the parts with their whole.
type merging struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (m *merging) Close() error {
	m.cancel()
	return m.PipeReader.Close()
}

var errStreamFailed = errors.New("a part of the stream has failed")

func (m *merger) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		m.failure = err
	}
	m.cancel()
}

// forward sends the events of a part on.
func (m *merger) forward(a *http.Response, index int, p part) error {
	events := bufio.NewReaderSize(a.Body, 4<<10)
	for {
		event, err := readEvent(events)
		if err != nil && len(event) == 0 {
			return ignoreEOF(err)
		}
		data, ok := bytes.CutPrefix(bytes.TrimSpace(event), []byte("data:"))
		if data = bytes.TrimSpace(data); !ok || string(data) == "[DONE]" {
			continue
		}
		chunk, err := parseObject(data)
		if err != nil {
			return fmt.Errorf("event of the frontend: %w", err)
		}
		if index == 0 {
			m.once.Do(func() {
				m.id, m.at = chunk.get("id"), chunk.get("created")
				close(m.known)
			})
		}
		<-m.known
		if err := m.emit(chunk, index, p); err != nil {
			return err
		}
	}
}

// emit sends one event on. Nothing comes after the event of an error.
func (m *merger) emit(chunk object, index int, p part) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return errStreamFailed
	}
	if chunk.get("error") != nil {
		m.failure = errStreamFailed
		_, _ = fmt.Fprintf(m.out, "data: %s\n\n", chunk.json())
		m.cancel()
		return errStreamFailed
	}
	for name, value := range map[string]json.RawMessage{"id": m.id, "created": m.at} {
		if value != nil && chunk.get(name) != nil {
			chunk.set(name, value)
		}
	}
	choices, err := numbered(chunk.get("choices"), index)
	if err != nil {
		return err
	}
	if len(choices) == 0 && chunk.get("usage") != nil {
		m.last = chunk
		return m.total.add(chunk.get("usage"), p)
	}
	chunk.set("choices", array(choices))
	_, err = fmt.Fprintf(m.out, "data: %s\n\n", chunk.json())
	return err
}

// finish ends the whole stream. It is cut if a part was.
func (m *merger) finish() {
	if m.failure != nil && !errors.Is(m.failure, errStreamFailed) {
		m.out.CloseWithError(m.failure)
		return
	}
	if m.last != nil && m.failure == nil {
		m.last.set("usage", m.total.json())
		_, _ = fmt.Fprintf(m.out, "data: %s\n\n", m.last.json())
	}
	_, _ = io.WriteString(m.out, "data: [DONE]\n\n")
	m.out.Close()
}

// An object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value json.RawMessage
}

func parseObject(raw []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %.40q", raw)
	}
	o := object{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: name.(string)}
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		o = append(o, m)
	}
	_, err := dec.Token()
	return o, err
}

// get is the value of a member, nil without it.
func (o object) get(name string) json.RawMessage {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func (o *object) set(name string, value json.RawMessage) {
	for i := range *o {
		if (*o)[i].name == name {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{name, value})
}

func (o object) json() json.RawMessage {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(m.name) // a string
		b = append(append(append(b, name...), ':'), m.value...)
	}
	return append(b, '}')
}

func array(values []json.RawMessage) json.RawMessage {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}
