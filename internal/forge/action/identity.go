package action

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sethvargo/go-githubactions"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// ErrNoIdentity is why there is no token: GitHub offers this job none, or this process runs in no job of GitHub.
var ErrNoIdentity = errors.New("GitHub offers this job no identity token")

// identityTimeout limits one request for a token.
const identityTimeout = 15 * time.Second

// A TokenService gives a job of a workflow the tokens that prove its identity (OpenID Connect).
type TokenService struct {
	// URL and Token are those of ACTIONS_ID_TOKEN_REQUEST_URL and ACTIONS_ID_TOKEN_REQUEST_TOKEN.
	URL, Token string
	// HTTP sends the requests, and must not follow redirects; nil: a client of its own.
	HTTP *http.Client
	// Backoff is the wait after a try that failed; nil: [retry.Backoff].
	Backoff func(try int) time.Duration
	Log     *slog.Logger // of the tries that failed; may be nil
}

// OwnTokens returns the service of the job that this process runs in, if any.
func OwnTokens() TokenService {
	return TokenService{URL: os.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), Token: os.Getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")}
}

// Identity requests a token from GitHub that names this job, for an audience. The token is a secret, which is neither kept nor
// logged. No error has a secret in it; it is [ErrNoIdentity] if there is no such service.
func (s TokenService) Identity(ctx context.Context, audience string) (token string, err error) {
	if s.URL == "" || s.Token == "" {
		return "", ErrNoIdentity
	}
	if where, err := url.Parse(s.URL); err != nil || where.Host == "" {
		return "", errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not a URL")
	}
	if s.HTTP == nil {
		s.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if s.Backoff == nil {
		s.Backoff = retry.Backoff
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	env := map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": s.URL, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": s.Token}
	service := githubactions.New(githubactions.WithHTTPClient(s.HTTP), githubactions.WithGetenv(func(name string) string { return env[name] }))
	for try := 1; ; try++ {
		token, again, err := request(ctx, service, audience)
		if err == nil {
			return token, nil
		}
		if !again || try == retry.Tries || ctx.Err() != nil {
			return "", fmt.Errorf("the identity token of GitHub: %w", err)
		}
		s.Log.Warn("no identity token from GitHub, trying again", "try", try, "error", err)
		if err := retry.Pause(ctx, s.Backoff(try)); err != nil {
			return "", err
		}
	}
}

// request makes one request, and reports whether another one may succeed. Its error has neither the address, whose parameters
// are secret, nor the answer.
func request(ctx context.Context, service *githubactions.Action, audience string) (token string, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	token, err = service.GetIDToken(ctx, audience)
	var (
		refused *githubactions.RequestFailedError
		failed  *url.Error
	)
	switch {
	case errors.As(err, &refused):
		again := refused.StatusCode >= http.StatusInternalServerError || refused.StatusCode == http.StatusTooManyRequests
		return "", again, fmt.Errorf("HTTP status %d %s", refused.StatusCode, http.StatusText(refused.StatusCode))
	case errors.As(err, &failed):
		return "", true, failed.Err
	case err != nil || token == "":
		return "", true, errors.New("the answer holds no token")
	}
	return token, false, nil
}

// Claims are what an identity token states. They are no secret.
type Claims struct {
	// Subject is the job, such as repo:owner/name:ref:refs/heads/main; foreign text; empty if the token has none.
	Subject string
	Expires time.Time // zero if the token has no such time
}

// ReadClaims reads the claims of a token without checking its signature. Text that is not a token has none.
func ReadClaims(token string) Claims {
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
