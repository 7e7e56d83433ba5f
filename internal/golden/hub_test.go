package golden

import (
	"net/http"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestHub(t *testing.T) {
	tests := []struct{ name, location, path string }{
		{name: "main", location: "hf://org/repo/a.jsonl", path: "/datasets/org/repo/resolve/main/a.jsonl"},
		{name: "deeper", location: "HF://org/repo/v0.33.0/H200/a.jsonl.gz", path: "/datasets/org/repo/resolve/main/v0.33.0/H200/a.jsonl.gz"},
		{name: "revision", location: "hf://org/repo@0f1e2d/a.jsonl", path: "/datasets/org/repo/resolve/0f1e2d/a.jsonl"},
		{name: "with its kind", location: "hf://datasets/org/repo@v1/a.jsonl", path: "/datasets/org/repo/resolve/v1/a.jsonl"},
		{name: "taken as it is written", location: "hf://org/repo/a b%20.jsonl", path: "/datasets/org/repo/resolve/main/a%20b%2520.jsonl"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, serve(content))
			setenv(t, map[string]string{envHub: server.URL, envHubToken: "topsecret"})
			s := newStore(t)
			s.HTTP = server.Client()
			wantContent(t, s, test.location)
			r := server.Requests[0]
			require.Equal(t, r.URL.EscapedPath(), test.path, "asked for")
			require.Equal(t, r.Header.Get("Authorization"), "Bearer topsecret", "Authorization")
		})
	}
}

func TestHubRefusals(t *testing.T) {
	tests := []struct{ name, location, hub, want string }{
		{name: "no path", location: "hf://org/repo", want: "hf://organization/repository"},
		{name: "no repository", location: "hf://org//a", want: "hf://organization/repository"},
		{name: "no revision", location: "hf://org/repo@/a", want: "@revision/path"},
		{name: "no name", location: "hf://org/@v1/a", want: "@revision/path"},
		{name: "anybody can listen", location: "hf://org/repo/a", hub: "http://hub.test", want: `HF_ENDPOINT is "http://hub.test", want`},
		{name: "a secret in it", location: "hf://org/repo/a", hub: "https://me:topsecret@hub.test", want: `HF_ENDPOINT is "https://hub.test", want`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			setenv(t, map[string]string{envHub: test.hub})
			_, err := fetchContent(t, newStore(t), test.location)
			wantFetchError(t, err, test.want)
			require.True(t, !strings.Contains(err.Error(), "topsecret"), "a secret is told: %v", err)
		})
	}
}

// The hub leads to other servers. Neither they, nor web servers at all, are told the token.
func TestHubTokenStaysWithTheHub(t *testing.T) {
	elsewhere := newScript(t, true, serve(content))
	hub := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "a.jsonl") {
			http.Redirect(w, r, "/here", http.StatusFound)
			return
		}
		http.Redirect(w, r, elsewhere.URL+"/there?X-Amz-Signature=s", http.StatusFound)
	})
	setenv(t, map[string]string{envHub: hub.URL, envHubToken: "topsecret"})
	s := newStore(t)
	s.HTTP = &http.Client{Transport: anyCertificate()}
	wantContent(t, s, "hf://org/repo/a.jsonl")
	if got := len(hub.Requests); got != 2 {
		t.Fatalf("the hub was asked %d times, want 2", got)
	}
	for _, r := range hub.Requests {
		require.True(t, r.Header.Get("Authorization") != "", "the hub itself was not told the token for %s", r.URL)
	}
	require.Equal(t, elsewhere.Requests[0].Header.Get("Authorization"), "", "another server was told")
	wantContent(t, &Store{Cache: t.TempDir(), HTTP: s.HTTP}, elsewhere.URL)
	require.Equal(t, elsewhere.Requests[1].Header.Get("Authorization"), "", "a web server was told")
}

func TestHubWithoutToken(t *testing.T) {
	server := newScript(t, true, status(401))
	setenv(t, map[string]string{envHub: server.URL, envHubToken: ""})
	s := newStore(t)
	s.HTTP = server.Client()
	_, err := fetchContent(t, s, "hf://org/repo/a.jsonl")
	wantFetchError(t, err, "golden hf://org/repo/a.jsonl: HTTP status 401", envHubToken)
	if got, sent := server.Requests[0].Header["Authorization"]; sent {
		t.Errorf("Authorization is %q", got)
	}
}
