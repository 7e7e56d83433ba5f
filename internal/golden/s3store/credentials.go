package s3store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/forge/action"
	"github.com/vllm-vcr/conformance/internal/golden"
)

const (
	// renewBefore is how long before they expire credentials are replaced, at the earliest. It covers a request
	// and a wrong clock; the shortest session is of 15 minutes.
	renewBefore = 5 * time.Minute
	// requestTimeout limits a request for credentials.
	requestTimeout = 30 * time.Second
)

// load reads the environment and the files of the AWS tools.
func (s *store) load(ctx context.Context) (aws.Config, error) {
	web := aws.HTTPClient(awshttp.NewBuildableClient().WithTimeout(requestTimeout).WithTransportOptions(golden.ReportProxy, reachDirectly))
	if s.HTTP != nil {
		web = notRedirected(s.HTTP)
	}
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(web),
		config.WithRegion(s.opt.Region),
		config.WithRetryer(s.credentialsRetryer),
		config.WithCredentialsCacheOptions(renewEarly),
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) { o.HTTPClient = web }),
		config.WithAssumeRoleCredentialOptions(func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = cmp.Or(o.RoleSessionName, defaultSession())
		}),
		config.WithWebIdentityRoleCredentialOptions(func(o *stscreds.WebIdentityRoleOptions) {
			o.RoleSessionName = cmp.Or(o.RoleSessionName, defaultSession())
		}),
	}
	if s.opt.Role != "" || s.opt.Anonymous == On {
		options = append(options, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err == nil && cfg.Region != "" && !regionPattern().MatchString(cfg.Region) {
		err = fmt.Errorf("the S3 region %q is not one such as eu-west-1", clip(cfg.Region))
	}
	if errors.As(err, new(config.AssumeRoleTokenProviderNotSetError)) {
		err = errors.New("the role of the AWS profile requires a code of MFA, which is not supported: " +
			"run `aws configure export-credentials --format env` and set the variables that it prints")
	}
	if err != nil {
		return cfg, &credentialsError{err: err}
	}
	return cfg, nil
}

// reachDirectly keeps requests for credentials of the machine itself away from the proxy, which would not reach it.
func reachDirectly(t *http.Transport) {
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		if net.ParseIP(r.URL.Hostname()).IsLinkLocalUnicast() {
			return nil, nil
		}
		return http.ProxyFromEnvironment(r)
	}
}

// renewEarly requests credentials again shortly before they expire. Of many processes that started at the same time, not all do
// so at the same time.
func renewEarly(o *aws.CredentialsCacheOptions) {
	o.ExpiryWindow = renewBefore
	o.ExpiryWindowJitterFrac = 0.5
}

// credentialsRetryer repeats requests for credentials. STS itself asks GitHub; the SDK does not repeat a request when that fails.
func (s *store) credentialsRetryer() aws.Retryer {
	return awsretry.NewStandard(func(o *awsretry.StandardOptions) {
		o.MaxAttempts = retry.Tries
		o.Backoff = awsretry.BackoffDelayerFunc(func(try int, _ error) (time.Duration, error) { return s.Backoff(try), nil })
		o.Retryables = append(o.Retryables,
			awsretry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}},
			awsretry.RetryableErrorCode{Codes: map[string]struct{}{"IDPCommunicationError": {}}})
	})
}

// credentials returns what signs requests, or nil if nothing does.
func (s *store) credentials(ctx context.Context, cfg aws.Config) (*aws.CredentialsCache, error) {
	switch {
	case s.opt.Role != "":
		role := gitHubRole{s, sts.NewFromConfig(cfg)}
		return aws.NewCredentialsCache(role, renewEarly), nil
	case s.opt.Anonymous == On:
		return nil, nil
	}
	found, ok := cfg.Credentials.(*aws.CredentialsCache)
	switch {
	case ok && s.hasCredentials(ctx, found):
		return found, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case s.opt.Anonymous == Off:
		return nil, &credentialsError{err: errors.New("none were found"), cause: causeNoCredentials}
	}
	return nil, nil
}

// hasCredentials reports whether there are any. The SDK assumes the role of an EC2 machine where it finds no other source, so
// whether there is a role is found out by a request, in limited time.
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

// withoutOutput replaces the error of a credential_process: the SDK quotes what the program printed, which may be a secret.
func withoutOutput(err error) error {
	var (
		process *processcreds.ProviderError
		exit    *exec.ExitError
	)
	switch {
	case !errors.As(err, &process):
		return err
	case errors.As(process, &exit):
		return fmt.Errorf("credential_process: %w", exit)
	}
	return errors.New("credential_process: it cannot be run, or its output is not JSON with credentials")
}

// defaultSession names the session of a role after the run of GitHub Actions that this process is a part of.
func defaultSession() string {
	const name = "vllm-vcr"
	run := os.Getenv("GITHUB_RUN_ID")
	if session := name + "-" + run; run != "" && sessionPattern().MatchString(session) {
		return session
	}
	return name
}

const (
	identityAudience = "sts.amazonaws.com"
	maxEvent         = 25 << 20 // bytes; GitHub sends no larger event
)

// A gitHubRole is the role of the options, assumed with the identity that GitHub gives to this job.
type gitHubRole struct {
	*store
	sts *sts.Client
}

// Retrieve assumes the role. The session ends after an hour or so, and the identity after minutes, so both are requested again
// as long as the run goes on. An error is a [*credentialsError].
func (r gitHubRole) Retrieve(ctx context.Context) (own aws.Credentials, err error) {
	token, err := r.identityToken(ctx)
	if err != nil {
		return own, err
	}
	session := cmp.Or(r.opt.RoleSession, defaultSession())
	answer, err := r.sts.AssumeRoleWithWebIdentity(ctx, &sts.AssumeRoleWithWebIdentityInput{
		RoleArn: &r.opt.Role, RoleSessionName: &session, WebIdentityToken: &token,
	})
	if err == nil && answer.Credentials == nil {
		err = errors.New("the answer of the security token service has no credentials")
	}
	if err != nil {
		return own, &credentialsError{err: err, cause: causeRole, subject: subjectOf(token)}
	}
	given := answer.Credentials
	r.Log.Info("AWS role assumed", "role", shown(r.opt.Role), "session", session, "expires", aws.ToTime(given.Expiration).UTC().Format(time.RFC3339))
	return aws.Credentials{
		AccessKeyID: aws.ToString(given.AccessKeyId), SecretAccessKey: aws.ToString(given.SecretAccessKey),
		SessionToken: aws.ToString(given.SessionToken), CanExpire: true, Expires: aws.ToTime(given.Expiration),
	}, nil
}

// identityToken requests the identity of this job from GitHub.
func (s *store) identityToken(ctx context.Context) (string, error) {
	job := action.OwnTokens()
	job.HTTP, job.Backoff, job.Log = notRedirected(cmp.Or(s.HTTP, golden.DefaultHTTP())), s.Backoff, s.Log
	token, err := job.Identity(ctx, identityAudience)
	if err == nil || ctx.Err() != nil {
		return token, err
	}
	return "", &credentialsError{err: err, cause: causeNoIdentity}
}

// subjectOf returns the subject of a token, which the trust policy of a role must name.
func subjectOf(token string) string { return shown(action.ReadClaims(token).Subject) }

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
