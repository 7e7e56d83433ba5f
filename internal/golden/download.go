package golden

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	maxTries     = 4
	firstBackoff = 500 * time.Millisecond // upper bound of the first wait; each further one is twice it
	defaultStall = 30 * time.Second
)

// download reads a remote source to its end, in several tries if that may help.
func (s *Store) download(ctx context.Context, p pin, src source) ([]byte, error) {
	start := time.Now()
	for try := 1; ; try++ {
		data, err := s.attempt(ctx, src, p.limit())
		if err == nil {
			s.log().Info("golden downloaded", "golden", p.location, "bytes", len(data), "tries", try,
				"duration", time.Since(start).Round(time.Millisecond))
			return data, nil
		}
		if try == maxTries || ctx.Err() != nil || !temporary(err) {
			return nil, p.failed(err, try)
		}
		wait := s.backoff(try)
		s.log().Warn("golden not downloaded, trying again", "golden", p.location, "try", try, "wait", wait, "error", reason(err))
		if err := pause(ctx, wait); err != nil {
			return nil, p.failed(err, try)
		}
	}
}

// errStalled ends an attempt on which no byte came for [Store.Stall].
var errStalled = errors.New("the server sent nothing for too long")

// attempt opens and reads a source once. If it was ended from outside, the error is the cause.
func (s *Store) attempt(ctx context.Context, src source, limit int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := s.Stall
	if stall <= 0 {
		stall = defaultStall
	}
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w (%v)", errStalled, stall)) })
	defer timer.Stop()

	data, err := readOnce(ctx, src, limit, func() { timer.Reset(stall) })
	// Even without an error: a server that sees us leave may still end its answer in good order.
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return data, err
}

func readOnce(ctx context.Context, src source, limit int64, alive func()) ([]byte, error) {
	body, err := src.open(ctx, span{})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := readUpTo(&watchedReader{body, alive}, limit)
	if err != nil {
		return nil, &brokenBody{read: len(data), err: err}
	}
	return data, nil
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
	read int // bytes
	err  error
}

func (e *brokenBody) Error() string { return fmt.Sprintf("after %d bytes: %v", e.read, e.err) }
func (e *brokenBody) Unwrap() error { return e.err }

// temporary tells whether another try may end better: yes if the server is overloaded or the
// connection broke, no if the server has decided, or the connection cannot be.
func temporary(err error) bool {
	var (
		refused     *refusal
		credentials *credentialsError
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		body        *brokenBody
		transport   *url.Error // also inside the errors of the AWS SDK
	)
	switch {
	case errors.As(err, &refused):
		return refused.temporary()
	case errors.As(err, &credentials), errors.As(err, &certificate), errors.Is(err, http.ErrSchemeMismatch):
		return false
	case errors.As(err, &dns) && dns.IsNotFound:
		return false
	}
	return errors.Is(err, errStalled) || errors.As(err, &body) || errors.As(err, &transport)
}

func (r *refusal) temporary() bool {
	switch r.status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// backoff takes a random part of a growing bound, so that the jobs of a matrix do not come back all
// at once.
func (s *Store) backoff(try int) time.Duration {
	if s.Backoff != nil {
		return s.Backoff(try)
	}
	return rand.N(firstBackoff << (try - 1))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
