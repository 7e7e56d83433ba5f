package pypi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/vllm-vcr/conformance/internal/retry"
)

// A request is a GET.
type request struct {
	url    *url.URL
	header http.Header
	want   int                        // status
	limit  int64                      // of the body, in bytes
	check  func(*http.Response) error // before the body is read; may be nil
}

// An answer is a response that was read whole.
type answer struct {
	url    *url.URL // after redirects
	header http.Header
	body   []byte
}

// get sends a request, in several tries if that may help. The error names the URL.
func (x *Index) get(ctx context.Context, q request) (*answer, error) {
	for try := 1; ; try++ {
		start := time.Now()
		got, err := x.attempt(ctx, q)
		if err == nil {
			x.log().Debug("package index", "url", shown(q.url), "range", q.header.Get("Range"), "bytes", len(got.body),
				"duration", time.Since(start).Round(time.Millisecond))
			return got, nil
		}
		if try == retry.Tries || ctx.Err() != nil || !temporary(err) {
			return nil, failed(q.url, try, err)
		}
		wait := x.wait(try, err)
		x.log().Warn("package index: trying again", "url", shown(q.url), "try", try, "wait", wait, "error", err)
		if err := retry.Pause(ctx, wait); err != nil {
			return nil, failed(q.url, try, err)
		}
	}
}

func failed(u *url.URL, try int, err error) error {
	if try > 1 {
		return fmt.Errorf("package index %s: %d tries: %w", shown(u), try, err)
	}
	return fmt.Errorf("package index %s: %w", shown(u), err)
}

func (x *Index) attempt(ctx context.Context, q request) (*answer, error) {
	ctx, alive, stop := retry.Watch(ctx, x.Stall)
	defer stop()
	got, err := x.once(ctx, q, alive)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return got, err
}

func (x *Index) once(ctx context.Context, q request, alive func()) (*answer, error) {
	// Credentials go into a header: an error of the client would show them in the URL.
	plain := *q.url
	plain.User = nil
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, plain.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range q.header {
		r.Header[name] = values
	}
	r.Header.Set("User-Agent", "vllm-vcr")
	if password, _ := q.url.User.Password(); q.url.User != nil {
		r.SetBasicAuth(q.url.User.Username(), password)
	}
	response, err := x.client().Do(r)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer response.Body.Close()
	alive()
	if response.StatusCode != q.want {
		return nil, &statusError{status: response.StatusCode, after: retry.After(response.Header)}
	}
	if q.check != nil {
		if err := q.check(response); err != nil {
			return nil, err
		}
	}
	body, err := readUpTo(&watchedReader{response.Body, alive}, q.limit)
	if err != nil {
		return nil, err
	}
	return &answer{url: response.Request.URL, header: response.Header, body: body}, nil
}

// errTooLarge is an answer beyond its limit.
var errTooLarge = errors.New("its answer is too large")

func readUpTo(r io.Reader, limit int64) ([]byte, error) {
	var data bytes.Buffer
	n, err := io.Copy(&data, io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, &brokenBody{read: n, err: err}
	case n > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return data.Bytes(), nil
}

// A watchedReader calls alive whenever bytes have come.
type watchedReader struct {
	io.Reader
	alive func()
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.alive()
	}
	return n, err
}

// brokenBody is a response that ended before its end.
type brokenBody struct {
	read int64 // bytes
	err  error
}

func (e *brokenBody) Error() string { return fmt.Sprintf("after %d bytes: %v", e.read, e.err) }
func (e *brokenBody) Unwrap() error { return e.err }

// A statusError is an answer with another status than was asked for.
type statusError struct {
	status int
	after  time.Duration // what the server asked to wait, 0 without
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("status %d %s", e.status, http.StatusText(e.status))
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return text + ": it wants other credentials, does not serve this machine, or has no such page"
	case http.StatusNotFound:
		return text + ": it is not there (any more)"
	case http.StatusPreconditionFailed:
		return text + ": the file was replaced while it was read: try again"
	case http.StatusRequestedRangeNotSatisfiable:
		return text + ": the file is shorter than the index says"
	case http.StatusOK:
		return text + ": it does not mind the range that was asked for"
	}
	return text
}

// temporary tells whether another try may end better: yes if the server is overloaded or the connection broke, no
// if the server has decided, or the connection cannot be.
func temporary(err error) bool {
	var (
		refused     *statusError
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		body        *brokenBody
		transport   *transportError
	)
	switch {
	case errors.As(err, &refused):
		return refused.status == http.StatusTooManyRequests ||
			refused.status >= 500 && refused.status != http.StatusNotImplemented
	case errors.As(err, &certificate), errors.Is(err, http.ErrSchemeMismatch), errors.Is(err, errDowngrade):
		return false
	case errors.As(err, &dns) && dns.IsNotFound:
		return false
	}
	return errors.Is(err, retry.ErrStalled) || errors.As(err, &body) || errors.As(err, &transport)
}

// A transportError is a request without an answer.
type transportError struct{ error }

func (e *transportError) Unwrap() error { return e.error }

// withoutURL takes the URL out of an error of the client: it may have a query that is a secret, and the error that
// holds this one names it.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &transportError{err}
}

// wait is the pause before the next try.
func (x *Index) wait(try int, err error) time.Duration {
	var refused *statusError
	if errors.As(err, &refused) && 0 < refused.after && refused.after <= retry.LongestWait {
		return refused.after
	}
	if x.Backoff != nil {
		return x.Backoff(try)
	}
	return retry.Backoff(try)
}

// shown is a URL without what may be secret of it.
func shown(u *url.URL) string {
	plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return plain.String()
}

var errDowngrade = errors.New("it redirects from https to http")

const maxRedirects = 10

var usualClient = &http.Client{
	CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= maxRedirects:
			return fmt.Errorf("more than %d redirects", maxRedirects)
		case r.URL.Scheme == "http" && via[0].URL.Scheme == "https":
			return errDowngrade
		}
		return nil
	},
}

func (x *Index) client() *http.Client {
	if x.HTTP != nil {
		return x.HTTP
	}
	return usualClient
}

func (x *Index) log() *slog.Logger {
	if x.Log != nil {
		return x.Log
	}
	return slog.New(slog.DiscardHandler)
}
