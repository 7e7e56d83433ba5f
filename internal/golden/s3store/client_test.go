package s3store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A fake is needed for what a real server cannot be made to do: be overloaded, break off, be elsewhere.
func newFakeS3(t *testing.T, steps ...step) (*testenv.Script, *goldenStore) {
	t.Helper()
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "topsecret", "AWS_SESSION_TOKEN": "toptoken"})
	fake := newScript(t, false, steps...)
	s := newStore(t)
	s.S3.Endpoint, s.HTTP = fake.URL, fake.Client()
	return fake, s
}

func s3Error(status int, code, message string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>%s</Message><RequestId>1</RequestId></Error>`, code, message)
	}
}

func inRegion(region string, next step) step {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amz-Bucket-Region", region)
		next(w, r)
	}
}

func TestS3TriesAgain(t *testing.T) {
	ok := serve(content)
	tests := []struct {
		name  string
		steps []step
		stall time.Duration
		asked int
		fails []string
	}{
		{name: "at once", steps: []step{ok}, asked: 1},
		{name: "slow down", steps: []step{s3Error(503, "SlowDown", "Please reduce your request rate."), ok}, asked: 2},
		{name: "outages without a word", steps: []step{status(500), status(502), status(504), ok}, asked: 4},
		{name: "cut", steps: []step{cut, ok}, asked: 2},
		{name: "no answer", steps: []step{drop, reset, ok}, asked: 3},
		{name: "stalled", steps: []step{hang, ok}, stall: patience, asked: 2},
		{
			name: "slow down for good", steps: []step{s3Error(503, "SlowDown", "Please reduce your request rate.")}, asked: 4,
			fails: []string{"HTTP status 503 Service Unavailable: SlowDown: Please reduce your request rate. (4 tries)"},
		},
		{name: "cut for good", steps: []step{cut}, asked: 4, fails: []string{"after 1750 bytes: unexpected EOF (4 tries)"}},
		{name: "no answer for good", steps: []step{drop}, asked: 4, fails: []string{": EOF (4 tries)"}},
		{
			name: "denied", steps: []step{s3Error(403, "AccessDenied",
				"User: arn:aws:sts::123456789012:assumed-role/ci/s is not authorized to perform: s3:GetObject\n::error::got you")},
			asked: 1, fails: []string{"arn:aws:sts::…:assumed-role/ci/s is not", "s3:GetObject ::error::got you", "or there is no such key"},
		},
		{name: "denied without a word", steps: []step{status(403)}, asked: 1, fails: []string{"HTTP status 403 Forbidden", "may not read this key"}},
		{name: "expired", steps: []step{s3Error(400, "ExpiredToken", "The provided token has expired.")}, asked: 1, fails: []string{"have expired", "[credentials-expired]"}},
		{
			name: "elsewhere, and refused there too", steps: []step{inRegion("eu-west-1", s3Error(301, "PermanentRedirect", "Use the right endpoint."))},
			asked: 2, fails: []string{"the bucket is in this region, and refuses it there: check AWS_ENDPOINT_URL [wrong-region]"},
		},
		{
			name: "elsewhere and elsewhere", asked: 2, fails: []string{"in region eu-west-2, not eu-west-1: set AWS_REGION=eu-west-2 [wrong-region]"},
			steps: []step{inRegion("eu-west-1", status(301)), inRegion("eu-west-2", status(301))},
		},
		{
			name: "denied elsewhere", steps: []step{inRegion("eu-west-1", s3Error(403, "AccessDenied", "Access Denied"))}, asked: 2,
			fails: []string{"or there is no such key: S3 tells the two apart only to those who may list the bucket [access-denied]"},
		},
		{
			name: "denied here", steps: []step{inRegion("us-east-1", s3Error(403, "AccessDenied", "Access Denied"))}, asked: 1,
			fails: []string{"or there is no such key"},
		},
		{name: "elsewhere without a word", steps: []step{status(301)}, asked: 2, fails: []string{"not in region us-east-1: set AWS_REGION"}},
		{
			name: "archived", steps: []step{s3Error(403, "InvalidObjectState", "The operation is not valid for the object's storage class")},
			asked: 1, fails: []string{"restore it", "[archived]"},
		},
		{name: "fault of the server", steps: []step{s3Error(500, "InternalError", "We encountered an internal error.")}, asked: 4, fails: []string{"[server-error]"}},
		{
			name: "unknown key", steps: []step{s3Error(403, "InvalidAccessKeyId", "The key AKID is not known, topsecret neither.")}, asked: 1,
			fails: []string{"The key … is not known, … neither.", "[unknown-access-key]"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, test.steps...)
			s.Stall = test.stall
			if len(test.fails) == 0 {
				wantContent(t, s, "s3://bucket/dir/key")
			} else {
				_, err := fetchContent(t, s, "s3://bucket/dir/key")
				wantFetchError(t, err, append(test.fails, "golden s3://bucket/dir/key: ")...)
				require.True(t, !strings.Contains(err.Error(), "\n"), "the error has several lines: %v", err)
			}
			if got := fake.Asked(); got != test.asked {
				t.Errorf("%d requests, want %d", got, test.asked)
			}
			request := fake.Requests[0]
			require.True(t, request.Method == http.MethodGet && request.URL.Path == "/bucket/dir/key", "asked for %s %s, want the bucket in the path", request.Method, request.URL.Path)
			if got := request.Header.Get("Authorization"); !strings.Contains(got, "Credential=AKID/") || !strings.Contains(got, "/us-east-1/s3/") {
				t.Errorf("Authorization is %q, want a signature for %s", got, defaultRegion)
			}
			require.Equal(t, request.Header.Get("X-Amz-Checksum-Mode"), "", "asked for the checksum, which only some stores know")
		})
	}
}

// hungServer answers nothing. The SDK goes on with a request for credentials that nothing waits for any more.
func hungServer(t *testing.T) *httptest.Server {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(func() { hung.CloseClientConnections(); hung.Close() })
	return hung
}

// A laptop has no credentials, and where a machine would give its role nobody answers.
func TestS3WithoutCredentialsIsAnonymous(t *testing.T) {
	hung := hungServer(t)
	tests := []struct {
		name string
		env  map[string]string
	}{
		{name: "nobody answers", env: map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": hung.URL, "AWS_EC2_METADATA_DISABLED": "false"}},
		{name: "service disabled"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, serve(content))
			withoutAWS(t)
			setenv(t, test.env)
			s.roleTimeout = 20 * time.Millisecond
			wantContent(t, s, "s3://bucket/key")
			for name := range fake.Requests[0].Header {
				require.True(t, name != "Authorization" && !strings.HasPrefix(name, "X-Amz-Security"), "an anonymous request has a header %s", name)
			}
		})
	}
}

// An answer that has no end is read to the limit.
func TestEndlessRefusal(t *testing.T) {
	_, s := newFakeS3(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		for {
			if _, err := w.Write(content); err != nil {
				return
			}
		}
	})
	_, err := fetchContent(t, s, "s3://bucket/key")
	wantFetchError(t, err, "HTTP status 403")
}

// Credentials that are configured and fail must not become an anonymous request, which would hide them.
func TestS3BrokenCredentials(t *testing.T) {
	var denied atomic.Int32
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		denied.Add(1)
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized: arn:aws:iam::123456789012:role/ci`+
			`</Message></Error></ErrorResponse>`)
	}))
	t.Cleanup(sts.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, []byte("header.topsecret.signature"))
	profiles := filepath.Join(t.TempDir(), "config")
	write(t, profiles, []byte(`
[profile broken]
credential_process = false
[profile talkative]
credential_process = echo '{"Version":1,"SecretAccessKey":topsecret}'
[profile half]
credential_process = echo '{"Version":1,"SecretAccessKey":"topsecret"}'
[profile code]
role_arn = arn:aws:iam::123456789012:role/ci
mfa_serial = m
source_profile = keys
[profile keys]
aws_access_key_id = AKID
aws_secret_access_key = topsecret
[profile chain]
role_arn = arn:aws:iam::123456789012:role/ci
source_profile = talkative
`))
	tests := []struct {
		name string
		env  map[string]string
		want []string
	}{
		{name: "no such profile", env: map[string]string{"AWS_PROFILE": "absent"}, want: []string{"absent"}},
		{name: "process fails", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "broken"}, want: []string{"exit status 1"}},
		{name: "output is not JSON", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "talkative"}, want: []string{"its output is not JSON with credentials"}},
		{name: "output without a key", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "half"}, want: []string{"its output is not JSON with credentials"}},
		{name: "role by a process", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "chain"}, want: []string{"its output is not JSON with credentials"}},
		{name: "code of MFA", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "code"}, want: []string{"a code of MFA, which is not supported"}},
		{name: "attempts", env: map[string]string{"AWS_MAX_ATTEMPTS": "many"}, want: []string{"many"}},
		{
			name: "no token", env: map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/ci", "AWS_WEB_IDENTITY_TOKEN_FILE": token + "x"},
			want: []string{"no such file"},
		},
		{
			name: "role refused",
			env: map[string]string{
				"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/ci", "AWS_WEB_IDENTITY_TOKEN_FILE": token,
				"AWS_ENDPOINT_URL_STS": sts.URL, "AWS_REGION": "us-east-1",
			},
			want: []string{"AccessDenied: Not authorized: arn:aws:iam::…:role/ci"},
		},
		{
			name: "nobody gives roles",
			env: map[string]string{
				"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/ci", "AWS_WEB_IDENTITY_TOKEN_FILE": token,
				"AWS_ENDPOINT_URL_STS": gone.URL, "AWS_MAX_ATTEMPTS": "1",
			},
			want: []string{"connection refused"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, serve(content))
			withoutAWS(t)
			setenv(t, test.env)
			_, err := fetchContent(t, s, "s3://bucket/key")
			failed := wantFetchError(t, err, append(test.want, "AWS credentials", "configured but could not be had")...)
			require.True(t, failed.Status == 0 && failed.Tries == 1, "status %d after %d tries, want none of the bucket's after 1", failed.Status, failed.Tries)
			for _, secret := range []string{"topsecret", "123456789012"} {
				require.True(t, !strings.Contains(err.Error(), secret), "%q is told: %v", secret, err)
			}
			require.Equal(t, fake.Asked(), 0, "requests for the golden")
		})
	}
	require.True(t, denied.Load() != 0, "the role was never asked for")
}

