package golden

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/retry"
)

const (
	identityAudience = "sts.amazonaws.com"
	identityTries    = 3
	identityTimeout  = 15 * time.Second // of a try
	maxIdentity      = 64 << 10         // bytes of an answer
	maxEvent         = 25 << 20         // bytes, which is what GitHub sends at most
)

// identityToken asks GitHub who this job is. The answer is a JSON Web Token that is valid for some minutes, so it is
// asked for whenever it is needed, and neither kept nor shown.
func (s *Store) identityToken(ctx context.Context) (string, error) {
	where, secret := os.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), os.Getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
	if where == "" || secret == "" {
		return "", &credentialsError{err: errors.New("GitHub offers this job no identity token"), cause: causeNoIdentity}
	}
	target, err := url.Parse(where)
	if err != nil {
		return "", &credentialsError{err: errors.New("ACTIONS_ID_TOKEN_REQUEST_URL is not an URL"), cause: causeNoIdentity}
	}
	query := target.Query()
	query.Set("audience", identityAudience)
	target.RawQuery = query.Encode()
	for try := 1; ; try++ {
		token, again, err := s.askIdentity(ctx, target.String(), secret)
		if err == nil {
			return token, nil
		}
		if !again || try == identityTries || ctx.Err() != nil {
			return "", &credentialsError{err: fmt.Errorf("the identity token of GitHub: %w", err), cause: causeNoIdentity}
		}
		s.log().Warn("no identity token from GitHub, trying again", "try", try, "error", reason(err))
		if err := retry.Pause(ctx, s.backoff(try)); err != nil {
			return "", err
		}
	}
}

// askIdentity makes one request, and tells whether another may end better.
func (s *Store) askIdentity(ctx context.Context, where, secret string) (token string, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return "", false, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Accept", "application/json")
	client := s.HTTP
	if client == nil {
		client = webClient()
	}
	resp, err := notRedirected(client).Do(req)
	if err != nil {
		return "", true, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		again := resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests
		return "", again, fmt.Errorf("HTTP status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	var answer struct{ Value string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxIdentity)).Decode(&answer); err != nil || answer.Value == "" {
		return "", true, errors.New("the answer holds no token")
	}
	return answer.Value, false, nil
}

// subjectOf is what a token says that it is about, such as repo:owner/name:ref:refs/heads/main: what the trust policy of
// a role must name. It is no secret, and this is no check of the token.
func subjectOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return clip(printable(claims.Subject))
}

// fromFork tells whether this job is about a pull request from another repository. GitHub gives it neither secrets nor
// an identity.
func fromFork() bool {
	if os.Getenv("GITHUB_EVENT_NAME") != "pull_request" {
		return false
	}
	file, err := os.Open(os.Getenv("GITHUB_EVENT_PATH"))
	if err != nil {
		return false
	}
	defer file.Close()
	type side struct {
		Repo *struct {
			FullName string `json:"full_name"`
			Fork     bool
		}
	}
	var event struct {
		PullRequest struct{ Head, Base side } `json:"pull_request"`
	}
	if json.NewDecoder(io.LimitReader(file, maxEvent)).Decode(&event) != nil {
		return false
	}
	head, base := event.PullRequest.Head.Repo, event.PullRequest.Base.Repo
	switch {
	case head == nil: // the fork was deleted
		return base != nil
	case base == nil || base.FullName == "":
		return head.Fork
	}
	// A repository that is itself a fork has pull requests of its own.
	return !strings.EqualFold(head.FullName, base.FullName)
}
