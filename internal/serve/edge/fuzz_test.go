package edge

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// FuzzRequests sends arbitrary bodies and headers to every endpoint. What a request costs in memory and time has
// bounds, and each answer with an error is one of OpenAI's form.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"a","n":4611686018427387904}`, `{"prompt":["a","b"],"n":512,"seed":9223372036854775807}`, `{"prompt":[[1],[2]],"n":1e3,"stream":true}`,
		`{"n":-1,"prompt":[]}`, `{"n":2,"best_of":2,"seed":1.5,"prompt":"a"}`, `{"request_id":"x","model":7,"stream":"yes","n":1024}`, `[]`, `{"n":2,"n":3}`,
		`{"faults":"status:503","failure-injection-rate":1e308,"seed":18446744073709551616,"failure-types":[]}`, `{"usage":{"prompt_tokens":1e999}}`,
	} {
		f.Add(0, seed, "http-truncate:1", "503")
		f.Add(1, seed, "", "")
		f.Add(2, seed, "http-malformed:99999999999999999999", "-1")
	}
	paths := []string{"/v1/completions", "/v1/chat/completions", "/admin/config", "/metrics", "/ready", "/v1/responses", "/inference/v1/generate"}
	// The frontend repeats the body as events and as an answer, so that what is merged is arbitrary too.
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !json.Valid(body) {
			apiError{status: 400, message: "no JSON"}.write(w)
			return
		}
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: "))
		}
		_, _ = w.Write(body)
		_, _ = w.Write([]byte("\n\n"))
	})
	f.Fuzz(func(t *testing.T, path int, body, fault, status string) {
		if len(body) > 1<<16 || len(fault) > 1<<11 || strings.Contains(fault+body, "hang") || strings.Contains(fault+body, "delay") || strings.Contains(fault+body, "slow") || strings.Contains(fault+body, "refuse") {
			t.Skip("these wait, as they are asked to")
		}
		e, err := New(Options{Frontends: []http.Handler{echo}, FanOut: true, RequestFaults: true, Policy: Policy{OpenAdmin: true}, RequestLog: io.Discard})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "POST", paths[uint(path)%uint(len(paths))], strings.NewReader(body))
		r.Header["X-Fault"], r.Header["X-Return-Error"] = []string{fault}, []string{status}
		w := httptest.NewRecorder()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		func() {
			defer func() {
				if gone := recover(); gone != nil && gone != http.ErrAbortHandler {
					panic(gone)
				}
			}()
			e.Handler(0).ServeHTTP(deadlines{w}, r)
		}()
		runtime.ReadMemStats(&after)
		// A part costs some memory, and what its frontend answers.
		if allocated, limit := after.TotalAlloc-before.TotalAlloc, uint64(maxParts*(40<<10+32*len(body))); allocated > limit {
			t.Errorf("%d bytes were allocated for a body of %d", allocated, len(body))
		}
		require.True(t, ctx.Err() == nil, "it takes longer than 20 s")
		cut := strings.Contains(fault+body, "truncate") || strings.Contains(fault+body, "malformed")
		require.True(t, w.Code < 400 || cut || json.Valid(w.Body.Bytes()), "status %d with %q", w.Code, w.Body)
	})
}
