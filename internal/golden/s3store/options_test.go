package s3store

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseSwitch(t *testing.T) {
	tests := []struct {
		name, text string
		want       Switch
		fails      bool
	}{
		{name: "nothing", want: Auto},
		{name: "auto", text: "auto", want: Auto},
		{name: "on", text: "true", want: On},
		{name: "off", text: "false", want: Off},
		{name: "other", text: "yes", fails: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseSwitch(test.text)
			require.True(t, got == test.want && (err != nil) == test.fails, "got %v, %v", got, err)
			require.True(t, test.text == "" || err != nil || got.String() == test.text, "%q becomes %q", test.text, got)
		})
	}
}

func TestS3OptionsThatCannotBe(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		want    string
	}{
		{name: "endpoint without a scheme", options: Options{Endpoint: "s3.test:9000"}, want: `the S3 endpoint "s3.test:9000" is not a URL such as https://s3.example.org`},
		{name: "endpoint of another kind", options: Options{Endpoint: "ftp://s3.test"}, want: "is not a URL"},
		{name: "endpoint that is none", options: Options{Endpoint: "http://%"}, want: "is not a URL"},
		{name: "region", options: Options{Region: "eu-west-1.evil.test/"}, want: "is not one such as eu-west-1"},
		{name: "role", options: Options{Role: "arn:aws:iam::123456789012:user/x"}, want: `the role "arn:aws:iam::…:user/x" is not an ARN such as`},
		{name: "role without a signature", options: Options{Role: roleARN, Anonymous: On}, want: "choose one of the two"},
		{name: "session", options: Options{Role: roleARN, RoleSession: "a b"}, want: `the name "a b" of a session`},
		{name: "session without a role", options: Options{RoleSession: "ab"}, want: "but no role"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, serve(content))
			s.S3 = test.options
			_, err := fetchContent(t, s, "s3://bucket/key")
			if failed := wantFetchError(t, err, test.want); failed.Status != 0 || fake.Asked() > 0 {
				t.Errorf("status %d, asked %d times", failed.Status, fake.Asked())
			}
			if _, err := s.Publish(t.Context(), "s3://bucket/key", contentFile(t)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("published with %v", err)
			}
		})
	}
}

// Where the bucket is in the host's name, and where it is in the path.
func TestRealS3PathStyle(t *testing.T) {
	server, client := startS3With(t, testenv.S3Config{Domain: "s3.test"})
	put(t, client, "key", content)
	address := strings.TrimPrefix(server.Endpoint, "http://")
	var hosts []string
	dial := func(ctx context.Context, network, host string) (net.Conn, error) {
		hosts = append(hosts, host)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	s := newStore(t)
	s.S3 = Options{Endpoint: "http://s3.test", PathStyle: Off}
	s.HTTP = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	wantKey(t, s, "key")
	require.True(t, len(hosts) == 1 && hosts[0] == bucket+".s3.test:80", "asked %v", hosts)
	_, err := fetchContent(t, s, "s3://goldesn/key")
	wantFetchError(t, err, "NoSuchBucket", "[no-bucket]")
	// Without a server for the name of the bucket, the typo is one of a host.
	s = newStore(t)
	s.S3 = Options{Endpoint: "http://s3.invalid", PathStyle: Off}
	_, err = fetchContent(t, s, "s3://goldesn/key")
	wantFetchError(t, err, "no such host", "check the name of the host and the network; of a bucket of S3 also AWS_REGION", "[no-host]")
}

func TestS3Anonymous(t *testing.T) {
	fork := filepath.Join(t.TempDir(), "event.json")
	write(t, fork, []byte(forkEvent))
	forked := map[string]string{"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": fork}
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "topsecret"}
	tests := []struct {
		name   string
		set    Switch
		env    map[string]string
		step   step
		signed bool
		asked  int
		fails  []string
	}{
		{name: "auto, none", step: serve(content), asked: 1},
		{name: "auto, some", env: keys, step: serve(content), asked: 1, signed: true},
		{name: "on, some", set: On, env: keys, step: serve(content), asked: 1},
		{
			name: "on, and what there is would fail", set: On, step: serve(content), asked: 1,
			env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": "/none", "AWS_ROLE_ARN": ""},
		},
		{name: "off, some", set: Off, env: keys, step: serve(content), asked: 1, signed: true},
		{name: "off, none", set: Off, fails: []string{"AWS credentials: none were found", "unsigned requests are switched off: configure", "[no-credentials]"}},
		{name: "off, fork", set: Off, env: forked, fails: []string{"this is a pull request from a fork", "[fork-pull-request]"}},
		{name: "auto, private", step: status(403), asked: 1, fails: []string{"not public; pull requests from forks get no credentials [no-credentials]"}},
		{name: "auto, private, fork", env: forked, step: status(403), asked: 1, fails: []string{"this is a pull request from a fork", "[fork-pull-request]"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, test.step)
			withoutAWS(t)
			setenv(t, map[string]string{"GITHUB_EVENT_NAME": "push"})
			setenv(t, test.env)
			s.S3.Anonymous = test.set
			_, err := fetchContent(t, s, "s3://bucket/key")
			if len(test.fails) > 0 {
				wantFetchError(t, err, test.fails...)
			} else if err != nil {
				t.Fatal(err)
			}
			if fake.Asked() != test.asked {
				t.Fatalf("asked %d times, want %d", fake.Asked(), test.asked)
			}
			if test.asked > 0 && (fake.Requests[0].Header.Get("Authorization") != "") != test.signed {
				t.Errorf("signed: %t, want %t", !test.signed, test.signed)
			}
		})
	}
}

