package s3store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// renewBefore is how long before they expire credentials are replaced, at the earliest. It covers a request
// and a wrong clock; the shortest session is of 15 minutes.
const renewBefore = 5 * time.Minute

// cached requests credentials of a source again shortly before they expire. Of many processes that began at the same time, not
// all do so at the same time.
func cached(source aws.CredentialsProvider) *aws.CredentialsCache {
	return aws.NewCredentialsCache(source, func(o *aws.CredentialsCacheOptions) {
		o.ExpiryWindow = renewBefore
		o.ExpiryWindowJitterFrac = 0.5
	})
}

// A lookup chooses the source of credentials, as the package config of the SDK does. That one is not used, as it links a client
// for each way to log in through a browser.
type lookup struct {
	*store
	settings
	web *http.Client
}

// source looks where the AWS tools look, in their order: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html.
func (l lookup) source() (aws.CredentialsProvider, error) {
	if own := ofEnvironment(); own != nil {
		return own, nil
	}
	if file := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"); file != "" {
		return l.tokenFile(file, os.Getenv("AWS_ROLE_ARN"), os.Getenv("AWS_ROLE_SESSION_NAME"))
	}
	return l.ofProfile(l.profile, nil)
}

// ofEnvironment returns the keys of the environment, or nil.
func ofEnvironment() aws.CredentialsProvider {
	id, secret := cmp.Or(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_ACCESS_KEY")), cmp.Or(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SECRET_KEY"))
	if id == "" || secret == "" {
		return nil
	}
	return credentials.NewStaticCredentialsProvider(id, secret, os.Getenv("AWS_SESSION_TOKEN"))
}

// ofProfile returns the source that a profile names. seen are the profiles that led here.
func (l lookup) ofProfile(name string, seen []string) (source aws.CredentialsProvider, err error) {
	if slices.Contains(seen, name) {
		return nil, fmt.Errorf("the source_profile of the AWS profile %q leads back to it", clip(name))
	}
	p, known := l.sections[name]
	if !known && len(seen) > 0 {
		return nil, fmt.Errorf("the files of the AWS tools have no profile %q, which source_profile names", clip(name))
	}
	hasKeys := p["aws_access_key_id"] != "" && p["aws_secret_access_key"] != ""
	switch from := p["source_profile"]; {
	case from != "" && (from != name || !hasKeys):
		source, err = l.ofProfile(from, append(seen, name))
	case hasKeys:
		source = credentials.NewStaticCredentialsProvider(p["aws_access_key_id"], p["aws_secret_access_key"], p["aws_session_token"])
	case p["credential_source"] != "":
		source, err = l.named(p["credential_source"])
	case p["web_identity_token_file"] != "":
		return l.tokenFile(p["web_identity_token_file"], p["role_arn"], p["role_session_name"])
	case p["sso_session"] != "" || p["sso_start_url"] != "" || p["login_session"] != "":
		return nil, unsupported("the AWS profile %q logs in through a browser", name)
	case p["credential_process"] != "":
		source = ofProcess(p["credential_process"])
	case os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		source, err = l.ofContainer()
	default:
		source = l.ofMachine()
	}
	if err != nil || p["role_arn"] == "" {
		return source, err
	}
	if p["mfa_serial"] != "" {
		return nil, unsupported("the role of the AWS profile %q wants a code of MFA", name)
	}
	return l.role(p, source), nil
}

// unsupported says what to do in place of what only the AWS tools can.
func unsupported(what, profile string) error {
	return fmt.Errorf(what+", which is not supported: run `aws configure export-credentials --profile %s --format env` and set the variables that it prints, "+
		"or make that command without --format the credential_process of another profile", clip(profile), shown(profile))
}

// named returns the source that credential_source names.
func (l lookup) named(source string) (aws.CredentialsProvider, error) {
	switch source {
	case "Environment":
		if own := ofEnvironment(); own != nil {
			return own, nil
		}
		return nil, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, which credential_source = Environment wants")
	case "Ec2InstanceMetadata":
		return l.ofMachine(), nil
	case "EcsContainer":
		return l.ofContainer()
	}
	return nil, fmt.Errorf("credential_source = %q is none of Environment, Ec2InstanceMetadata and EcsContainer", clip(source))
}

