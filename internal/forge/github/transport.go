package github

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Bounds of waiting and of reading.
const (
	defaultMaxWait = 3 * time.Minute
	secondaryWait  = time.Minute // where GitHub names no time
	maxReads       = 4           // tries of a request that only reads
	peekBytes      = 64 << 10    // of an answer that may name a limit
)

// transport adds the token and waits for limits. Requests follow each other: it is not for several goroutines.
type transport struct {
	base  http.RoundTripper
	host  string // the only one that gets the token
	token string
	left  time.Duration // that may still be waited
	sleep func(context.Context, time.Duration) error
	log   *slog.Logger
}

// A limitError is a limit of GitHub that is longer than one may wait.
type limitError struct{ wait time.Duration }

func (e *limitError) Error() string {
	return fmt.Sprintf("GitHub's limit of requests is reached, and it says to come back in %s: run this again then", e.wait)
}

func newTransport(o Options, host string, log *slog.Logger) *transport {
	t := &transport{base: o.Transport, host: host, token: o.Token, left: o.MaxWait, sleep: o.Sleep, log: log}
	if t.base == nil {
		t.base = http.DefaultTransport
	}
	if t.left == 0 {
		t.left = defaultMaxWait
	}
	if t.sleep == nil {
		t.sleep = retry.Pause
	}
	return t
}

// RoundTrip sends a request again when GitHub says to come back later. What may have had an effect is not sent again.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := t.send(req)
		wait, limited, err := verdict(req, resp, err, try)
		if err != nil || wait == 0 {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		if wait > t.left {
			if limited {
				return nil, &limitError{wait.Round(time.Second)}
			}
			return nil, fmt.Errorf("GitHub does not answer after %d tries", try)
		}
		t.left -= wait
		t.log.Info("github: wait", "for", wait, "method", req.Method, "path", req.URL.Path)
		if err := t.sleep(req.Context(), wait); err != nil {
			return nil, err
		}
	}
}

func (t *transport) send(req *http.Request) (*http.Response, error) {
	again := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		again.Body = body
	}
	if again.URL.Host == t.host {
		again.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.base.RoundTrip(again)
}

// verdict says how long to wait before a request is sent again; 0 means that resp is the answer.
func verdict(req *http.Request, resp *http.Response, err error, try int) (wait time.Duration, limited bool, _ error) {
	reads := req.Method == http.MethodGet && try < maxReads
	pause := time.Second << (try - 1)
	if err != nil {
		if reads && req.Context().Err() == nil {
			return pause, false, nil
		}
		return 0, false, err
	}
	wait, err = limit(resp)
	switch {
	case err != nil:
		return 0, false, err
	case wait > 0:
		return wait, true, nil
	case resp.StatusCode >= 500 && reads:
		return pause, false, nil
	}
	// Without these the library would refuse, on its own, to send the next request.
	for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Retry-After"} {
		resp.Header.Del(name)
	}
	return 0, false, nil
}

// limit returns how long an answer says to wait, 0 if it is not about limits. The second API tells in an answer that is
// otherwise good.
func limit(resp *http.Response) (time.Duration, error) {
	refused := resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests
	if !refused && !strings.HasSuffix(resp.Request.URL.Path, "/graphql") {
		return 0, nil
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, peekBytes))
	if err != nil {
		return 0, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), resp.Body), resp.Body}
	if !refused && !bytes.Contains(start, []byte(`"RATE_LIMITED"`)) {
		return 0, nil
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		return time.Duration(max(seconds, 1)) * time.Second, nil
	}
	if resp.Header.Get("X-Ratelimit-Remaining") == "0" {
		return untilReset(resp.Header), nil
	}
	if resp.StatusCode == http.StatusTooManyRequests || bytes.Contains(start, []byte("secondary rate limit")) ||
		bytes.Contains(start, []byte(`"RATE_LIMITED"`)) {
		return secondaryWait, nil
	}
	return 0, nil
}

// untilReset goes by the clock of GitHub, which the answer tells too.
func untilReset(header http.Header) time.Duration {
	reset, err := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)
	now, dateErr := http.ParseTime(header.Get("Date"))
	if err != nil || dateErr != nil {
		return secondaryWait
	}
	return max(time.Unix(reset, 0).Sub(now), 0) + time.Second
}
