package deploy

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/forge/action"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestCredential(t *testing.T) {
	claims := func(text string) string { return "e30." + base64.RawURLEncoding.EncodeToString([]byte(text)) + ".c2ln" }
	for name, test := range map[string]struct {
		token, expires string
		audience, want string // the error
	}{
		"token":         {token: claims(`{"exp":1767323045}`), expires: "2026-01-02T03:04:05Z", audience: "a"},
		"no expiry":     {token: claims(`{"sub":"x"}`), audience: "a"},
		"no claims":     {token: "opaque", audience: "a"},
		"refused":       {audience: "a", want: "HTTP status 403"},
		"no audience":   {want: "--audience"},
		"no permission": {audience: "none", want: "id-token: write"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if test.token == "" {
					http.Error(w, "secret", http.StatusForbidden)
				}
				_ = json.NewEncoder(w).Encode(map[string]string{"value": test.token})
			}))
			t.Cleanup(server.Close)
			job := action.TokenService{URL: server.URL, Token: "secret"}
			if test.audience == "none" {
				job = action.TokenService{}
			}
			got, err := Credential(t.Context(), job, test.audience)
			if test.want != "" {
				require.True(t, err != nil && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "secret"), "got %v, want %q", err, test.want)
				return
			}
			var credential struct {
				Kind, APIVersion string
				Status           struct{ Token, ExpirationTimestamp string }
			}
			if err := json.Unmarshal(got, &credential); err != nil || credential.Kind != "ExecCredential" ||
				credential.APIVersion != "client.authentication.k8s.io/v1" || credential.Status.Token != test.token ||
				credential.Status.ExpirationTimestamp != test.expires {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}