// role returns the session of the role of a profile, requested with the credentials of the source.
func (l lookup) role(p map[string]string, source aws.CredentialsProvider) aws.CredentialsProvider {
	form := url.Values{"Action": {"AssumeRole"}, "RoleArn": {p["role_arn"]}, "RoleSessionName": {cmp.Or(p["role_session_name"], defaultSession())}}
	for key, field := range map[string]string{"external_id": "ExternalId", "duration_seconds": "DurationSeconds"} {
		if p[key] != "" {
			form.Set(field, p[key])
		}
	}
	signer := cached(source)
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) { return l.assume(ctx, form, signer) })
}

// tokenFile assumes a role with the identity in a file, which others renew.
func (l lookup) tokenFile(file, role, session string) (aws.CredentialsProvider, error) {
	if role == "" {
		return nil, errors.New("AWS_ROLE_ARN is not set, whose role the token of AWS_WEB_IDENTITY_TOKEN_FILE is for")
	}
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		token, err := os.ReadFile(file)
		if err != nil {
			return aws.Credentials{}, err
		}
		return l.webIdentity(ctx, role, cmp.Or(session, defaultSession()), string(token))
	}), nil
}

func (l lookup) webIdentity(ctx context.Context, role, session, token string) (aws.Credentials, error) {
	return l.assume(ctx, url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "RoleArn": {role}, "RoleSessionName": {session}, "WebIdentityToken": {token},
	}, nil)
}

// assume requests the session of a role, signed if there is a signer. The client of the SDK would add 350 kB to the program for
// this call. Errors have the types of the SDK.
func (l lookup) assume(ctx context.Context, form url.Values, signer aws.CredentialsProvider) (aws.Credentials, error) {
	form.Set("Version", "2011-06-15")
	repeat := l.retryer()
	for try := 1; ; try++ {
		own, err := l.assumeOnce(ctx, form.Encode(), signer)
		if err == nil {
			return own, nil
		}
		if try == repeat.MaxAttempts() || ctx.Err() != nil || !golden.Temporary(err) && !repeat.IsErrorRetryable(err) {
			return own, &smithy.OperationError{ServiceID: "STS", OperationName: form.Get("Action"), Err: err}
		}
		if err := retry.Pause(ctx, l.Backoff(try)); err != nil {
			return own, err
		}
	}
}

func (l lookup) assumeOnce(ctx context.Context, body string, signer aws.CredentialsProvider) (own aws.Credentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	endpoint, err := l.stsEndpoint(ctx)
	if err != nil {
		return own, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/", strings.NewReader(body))
	if err != nil {
		return own, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if signer != nil {
		keys, err := signer.Retrieve(ctx)
		if err != nil {
			return own, err
		}
		sum := sha256.Sum256([]byte(body))
		if err := v4.NewSigner().SignHTTP(ctx, keys, r, hex.EncodeToString(sum[:]), "sts", l.region, time.Now()); err != nil {
			return own, err
		}
	}
	answer, err := bounded{Client: l.web}.Do(r)
	if err != nil {
		return own, err
	}
	defer answer.Body.Close()
	var said struct {
		Error  struct{ Code, Message string }
		Result []struct {
			Credentials struct {
				AccessKeyId, SecretAccessKey, SessionToken string //nolint:revive // as AWS names them
				Expiration                                 time.Time
			}
		} `xml:",any"`
	}
	err = xml.NewDecoder(answer.Body).Decode(&said)
	if answer.StatusCode != http.StatusOK {
		return own, &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: answer},
			Err:      &smithy.GenericAPIError{Code: said.Error.Code, Message: said.Error.Message},
		}
	}
	if err != nil || len(said.Result) == 0 || said.Result[0].Credentials.AccessKeyId == "" {
		return own, errors.New("the answer has no credentials")
	}
	given := said.Result[0].Credentials
	return aws.Credentials{
		AccessKeyID: given.AccessKeyId, SecretAccessKey: given.SecretAccessKey, SessionToken: given.SessionToken,
		CanExpire: true, Expires: given.Expiration,
	}, nil
}

// stsEndpoint is the URL of the service that gives roles. At AWS, its host is called as that of S3 is.
func (l lookup) stsEndpoint(ctx context.Context) (string, error) {
	if endpoint := l.endpoint("sts"); endpoint != "" {
		return strings.TrimSuffix(endpoint, "/"), nil
	}
	ofS3, err := s3.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, s3.EndpointParameters{Region: &l.region})
	if err != nil {
		return "", err
	}
	service := "sts."
	if l.fips() == aws.FIPSEndpointStateEnabled && !strings.HasPrefix(l.region, "us-gov-") { // where all are
		service = "sts-fips."
	}
	return "https://" + service + strings.TrimPrefix(ofS3.URI.Host, "s3."), nil
}

