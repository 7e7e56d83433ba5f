package pypi

import (
	"bytes"
	"cmp"
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

	"github.com/vllm-vcr/conformance/internal/base/retry"
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
	ctx, cancel := retry.WithLongest(ctx, q.limit)
	defer cancel()
	for try := 1; ; try++ {
		start := time.Now()
		watched, alive, stop := retry.WatchRate(ctx, x.Stall)
		got, err := x.try(watched, q, alive)
		if watched.Err() != nil {
			err = context.Cause(watched)
		}
		stop()
		if err == nil {
			x.log().Debug("package index", "url", shown(q.url), "range", q.header.Get("Range"), "bytes", len(got.body),
				"duration", time.Since(start).Round(time.Millisecond))
			return got, nil
		}
		if try < retry.Tries && ctx.Err() == nil && isTemporary(err) {
			wait := x.wait(try, err)
			x.log().Warn("package index: trying again", "url", shown(q.url), "try", try, "wait", wait, "error", err)
			if err = retry.Pause(ctx, wait); err == nil {
				continue
			}
		}
		if try > 1 {
			return nil, fmt.Errorf("package index %s: %d tries: %w", shown(q.url), try, err)
		}
		return nil, fmt.Errorf("package index %s: %w", shown(q.url), err)
	}
}

// try sends a request once, and calls alive whenever bytes have come.
func (x *Index) try(ctx context.Context, q request, alive func(bytes int)) (*answer, error) {
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
	client := cmp.Or(x.HTTP, defaultClient)
	response, err := client.Do(r)
	if err != nil {
		return nil, transportError(err)
	}
	defer response.Body.Close()
	alive(0)
	if response.StatusCode != q.want {
		return nil, &statusError{status: response.StatusCode, after: retry.After(response.Header)}
	}
	if q.check != nil {
		if err := q.check(response); err != nil {
			return nil, err
		}
	}
	var body bytes.Buffer
	n, err := io.Copy(&body, io.LimitReader(&watchedReader{response.Body, alive}, q.limit+1))
	switch {
	case err != nil:
		return nil, &temporaryError{fmt.Errorf("after %d bytes: %w", n, err)}
	case n > q.limit:
		return nil, fmt.Errorf("its answer is too large: more than %d bytes", q.limit)
	}
	return &answer{url: response.Request.URL, header: response.Header, body: body.Bytes()}, nil
}

// A watchedReader calls alive whenever bytes have come.
type watchedReader struct {
	io.Reader
	alive func(bytes int)
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.alive(n)
	}
	return n, err
}

// A temporaryError is of a connection that broke, or could not be made for a while.
type temporaryError struct{ error }

func (e *temporaryError) Unwrap() error { return e.error }

// transportError returns the error of a request without an answer. The URL is taken out of it, which may have a query
// that is a secret.
func transportError(err error) error {
	var (
		u           *url.Error
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
	)
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.As(err, &certificate), errors.Is(err, http.ErrSchemeMismatch), errors.Is(err, errDowngrade), errors.Is(err, errPlainHop),
		errors.As(err, &dns) && dns.IsNotFound:
		return err
	}
	return &temporaryError{err}
}

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

// isTemporary reports whether another try may end better: yes if the server is overloaded or the connection broke, no
// if the server has decided, or the connection cannot be.
func isTemporary(err error) bool {
	var refused *statusError
	if errors.As(err, &refused) {
		return refused.status == http.StatusTooManyRequests || refused.status >= 500 && refused.status != http.StatusNotImplemented
	}
	var temporary *temporaryError
	return errors.Is(err, retry.ErrStalled) || errors.Is(err, retry.ErrSlow) || errors.As(err, &temporary)
}

// wait returns the pause before the next try.
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

// shown returns a URL without what may be secret of it.
func shown(u *url.URL) string {
	plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return plain.String()
}

// checkURL refuses what is not an address of an index or its files: anything but https, and http on this machine. Of
// plain http anybody on the way can change what is listed, digests included. The error has nothing of the URL, which
// may be a secret.
func checkURL(u *url.URL) error {
	switch {
	case u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errNoURL
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errPlain
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

var (
	errNoURL     = errors.New("want https")
	errPlain     = errors.New("it is plain http, which anybody between can change: want https, or http on this machine alone (127.0.0.1)")
	errDowngrade = errors.New("it redirects from https to http")
	errPlainHop  = errors.New("it redirects to plain http, which anybody between can change")
)

const maxRedirects = 10

// defaultClient follows no redirect from https to http, and none to http on another machine.
var defaultClient = &http.Client{
	CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= maxRedirects:
			return fmt.Errorf("more than %d redirects", maxRedirects)
		case r.URL.Scheme == "http" && via[0].URL.Scheme == "https":
			return errDowngrade
		case checkURL(r.URL) != nil:
			return errPlainHop
		}
		return nil
	},
}

func (x *Index) log() *slog.Logger {
	return cmp.Or(x.Log, slog.New(slog.DiscardHandler))
}
