package s3store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	roleARN   = "arn:aws:iam::123456789012:role/ci"
	subject   = "repo:owner/name:ref:refs/heads/main"
	jobSecret = "job-secret-1234"
)

// A fakeCloud is the token service of GitHub Actions, the STS that takes its tokens, and an S3 server that takes the sessions.
type fakeCloud struct {
	*httptest.Server
	mu      sync.Mutex
	refuse  []int    // statuses of the next requests for a token
	denied  string   // code with which the STS refuses; "": none
	expired string   // access key that the S3 server refuses; "*": every one
	asked   int      // for a token
	tokens  []string // given so far
	keys    []string // access keys given so far
	late    int      // requests to S3 that were not signed with the newest key
}

func newFakeCloud(t *testing.T) *fakeCloud {
	t.Helper()
	withoutAWS(t)
	c := &fakeCloud{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	setenv(t, map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "4711", "GITHUB_EVENT_NAME": "push",
		"ACTIONS_ID_TOKEN_REQUEST_URL": c.URL + "/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": jobSecret,
		"AWS_ENDPOINT_URL_STS": c.URL + "/sts", "AWS_MAX_ATTEMPTS": "1",
	})
	return c
}

// store is one whose role and server are those of the cloud.
func (c *fakeCloud) store(t *testing.T) *goldenStore {
	t.Helper()
	s := newStore(t)
	s.S3 = Options{Role: roleARN, Endpoint: c.URL + "/s3"}
	return s
}

func (c *fakeCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.URL.Path == "/token":
		c.giveToken(w, r)
	case strings.HasPrefix(r.URL.Path, "/sts"):
		c.assumeRole(w, r)
	default:
		c.serveObject(w, r)
	}
}

func (c *fakeCloud) giveToken(w http.ResponseWriter, r *http.Request) {
	c.asked++
	if len(c.refuse) > 0 {
		w.WriteHeader(c.refuse[0])
		c.refuse = c.refuse[1:]
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+jobSecret || r.URL.Query().Get("audience") != "sts.amazonaws.com" {
		http.Error(w, "not this way", http.StatusBadRequest)
		return
	}
	claims := fmt.Sprintf(`{"sub":%q,"jti":%d}`, subject, c.asked)
	c.tokens = append(c.tokens, "e30."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".c2lnbmF0dXJl")
	_ = json.NewEncoder(w).Encode(map[string]string{"value": c.tokens[len(c.tokens)-1]})
}

func (c *fakeCloud) assumeRole(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	token := form.Get("WebIdentityToken")
	if c.denied != "" || token != c.tokens[len(c.tokens)-1] || form.Get("RoleArn") != roleARN || form.Get("RoleSessionName") != "vllm-vcr-4711" {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `<ErrorResponse><Error><Code>%s</Code><Message>Not authorized: %s with %s</Message></Error></ErrorResponse>`, c.denied, roleARN, token)
		return
	}
	key := fmt.Sprintf("ASIA%016d", len(c.keys)+1)
	c.keys = append(c.keys, key)
	type credentials struct{ AccessKeyId, SecretAccessKey, SessionToken, Expiration string }
	_ = xml.NewEncoder(w).Encode(struct {
		XMLName xml.Name    `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
		Given   credentials `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}{Given: credentials{key, "secret-of-" + key, "session-of-" + key, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}})
}

func (c *fakeCloud) serveObject(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(rest, "/")
	if key != c.keys[len(c.keys)-1] {
		c.late++
	}
	if c.expired == "*" || key == c.expired {
		s3Error(http.StatusForbidden, "ExpiredToken", "The token of "+key+" has expired.")(w, r)
		return
	}
	_, _ = w.Write(content)
}

// secrets are what no text may contain.
func (c *fakeCloud) secrets() []string {
	return append(append([]string{jobSecret, "secret-of", "session-of", "123456789012"}, c.tokens...), c.keys...)
}

// openKey reads an object of the usual bucket past the cache.
func openKey(ctx context.Context, s *goldenStore, key string, part golden.Span) ([]byte, *golden.Body, error) {
	c, err := s.s3(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := c.open(ctx, bucket, key, part)
	if err != nil {
		return nil, nil, err
	}
	defer b.Close()
	data, err := io.ReadAll(b)
	return data, b, err
}

func wantKey(t *testing.T, s *goldenStore, key string) {
	t.Helper()
	data, _, err := openKey(t.Context(), s, key, golden.Span{})
	if err != nil || !bytes.Equal(data, content) {
		t.Fatalf("got %d bytes, %v", len(data), err)
	}
}

// Of many requests at once that find the session expired, one asks for another, with which all go on.
func TestRoleIsRenewed(t *testing.T) {
	c := newFakeCloud(t)
	s := c.store(t)
	out := logTo(s)
	c.refuse = []int{503, 429}
	wantKey(t, s, "key")
	wantKey(t, s, "key")
	if c.asked != 3 || len(c.keys) != 1 {
		t.Fatalf("GitHub was asked %d times, want 3; %d sessions, want 1", c.asked, len(c.keys))
	}
	c.expired = c.keys[0]
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if data, _, err := openKey(t.Context(), s, "key", golden.Span{}); err != nil || len(data) != len(content) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
	group.Wait()
	require.True(t, len(c.keys) == 2 && len(c.tokens) == 2 && c.tokens[0] != c.tokens[1], "%d sessions and %d tokens, want 2 of each", len(c.keys), len(c.tokens))
	wantSecretsKept(t, out.String(), c.secrets()...)
}

// A run of four hours, on a clock of its own: the sessions of an hour are replaced before they end, each with a new token.
func TestRoleIsRenewedAsTimePasses(t *testing.T) {
	c := newFakeCloud(t)
	synctest.Test(t, func(t *testing.T) {
		s := c.store(t)
		s.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			answer := httptest.NewRecorder()
			c.ServeHTTP(answer, r)
			return answer.Result(), nil
		})}
		start := time.Now()
		for time.Since(start) < 4*time.Hour {
			wantKey(t, s, "key")
			time.Sleep(time.Minute)
		}
		// A session serves 55 to 57.5 minutes of its hour.
		if got := len(c.keys); got != 5 || c.asked != got || c.late > 0 {
			t.Errorf("%d sessions with %d tokens in four hours, want 5; %d requests with an old session", got, c.asked, c.late)
		}
	})
}