// Who is told not to look for credentials does not look: not for the role of a machine, which may take long.
func TestS3AnonymousDoesNotLook(t *testing.T) {
	looked := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("looked for a role") }))
	t.Cleanup(looked.Close)
	_, s := newFakeS3(t, serve(content))
	withoutAWS(t)
	setenv(t, map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": looked.URL, "AWS_EC2_METADATA_DISABLED": "false"})
	s.S3.Anonymous = On
	wantContent(t, s, "s3://bucket/key")
}

func TestRealS3Parts(t *testing.T) {
	_, client := startS3(t)
	put(t, client, "key", content)
	s := newStore(t)
	whole, first, err := openKey(t.Context(), s, "key", golden.Span{})
	if err != nil || !bytes.Equal(whole, content) || first.Offset != 0 || first.Size != 3500 || first.ETag == "" {
		t.Fatalf("got %d bytes and %+v, %v", len(whole), first, err)
	}
	if age := time.Since(first.Modified); age < -time.Minute || age > time.Hour {
		t.Errorf("was stored %v", first.Modified)
	}
	rest, second, err := openKey(t.Context(), s, "key", golden.Span{Offset: 3000, ETag: first.ETag})
	if err != nil || !bytes.Equal(rest, content[3000:]) || second.Offset != 3000 || second.Size != 3500 || second.ETag != first.ETag {
		t.Errorf("got %d bytes and %+v, %v", len(rest), second, err)
	}
	tests := []struct {
		name   string
		part   golden.Span
		status int
	}{
		{name: "changed", part: golden.Span{Offset: 10, ETag: `"0123456789abcdef0123456789abcdef"`}, status: 412},
		{name: "beyond the end", part: golden.Span{Offset: 3500, ETag: first.ETag}, status: 416},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := openKey(t.Context(), s, "key", test.part)
			var refused *refusal
			require.True(t, asRefusal(err, &refused) && refused.Status == test.status && refused.cause() == "object-changed", "got %v, want status %d", err, test.status)
		})
	}
}

// A golden that was overwritten is still there, as the version that was registered.
func TestRealS3Versions(t *testing.T) {
	_, client := startS3With(t, testenv.S3Config{Versions: true})
	_, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket: ptr(bucket), VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	require.NoError(t, err)
	put(t, client, "key", content)
	s := newStore(t)
	_, old, err := openKey(t.Context(), s, "key", golden.Span{})
	if err != nil || old.Version == "" {
		t.Fatalf("%+v, %v", old, err)
	}
	put(t, client, "key", content[1:])
	data, now, err := openKey(t.Context(), s, "key", golden.Span{})
	require.True(t, err == nil && bytes.Equal(data, content[1:]) && now.Version != old.Version, "got %d bytes of version %q, %v", len(data), now.Version, err)
	data, then, err := openKey(t.Context(), s, "key", golden.Span{Version: old.Version})
	require.True(t, err == nil && bytes.Equal(data, content) && then.Version == old.Version, "got %d bytes of version %q, %v", len(data), then.Version, err)
	_, _, err = openKey(t.Context(), s, "key", golden.Span{Version: "01M6K00000000000000000000A"})
	var refused *refusal
	require.True(t, asRefusal(err, &refused) && refused.cause() == golden.CauseNoKey, "a version that does not exist: %v", err)
}

// In a bubble of synctest the clock stands in the year 2000. The request that is signed then is refused, and the next one is
// signed with the server's time: a wrong clock is worth a warning, and no more.
func TestRealS3ClockThatIsWrong(t *testing.T) {
	server, client := startS3(t)
	put(t, client, "key", content)
	file := contentFile(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.S3.Endpoint = server.Endpoint
		s.HTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		out := logTo(s)
		wantKey(t, s, "key")
		wantKey(t, s, "key")
		wantPublished(t, s, "s3://"+bucket+"/new", file, false)
		if got := out.String(); strings.Count(got, "the clock of this machine is wrong") != 1 {
			t.Errorf("not warned once: %s", got)
		}
	})
}

func TestS3ClockThatIsWrongForGood(t *testing.T) {
	tests := []struct {
		name string
		date func() string
		want string
	}{
		{name: "late", date: func() string { return time.Now().Add(26 * time.Minute).UTC().Format(http.TimeFormat) }, want: "behind the server's: set it"},
		{name: "early", date: func() string { return time.Now().Add(-26 * time.Minute).UTC().Format(http.TimeFormat) }, want: "ahead of the server's: set it"},
		{name: "no date", date: func() string { return "" }, want: "differs from the server's"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, s := newFakeS3(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Date"] = []string{test.date()}
				s3Error(403, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")(w, r)
			})
			_, err := fetchContent(t, s, "s3://bucket/key")
			wantFetchError(t, err, test.want, "[clock-skew]")
			if test.name != "no date" {
				if text := err.Error(); !strings.Contains(text, " 26m0s ") && !strings.Contains(text, " 26m1s ") && !strings.Contains(text, " 25m59s ") {
					t.Errorf("the difference is not told: %v", err)
				}
			}
		})
	}
}

func asRefusal(err error, refused **refusal) bool { return errors.As(err, refused) }
