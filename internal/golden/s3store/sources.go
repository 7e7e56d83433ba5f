package s3store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// A source gives keys.
type source func(context.Context) (keys, error)

// renewBefore is how long before they expire keys are replaced, at the earliest. It covers a request
// and a wrong clock; the shortest session is of 15 minutes.
const renewBefore = 5 * time.Minute

// A provider gives the keys of a source, and requests others shortly before they expire.
type provider struct {
	get source
	// machine is whether the source is the role of an EC2 machine, which is only assumed to be there.
	machine bool

	turn  chan struct{} // of capacity 1: held by whoever looks at the rest
	now   keys
	renew time.Time // when now is to be replaced; zero: never
	have  bool
}

func newProvider(get source, machine bool) *provider {
	return &provider{get: get, machine: machine, turn: make(chan struct{}, 1)}
}

// retrieve returns keys that have not expired.
func (p *provider) retrieve(ctx context.Context) (keys, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return keys{}, context.Cause(ctx)
	}
	if p.have && (p.renew.IsZero() || time.Now().Before(p.renew)) {
		return p.now, nil
	}
	next, err := p.get(ctx)
	if err != nil {
		if p.have && time.Now().Before(p.now.expires) {
			return p.now, nil // they are good for the rest of their time
		}
		return keys{}, err
	}
	p.now, p.have, p.renew = next, true, time.Time{}
	if !next.expires.IsZero() {
		// Of many processes that began at the same time, not all ask at the same time.
		p.renew = next.expires.Add(-renewBefore + rand.N(renewBefore/2))
	}
	return next, nil
}

// forget makes the next call of retrieve request other keys.
func (p *provider) forget() {
	p.turn <- struct{}{}
	p.have = false
	<-p.turn
}

func fixed(id, secret, session string) source {
	return func(context.Context) (keys, error) { return keys{id: id, secret: secret, session: session}, nil }
}

// ofEnvironment returns the keys of the environment, or nil.
func ofEnvironment() source {
	id, secret := cmp.Or(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_ACCESS_KEY")), cmp.Or(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SECRET_KEY"))
	if id == "" || secret == "" {
		return nil
	}
	return fixed(id, secret, os.Getenv("AWS_SESSION_TOKEN"))
}

// provider looks where the AWS tools look, in their order: https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html.
func (s *store) provider(set settings, web *http.Client) (*provider, error) {
	if get := ofEnvironment(); get != nil {
		return newProvider(get, false), nil
	}
	l := lookup{store: s, settings: set, web: web}
	if file := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"); file != "" {
		return newProvider(l.tokenFile(file, os.Getenv("AWS_ROLE_ARN"), os.Getenv("AWS_ROLE_SESSION_NAME")), false), nil
	}
	get, machine, err := l.ofProfile(set.profile, nil)
	return newProvider(get, machine), err
}

// A lookup finds the source of keys.
type lookup struct {
	*store
	settings
	web *http.Client
}

// ofProfile returns the source that a profile names. seen are the profiles that led here.
func (l lookup) ofProfile(name string, seen []string) (get source, machine bool, err error) {
	if slices.Contains(seen, name) {
		return nil, false, fmt.Errorf("the source_profile of the AWS profile %q leads back to it", clip(name))
	}
	p, known := l.sections[name]
	if !known && len(seen) > 0 {
		return nil, false, fmt.Errorf("the files of the AWS tools have no profile %q, which source_profile names", clip(name))
	}
	own := fixed(p["aws_access_key_id"], p["aws_secret_access_key"], p["aws_session_token"])
	hasOwn := p["aws_access_key_id"] != "" && p["aws_secret_access_key"] != ""
	switch from := p["source_profile"]; {
	case from != "" && (from != name || !hasOwn):
		if get, machine, err = l.ofProfile(from, append(seen, name)); err != nil {
			return nil, false, err
		}
	case hasOwn:
		get = own
	case p["credential_source"] != "":
		switch from := p["credential_source"]; from {
		case "Environment":
			if get = ofEnvironment(); get == nil {
				return nil, false, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, which credential_source = Environment wants")
			}
		case "Ec2InstanceMetadata":
			get, machine = l.ofMachine, true
		case "EcsContainer":
			get = l.ofContainer
		default:
			return nil, false, fmt.Errorf("credential_source = %q is none of Environment, Ec2InstanceMetadata and EcsContainer", clip(from))
		}
	case p["web_identity_token_file"] != "":
		return l.tokenFile(p["web_identity_token_file"], p["role_arn"], p["role_session_name"]), false, nil
	case p["sso_session"] != "" || p["sso_start_url"] != "" || p["login_session"] != "":
		return nil, false, fmt.Errorf("the AWS profile %q logs in through a browser, which is not supported: "+
			"run `aws configure export-credentials --profile %s --format env` and set the variables that it prints", clip(name), shown(name))
	case p["credential_process"] != "":
		get = ofProcess(p["credential_process"])
	case os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		get = l.ofContainer
	default:
		get, machine = l.ofMachine, true
	}
	if p["role_arn"] == "" {
		return get, machine, nil
	}
	if p["mfa_serial"] != "" {
		return nil, false, fmt.Errorf("the role of the AWS profile %q wants a code of MFA, which is not supported: "+
			"run `aws configure export-credentials --profile %s --format env` and set the variables that it prints", clip(name), shown(name))
	}
	form := url.Values{"Action": {"AssumeRole"}, "RoleArn": {p["role_arn"]}, "RoleSessionName": {cmp.Or(p["role_session_name"], defaultSession(os.Getenv("GITHUB_RUN_ID")))}}
	for key, field := range map[string]string{"external_id": "ExternalId", "duration_seconds": "DurationSeconds"} {
		if p[key] != "" {
			form.Set(field, p[key])
		}
	}
	signer := get // the result is another
	return func(ctx context.Context) (keys, error) {
		base, err := signer(ctx)
		if err != nil {
			return keys{}, err
		}
		return l.assume(ctx, form, base)
	}, false, nil
}

