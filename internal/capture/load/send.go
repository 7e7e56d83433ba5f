package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// client is the part of an HTTP transport that is used: no redirects, no cookies.
type client interface {
	RoundTrip(*http.Request) (*http.Response, error)
	CloseIdleConnections()
}

// refusal is an answer with a status 4xx, or a stream that ended with such a code.
type refusal struct {
	status int
	answer string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.answer) }

// send asks and reads the whole answer, or as much as the request wants of it.
func (l *load) send(ctx context.Context, r request) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("the server was silent for %v", l.cfg.Idle)
	watchdog := time.AfterFunc(l.cfg.Idle, func() { cancel(silent) })
	defer watchdog.Stop()

	got := &answer{wanted: r.answers}
	err := l.exchange(ctx, r, got, watchdog)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, silent) {
		err = fmt.Errorf("%w, after %d events", cause, got.events)
	}
	return got, err
}

func (l *load) exchange(ctx context.Context, r request, got *answer, watchdog *time.Timer) error {
	request, err := l.newRequest(ctx, r)
	if err != nil {
		return err
	}
	response, err := l.http.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got.status = response.StatusCode
	body := &watched{r: response.Body, watchdog: watchdog, idle: l.cfg.Idle}
	streamed := strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream")
	switch {
	case response.StatusCode/100 != 2:
		return refused(response.StatusCode, body)
	case r.answers == 0:
		_, err := io.Copy(io.Discard, body)
		return err
	case streamed != (r.body["stream"] == true):
		return fmt.Errorf("the answer is %q, stream: %v", response.Header.Get("Content-Type"), r.body["stream"] == true)
	case !streamed:
		return got.readWhole(body)
	}
	return got.readStream(body, r.hangUp)
}

func (l *load) newRequest(ctx context.Context, r request) (*http.Request, error) {
	request, err := l.bareRequest(ctx, r)
	if err == nil {
		request.Header.Set("X-Request-Id", r.id())
	}
	return request, err
}

func (l *load) bareRequest(ctx context.Context, r request) (*http.Request, error) {
	if r.body == nil {
		return http.NewRequestWithContext(ctx, r.method, l.cfg.URL+r.path, nil)
	}
	body := maps.Clone(r.body)
	body["model"] = l.cfg.Model
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, r.method, l.cfg.URL+r.path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return request, nil
}

// refused is the error of a status that is not 2xx.
func refused(status int, body io.Reader) error {
	head, err := io.ReadAll(io.LimitReader(body, openai.MaxQuote))
	if err != nil {
		return fmt.Errorf("status %d, and then: %w", status, err)
	}
	no := &refusal{status: status, answer: string(bytes.TrimSpace(head))}
	if status/100 != 4 {
		return errors.New(no.Error())
	}
	return no
}

// watched puts the watchdog off at each sign of life.
type watched struct {
	r        io.Reader
	watchdog *time.Timer
	idle     time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.watchdog.Reset(w.idle)
	}
	return n, err
}

// answer is what has come of a completion.
type answer struct {
	wanted int // choices
	text   strings.Builder
	events int // with text or an end
	tokens int // as the server counted them; of an answer that was not read to its end, the events
	ended  map[int]bool
	usage  bool

	status    int
	prompt    int       // tokens, as the server counted them
	finish    string    // of the last choice that ended
	first     time.Time // when the first event with text or an end came
	last      time.Time
	gaps      []float64 // ms between such events
	streaming bool
}

func (a *answer) readWhole(r io.Reader) error {
	text, err := openai.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if err := a.add(text); err != nil {
		return err
	}
	return a.complete()
}

// readStream reads server-sent events up to [DONE], or up to as many events with text as hangUp says.
func (a *answer) readStream(r io.Reader, hangUp int) error {
	a.streaming = true
	for events := openai.NewEvents(r); ; {
		data, err := events.Next()
		switch {
		case err != nil:
			return fmt.Errorf("the stream broke off before [DONE], after %d events: %w", a.events, err)
		case string(data) == openai.Done:
			events.Drain()
			return a.complete()
		}
		if err := a.add(data); err != nil {
			return err
		}
		if hangUp > 0 && a.events >= hangUp {
			a.tokens = a.events
			return nil
		}
	}
}

func (a *answer) add(text []byte) error {
	var p openai.Response
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("after %d events: %w: %s", a.events, err, openai.Quote(text))
	}
	if p.Failed() {
		if code := p.ErrorCode(); code/100 == 4 {
			return &refusal{status: code, answer: openai.Quote(p.Error)}
		}
		return fmt.Errorf("the server failed: %s", openai.Quote(p.Error))
	}
	for i := range p.Choices {
		if err := a.choose(&p.Choices[i]); err != nil {
			return fmt.Errorf("%w: %s", err, openai.Quote(text))
		}
	}
	if p.Usage != nil {
		a.tokens, a.prompt, a.usage = p.Usage.CompletionTokens, p.Usage.PromptTokens, true
	}
	return nil
}

func (a *answer) choose(c *openai.Choice) error {
	text := c.Content()
	if c.Index < 0 || c.Index >= a.wanted {
		return fmt.Errorf("choice %d of %d", c.Index, a.wanted)
	}
	if text != "" || c.FinishReason != nil {
		a.heard(time.Now())
	}
	a.text.WriteString(text)
	if c.FinishReason == nil {
		return nil
	}
	switch *c.FinishReason {
	case "stop", "length", "repetition":
	default:
		return fmt.Errorf("choice %d finished by %q, want stop or length", c.Index, *c.FinishReason)
	}
	a.finish = *c.FinishReason
	if a.ended[c.Index] {
		return fmt.Errorf("choice %d finished twice", c.Index)
	}
	if a.ended == nil {
		a.ended = map[int]bool{}
	}
	a.ended[c.Index] = true
	return nil
}

// heard counts an event with text or an end.
func (a *answer) heard(now time.Time) {
	if a.events++; a.events == 1 {
		a.first = now
	} else {
		a.gaps = append(a.gaps, ms(now.Sub(a.last)))
	}
	a.last = now
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// complete checks that nothing is missing.
func (a *answer) complete() error {
	switch {
	case len(a.ended) != a.wanted:
		return fmt.Errorf("%d of %d choices finished, after %d events", len(a.ended), a.wanted, a.events)
	case !a.usage:
		return fmt.Errorf("no usage in an answer of %d events", a.events)
	case a.tokens < a.wanted:
		return fmt.Errorf("%d tokens for %d choices", a.tokens, a.wanted)
	}
	return nil
}