func TestS3EndpointAndStyle(t *testing.T) {
	tests := []struct {
		name    string
		env     map[string]string
		options Options
		bucket  string // "": bucket
		want    string // host and path of the request
	}{
		{name: "AWS", want: "bucket.s3.us-east-1.amazonaws.com/key"},
		{name: "field", options: Options{Endpoint: "http://field.test"}, env: map[string]string{"AWS_ENDPOINT_URL_S3": "http://s3.test"}, want: "field.test/bucket/key"},
		{name: "field, in the host", options: Options{Endpoint: "http://field.test", PathStyle: Off}, want: "bucket.field.test/key"},
		{name: "AWS, in the path", options: Options{PathStyle: On}, want: "s3.us-east-1.amazonaws.com/bucket/key"},
		{name: "region of the options", options: Options{Region: "eu-west-1"}, want: "bucket.s3.eu-west-1.amazonaws.com/key"},
		{name: "path", options: Options{Endpoint: "http://field.test/base/"}, want: "field.test/base/bucket/key"},
		{
			name: "access point", bucket: "arn:aws:s3:eu-west-1:123456789012:accesspoint/ci",
			want: "ci-123456789012.s3-accesspoint.eu-west-1.amazonaws.com/key",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			withoutAWS(t)
			setenv(t, test.env)
			var got string
			s := newStore(t)
			s.S3 = test.options
			s.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				got = r.URL.Host + r.URL.Path
				return nil, context.Canceled
			})}
			_, err := fetchContent(t, s, "s3://"+cmp.Or(test.bucket, "bucket")+"/key")
			wantFetchError(t, err)
			require.Equal(t, got, test.want, "asked")
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestS3DeadlineWhileLookingForCredentials(t *testing.T) {
	hung := hungServer(t)
	fake, s := newFakeS3(t, serve(content))
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": hung.URL, "AWS_EC2_METADATA_DISABLED": "false"})
	s.roleTimeout = time.Hour
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err := s.Fetch(ctx, golden.Object{Location: "s3://bucket/key", SHA256: digest(content)})
	wantFetchError(t, err, "deadline exceeded")
	require.Equal(t, fake.Asked(), 0, "requests for the golden")
	// The store has not taken the deadline for a lack of credentials for ever.
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s"})
	wantContent(t, s, "s3://bucket/key")
	require.True(t, fake.Requests[0].Header.Get("Authorization") != "", "the request was not signed")
}