// tokenFile assumes a role with the identity in a file, which others renew.
func (l lookup) tokenFile(file, role, session string) source {
	return func(ctx context.Context) (keys, error) {
		if role == "" {
			return keys{}, errors.New("AWS_ROLE_ARN is not set, whose role the token of AWS_WEB_IDENTITY_TOKEN_FILE is for")
		}
		token, err := os.ReadFile(file)
		if err != nil {
			return keys{}, err
		}
		return l.webIdentity(ctx, role, session, string(token))
	}
}

func (l lookup) webIdentity(ctx context.Context, role, session, token string) (keys, error) {
	return l.assume(ctx, url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "RoleArn": {role}, "WebIdentityToken": {token},
		"RoleSessionName": {cmp.Or(session, defaultSession(os.Getenv("GITHUB_RUN_ID")))},
	}, keys{})
}

// assume requests the session of a role, signed with the keys unless they are none.
func (l lookup) assume(ctx context.Context, form url.Values, signer keys) (keys, error) {
	endpoint := cmp.Or(l.endpoint("sts"), "https://"+l.awsHost("sts", l.region))
	form.Set("Version", "2011-06-15")
	body := form.Encode()
	text, err := l.request(ctx, l.web, func(ctx context.Context) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(endpoint, "/")+"/", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if signer.id != "" {
			err = signer.sign(r, "sts", l.region, digestOf(body), time.Now())
		}
		return r, err
	})
	if err != nil {
		return keys{}, fmt.Errorf("%s: %w", form.Get("Action"), err)
	}
	var answer struct {
		Result []struct {
			Credentials struct{ AccessKeyId, SecretAccessKey, SessionToken, Expiration string } //nolint:revive // as AWS names them
		} `xml:",any"`
	}
	if err := xml.Unmarshal(text, &answer); err != nil {
		return keys{}, fmt.Errorf("%s: the answer is not what STS answers: %w", form.Get("Action"), err)
	}
	for _, result := range answer.Result {
		if c := result.Credentials; c.AccessKeyId != "" {
			return given(c.AccessKeyId, c.SecretAccessKey, c.SessionToken, c.Expiration)
		}
	}
	return keys{}, fmt.Errorf("%s: the answer has no credentials", form.Get("Action"))
}

// given makes keys of an answer.
func given(id, secret, session, expires string) (keys, error) {
	k := keys{id: id, secret: secret, session: session}
	if id == "" || secret == "" {
		return k, errors.New("the answer has no credentials")
	}
	if expires == "" {
		return k, nil
	}
	var err error
	if k.expires, err = time.Parse(time.RFC3339, expires); err != nil {
		return k, errors.New("the answer says in no known way when the credentials expire")
	}
	return k, nil
}

// givenJSON makes keys of an answer in JSON.
func givenJSON(text []byte) (keys, error) {
	var a struct{ Code, Message, AccessKeyId, SecretAccessKey, Token, SessionToken, Expiration string } //nolint:revive // as AWS names them
	if err := json.Unmarshal(text, &a); err != nil {
		return keys{}, errors.New("the answer is not JSON with credentials")
	}
	if a.Code != "" && a.Code != "Success" {
		return keys{}, &answerError{code: a.Code, message: a.Message}
	}
	return given(a.AccessKeyId, a.SecretAccessKey, cmp.Or(a.Token, a.SessionToken), a.Expiration)
}

// processTimeout is how long a program may take that prints credentials.
const processTimeout = time.Minute

