package httpdiff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// A Side is one of the two servers.
type Side struct {
	// URL is the base of its API, such as http://127.0.0.1:8000.
	URL string
	// APIKey is sent as bearer token unless it is "".
	APIKey string
}

type server struct {
	Side
	host    string
	model   string
	client  *http.Client
	timeout time.Duration
}

func newServer(side Side, model string, timeout time.Duration) (*server, error) {
	at, err := url.Parse(side.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		want := "HOST:PORT"
		if !strings.ContainsAny(side.URL, "@/?") { // nothing that may be a secret
			want = side.URL
		}
		return nil, fmt.Errorf("this is not the URL of a server: want http://%s", want)
	}
	if at.User != nil || at.RawQuery != "" {
		return nil, fmt.Errorf("http://%s: a URL with a user or a query: these would be in the report; keys are options of their own", at.Host)
	}
	side.URL = strings.TrimSuffix(side.URL, "/")
	return &server{side, at.Host, model, &http.Client{
		Transport:     openai.NewTransport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, timeout}, nil
}

// An answer is what a side sent.
type answer struct {
	// broken is why there is no answer, or not all of it.
	broken string
	status int
	header http.Header
	body   []byte
	// events are those of a stream, whose body is empty.
	events []event
	// framing has the fields of its lines, and how they end.
	framing []string
}

type event struct{ name, data string }

func (a *answer) ok() bool { return a.status >= 200 && a.status < 300 && a.broken == "" }

func (a *answer) stream() bool {
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	return media == "text/event-stream"
}

func (s *server) send(ctx context.Context, r *Request) *answer {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no whole answer within %v", s.timeout))
	defer cancel()
	a := &answer{}
	request, err := s.request(ctx, r)
	if err == nil {
		var response *http.Response
		if response, err = s.client.Do(request); err == nil {
			defer response.Body.Close()
			a.status, a.header = response.StatusCode, response.Header
			err = a.read(response.Body, r.Abort)
		}
	}
	var dialling *net.OpError
	switch {
	case err == nil:
	case errors.As(err, &dialling) && dialling.Op == "dial":
		a.broken = "no connection: " + dialling.Err.Error()
	case ctx.Err() != nil:
		a.broken = context.Cause(ctx).Error()
	case a.status == 0:
		a.broken = "the connection ended without an answer"
	default:
		a.broken = "the answer broke off"
	}
	return a
}

func (s *server) request(ctx context.Context, r *Request) (*http.Request, error) {
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(Expand(r.Body, s.model))
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, s.URL+Expand(r.Path, s.model), body)
	if err != nil {
		return nil, err
	}
	if s.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+s.APIKey)
	}
	if r.Body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, values := range r.Header {
		if request.Header[name] = slices.Clone(values); values[0] == "" {
			delete(request.Header, name)
		}
	}
	return request, nil
}

// Expand fills in the variables of a path or a body.
func Expand(text, model string) string {
	text = strings.ReplaceAll(text, "{{model}}", model)
	return repeated().ReplaceAllStringFunc(text, func(match string) string {
		parts := repeated().FindStringSubmatch(match)
		n, _ := strconv.Atoi(parts[1])
		return strings.Repeat(parts[2], n)
	})
}

func (a *answer) read(body io.Reader, abort int) (err error) {
	if !a.stream() {
		a.body, err = openai.ReadAll(body)
		return err
	}
	limited := &io.LimitedReader{R: body, N: maxStream}
	events := openai.NewEvents(limited)
	for abort == 0 || len(a.events) < abort {
		data, err := events.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
		a.events = append(a.events, event{events.Name(), string(data)})
	}
	a.framing = events.Framing()
	if limited.N == 0 {
		return fmt.Errorf("the stream is longer than %d bytes", maxStream)
	}
	return nil
}

// maxStream bounds a stream in bytes. Each event is merged with those before it, which takes longer the more there are.
const maxStream = 8 << 20

// get reads a page that every server has.
func (s *server) get(ctx context.Context, path string) (*answer, error) {
	a := s.send(ctx, &Request{Method: http.MethodGet, Path: path})
	if a.broken != "" {
		return a, fmt.Errorf("GET %s%s: %s", s.URL, path, a.broken)
	}
	if a.status != http.StatusOK {
		return a, fmt.Errorf("GET %s%s: status %d %s: %s", s.URL, path, a.status, http.StatusText(a.status), bytes.TrimSpace(a.body[:min(len(a.body), 300)]))
	}
	return a, nil
}
