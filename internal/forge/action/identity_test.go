package action

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func noWait(int) time.Duration { return 0 }

// gitHub answers with one status after the other, the last ever after.
func gitHub(t *testing.T, body string, statuses ...int) (TokenService, *int) {
	t.Helper()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Query().Get("audience") != "my&cluster" || r.URL.Query().Get("api") != "1" ||
			r.Header.Get("Authorization") != "Bearer request-secret" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(statuses[min(calls, len(statuses))-1])
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return TokenService{URL: server.URL + "/token?api=1", Token: "request-secret", Backoff: noWait}, &calls
}

func TestIdentity(t *testing.T) {
	const good, bad = `{"count":1,"value":"a.b.c"}`, "secret-answer"
	tests := []struct {
		name     string
		body     string
		statuses []int
		calls    int
		want     string // of the error
	}{
		{name: "token", body: good, statuses: []int{200}, calls: 1},
		{name: "busy at first", body: good, statuses: []int{500, 429, 200}, calls: 3},
		{name: "busy", body: bad, statuses: []int{503}, calls: 4, want: "the identity token of GitHub: HTTP status 503"},
		{name: "refused", body: bad, statuses: []int{403}, calls: 1, want: "HTTP status 403 Forbidden"},
		{name: "redirected", body: bad, statuses: []int{302}, calls: 1, want: "HTTP status 302"},
		{name: "no JSON", body: bad, statuses: []int{200}, calls: 4, want: "the answer holds no token"},
		{name: "no token", body: `{"value":""}`, statuses: []int{200}, calls: 4, want: "the answer holds no token"},
		{name: "without end", body: `{"value":"` + strings.Repeat("a", 64<<10), statuses: []int{200}, calls: 4, want: "no token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job, calls := gitHub(t, test.body, test.statuses...)
			token, err := job.Identity(t.Context(), "my&cluster")
			if *calls != test.calls {
				t.Errorf("%d calls, want %d", *calls, test.calls)
			}
			require.True(t, test.want != "" || (err == nil && token == "a.b.c"), "%q, %v", token, err)
			require.True(t, test.want == "" || (err != nil && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "secret")), "got %v, want %q", err, test.want)
		})
	}
}

// TestIdentityWithoutGitHub makes no request that is answered, and tells no secret.
func TestIdentityWithoutGitHub(t *testing.T) {
	for _, test := range []struct {
		name string
		job  TokenService
		want string
	}{
		{"no job", TokenService{}, ErrNoIdentity.Error()},
		{"no secret", TokenService{URL: "http://127.0.0.1:1"}, ErrNoIdentity.Error()},
		{"no URL", TokenService{URL: "secret", Token: "secret"}, "is not a URL"},
		{"bad URL", TokenService{URL: "http://secret:x/%", Token: "secret"}, "is not a URL"},
		{"nobody there", TokenService{URL: "http://127.0.0.1:1/?sig=secret", Token: "secret", Backoff: noWait}, "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.job.Identity(t.Context(), "a")
			require.True(t, err != nil && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "secret"), "got %v, want %q", err, test.want)
		})
	}
}

// TestIdentityCancelled asks no more once nobody wants to know.
func TestIdentityCancelled(t *testing.T) {
	job, calls := gitHub(t, "", 500)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	job.Backoff = func(int) time.Duration {
		cancel(why)
		return time.Hour
	}
	if _, err := job.Identity(ctx, "my&cluster"); !errors.Is(err, why) || *calls != 1 {
		t.Errorf("%v after %d calls", err, *calls)
	}
}

func TestReadClaims(t *testing.T) {
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	tests := []struct {
		name, token string
		want        Claims
	}{
		{"all", token(`{"sub":"repo:o/n","exp":1767323045}`), Claims{"repo:o/n", time.Unix(1767323045, 0)}},
		{"the subject is no text", token(`{"sub":1,"exp":1767323045}`), Claims{Expires: time.Unix(1767323045, 0)}},
		{"the end is no number", token(`{"sub":"x","exp":"soon"}`), Claims{Subject: "x"}},
		{"the end is never", token(`{"exp":1e300}`), Claims{}},
		{"nothing", token(`{}`), Claims{}},
		{"no JSON", "a.YWJj.c", Claims{}},
		{"no base64", "a.!.c", Claims{}},
		{"opaque", "opaque", Claims{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, ReadClaims(test.token)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