// signedFor is the region of a request's signature.
func signedFor(r *http.Request) string {
	_, scope, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=AKID/")
	if parts := strings.Split(scope, "/"); len(parts) > 1 {
		return parts[1]
	}
	return "none"
}

func TestS3FollowsTheBucket(t *testing.T) {
	malformed := func(message string) step { return s3Error(400, "AuthorizationHeaderMalformed", message) }
	tests := []struct {
		name   string
		region string // that is set
		steps  []step
		asked  string // regions of the signatures
		warns  bool
		fails  string
	}{
		{name: "header", steps: []step{inRegion("eu-west-1", status(301)), serve(content)}, asked: "us-east-1 eu-west-1 eu-west-1"},
		{
			name: "message", steps: []step{malformed("the region 'us-east-1' is wrong; expecting 'eu-west-1'"), serve(content)},
			asked: "us-east-1 eu-west-1 eu-west-1",
		},
		{
			name: "asked for", steps: []step{status(301), inRegion("eu-west-1", status(403)), serve(content)},
			asked: "us-east-1 none eu-west-1 eu-west-1",
		},
		{
			name: "asked for in vain", steps: []step{malformed("no"), status(403)}, asked: "us-east-1 none",
			fails: "not in region us-east-1: set AWS_REGION to its own [wrong-region]",
		},
		{name: "denied", steps: []step{inRegion("eu-west-1", status(403)), serve(content)}, asked: "us-east-1 eu-west-1 eu-west-1"},
		{
			name: "set and wrong", region: "ap-south-1", steps: []step{inRegion("eu-west-1", status(301)), serve(content)},
			asked: "ap-south-1 eu-west-1 eu-west-1", warns: true,
		},
		{name: "set and right", region: "eu-west-1", steps: []step{serve(content)}, asked: "eu-west-1 eu-west-1"},
		{
			name: "hostile", steps: []step{inRegion("evil.test/x?", status(301)), inRegion("evil.test#", status(403))},
			asked: "us-east-1 none", fails: "not in region us-east-1",
		},
		{
			name: "hostile message", steps: []step{malformed("expecting 'evil.test/x'"), status(403)},
			asked: "us-east-1 none", fails: "not in region us-east-1",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, test.steps...)
			s.S3.Region = test.region
			out := logTo(s)
			if test.fails == "" {
				wantKey(t, s, "a")
				wantKey(t, s, "b") // where the first one was found
			} else {
				_, err := fetchContent(t, s, "s3://"+bucket+"/a")
				wantFetchError(t, err, test.fails)
			}
			var asked []string
			for _, r := range fake.Requests {
				asked = append(asked, signedFor(r))
			}
			require.Equal(t, strings.Join(asked, " "), test.asked, "asked in")
			if got := strings.Count(out.String(), "level=WARN"); (got == 1) != test.warns || got > 1 {
				t.Errorf("%d warnings: %s", got, out)
			}
		})
	}
}