// ofProcess runs the program that a profile names: https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html.
func ofProcess(command string) source {
	return func(ctx context.Context) (keys, error) {
		ctx, cancel := context.WithTimeout(ctx, processTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		if runtime.GOOS == "windows" {
			cmd = exec.CommandContext(ctx, "cmd.exe", "/C", command)
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, safetext.LineWriter{W: os.Stderr}, time.Second
		if err := cmd.Run(); err != nil {
			return keys{}, fmt.Errorf("credential_process: %w", err)
		}
		k, err := givenJSON(out.Bytes())
		if err != nil {
			err = fmt.Errorf("credential_process: %w", err)
		}
		return k, err
	}
}

// direct is for the machine itself, which no proxy knows.
func direct() *http.Client {
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.Proxy = nil
	return notRedirected(&http.Client{Transport: own, Timeout: requestTimeout})
}

const (
	requestTimeout  = 30 * time.Second // of a request for keys
	containerHost   = "http://169.254.170.2"
	machineLifetime = "21600" // seconds of the token
)

// ofContainer asks the agent of ECS or of EKS: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html.
func (l lookup) ofContainer(ctx context.Context) (keys, error) {
	where := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if path := os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path != "" {
		where = containerHost + path
	}
	u, err := url.Parse(where)
	if err != nil || u.Host == "" {
		return keys{}, errors.New("AWS_CONTAINER_CREDENTIALS_FULL_URI is not an URL")
	}
	if u.Scheme != "https" && !ofThisMachine(u.Hostname()) {
		return keys{}, fmt.Errorf("AWS_CONTAINER_CREDENTIALS_FULL_URI is of the host %q: without https it must be of this machine", clip(u.Hostname()))
	}
	text, err := l.request(ctx, direct(), func(ctx context.Context) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
		if err != nil {
			return nil, err
		}
		token := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
		if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			token = strings.TrimSpace(string(text))
		}
		if token != "" {
			r.Header.Set("Authorization", token)
		}
		return r, nil
	})
	if err != nil {
		return keys{}, fmt.Errorf("credentials of the container: %w", err)
	}
	return givenJSON(text)
}

// ofThisMachine reports whether a host is this one, or an agent beside it.
func ofThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip.IsLoopback() || host == "169.254.170.2" || host == "169.254.170.23" || ip.Equal(net.ParseIP("fd00:ec2::23"))
}

// ofMachine asks the metadata service of EC2, version 2, for the role of the machine:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html.
func (l lookup) ofMachine(ctx context.Context) (keys, error) {
	if strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
		return keys{}, errors.New("there are none, and AWS_EC2_METADATA_DISABLED forbids to ask for the role of the machine")
	}
	base := "http://169.254.169.254"
	if strings.EqualFold(l.either("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode"), "ipv6") {
		base = "http://[fd00:ec2::254]"
	}
	base = strings.TrimSuffix(cmp.Or(l.either("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint"), base), "/")
	client, token := direct(), ""
	get := func(method, path, header, value string) (string, error) {
		text, err := l.request(ctx, client, func(ctx context.Context) (*http.Request, error) {
			r, err := http.NewRequestWithContext(ctx, method, base+"/latest/"+path, nil)
			if err == nil {
				r.Header.Set(header, value)
			}
			return r, err
		})
		if err != nil {
			return "", fmt.Errorf("role of the machine: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	token, err := get(http.MethodPut, "api/token", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", machineLifetime)
	if err != nil {
		return keys{}, err
	}
	const roles = "meta-data/iam/security-credentials/"
	role, err := get(http.MethodGet, roles, "X-Aws-Ec2-Metadata-Token", token)
	if err != nil {
		return keys{}, err
	}
	role, _, _ = strings.Cut(role, "\n")
	text, err := get(http.MethodGet, roles+url.PathEscape(role), "X-Aws-Ec2-Metadata-Token", token)
	if err != nil {
		return keys{}, err
	}
	return givenJSON([]byte(text))
}

// An answerError is a refusal to give keys.
type answerError struct {
	status        int // 0: the answer itself says it
	code, message string
}

func (e *answerError) Error() string {
	text := strings.TrimSuffix(e.code+": "+e.message, ": ")
	if e.status != 0 {
		text = strings.TrimSuffix(fmt.Sprintf("HTTP status %d: %s", e.status, text), ": ")
	}
	return text
}

// temporary reports whether the same request may be answered soon. STS itself asks GitHub, and a role that is new is not known
// everywhere at once.
func (e *answerError) temporary() bool {
	return e.status == http.StatusTooManyRequests || e.status >= http.StatusInternalServerError || e.code == "IDPCommunicationError"
}

// request makes a request for keys, in several tries if that may help.
func (s *store) request(ctx context.Context, client *http.Client, make func(context.Context) (*http.Request, error)) ([]byte, error) {
	for try := 1; ; try++ {
		text, err := requestOnce(ctx, client, make)
		if err == nil {
			return text, nil
		}
		var refused *answerError
		again := golden.Temporary(err)
		if errors.As(err, &refused) {
			again = refused.temporary()
		}
		if !again || try == retry.Tries || ctx.Err() != nil {
			return nil, err
		}
		if err := retry.Pause(ctx, s.Backoff(try)); err != nil {
			return nil, err
		}
	}
}

func requestOnce(ctx context.Context, client *http.Client, make func(context.Context) (*http.Request, error)) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := make(ctx)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "vllm-vcr")
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	text, err := readAnswer(answer)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return text, nil
	}
	refused := &answerError{status: answer.StatusCode}
	var s said
	var j struct{ Code, Message string }
	if xml.Unmarshal(text, &s) == nil {
		refused.code, refused.message = cmp.Or(s.Error.Code, s.Code), cmp.Or(s.Error.Message, s.Message)
	} else if json.Unmarshal(text, &j) == nil {
		refused.code, refused.message = j.Code, j.Message
	}
	return nil, refused
}
