package frontendsuite

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestUnhealthy: a frontend whose engine is dead may refuse to be healthy, and may end; it may not go on as before.
func TestUnhealthy(t *testing.T) {
	tests := []struct {
		name   string
		status int
		limit  time.Duration
		ends   bool // the frontend, during a request
		want   check.Code
	}{
		{"refuses", http.StatusServiceUnavailable, time.Minute, false, ""},
		{"ends", http.StatusOK, time.Minute, true, ""},
		{"goes on", http.StatusOK, 50 * time.Millisecond, false, CodeHealth},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, end := context.WithCancelCause(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				if test.ends {
					end(errors.New("the frontend ended: exit status 3"))
				}
			}))
			defer server.Close()
			k := &frontendCase{
				frontendSession: &frontendSession{client: openai.NewClient(server.URL, "")}, Outcome: &check.Outcome{}, ctx: ctx, whole: t.Context(), limit: test.limit,
			}
			k.unhealthy()
			var got check.Code
			for _, f := range k.Failures {
				got = f.Code
			}
			require.True(t, got == test.want, "failures %v, want %q", k.Failures, test.want)
		})
	}
}