func TestRealS3RegionThatIsWrong(t *testing.T) {
	server, client := startS3(t)
	put(t, client, "key", content)
	setenv(t, map[string]string{"AWS_REGION": "eu-west-1"})
	s := newStore(t)
	out := logTo(s)
	wantContent(t, s, "s3://"+bucket+"/key")
	wantPublished(t, s, "s3://"+bucket+"/new", contentFile(t), false)
	if got := out.String(); strings.Count(got, "in another region than configured") != 1 || !strings.Contains(got, "region=us-east-1 set=eu-west-1") {
		t.Errorf("not warned once of the region: %s", got)
	}
	// The option is stronger than the environment.
	s = newStore(t)
	s.S3 = Options{Region: testenv.S3Region, Endpoint: server.Endpoint}
	out = logTo(s)
	wantKey(t, s, "key")
	require.True(t, !strings.Contains(out.String(), "another region"), "followed for no reason: %s", out)
	// Unsigned requests name no region, so none is wrong.
	s = newStore(t)
	s.S3 = Options{Region: "eu-west-1", Anonymous: On}
	_, err := fetchContent(t, s, "s3://"+bucket+"/key")
	wantFetchError(t, err, "403", "[no-credentials]")
}

// Many requests at once find the region, and say so once.
func TestRealS3RegionThatIsWrongAtOnce(t *testing.T) {
	_, client := startS3(t)
	put(t, client, "key", content)
	setenv(t, map[string]string{"AWS_REGION": "eu-west-1"})
	s := newStore(t)
	out := logTo(s)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if data, _, err := openKey(t.Context(), s, "key", golden.Span{}); err != nil || len(data) != len(content) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
	group.Wait()
	require.Equal(t, strings.Count(out.String(), "in another region"), 1, "times in: %s", out)
}

