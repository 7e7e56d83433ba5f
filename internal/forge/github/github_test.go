package github_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// start serves a repository, and fails the test if a request does not fit GitHub's description.
func start(t *testing.T, files map[string]string) *githubtest.Server {
	t.Helper()
	server, err := githubtest.Start("../../../testdata/github", files)
	require.NoError(t, err)
	t.Cleanup(func() {
		server.Close()
		for _, problem := range server.Violations() {
			t.Error(problem)
		}
	})
	return server
}

func client(t *testing.T, server *githubtest.Server, change ...func(*github.Options)) *github.Client {
	t.Helper()
	o := github.Options{
		Repository: githubtest.Owner + "/" + githubtest.Name, Token: githubtest.Token, API: server.URL,
		Sleep: func(context.Context, time.Duration) error { return nil },
	}
	for _, f := range change {
		f(&o)
	}
	c, err := github.New(o)
	require.NoError(t, err)
	return c
}

func TestNewRefuses(t *testing.T) {
	good := github.Options{Repository: "o/r", Token: "secret-token"}
	tests := []struct {
		name, want string
		change     func(*github.Options)
	}{
		{"no repository", "want owner/name", func(o *github.Options) { o.Repository = "" }},
		{"path in the repository", "want owner/name", func(o *github.Options) { o.Repository = "o/r/../x" }},
		{"dots for a repository", "want owner/name", func(o *github.Options) { o.Repository = "o/.." }},
		{"no token", "GITHUB_TOKEN", func(o *github.Options) { o.Token = "" }},
		{"token with a line break", "line break", func(o *github.Options) { o.Token = "secret-token\n" }},
		{"no https", "want https", func(o *github.Options) { o.API = "http://api.example.com" }},
		{"password in the address", "want https://HOST", func(o *github.Options) { o.API = "https://u:secret-token@example.com" }},
		{"no address", "want https://HOST", func(o *github.Options) { o.API = "api.github.com" }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := good
			test.change(&o)
			_, err := github.New(o)
			require.ErrorContains(t, err, test.want)
			require.True(t, err == nil || !strings.Contains(err.Error(), "secret-token"), "the error tells the token: %v", err)
		})
	}
}

func TestErrorsTellWhatIsMissing(t *testing.T) {
	const refused = `{"message":"Resource not accessible by integration"}`
	tests := []struct {
		name  string
		fault githubtest.Fault
		want  []string
	}{
		{
			"permission",
			githubtest.Fault{Request: "POST /repos/", Status: 403, Body: refused},
			[]string{"open an issue", "403 Resource not accessible", "`issues: write`", "fork"},
		},
		{
			"permission that GitHub names",
			githubtest.Fault{
				Request: "POST /repos/", Status: 403, Body: refused,
				Header: map[string]string{"X-Accepted-GitHub-Permissions": "issues=write; pull_requests=write"},
			},
			[]string{"(GitHub: issues=write; pull_requests=write)"},
		},
		{
			"token",
			githubtest.Fault{Request: "POST /graphql", Status: 401, Body: `{"message":"Bad credentials"}`},
			[]string{"log in: GitHub answered 401 Bad credentials", "expired"},
		},
		{
			"not visible",
			githubtest.Fault{Request: "GET /repos/", Status: 404, Body: `{"message":"Not Found"}`},
			[]string{"404 Not Found", "the token may not see it"},
		},
		{
			"issues off",
			githubtest.Fault{Request: "POST /repos/", Status: 410, Body: `{"message":"Issues has been disabled"}`},
			[]string{"410", "switched off"},
		},
		{
			"not valid",
			githubtest.Fault{
				Request: "POST /repos/", Status: 422,
				Body: `{"message":"Validation Failed","errors":[{"resource":"Issue","field":"title","code":"missing_field"}]}`,
			},
			[]string{"422 Validation Failed: Issue title missing_field"},
		},
		{
			"error of the second API",
			githubtest.Fault{
				Request: "POST /graphql", Status: 200,
				Body: `{"errors":[{"type":"NOT_FOUND","message":"Could not resolve to a Repository"}]}`,
			},
			[]string{"log in", "Could not resolve to a Repository", "`contents: read`"},
		},
		{
			"empty answer of the second API",
			githubtest.Fault{Request: "POST /graphql", Status: 200, Body: `{}`},
			[]string{"names no user"},
		},
		{
			"cut off",
			githubtest.Fault{Request: "GET /repos/", Status: 200, Body: `[{"number":`},
			[]string{"list issues", "EOF"},
		},
		{
			"redirect to another host",
			githubtest.Fault{
				Request: "GET /repos/", Status: 302, Times: 9, Header: map[string]string{"Location": "https://example.invalid/"},
			},
			[]string{"redirects to another host"},
		},
		{
			"does not answer",
			githubtest.Fault{Request: "GET /repos/", Status: 502, Times: 9, Body: "bad gateway"},
			[]string{"list issues", "502"},
		},
		{
			"no second try of what may have had an effect",
			githubtest.Fault{Request: "POST /repos/", Status: 502, Body: "bad gateway"},
			[]string{"open an issue", "502"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, nil)
			server.Inject(test.fault)
			_, err := client(t, server).EnsureIssue(t.Context(), drift())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(test.want, "vllm-vcr/conformance: ") {
				require.True(t, strings.Contains(err.Error(), want), "got %q, want it to contain %q", err, want)
			}
			require.True(t, !strings.Contains(err.Error(), githubtest.Token), "the error tells the token: %v", err)
		})
	}
}

