package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/retry"
)

const (
	credentialVersion = "client.authentication.k8s.io/v1"
	maxToken          = 64 << 10 // bytes of an answer
	tokenTimeout      = 15 * time.Second
)

// GitHub is where a job of a workflow asks who it is.
type GitHub struct {
	// URL and Token are those of ACTIONS_ID_TOKEN_REQUEST_URL and ACTIONS_ID_TOKEN_REQUEST_TOKEN.
	URL, Token string

	backoff func(try int) time.Duration // [retry.Backoff] unless set
}

// Credential asks GitHub for the identity of this job, for an audience, and returns it as the ExecCredential that an
// exec plugin prints. No error has a secret in it.
func (g GitHub) Credential(ctx context.Context, audience string) ([]byte, error) {
	if audience == "" {
		return nil, errors.New("no audience: say with --audience for whom the token is")
	}
	if g.URL == "" || g.Token == "" {
		return nil, errors.New("GitHub offers this job no identity token: give the job the permission id-token: write; " +
			"jobs of pull requests from forks have none, and outside of GitHub a kubeconfig is the way")
	}
	where, err := url.Parse(g.URL)
	if err != nil || where.Host == "" {
		return nil, errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not an URL")
	}
	query := where.Query()
	query.Set("audience", audience)
	where.RawQuery = query.Encode()
	for try := 1; ; try++ {
		token, again, err := g.ask(ctx, where.String())
		if err == nil {
			return execCredential(token)
		}
		if !again || try == retry.Tries || ctx.Err() != nil {
			return nil, fmt.Errorf("the identity token of GitHub: %w", err)
		}
		if g.backoff == nil {
			g.backoff = retry.Backoff
		}
		if err := retry.Pause(ctx, g.backoff(try)); err != nil {
			return nil, err
		}
	}
}

// ask makes one request, and tells whether another may end better.
func (g GitHub) ask(ctx context.Context, where string) (token string, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return "", false, errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not an URL")
	}
	req.Header.Set("Authorization", "Bearer "+g.Token)
	req.Header.Set("Accept", "application/json")
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
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
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxToken)).Decode(&answer); err != nil || answer.Value == "" {
		return "", true, errors.New("the answer holds no token")
	}
	return answer.Value, false, nil
}

// execCredential is what an exec plugin prints. Without an expiry the library would ask again only after a refusal.
func execCredential(token string) ([]byte, error) {
	type status struct {
		Token   string `json:"token"`
		Expires string `json:"expirationTimestamp,omitempty"`
	}
	credential := struct {
		Kind       string   `json:"kind"`
		APIVersion string   `json:"apiVersion"`
		Spec       struct{} `json:"spec"`
		Status     status   `json:"status"`
	}{Kind: "ExecCredential", APIVersion: credentialVersion, Status: status{Token: token}}
	if at := expiry(token); !at.IsZero() {
		credential.Status.Expires = at.UTC().Format(time.RFC3339)
	}
	return json.Marshal(credential)
}

// expiry is what the token says of its end; zero if it does not. This is no check of the token.
func expiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires <= 0 {
		return time.Time{}
	}
	return time.Unix(claims.Expires, 0)
}
