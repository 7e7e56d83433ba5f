package deploy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/forge/oidc"
)

func TestCredential(t *testing.T) {
	tests := []struct {
		name     string
		statuses []int // one for each try, the last ever after
		body     string
		expires  string
		calls    int
		want     string // of the error
	}{
		{name: "token", statuses: []int{200}, body: jwt(`{"exp":1767323045}`), expires: "2026-01-02T03:04:05Z", calls: 1},
		{name: "no expiry", statuses: []int{200}, body: jwt(`{"sub":"x"}`), calls: 1},
		{name: "no claims", statuses: []int{200}, body: "opaque", calls: 1},
		{name: "busy at first", statuses: []int{500, 429, 200}, body: jwt(`{}`), calls: 3},
		{name: "busy", statuses: []int{503}, body: "secret-answer", calls: 4, want: "HTTP status 503"},
		{name: "refused", statuses: []int{403}, body: "secret-answer", calls: 1, want: "HTTP status 403"},
		{name: "redirected", statuses: []int{302}, body: "secret-answer", calls: 1, want: "HTTP status 302"},
		{name: "no token", statuses: []int{200}, calls: 4, want: "the answer holds no token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, calls := gitHub(t, func(try int) (int, string) {
				status := test.statuses[min(try, len(test.statuses))-1]
				if status != http.StatusOK {
					return status, test.body
				}
				body, _ := json.Marshal(map[string]string{"value": test.body})
				return status, string(body)
			})
			got, err := Credential(t.Context(), g, "my&cluster")
			if *calls != test.calls {
				t.Errorf("%d calls, want %d", *calls, test.calls)
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %q", err, test.want)
				}
				return
			}
			var credential struct {
				Kind, APIVersion string
				Status           struct{ Token, ExpirationTimestamp string }
			}
			if err := json.Unmarshal(got, &credential); err != nil || credential.Kind != "ExecCredential" ||
				credential.APIVersion != "client.authentication.k8s.io/v1" || credential.Status.Token != test.body ||
				credential.Status.ExpirationTimestamp != test.expires {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

// TestCredentialWithoutGitHub makes no request, and tells no secret.
func TestCredentialWithoutGitHub(t *testing.T) {
	for _, test := range []struct {
		name     string
		github   oidc.Job
		audience string
		want     string
	}{
		{"no audience", oidc.Job{URL: "http://127.0.0.1:1", Token: "secret"}, "", "--audience"},
		{"no permission", oidc.Job{}, "a", "id-token: write"},
		{"no URL", oidc.Job{URL: "secret", Token: "secret"}, "a", "is not a URL"},
		{"bad URL", oidc.Job{URL: "http://secret:x/%", Token: "secret"}, "a", "is not a URL"},
		{"nobody there", oidc.Job{URL: "http://127.0.0.1:1/?sig=secret", Token: "secret", Backoff: noWait}, "a", "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Credential(t.Context(), test.github, test.audience)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// gitHub answers requests for identity tokens, and counts them.
func gitHub(t *testing.T, answer func(try int) (status int, body string)) (oidc.Job, *int) {
	t.Helper()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Query().Get("audience") != "my&cluster" || r.URL.Query().Get("api") != "1" ||
			r.Header.Get("Authorization") != "Bearer request-secret" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		status, body := answer(calls)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return oidc.Job{URL: server.URL + "/token?api=1", Token: "request-secret", Backoff: noWait}, &calls
}

func noWait(int) time.Duration { return 0 }