// Each error that there is, with each secret wherever foreign text can be.
func TestErrorsKeepSecrets(t *testing.T) {
	const (
		key     = "AKIAIOSFODNN7EXAMPLE"
		own     = "key-of-a-server-of-ones-own"
		secret  = "wJalrXUtnFEMI-topsecret"
		session = "FwoGZXIvYXdzEA-toptoken"
		account = "123456789012"
		token   = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZXBvOm8vbiJ9.dG9wc2lnbmF0dXJl"
		signed  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	)
	said := []string{
		"arn:aws:sts::" + account + ":assumed-role/ci/s may not", "the account " + account + " may not", key + " is not known", own + " is not known",
		"calculated with " + secret, "session " + session, "Bearer " + token, token, "Credential=" + own + "/20260101, Signature=" + signed,
		"https://b.s3.amazonaws.com/k?X-Amz-Credential=" + own + "&X-Amz-Signature=" + signed + "&X-Amz-Security-Token=" + session,
		"X-Amz-Signature=" + signed, "https://me:" + secret + "@proxy.test:3128",
	}
	codes := []string{
		"", "AccessDenied", "NoSuchBucket", "NoSuchKey", "NoSuchVersion", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
		"RequestTimeTooSkewed", "InvalidObjectState", "SlowDown", "AuthorizationHeaderMalformed", "PreconditionFailed", "InternalError",
	}
	for _, words := range said {
		for _, code := range codes {
			t.Run(code, func(t *testing.T) {
				_, s := newFakeS3(t, s3Error(403, code, html.EscapeString(words)))
				setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": own, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": session})
				out := logTo(s)
				_, err := fetchContent(t, s, "s3://bucket/key")
				wantFetchError(t, err, "403")
				_, published := s.Publish(t.Context(), "s3://bucket/key", contentFile(t))
				for _, told := range []string{err.Error(), published.Error(), out.String()} {
					wantSecretsKept(t, told, key, own, secret, session, account, token, signed)
				}
			})
		}
		failure := errors.New(words)
		for _, err := range []error{
			failure, &url.Error{Op: "Get", URL: "https://h/p?X-Amz-Signature=" + signed, Err: failure}, &credentialsError{err: failure},
			&credentialsError{err: &url.Error{Op: "Get", URL: "https://h/p?token=" + session, Err: failure}, cause: causeNoIdentity},
		} {
			// What the client has taken out already cannot be known here.
			told := strings.NewReplacer(own, "", secret, "", session, "").Replace((&golden.FetchError{Location: "x", Err: err}).Error())
			wantSecretsKept(t, told, key, account, token, signed)
		}
	}
}

// Of a version of the object at the first location a mirror knows nothing.
func TestMirrorsHaveNoVersion(t *testing.T) {
	fake, s := newFakeS3(t, status(404), serve(content))
	o := contentAt("s3://bucket/a", "s3://other/b")
	o.VersionID = "v1"
	if _, err := s.Fetch(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	require.Equal(t, fake.Requests[0].URL.Query().Get("versionId"), "v1", "asked for version")
	if got := fake.Requests[1].URL.RawQuery; strings.Contains(got, "versionId") {
		t.Errorf("the mirror was asked for %q", got)
	}
}
