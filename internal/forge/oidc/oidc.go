package oidc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const (
	maxAnswer = 64 << 10         // bytes
	timeout   = 15 * time.Second // of a try
)

// ErrNone is why there is no token: GitHub offers this job none, or this is no job of GitHub.
var ErrNone = errors.New("GitHub offers this job no identity token")

// A Job is how a job of a workflow gets its identity.
type Job struct {
	// URL and Token are those of ACTIONS_ID_TOKEN_REQUEST_URL and ACTIONS_ID_TOKEN_REQUEST_TOKEN.
	URL, Token string
	// HTTP sends the requests, and must not follow redirects; one of its own unless given.
	HTTP interface {
		Do(*http.Request) (*http.Response, error)
	}
	// Backoff is the wait after a try that failed, [retry.Backoff] unless given.
	Backoff func(try int) time.Duration
	Log     *slog.Logger // of the tries that failed; may be nil
}

// ThisJob is the one that this process runs in, if any.
func ThisJob() Job {
	return Job{URL: os.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), Token: os.Getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")}
}

// Identity requests a token from GitHub that says which job this is, for an audience. The token is a secret: it is neither kept nor shown. No
// error has a secret in it; it is [ErrNone] if there is no such service.
func (j Job) Identity(ctx context.Context, audience string) (token string, err error) {
	if j.URL == "" || j.Token == "" {
		return "", ErrNone
	}
	where, err := url.Parse(j.URL)
	if err != nil || where.Host == "" {
		return "", errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not a URL")
	}
	query := where.Query()
	query.Set("audience", audience)
	where.RawQuery = query.Encode()
	j.withDefaults()
	for try := 1; ; try++ {
		token, again, err := j.request(ctx, where.String())
		if err == nil {
			return token, nil
		}
		if !again || try == retry.Tries || ctx.Err() != nil {
			return "", fmt.Errorf("the identity token of GitHub: %w", err)
		}
		j.Log.Warn("no identity token from GitHub, trying again", "try", try, "error", err)
		if err := retry.Pause(ctx, j.Backoff(try)); err != nil {
			return "", err
		}
	}
}

func (j *Job) withDefaults() {
	if j.HTTP == nil {
		j.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if j.Backoff == nil {
		j.Backoff = retry.Backoff
	}
	if j.Log == nil {
		j.Log = slog.New(slog.DiscardHandler)
	}
}

// request makes one request, and reports whether another may end better.
func (j *Job) request(ctx context.Context, where string) (token string, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return "", false, errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not a URL")
	}
	req.Header.Set("Authorization", "Bearer "+j.Token)
	req.Header.Set("Accept", "application/json")
	resp, err := j.HTTP.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the address, which has parameters
		}
		return "", true, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		again := resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests
		return "", again, fmt.Errorf("HTTP status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	var answer struct{ Value string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&answer); err != nil || answer.Value == "" {
		return "", true, errors.New("the answer holds no token")
	}
	return answer.Value, false, nil
}

// Claims are what a token says of itself. They are no secret.
type Claims struct {
	// Subject is who it is about, such as repo:owner/name:ref:refs/heads/main; foreign text; empty if it does not say.
	Subject string
	Expires time.Time // zero if it does not say
}

// Read reads what a token says. This is no check of the token: one that is none says nothing.
func Read(token string) Claims {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Claims{}
	}
	var said struct {
		Subject any `json:"sub"`
		Expires any `json:"exp"`
	}
	if json.Unmarshal(payload, &said) != nil {
		return Claims{}
	}
	var c Claims
	c.Subject, _ = said.Subject.(string)
	if seconds, ok := said.Expires.(float64); ok && seconds >= 1 && seconds < 1<<40 {
		c.Expires = time.Unix(int64(seconds), 0)
	}
	return c
}
