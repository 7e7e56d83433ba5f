package s3store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each place where keys are found, by the keys of the request that they end in, and by what was asked on the way.
func TestKeysAreFound(t *testing.T) {
	var seen []string
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(body))
		by, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
		seen = append(seen, strings.TrimSpace(fmt.Sprintf("%s %s %s", form.Get("Action"), form.Get("RoleArn")+form.Get("ExternalId"), by)))
		expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		if form.Get("Action") == "" {
			json.NewEncoder(w).Encode(map[string]string{"AccessKeyId": "BOX", "SecretAccessKey": "s", "Token": "t", "Expiration": expires})
			return
		}
		fmt.Fprintf(w, `<%sResponse><%[1]sResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>s</SecretAccessKey>`+
			`<SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
			form.Get("Action"), strings.ToUpper(form.Get("RoleArn")), expires)
	}))
	t.Cleanup(answers.Close)
	dir := t.TempDir()
	config, shared, token := filepath.Join(dir, "config"), filepath.Join(dir, "credentials"), filepath.Join(dir, "token")
	write(t, token, []byte("Bearer box"))
	write(t, config, []byte(strings.ReplaceAll(`
# comment
[default]
region = eu-west-1
[profile plain]
aws_access_key_id = CONFIG   # not this: the other file says more
aws_secret_access_key = "quoted"
[profile program]
credential_process = echo '{"Version":1,"AccessKeyId":"PRINTED","SecretAccessKey":"s"}'
[profile role]
role_arn = one
external_id = -x
source_profile = plain
[profile roles]
role_arn = two
source_profile = role
[profile own]
role_arn = three
source_profile = own
aws_access_key_id = OWN
aws_secret_access_key = s
[profile round]
role_arn = x
source_profile = about
[profile about]
role_arn = x
source_profile = round
[profile lost]
role_arn = x
source_profile = absent
[profile box]
role_arn = four
credential_source = EcsContainer
[profile variables]
role_arn = x
credential_source = Environment
[profile token]
role_arn = five
web_identity_token_file = TOKEN
[profile browser]
sso_session = corp
[profile code]
role_arn = x
mfa_serial = m
source_profile = plain
[profile served]
services = local
[services local]
sts =
  endpoint_url = http://sts.test
s3 =
  endpoint_url = http://s3.test
  max_attempts = 1
[plain]
aws_access_key_id = IGNORED
`, "TOKEN", token)))
	write(t, shared, []byte("[plain]\naws_access_key_id: SHARED\naws_secret_access_key: s\n"))
	box := map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": answers.URL + "/box", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token}
	tests := []struct {
		name, profile string
		env           map[string]string
		want          string // the key; or what the error has
		fails         bool
		seen          string
	}{
		{name: "environment", env: map[string]string{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}, profile: "plain", want: "ENV"},
		{name: "half of the environment", env: map[string]string{"AWS_ACCESS_KEY_ID": "ENV"}, profile: "plain", want: "SHARED"},
		{name: "shared file", profile: "plain", want: "SHARED"},
		{name: "program", profile: "program", want: "PRINTED"},
		{name: "role", profile: "role", want: "ONE", seen: "AssumeRole one-x SHARED"},
		{name: "role by role", profile: "roles", want: "TWO", seen: "AssumeRole one-x SHARED, AssumeRole two ONE"},
		{name: "role by own keys", profile: "own", want: "THREE", seen: "AssumeRole three OWN"},
		{name: "token of the environment", env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "six"}, want: "SIX", seen: "AssumeRoleWithWebIdentity six"},
		{name: "token of a profile", profile: "token", want: "FIVE", seen: "AssumeRoleWithWebIdentity five"},
		{name: "container", env: box, want: "BOX", seen: "Bearer box"},
		{name: "role by container", profile: "box", env: box, want: "FOUR", seen: "Bearer box, AssumeRole four BOX"},
		{name: "round about", profile: "round", fails: true, want: `source_profile of the AWS profile "round" leads back`},
		{name: "absent", profile: "lost", fails: true, want: `no profile "absent"`},
		{name: "no variables", profile: "variables", fails: true, want: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"},
		{name: "browser", profile: "browser", fails: true, want: "aws configure export-credentials --profile browser --format env"},
		{name: "code", profile: "code", fails: true, want: "wants a code of MFA"},
		{name: "config file alone", profile: "ignored", fails: true, want: `no profile "ignored"`},
		{
			name: "container elsewhere", fails: true, want: "without https it must be of this machine",
			env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://evil.test/"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, serve(content))
			withoutAWS(t)
			setenv(t, map[string]string{"AWS_CONFIG_FILE": config, "AWS_SHARED_CREDENTIALS_FILE": shared, "AWS_PROFILE": test.profile, "AWS_ENDPOINT_URL_STS": answers.URL})
			setenv(t, test.env)
			seen = nil
			got, err := fetchContent(t, s, "s3://bucket/key")
			if test.fails {
				wantFetchError(t, err, test.want, "AWS credentials")
				return
			}
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
			if by := fake.Requests[0].Header.Get("Authorization"); !strings.Contains(by, "Credential="+test.want+"/") {
				t.Errorf("signed as %q, want %s", by, test.want)
			}
			if got := strings.Join(seen, ", "); got != test.seen {
				t.Errorf("asked %q, want %q", got, test.seen)
			}
		})
	}
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_CONFIG_FILE": config, "AWS_PROFILE": "served"})
	set, err := readSettings("")
	if s3, sts := set.endpoint("s3"), set.endpoint("sts"); err != nil || s3 != "http://s3.test" || sts != "http://sts.test" {
		t.Errorf("endpoints %q and %q, %v", s3, sts, err)
	}
}

// STS and what it asks itself fail for moments.
func TestRequestsForRolesAreRepeated(t *testing.T) {
	refuse := func(code int, word string) step {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `<ErrorResponse><Error><Code>%s</Code><Message>no</Message></Error></ErrorResponse>`, word)
		}
	}
	tests := []struct {
		name     string
		attempts string // AWS_MAX_ATTEMPTS
		steps    []step
		asked    int
		fails    string
	}{
		{name: "outages", steps: []step{status(503), drop, status(429), refuse(403, "AccessDenied")}, asked: 4, fails: "HTTP status 403: AccessDenied: no"},
		{name: "identity provider", steps: []step{refuse(400, "IDPCommunicationError"), refuse(400, "ValidationError")}, asked: 2, fails: "ValidationError: no"},
		{name: "for good", steps: []step{status(503)}, asked: 4, fails: "AssumeRoleWithWebIdentity: HTTP status 503"},
		{name: "fewer attempts", attempts: "2", steps: []step{status(503)}, asked: 2, fails: "HTTP status 503"},
		{name: "no number", attempts: "many", steps: []step{status(503)}, fails: `"many", which is not a number of at least 1`},
		{name: "no answer of STS", steps: []step{serve(content)}, asked: 1, fails: "the answer has no credentials"},
		{name: "endless answer", steps: []step{endless(403)}, asked: 1, fails: "HTTP status 403"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sts := newScript(t, false, test.steps...)
			_, s := newFakeS3(t, serve(content))
			withoutAWS(t)
			token := filepath.Join(t.TempDir(), "token")
			write(t, token, []byte("token"))
			setenv(t, map[string]string{
				"AWS_ENDPOINT_URL_STS": sts.URL, "AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "x", "AWS_MAX_ATTEMPTS": test.attempts,
			})
			_, err := fetchContent(t, s, "s3://bucket/key")
			wantFetchError(t, err, test.fails)
			if got := sts.Asked(); got != test.asked {
				t.Errorf("asked %d times, want %d", got, test.asked)
			}
		})
	}
}

// endless is an answer that has no end.
func endless(code int) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		for {
			if _, err := w.Write(content); err != nil {
				return
			}
		}
	}
}

func TestEndlessRefusal(t *testing.T) {
	_, s := newFakeS3(t, endless(403))
	_, err := fetchContent(t, s, "s3://bucket/key")
	wantFetchError(t, err, "HTTP status 403")
}

func TestSTSEndpoint(t *testing.T) {
	fips := map[string]string{"AWS_USE_FIPS_ENDPOINT": "true"}
	tests := []struct {
		name, region string
		env          map[string]string
		want         string
	}{
		{name: "AWS", region: "eu-west-1", want: "https://sts.eu-west-1.amazonaws.com"},
		{name: "China", region: "cn-north-1", want: "https://sts.cn-north-1.amazonaws.com.cn"},
		{name: "FIPS", region: "us-west-2", env: fips, want: "https://sts-fips.us-west-2.amazonaws.com"},
		{name: "government", region: "us-gov-west-1", env: fips, want: "https://sts.us-gov-west-1.amazonaws.com"},
		{name: "other", region: "eu-west-1", env: map[string]string{"AWS_ENDPOINT_URL_STS": "http://sts.test/"}, want: "http://sts.test"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			withoutAWS(t)
			setenv(t, test.env)
			set, err := readSettings(test.region)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := (lookup{settings: set}).stsEndpoint(t.Context()); got != test.want || err != nil {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
		})
	}
}

// S3 joins the parts of an upload after it has begun its answer.
func TestErrorBehindStatus200(t *testing.T) {
	_, s := newFakeS3(t, func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); {
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case query.Has("uploads"):
			fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>`)
		case r.Method == http.MethodPost:
			fmt.Fprint(w, `<?xml version="1.0"?>`+"\n  \n"+`<Error><Code>InternalError</Code><Message>no</Message></Error>`)
		}
	})
	s.maxPut = 1
	_, err := s.Publish(t.Context(), "s3://bucket/key", contentFile(t))
	wantPublishError(t, err, "InternalError: no")
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("[default]\na = b\n[profile x]\ns3 =\n  endpoint_url = c\n[\n]=\n= \n[profile"), true)
	f.Fuzz(func(t *testing.T, text []byte, config bool) {
		set := settings{sections: make(map[string]map[string]string)}
		set.parse(text, config)
		for name, section := range set.sections {
			for key, value := range section {
				if len(name)+len(key)+len(value) > 3*len(text) || strings.Contains(value, "\n") {
					t.Errorf("%q: %q = %q", name, key, value)
				}
			}
		}
	})
}
