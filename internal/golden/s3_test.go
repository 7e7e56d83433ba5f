package golden

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A fake is needed for what a real server cannot be made to do: be overloaded, break off, be elsewhere.
func newFakeS3(t *testing.T, steps ...step) (*script, *Store) {
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
			out := logTo(s)
			if len(test.fails) == 0 {
				wantContent(t, s, "s3://bucket/dir/key")
			} else {
				_, err := fetchContent(t, s, "s3://bucket/dir/key")
				wantFetchError(t, err, append(test.fails, "golden s3://bucket/dir/key: ")...)
				for _, secret := range []string{"AKID", "topsecret", "toptoken", "123456789012", "\n"} {
					if text := err.Error(); strings.Contains(text+strings.ReplaceAll(out.String(), "\n", ""), secret) {
						t.Errorf("%q is told: %s\n%s", secret, text, out)
					}
				}
			}
			if got := fake.asked(); got != test.asked {
				t.Errorf("%d requests, want %d", got, test.asked)
			}
			request := fake.requests[0]
			if request.Method != http.MethodGet || request.URL.Path != "/bucket/dir/key" {
				t.Errorf("asked for %s %s, want the bucket in the path", request.Method, request.URL.Path)
			}
			if got := request.Header.Get("Authorization"); !strings.Contains(got, "Credential=AKID/") || !strings.Contains(got, "/us-east-1/s3/") {
				t.Errorf("Authorization is %q, want a signature for %s", got, defaultRegion)
			}
			if got := request.Header.Get("X-Amz-Checksum-Mode"); got != "" {
				t.Errorf("asked for the checksum %q, which only some stores know", got)
			}
		})
	}
}

// A laptop has no credentials, and where a machine would give its role nobody answers.
func TestS3WithoutCredentialsIsAnonymous(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hung.Close)
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
			for name := range fake.requests[0].Header {
				if name == "Authorization" || strings.HasPrefix(name, "X-Amz-Security") {
					t.Errorf("an anonymous request has a header %s", name)
				}
			}
		})
	}
}

// The role of the machine, as EC2 tells it, is found and used.
func TestS3UsesTheRoleOfTheMachine(t *testing.T) {
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			fmt.Fprint(w, "token")
		case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
			fmt.Fprint(w, "ci")
		default:
			fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":"ROLEKEY","SecretAccessKey":"s","Token":"t","Expiration":%q}`,
				time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
	}))
	t.Cleanup(role.Close)
	fake, s := newFakeS3(t, serve(content))
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": role.URL, "AWS_EC2_METADATA_DISABLED": "false"})
	s.roleTimeout = time.Minute
	wantContent(t, s, "s3://bucket/key")
	if got := fake.requests[0].Header.Get("Authorization"); !strings.Contains(got, "Credential=ROLEKEY/") {
		t.Errorf("Authorization is %q, want the key of the role", got)
	}
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
	write(t, profiles, []byte("[profile broken]\ncredential_process = false\n"))
	tests := []struct {
		name string
		env  map[string]string
		want []string
	}{
		{name: "no such profile", env: map[string]string{"AWS_PROFILE": "absent"}, want: []string{"absent"}},
		{name: "process fails", env: map[string]string{"AWS_CONFIG_FILE": profiles, "AWS_PROFILE": "broken"}, want: []string{"exit status 1"}},
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
			if failed.Status != 0 || failed.Tries != 1 {
				t.Errorf("status %d after %d tries, want none of the bucket's after 1", failed.Status, failed.Tries)
			}
			for _, secret := range []string{"topsecret", "123456789012"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q is told: %v", secret, err)
				}
			}
			if got := fake.asked(); got != 0 {
				t.Errorf("%d requests for the golden, want none", got)
			}
		})
	}
	if denied.Load() == 0 {
		t.Error("the role was never asked for")
	}
}

func TestS3EndpointAndStyle(t *testing.T) {
	tests := []struct {
		name     string
		env      map[string]string
		endpoint string
		want     string // host and path of the request
	}{
		{name: "AWS", want: "bucket.s3.us-east-1.amazonaws.com/key"},
		{name: "region", env: map[string]string{"AWS_REGION": "eu-west-1"}, want: "bucket.s3.eu-west-1.amazonaws.com/key"},
		{name: "old name of the region", env: map[string]string{"AWS_DEFAULT_REGION": "eu-west-1"}, want: "bucket.s3.eu-west-1.amazonaws.com/key"},
		{name: "endpoint", env: map[string]string{"AWS_ENDPOINT_URL": "http://all.test"}, want: "all.test/bucket/key"},
		{
			name: "endpoint of S3", want: "s3.test/bucket/key",
			env: map[string]string{"AWS_ENDPOINT_URL": "http://all.test", "AWS_ENDPOINT_URL_S3": "http://s3.test"},
		},
		{name: "field", endpoint: "http://field.test", env: map[string]string{"AWS_ENDPOINT_URL_S3": "http://s3.test"}, want: "field.test/bucket/key"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			withoutAWS(t)
			setenv(t, test.env)
			var got string
			s := newStore(t)
			s.S3.Endpoint = test.endpoint
			s.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				got = r.URL.Host + r.URL.Path
				return nil, context.Canceled
			})}
			_, err := fetchContent(t, s, "s3://bucket/key")
			wantFetchError(t, err)
			if got != test.want {
				t.Errorf("asked %s, want %s", got, test.want)
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestS3DeadlineWhileLookingForCredentials(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hung.Close)
	fake, s := newFakeS3(t, serve(content))
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": hung.URL, "AWS_EC2_METADATA_DISABLED": "false"})
	s.roleTimeout = time.Hour
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err := s.Fetch(ctx, Object{Location: "s3://bucket/key", SHA256: digest(content)})
	wantFetchError(t, err, "deadline exceeded")
	if got := fake.asked(); got != 0 {
		t.Errorf("%d requests for the golden, want none", got)
	}
	// The store has not taken the deadline for a lack of credentials for ever.
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s"})
	wantContent(t, s, "s3://bucket/key")
	if fake.requests[0].Header.Get("Authorization") == "" {
		t.Error("the request was not signed")
	}
}
