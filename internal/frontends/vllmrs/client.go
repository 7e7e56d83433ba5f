package vllmrs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Client is the client of the OpenAI HTTP side of a vLLM frontend, wherever it came from. It is safe for use by several
// goroutines and keeps as many connections as there are requests at a time.
type Client struct {
	url, model string
	http       *http.Client
}

const (
	idleConnections = 1024
	// The frontend closes idle connections after 5 seconds. A request that is sent at that moment is lost, and must not
	// be sent twice, as it may have reached the engine: so the connections are closed on this side, well before.
	idleTimeout = 2 * time.Second
	// Bounds of what is read: of one answer or event, and of what an error quotes.
	maxAnswer = 64 << 20
	maxQuote  = 2 << 10
	// How long the end of the frontend may take to be known after a connection to it broke.
	exitDelay = time.Second
)

// NewClient returns the client of the frontend at url, "http://HOST:PORT", that serves model.
func NewClient(url, model string) *Client {
	transport := &http.Transport{ // no Proxy: nothing may stand between
		MaxIdleConns: idleConnections, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout,
		DisableCompression: true,
	}
	return &Client{url: strings.TrimSuffix(url, "/"), model: model, http: &http.Client{Transport: transport}}
}

// StatusError is an answer that says no: an HTTP status other than 200, or an error after a stream had begun.
type StatusError struct {
	Method, URL string
	// Status is the HTTP status code. In a stream, whose code was 200, it is the code in the error object, else 0.
	Status int
	// Body is the head of the body or of the error event, at most 2 KiB.
	Body string
	// Streaming is set for an error after a stream had begun.
	Streaming bool
}

func (e *StatusError) Error() string {
	if e.Streaming {
		return fmt.Sprintf("%s %s: the stream failed: %s", e.Method, e.URL, e.Body)
	}
	body := e.Body
	if body == "" {
		body = "(no body)"
	}
	return fmt.Sprintf("%s %s: status %d %s: %s", e.Method, e.URL, e.Status, http.StatusText(e.Status), body)
}

// Health asks GET /health once and returns nil for status 200.
func (c *Client) Health(ctx context.Context) error {
	body, err := c.do(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return because(ctx, err)
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
	return because(ctx, err)
}

// because puts the cause of ctx's end in front of an error that came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// do sends a request, with body as JSON unless it is nil, and returns the body of an answer with status 200.
func (c *Client) do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	head, err := io.ReadAll(io.LimitReader(response.Body, maxQuote))
	if err != nil && len(head) == 0 {
		head = fmt.Appendf(nil, "(the body broke off: %v)", err)
	}
	return nil, &StatusError{Method: method, URL: c.url + path, Status: response.StatusCode, Body: string(bytes.TrimSpace(head))}
}
