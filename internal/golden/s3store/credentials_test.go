package s3store

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

const (
	roleARN    = "arn:aws:iam::000000000000:role/ci" // versitygw has this account only
	issuer     = "issuer.invalid"                    // whose keys nobody can fetch
	subject    = "repo:owner/name:ref:refs/heads/main"
	jobSecret  = "job-secret-1234"
	readPolicy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::goldens/*"}]}`
)

// fakeGitHub gives tokens as the token service of GitHub Actions does, and is their issuer.
type fakeGitHub struct {
	*httptest.Server
	key     *ecdsa.PrivateKey
	subject string
	mu      sync.Mutex
	refuse  []int // statuses of the next requests
	asked   int
	tokens  []string
}

func newFakeGitHub(t *testing.T) *fakeGitHub {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	g := &fakeGitHub{key: key, subject: subject}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	setenv(t, map[string]string{
		"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "4711", "GITHUB_EVENT_NAME": "push",
		"ACTIONS_ID_TOKEN_REQUEST_URL": g.URL + "/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": jobSecret,
	})
	return g
}

func (g *fakeGitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if len(g.refuse) > 0 {
		w.WriteHeader(g.refuse[0])
		g.refuse = g.refuse[1:]
		return
	}
	query := r.URL.Query()
	if r.Header.Get("Authorization") != "Bearer "+jobSecret || query.Get("audience") != "sts.amazonaws.com" || query.Get("api-version") != "2.0" {
		http.Error(w, "not this way", http.StatusBadRequest)
		return
	}
	g.tokens = append(g.tokens, g.sign(query.Get("audience")))
	json.NewEncoder(w).Encode(map[string]any{"count": 1, "value": g.tokens[len(g.tokens)-1]})
}

func (g *fakeGitHub) sign(audience string) string {
	claims, _ := json.Marshal(map[string]any{
		"iss": "https://" + issuer, "aud": audience, "sub": g.subject,
		"iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(), "jti": g.asked,
	})
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, g.key, sum[:])
	if err != nil {
		panic(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// fakeSTS gives the sessions of roles. With a server behind it, that judges each request, and keeps the sessions.
type fakeSTS struct {
	*httptest.Server
	server *testenv.S3Server // nil: every request is right
	lost   bool              // sessions never arrive at the server
	mu     sync.Mutex
	keys   []string     // access keys given so far
	forms  []url.Values // of the requests so far
}

func newFakeSTS(t *testing.T, server *testenv.S3Server) *fakeSTS {
	t.Helper()
	s := &fakeSTS{server: server}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	setenv(t, map[string]string{"AWS_ENDPOINT_URL_STS": s.URL, "AWS_MAX_ATTEMPTS": "1"})
	return s
}

func (s *fakeSTS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	s.forms = append(s.forms, form)
	if s.server != nil && !s.judged(w, body) {
		return
	}
	expires := time.Now().Add(time.Hour).UTC()
	key := fmt.Sprintf("ASIA%016d", len(s.keys)+1)
	s.keys = append(s.keys, key)
	if s.server != nil && !s.lost {
		s.store(key, form, expires)
	}
	type credentials struct{ AccessKeyId, SecretAccessKey, SessionToken, Expiration string }
	xml.NewEncoder(w).Encode(struct {
		XMLName xml.Name    `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
		Given   credentials `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
		Who     string      `xml:"AssumeRoleWithWebIdentityResult>AssumedRoleUser>Arn"`
	}{
		Given: credentials{key, "secret-of-" + key, "session-of-" + key, expires.Format(time.RFC3339)},
		Who:   "arn:aws:sts::000000000000:assumed-role/ci/" + form.Get("RoleSessionName"),
	})
}

// judged asks the STS of versitygw. That checks all but the signature of the token, for which it would have to ask the issuer;
// anything else that it refuses is its answer.
func (s *fakeSTS) judged(w http.ResponseWriter, body []byte) bool {
	resp, err := http.Post(s.server.IAM, "application/x-www-form-urlencoded", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if strings.Contains(string(answer), "retrieve verification key") {
		return true
	}
	w.WriteHeader(resp.StatusCode)
	w.Write(answer)
	return false
}

// store lets versitygw know a session, as its own STS does.
func (s *fakeSTS) store(key string, form url.Values, expires time.Time) {
	s.sessions(func(sessions map[string]any, roles map[string]any) {
		role := roles["ci"].(map[string]any)
		sessions[key] = map[string]any{
			"accessKeyId": key, "secretAccessKey": "secret-of-" + key, "sessionToken": "session-of-" + key,
			"roleArn": form.Get("RoleArn"), "roleName": "ci", "roleId": role["RoleID"],
			"roleSessionName": form.Get("RoleSessionName"), "createDate": time.Now().UTC(), "expiration": expires,
			"provider": "arn:aws:iam::000000000000:oidc-provider/" + issuer, "audience": "sts.amazonaws.com", "subject": subject,
		}
	})
}

// sessions changes what versitygw knows.
func (s *fakeSTS) sessions(change func(sessions, roles map[string]any)) {
	data, err := os.ReadFile(s.server.IAMFile)
	if err != nil {
		panic(err)
	}
	var known map[string]any
	if err := json.Unmarshal(data, &known); err != nil {
		panic(err)
	}
	sessions, _ := known["sessions"].(map[string]any)
	if sessions == nil {
		sessions = map[string]any{}
	}
	change(sessions, known["roles"].(map[string]any))
	known["sessions"] = sessions
	data, _ = json.Marshal(known)
	temp := s.server.IAMFile + ".new"
	if err := errors.Join(os.WriteFile(temp, data, 0o600), os.Rename(temp, s.server.IAMFile)); err != nil {
		panic(err)
	}
}

// iamRequest makes a request as the root user.
func iamRequest(t *testing.T, server *testenv.S3Server, form url.Values) {
	t.Helper()
	form.Set("Version", "2010-05-08")
	body := form.Encode()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.IAM+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	sum := sha256.Sum256([]byte(body))
	root := aws.Credentials{AccessKeyID: testenv.S3AccessKey, SecretAccessKey: testenv.S3SecretKey}
	if err := v4.NewSigner().SignHTTP(t.Context(), root, req, hex.EncodeToString(sum[:]), "iam", testenv.S3Region, time.Now()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d: %s", form.Get("Action"), resp.StatusCode, answer)
	}
}

// startRole starts a server with a bucket, an object and a role that may read it.
func startRole(t *testing.T) (*testenv.S3Server, *fakeGitHub, *fakeSTS, *goldenStore) {
	t.Helper()
	server, client := startS3With(t, testenv.S3Config{IAM: true})
	put(t, client, "key", content)
	iamRequest(t, server, url.Values{
		"Action": {"CreateOpenIDConnectProvider"}, "Url": {"https://" + issuer}, "ClientIDList.member.1": {"sts.amazonaws.com"},
		"ThumbprintList.member.1": {strings.Repeat("0", 40)},
	})
	iamRequest(t, server, url.Values{"Action": {"CreateRole"}, "RoleName": {"ci"}, "AssumeRolePolicyDocument": {
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sts:AssumeRoleWithWebIdentity",` +
			`"Principal":{"Federated":"arn:aws:iam::000000000000:oidc-provider/` + issuer + `"},"Condition":{"StringEquals":{"` +
			issuer + `:aud":"sts.amazonaws.com","` + issuer + `:sub":"` + subject + `"}}}]}`,
	}})
	iamRequest(t, server, url.Values{"Action": {"PutRolePolicy"}, "RoleName": {"ci"}, "PolicyName": {"read"}, "PolicyDocument": {readPolicy}})
	// The role is all that there is.
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
	s := newStore(t)
	s.S3.Role = roleARN
	return server, newFakeGitHub(t), newFakeSTS(t, server), s
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

func TestRealRoleIsAssumedAndRenewed(t *testing.T) {
	_, github, sts, s := startRole(t)
	out := logTo(s)
	github.refuse = []int{503, 429}
	wantKey(t, s, "key")
	wantKey(t, s, "key")
	if github.asked != 3 || len(sts.keys) != 1 {
		t.Fatalf("GitHub was asked %d times, want 3; %d sessions, want 1", github.asked, len(sts.keys))
	}
	if got := sts.forms[0]; got.Get("RoleSessionName") != "vllm-vcr-4711" || got.Get("RoleArn") != roleARN || got.Get("WebIdentityToken") != github.tokens[0] {
		t.Errorf("asked for the role with %v", got)
	}
	// The server forgets the session, which is what its expiry looks like to a client whose clock is late.
	sts.sessions(func(sessions, _ map[string]any) { delete(sessions, sts.keys[0]) })
	wantKey(t, s, "key")
	if len(sts.keys) != 2 || len(github.tokens) != 2 || github.tokens[0] == github.tokens[1] {
		t.Errorf("%d sessions and %d tokens, want 2 of each", len(sts.keys), len(github.tokens))
	}
	wantSecretsKept(t, out.String(), append(github.tokens, append(sts.keys, jobSecret, "secret-of", "session-of", "000000000000")...)...)
}

// A session that S3 does not know however often it is asked for must not be asked for again and again.
func TestRealRoleThatIsNeverKnown(t *testing.T) {
	_, github, sts, s := startRole(t)
	sts.lost = true
	_, err := fetchContent(t, s, "s3://"+bucket+"/key")
	failed := wantFetchError(t, err, "HTTP status 403")
	if failed.Cause != causeExpired && failed.Cause != causeUnknownKey {
		t.Errorf("cause %q: %v", failed.Cause, err)
	}
	if github.asked != 2 || failed.Tries != 1 {
		t.Errorf("GitHub was asked %d times, in %d tries, want 2 in 1", github.asked, failed.Tries)
	}
	wantSecretsKept(t, err.Error(), append(github.tokens, append(sts.keys, jobSecret, "secret-of", "session-of", "000000000000")...)...)
}

func TestRealRoleRefusals(t *testing.T) {
	_, github, sts, _ := startRole(t)
	fork := filepath.Join(t.TempDir(), "event.json")
	write(t, fork, []byte(forkEvent))
	tests := []struct {
		name    string
		env     map[string]string
		role    string
		subject string
		refuse  []int
		key     string
		cause   string
		want    []string
		asked   int // of GitHub
	}{
		{name: "granted", asked: 1},
		{
			name: "not this repository", subject: "repo:evil/name:ref:refs/heads/main", cause: causeRole, asked: 1,
			want: []string{"trust policy allows the audience sts.amazonaws.com and the subject repo:evil/name:ref:refs/heads/main"},
		},
		{
			name: "no such role", role: "arn:aws:iam::000000000000:role/none", cause: causeRole, asked: 1,
			want: []string{"AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity", "check that the role exists"},
		},
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
		{name: "not for this key", key: "s3://other/key", asked: 1, cause: causeNoBucket, want: []string{"NoSuchBucket"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			setenv(t, test.env)
			github.mu.Lock()
			github.subject, github.refuse, github.asked = subject, test.refuse, 0
			if test.subject != "" {
				github.subject = test.subject
			}
			github.mu.Unlock()
			s := newStore(t)
			s.S3.Role = roleARN
			if test.role != "" {
				s.S3.Role = test.role
			}
			location := "s3://" + bucket + "/key"
			if test.key != "" {
				location = test.key
			}
			_, err := fetchContent(t, s, location)
			if github.asked != test.asked {
				t.Errorf("GitHub was asked %d times, want %d", github.asked, test.asked)
			}
			if len(test.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			failed := wantFetchError(t, err, test.want...)
			if failed.Cause != test.cause || failed.Tries > 1 {
				t.Errorf("cause %q after %d tries, want %q after 1: %v", failed.Cause, failed.Tries, test.cause, err)
			}
			wantSecretsKept(t, err.Error(), append(github.tokens, append(sts.keys, jobSecret, "secret-of", "session-of", "000000000000")...)...)
		})
	}
}

// A run of four hours, on a clock of its own: the sessions of an hour are replaced before they end, each with a new token.
func TestRoleIsRenewedAsTimePasses(t *testing.T) {
	withoutAWS(t)
	github := newFakeGitHub(t)
	sts := newFakeSTS(t, nil)
	synctest.Test(t, func(t *testing.T) {
		var late int
		s := newStore(t)
		s.S3 = Options{Role: roleARN, Endpoint: "http://s3.test"}
		s.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			answer := httptest.NewRecorder()
			switch {
			case strings.HasPrefix(r.URL.String(), github.URL):
				github.ServeHTTP(answer, r)
			case strings.HasPrefix(r.URL.String(), sts.URL):
				sts.ServeHTTP(answer, r)
			default:
				if _, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential="); !strings.HasPrefix(rest, sts.keys[len(sts.keys)-1]) {
					late++
				}
				answer.Write(content)
			}
			return answer.Result(), nil
		})}
		start := time.Now()
		for time.Since(start) < 4*time.Hour {
			wantKey(t, s, "key")
			time.Sleep(time.Minute)
		}
		// A session serves 55 to 57.5 minutes of its hour.
		if got := len(sts.keys); got != 5 || github.asked != got {
			t.Errorf("%d sessions with %d tokens in four hours, want 5", got, github.asked)
		}
		if late > 0 {
			t.Errorf("%d requests were signed with an old session", late)
		}
	})
}

func wantSecretsKept(t *testing.T, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		if strings.Contains(text, secret) {
			t.Errorf("%q is told: %s", secret, text)
		}
	}
}

// An IAM of its own answers as AWS does about keys that nobody has.
func TestRealS3UnknownKeyAsAWSSaysIt(t *testing.T) {
	_, client := startS3With(t, testenv.S3Config{IAM: true})
	put(t, client, "key", content)
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"})
	_, err := fetchContent(t, newStore(t), "s3://"+bucket+"/key")
	if failed := wantFetchError(t, err, "InvalidAccessKeyId", "nobody has this access key", "[unknown-access-key]"); failed.Status != http.StatusForbidden {
		t.Errorf("status %d", failed.Status)
	}
	wantSecretsKept(t, err.Error(), "AKIAIOSFODNN7EXAMPLE")
}

// Of many requests at once that find the session gone, one asks for another, with which all go on.
func TestRealRoleIsRenewedAtOnce(t *testing.T) {
	_, github, sts, s := startRole(t)
	wantKey(t, s, "key")
	sts.sessions(func(sessions, _ map[string]any) { clear(sessions) })
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if data, _, err := openKey(t.Context(), s, "key", golden.Span{}); err != nil || len(data) != len(content) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
	group.Wait()
	if len(sts.keys) != 2 || github.asked != 2 {
		t.Errorf("%d sessions and %d tokens, want 2 of each", len(sts.keys), github.asked)
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
			if got := fromFork(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestSubjectOf(t *testing.T) {
	tests := []struct{ name, token, want string }{
		{name: "token", token: "e30.eyJzdWIiOiJyZXBvOm8vbjpyZWY6eCJ9.c2ln", want: "repo:o/n:ref:x"},
		{name: "control characters", token: "e30.eyJzdWIiOiJhXG46OmVycm9yOjoifQ.c2ln", want: "a ::error::"},
		{name: "no subject", token: "e30.e30.c2ln"},
		{name: "not a token", token: "topsecret"},
		{name: "not base64", token: "a.!.c"},
		{name: "not JSON", token: "a.YWJj.c"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := subjectOf(test.token); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