// retryer repeats requests for credentials. STS itself asks GitHub, which the SDK does not take for temporary when it fails.
func (l lookup) retryer() aws.Retryer {
	return awsretry.NewStandard(func(o *awsretry.StandardOptions) {
		o.MaxAttempts = l.attempts
		o.Backoff = awsretry.BackoffDelayerFunc(func(try int, _ error) (time.Duration, error) { return l.Backoff(try), nil })
		o.Retryables = append(o.Retryables,
			awsretry.RetryableHTTPStatusCode{Codes: map[int]struct{}{http.StatusTooManyRequests: {}}},
			awsretry.RetryableErrorCode{Codes: map[string]struct{}{"IDPCommunicationError": {}}})
	})
}

// ofProcess runs the program that a profile names: https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html.
// The provider of the SDK would quote its output in an error.
func ofProcess(command string) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (own aws.Credentials, err error) {
		ctx, cancel := context.WithTimeout(ctx, processcreds.DefaultTimeout)
		defer cancel()
		cmd, err := processcreds.DefaultNewCommandBuilder{Args: []string{command}}.NewCommand(ctx)
		if err != nil {
			return own, err
		}
		cmd.Stderr, cmd.WaitDelay = safetext.LineWriter{W: os.Stderr}, time.Second
		out, err := cmd.Output()
		if err != nil {
			return own, fmt.Errorf("credential_process: %w", err)
		}
		var printed processcreds.CredentialProcessResponse
		if json.Unmarshal(out, &printed) != nil || printed.AccessKeyID == "" || printed.SecretAccessKey == "" {
			return own, errors.New("credential_process: the output is not JSON with credentials")
		}
		own = aws.Credentials{AccessKeyID: printed.AccessKeyID, SecretAccessKey: printed.SecretAccessKey, SessionToken: printed.SessionToken}
		if printed.Expiration != nil {
			own.CanExpire, own.Expires = true, *printed.Expiration
		}
		return own, nil
	})
}

// direct is for the machine itself, which no proxy knows.
func direct() bounded {
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.Proxy = nil
	return bounded{Client: notRedirected(&http.Client{Transport: own, Timeout: requestTimeout})}
}

const (
	requestTimeout = 30 * time.Second // of a request for credentials
	containerHost  = "http://169.254.170.2"
)

// ofContainer asks the agent of ECS or of EKS: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html.
func (l lookup) ofContainer() (aws.CredentialsProvider, error) {
	where := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if path := os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path != "" {
		where = containerHost + path
	}
	u, err := url.Parse(where)
	if err != nil || u.Host == "" {
		return nil, errors.New("AWS_CONTAINER_CREDENTIALS_FULL_URI is not an URL")
	}
	if u.Scheme != "https" && !ofThisMachine(u.Hostname()) {
		return nil, fmt.Errorf("AWS_CONTAINER_CREDENTIALS_FULL_URI is of the host %q: without https it must be of this machine", clip(u.Hostname()))
	}
	return endpointcreds.New(where, func(o *endpointcreds.Options) {
		o.HTTPClient, o.Retryer = direct(), l.retryer()
		o.AuthorizationToken = os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
		if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
			o.AuthorizationTokenProvider = endpointcreds.TokenProviderFunc(func() (string, error) {
				text, err := os.ReadFile(file)
				return strings.TrimSpace(string(text)), err
			})
		}
	}), nil
}

// ofThisMachine reports whether a host is this one, or an agent beside it.
func ofThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip.IsLoopback() || host == "169.254.170.2" || host == "169.254.170.23" || ip.Equal(net.ParseIP("fd00:ec2::23"))
}

// ofMachine asks the metadata service of EC2 for the role of the machine, by version 2 of its protocol.
func (l lookup) ofMachine() aws.CredentialsProvider {
	options := imds.Options{
		HTTPClient: direct(), Retryer: l.retryer(), EnableFallback: aws.FalseTernary,
		Endpoint: l.either("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint"),
	}
	if strings.EqualFold(l.either("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode"), "ipv6") {
		options.EndpointMode = imds.EndpointModeStateIPv6
	}
	return ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = imds.New(options) })
}
