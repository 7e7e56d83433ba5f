package golden

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/vllm-vcr/conformance/internal/forge/oidc"
)

const (
	identityAudience = "sts.amazonaws.com"
	maxEvent         = 25 << 20 // bytes, which is what GitHub sends at most
)

// identityToken asks GitHub who this job is, whenever it is needed.
func (s *Store) identityToken(ctx context.Context) (string, error) {
	client := s.HTTP
	if client == nil {
		client = webClient()
	}
	job := oidc.ThisJob()
	job.HTTP, job.Backoff, job.Log = notRedirected(client), s.backoff, s.log()
	token, err := job.Ask(ctx, identityAudience)
	if err == nil || ctx.Err() != nil {
		return token, err
	}
	return "", &credentialsError{err: err, cause: causeNoIdentity}
}

// subjectOf is what a token says that it is about: what the trust policy of a role must name.
func subjectOf(token string) string { return clip(printable(oidc.Read(token).Subject)) }

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
