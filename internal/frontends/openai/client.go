package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Client sends requests to the OpenAI HTTP side of a frontend. It is safe for use by several goroutines and keeps as
// many connections as there are requests at a time.
type Client struct {
	url, model string
	http       *http.Client
}

const (
	// MaxAnswer bounds what is read of one answer, or of one event of a stream, in bytes.
	MaxAnswer = 64 << 20
	// MaxQuote bounds what an error quotes of an answer.
	MaxQuote = 2 << 10

	idleConnections = 4096
	// The frontend closes idle connections after 5 seconds. A request that is sent at that moment is lost, and must not
	// be sent twice, as it may have reached the engine: so the connections are closed on this side, well before.
	idleTimeout = 2 * time.Second
)

// freshConn is a connection that takes no new request when it was idle for longer than idleTimeout: what closes idle
// connections may be late, on a machine where others want the processors. A request of which nothing was written is
// sent again by package http, on another connection.
type freshConn struct {
	net.Conn
	read atomic.Pointer[time.Time] // when the last answer was read, nil after that
}

var errIdle = errors.New("the connection was idle for too long")

func (c *freshConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	now := time.Now()
	c.read.Store(&now)
	return n, err
}

func (c *freshConn) Write(p []byte) (int, error) {
	if read := c.read.Load(); read != nil && time.Since(*read) > idleTimeout {
		return 0, errIdle
	}
	c.read.Store(nil)
	return c.Conn.Write(p)
}

// NewTransport returns the connections to a frontend: direct ones, whatever proxy the environment names.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &freshConn{Conn: conn}, nil
		},
		MaxIdleConns: idleConnections, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: idleTimeout,
		DisableCompression: true,
	}
}

// NewClient returns the client of the frontend at url, "http://HOST:PORT", that serves model.
func NewClient(url, model string) *Client {
	return &Client{url: strings.TrimSuffix(url, "/"), model: model, http: &http.Client{Transport: NewTransport()}}
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is a refusal: an HTTP status other than 200, or an error after a stream had begun.
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
	body = cmp.Or(body, "(no body)")
	return fmt.Sprintf("%s %s: status %d %s: %s", e.Method, e.URL, e.Status, http.StatusText(e.Status), body)
}

// Answer is what came back over HTTP, whatever its status.
type Answer struct {
	Status int
	// Type is the Content-Type, with its parameters.
	Type string
	// Body is all of it, at most [MaxAnswer] bytes.
	Body []byte
}

// Send sends a request, with body as JSON unless it is nil, and unchanged if it is a [json.RawMessage], and reads the
// whole answer, also of a stream. The end of ctx ends it: the frontend then sees its client go.
func (c *Client) Send(ctx context.Context, method, path string, body any) (Answer, error) {
	return c.SendWith(ctx, nil, method, path, body)
}

// SendWith is Send with headers of the caller's.
func (c *Client) SendWith(ctx context.Context, header map[string]string, method, path string, body any) (Answer, error) {
	response, err := c.roundTrip(ctx, header, method, path, body)
	if err != nil {
		return Answer{}, withCause(ctx, err)
	}
	defer response.Body.Close()
	a := Answer{Status: response.StatusCode, Type: response.Header.Get("Content-Type")}
	if a.Body, err = ReadAll(response.Body); err != nil {
		return a, withCause(ctx, fmt.Errorf("read the answer to %s %s: %w", method, c.url+path, err))
	}
	return a, nil
}

// Health sends GET /health once and returns nil for status 200.
func (c *Client) Health(ctx context.Context) error {
	body, err := c.open(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return withCause(ctx, err)
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(body, MaxAnswer))
	return withCause(ctx, err)
}

// A Stream is an answer of server-sent events that is read as it comes.
type Stream struct {
	*Events
	body io.Closer
}

// Open sends a request like [Client.Send] and returns at the head of its answer. An answer with another status than 200
// is a [*StatusError]. The caller closes the stream; the end of ctx ends it, too.
func (c *Client) Open(ctx context.Context, path string, body any) (*Stream, error) {
	answer, err := c.open(ctx, http.MethodPost, path, body)
	if err != nil {
		return nil, withCause(ctx, err)
	}
	return &Stream{body: answer, Events: NewEvents(answer)}, nil
}

// Close hangs up, however much is still to come.
func (s *Stream) Close() error { return s.body.Close() }

// open sends a request and returns the body of an answer with status 200.
func (c *Client) open(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	response, err := c.roundTrip(ctx, nil, method, path, body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	head, err := io.ReadAll(io.LimitReader(response.Body, MaxQuote))
	if err != nil && len(head) == 0 {
		head = fmt.Appendf(nil, "(the body broke off: %v)", err)
	}
	return nil, c.statusError(method, path, response.StatusCode, head)
}

func (c *Client) statusError(method, path string, status int, body []byte) *StatusError {
	return &StatusError{Method: method, URL: c.url + path, Status: status, Body: string(bytes.TrimSpace(body[:min(len(body), MaxQuote)]))}
}

// roundTrip sends a request and returns at the head of its answer.
func (c *Client) roundTrip(ctx context.Context, header map[string]string, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, raw := body.(json.RawMessage) // sent as it is: not all of it is JSON
		if !raw {
			var err error
			if text, err = json.Marshal(body); err != nil {
				return nil, err
			}
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		request.Header.Set(name, value)
	}
	return c.http.Do(request)
}

// withCause puts the cause of ctx's end in front of an error that came of it.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// ReadAll reads an answer in one piece, which is an error if it is longer than [MaxAnswer].
func ReadAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxAnswer+1))
	if err == nil && len(text) > MaxAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", MaxAnswer)
	}
	return text, err
}
