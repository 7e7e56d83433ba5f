package player

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// faulty asks to complete a prompt, with a fault of its own.
func faulty(fault string) object {
	return completing(40, 4, object{"vllm_xargs": object{faultArg: fault}})
}

// Faults reach the clients of real frontends, and only those that ask for them.
func TestRealFrontendsMeetFaults(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			f := fronted(t, version, Options{Source: counting{}, Limits: Limits{MaxNumSeqs: 1}, Faults: faults(t, "fail:1"), RequestFaults: true})
			status := http.StatusInternalServerError
			if strings.HasPrefix(version, "0.33.") {
				status = http.StatusServiceUnavailable // earlier lines do not say that another try may help
			}
			for _, tt := range []struct {
				name   string
				body   object
				status int
				want   string // what was said; "" of an error
			}{
				{"the first one", completing(40, 4, nil), status, ""},
				{"the next one", completing(40, 4, nil), http.StatusOK, "[45 46 47 48] length"},
				{"refuse", faulty("refuse"), http.StatusInternalServerError, ""},
				{"delay", faulty("delay:1ms,delay:1ms:2"), http.StatusOK, "[45 46 47 48] length"},
				{"drop", faulty("drop:1"), http.StatusOK, "[45 47 48] length"},
				{"drop the first", faulty("drop"), http.StatusOK, "[46 47 48] length"},
				{"drop the last", faulty("drop:3"), http.StatusOK, "[45 46 47] length"},
				{"wrong-token", faulty("wrong-token:1"), http.StatusOK, "[45 47 47 48] length"},
			} {
				t.Run(tt.name, func(t *testing.T) {
					got, answer := f.post("/v1/completions", tt.body)
					if got != tt.status || tt.want != "" && saidIn(answer) != tt.want {
						t.Errorf("HTTP %d, %s, want %d, %s", got, saidIn(answer), tt.status, tt.want)
					}
				})
			}
			t.Run("stall", func(t *testing.T) { stalls(t, f) })
			t.Run("kill", func(t *testing.T) { kills(t, f) })
		})
	}
}

// stalls reads a stream until nothing comes any more, and leaves: that makes room for
// the next request.
func stalls(t *testing.T, f *played) {
	leave := f.stream(faulty("stall:2"), 2)
	leave()
	if status, answer := f.post("/v1/completions", completing(40, 2, nil)); saidIn(answer) != "[45 46] length" {
		t.Errorf("the next request: HTTP %d, %s", status, saidIn(answer))
	}
}

// kills ends the engine in the middle of an answer, as a crash does: nobody tells the
// frontend, and its client waits.
func kills(t *testing.T, f *played) {
	defer f.stream(faulty("kill:2"), 2)()
	require.ErrorIs(t, <-f.ended, ErrKilled)
}

// stream asks for a completion and reads so many tokens of it.
func (f *played) stream(body object, tokens int) (leave func()) {
	f.t.Helper()
	body["stream"] = true
	raw, err := json.Marshal(body)
	must(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", bytes.NewReader(raw))
	must(f.t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	must(f.t, err)
	for lines := bufio.NewScanner(resp.Body); tokens > 0 && lines.Scan(); {
		var part object
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(text), &part) == nil {
			if ids, ok := part["choices"].([]any)[0].(object)["token_ids"].([]any); ok {
				tokens -= len(ids)
			}
		}
	}
	return func() {
		cancel()
		resp.Body.Close()
	}
}
