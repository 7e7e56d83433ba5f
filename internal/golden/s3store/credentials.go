package s3store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"

	"github.com/vllm-vcr/conformance/internal/forge/oidc"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// hasCredentials reports whether there are any. The role of an EC2 machine is the one source that is only assumed to be there, for
// want of all others: so it is requested, in limited time.
func (s *store) hasCredentials(ctx context.Context, provider *aws.CredentialsCache) bool {
	if !aws.IsCredentialsProvider(provider, (*ec2rolecreds.Provider)(nil)) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.roleTimeout, roleTimeout))
	defer cancel()
	start := time.Now()
	_, err := provider.Retrieve(ctx)
	if err != nil {
		s.Log.Debug("no AWS credentials, requests are not signed", "duration", time.Since(start).Round(time.Millisecond))
	}
	return err == nil
}

// defaultSession names the session of a role after the run of GitHub Actions that this is a part of.
func defaultSession() string {
	const name = "vllm-vcr"
	run := os.Getenv("GITHUB_RUN_ID")
	if session := name + "-" + run; run != "" && sessionPattern().MatchString(session) {
		return session
	}
	return name
}

// gitHubRole assumes the role of the options with the identity that GitHub gives to this job. The session ends after
// an hour or so, and the identity after minutes, so both are requested again as long as the run goes on. An error of the source
// is a [*credentialsError].
func (l lookup) gitHubRole(ctx context.Context) (aws.Credentials, error) {
	token, err := l.identityToken(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	session := cmp.Or(l.opt.RoleSession, defaultSession())
	given, err := l.webIdentity(ctx, l.opt.Role, session, token)
	if err != nil {
		return aws.Credentials{}, &credentialsError{err: err, cause: causeRole, subject: subjectOf(token)}
	}
	l.Log.Info("AWS role assumed", "role", shown(l.opt.Role), "session", session, "expires", given.Expires.UTC().Format(time.RFC3339))
	return given, nil
}

const (
	identityAudience = "sts.amazonaws.com"
	maxEvent         = 25 << 20 // bytes, which is what GitHub sends at most
)

// identityToken requests the identity of this job from GitHub.
func (s *store) identityToken(ctx context.Context) (string, error) {
	client := s.HTTP
	if client == nil {
		client = golden.DefaultHTTP()
	}
	job := oidc.ThisJob()
	job.HTTP, job.Backoff, job.Log = notRedirected(client), s.Backoff, s.Log
	token, err := job.Identity(ctx, identityAudience)
	if err == nil || ctx.Err() != nil {
		return token, err
	}
	return "", &credentialsError{err: err, cause: causeNoIdentity}
}

// subjectOf is what a token says that it is about: what the trust policy of a role must name.
func subjectOf(token string) string { return shown(oidc.Read(token).Subject) }

// fromFork reports whether this job is about a pull request from another repository. GitHub gives it neither secrets nor
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

// credentials returns what signs requests, or nil if nothing does.
func (s *store) credentials(ctx context.Context, set settings, web *http.Client) (*aws.CredentialsCache, error) {
	l := lookup{store: s, settings: set, web: web}
	switch {
	case s.opt.Role != "":
		return cached(aws.CredentialsProviderFunc(l.gitHubRole)), nil
	case s.opt.Anonymous == On:
		return nil, nil
	}
	source, err := l.source()
	if err != nil {
		return nil, &credentialsError{err: err}
	}
	found := cached(source)
	switch {
	case s.hasCredentials(ctx, found):
		return found, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case s.opt.Anonymous == Off:
		return nil, &credentialsError{err: errors.New("none were found"), cause: causeNoCredentials}
	}
	return nil, nil
}