func TestRoleRefusals(t *testing.T) {
	fork := filepath.Join(t.TempDir(), "event.json")
	write(t, fork, []byte(forkEvent))
	tests := []struct {
		name    string
		env     map[string]string
		role    string
		denied  string
		expired string
		refuse  []int
		cause   string
		want    []string
		asked   int // of GitHub
	}{
		{
			name: "not this repository", denied: "AccessDenied", cause: causeRole, asked: 1,
			want: []string{"AccessDenied: Not authorized", "check that the role exists", "the audience sts.amazonaws.com and the subject " + subject},
		},
		{name: "the token is old", denied: "ExpiredTokenException", cause: causeRole, asked: 1, want: []string{"check the clock of this machine"}},
		{name: "another refusal", denied: "MalformedPolicyDocument", cause: causeRole, asked: 1, want: []string{"check the role and its trust policy"}},
		{name: "not an ARN", role: "ci", want: []string{`the role "ci" is not an ARN such as arn:aws:iam::ACCOUNT:role/NAME`}},
		{
			name: "no permission", env: map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": "", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": ""}, cause: causeNoIdentity,
			want: []string{"give the job the permission id-token: write"},
		},
		{
			name: "from a fork", cause: causeFork, want: []string{"GitHub gives none to pull requests from forks"},
			env: map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": "", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": fork},
		},
		{
			name: "not at GitHub", env: map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": "", "GITHUB_ACTIONS": ""}, cause: causeNoIdentity,
			want: []string{"with the identity of a job of GitHub Actions", "AWS_PROFILE"},
		},
		{
			name: "GitHub is down", refuse: []int{503, 502, 429, 500}, cause: causeNoIdentity, asked: 4,
			want: []string{"identity token of GitHub: HTTP status 500", "run the job again"},
		},
		{name: "GitHub refuses", refuse: []int{401}, cause: causeNoIdentity, asked: 1, want: []string{"HTTP status 401"}},
		// It must not be asked for again and again.
		{name: "a session that is never known", expired: "*", cause: causeExpired, asked: 2, want: []string{"HTTP status 403"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newFakeCloud(t)
			setenv(t, test.env)
			c.refuse, c.denied, c.expired = test.refuse, test.denied, test.expired
			s := c.store(t)
			if test.role != "" {
				s.S3.Role = test.role
			}
			_, err := fetchContent(t, s, "s3://"+bucket+"/key")
			require.True(t, c.asked == test.asked, "GitHub was asked %d times, want %d", c.asked, test.asked)
			failed := wantFetchError(t, err, test.want...)
			require.True(t, failed.Cause == test.cause && failed.Tries <= 1, "cause %q after %d tries, want %q after 1: %v", failed.Cause, failed.Tries, test.cause, err)
			wantSecretsKept(t, err.Error(), c.secrets()...)
		})
	}
}

func wantSecretsKept(t *testing.T, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		require.True(t, !strings.Contains(text, secret), "%q is told: %s", secret, text)
	}
}

// As GitHub writes them, but for most of it.
const (
	forkEvent = `{"action":"opened","pull_request":{"head":{"repo":{"full_name":"guest/name","fork":true}},"base":{"repo":{"full_name":"owner/name","fork":false}}}}`
	ownEvent  = `{"pull_request":{"head":{"repo":{"full_name":"owner/name","fork":true}},"base":{"repo":{"full_name":"Owner/name","fork":true}}}}`
)

func TestFromFork(t *testing.T) {
	tests := []struct {
		name, event, content string
		want                 bool
	}{
		{name: "fork", event: "pull_request", content: forkEvent, want: true},
		{name: "branch of a repository that is a fork", event: "pull_request", content: ownEvent},
		{name: "with the rights of the base", event: "pull_request_target", content: forkEvent},
		{name: "push", event: "push", content: forkEvent},
		{name: "fork was deleted", event: "pull_request", content: `{"pull_request":{"head":{"repo":null},"base":{"repo":{"full_name":"o/n"}}}}`, want: true},
		{name: "only the flag", event: "pull_request", content: `{"pull_request":{"head":{"repo":{"fork":true}}}}`, want: true},
		{name: "not an event", event: "pull_request", content: `[`},
		{name: "empty", event: "pull_request", content: `{}`},
		{name: "no file", event: "pull_request"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "event.json")
			if test.content != "" {
				write(t, file, []byte(test.content))
			}
			setenv(t, map[string]string{"GITHUB_EVENT_NAME": test.event, "GITHUB_EVENT_PATH": file})
			require.Equal(t, fromFork(), test.want, "fromFork")
		})
	}
}
