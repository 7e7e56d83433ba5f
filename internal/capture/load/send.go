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