func TestLimitsAreWaitedFor(t *testing.T) {
	reset := map[string]string{
		"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1767225642", "Date": "Thu, 01 Jan 2026 00:00:00 GMT",
	}
	tests := []struct {
		name   string
		fault  githubtest.Fault
		max    time.Duration
		waits  []time.Duration
		failed bool
	}{
		{
			"retry after",
			githubtest.Fault{
				Request: "POST /repos/", Status: 403, Body: "{}", Header: map[string]string{"Retry-After": "7"},
			},
			0,
			[]time.Duration{7 * time.Second},
			false,
		},
		{
			"too many requests, twice",
			githubtest.Fault{Request: "GET /repos/", Status: 429, Times: 2, Body: "{}"},
			0,
			[]time.Duration{time.Minute, time.Minute},
			false,
		},
		{
			"reset by GitHub's clock",
			githubtest.Fault{Request: "GET /repos/", Status: 403, Body: "{}", Header: reset},
			0,
			[]time.Duration{43 * time.Second},
			false,
		},
		{
			"secondary limit",
			githubtest.Fault{
				Request: "POST /repos/", Status: 403, Body: `{"message":"You have exceeded a secondary rate limit."}`,
			},
			0,
			[]time.Duration{time.Minute},
			false,
		},
		{
			"second API",
			githubtest.Fault{
				Request: "POST /graphql", Status: 200, Body: `{"errors":[{"type":"RATE_LIMITED","message":"…"}]}`, Header: reset,
			},
			0,
			[]time.Duration{43 * time.Second},
			false,
		},
		{
			"server error while reading",
			githubtest.Fault{Request: "GET /repos/", Status: 503, Times: 2, Body: "{}"},
			0,
			[]time.Duration{time.Second, 2 * time.Second},
			false,
		},
		{
			"longer than allowed",
			githubtest.Fault{
				Request: "GET /repos/", Status: 403, Body: "{}", Header: map[string]string{"Retry-After": "3600"},
			},
			0, nil, true,
		},
		{
			"longer than allowed together",
			githubtest.Fault{Request: "GET /repos/", Status: 429, Times: 9, Body: "{}"},
			2 * time.Minute,
			[]time.Duration{time.Minute, time.Minute},
			true,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, nil)
			server.Inject(test.fault)
			var waits []time.Duration
			c := client(t, server, func(o *github.Options) {
				o.MaxWait = test.max
				o.Sleep = func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }
			})
			_, err := c.EnsureIssue(t.Context(), drift())
			require.True(t, (err != nil) == test.failed, "got error %v, want one: %v", err, test.failed)
			require.True(t, !test.failed || strings.Contains(err.Error(), "GitHub's limit of requests is reached"), "got %q", err)
			require.NoDiff(t, cmp.Diff(test.waits, waits), "waits (-want +got)")
			if want := len(server.Issues) == 1; want == test.failed {
				t.Errorf("%d issues", len(server.Issues))
			}
		})
	}
}

func TestWaitEndsWithTheContext(t *testing.T) {
	server := start(t, nil)
	server.Inject(githubtest.Fault{Request: "GET /repos/", Status: 429, Body: "{}", Times: 9})
	ctx, cancel := context.WithCancel(t.Context())
	c := client(t, server, func(o *github.Options) {
		o.Sleep = func(ctx context.Context, _ time.Duration) error { cancel(); return ctx.Err() }
	})
	if _, err := c.EnsureIssue(ctx, drift()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
