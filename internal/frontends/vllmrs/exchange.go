package vllmrs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Answer is what came back over HTTP, whatever its status.
type Answer struct {
	Status int
	// Type is the Content-Type, with its parameters.
	Type string
	// Body is all of it, at most 64 MiB.
	Body []byte
}

// Ask sends a request, with body as JSON unless it is nil and as it stands if it is
// a [json.RawMessage], and reads the whole answer, also of a stream. The end of ctx
// ends it: the frontend then sees its client go.
func (c *Client) Ask(ctx context.Context, method, path string, body any) (Answer, error) {
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return Answer{}, because(ctx, err)
	}
	defer response.Body.Close()
	a := Answer{Status: response.StatusCode, Type: response.Header.Get("Content-Type")}
	if a.Body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1)); err == nil && len(a.Body) > maxAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return a, because(ctx, fmt.Errorf("read the answer to %s %s: %w", method, c.url+path, err))
	}
	return a, nil
}

// A Stream is an answer of server-sent events that is read as it comes.
type Stream struct {
	body   io.Closer
	events *events
}

// Open sends a request like [Client.Ask] and returns at the head of its answer. An
// answer with another status than 200 is a [*StatusError]. The caller closes the
// stream; the end of ctx ends it, too.
func (c *Client) Open(ctx context.Context, path string, body any) (*Stream, error) {
	answer, err := c.do(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, because(ctx, err)
	}
	return &Stream{body: answer, events: newEvents(answer)}, nil
}

// Next returns the data of the next event, valid until the next call, or io.EOF.
func (s *Stream) Next() ([]byte, error) { return s.events.next() }

// Close hangs up, however much is still to come.
func (s *Stream) Close() error { return s.body.Close() }

// send sends a request and returns at the head of its answer.
func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := encode(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return c.http.Do(request)
}

// encode leaves raw text alone, so that what is no JSON can be sent as well.
func encode(body any) ([]byte, error) {
	if raw, ok := body.(json.RawMessage); ok {
		return raw, nil
	}
	return json.Marshal(body)
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }
