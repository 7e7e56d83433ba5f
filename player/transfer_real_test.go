package player

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// played is a player behind a real frontend.
type played struct {
	t     *testing.T
	url   string
	ended chan error // what Run returned
}

// fronted runs one until the test ends. The test takes what Run returned, or it must
// be nil.
func fronted(t *testing.T, version string, opt Options, env ...string) *played {
	t.Helper()
	return frontedWith(t, version, testenv.ModelDir(t), opt, env...)
}

// frontedWith is fronted for another model.
func frontedWith(t *testing.T, version, model string, opt Options, env ...string) *played {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: testenv.Frontend(t, version), ModelDir: model, Env: env})
	must(t, err)
	opt.Handshake, opt.VLLMVersion, opt.Limits.MaxModelLen, opt.Vocab = server.Handshake(), version, 4096, 2048
	p, err := New(opt)
	must(t, err)
	f := &played{t: t, url: server.URL(), ended: make(chan error, 1)}
	go func() {
		defer close(f.ended)
		f.ended <- p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-f.ended; err != nil {
			t.Error(err)
		}
		_ = server.Close()
	})
	healthy, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	must(t, server.Healthy(healthy))
	return f
}

// object is a JSON object.
type object = map[string]any

// post sends one and returns the status and the object that comes back, nil if it is none.
func (f *played) post(path string, body any) (int, object) {
	f.t.Helper()
	return post(f.t, f.url+path, body)
}

func post(t *testing.T, url string, body any, header ...string) (int, object) {
	t.Helper()
	raw, err := json.Marshal(body)
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(raw))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	var answer object
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return resp.StatusCode, answer
}

// completing asks to complete a prompt of n tokens.
func completing(n, maxTokens int, more object) object {
	body := object{"model": "model", "prompt": count(5, n), "max_tokens": maxTokens, "return_token_ids": true, "temperature": 0}
	for k, v := range more {
		body[k] = v
	}
	return body
}

// saidIn are the token ids of a completion, and why it ended.
func saidIn(answer object) string {
	choices, _ := answer["choices"].([]any)
	if len(choices) != 1 {
		return fmt.Sprint(answer)
	}
	c := choices[0].(object)
	return fmt.Sprint(c["token_ids"], " ", c["finish_reason"])
}

// metric is the sum of a counter over its labels.
func (f *played) metric(name string) float64 {
	f.t.Helper()
	sum := 0.0
	for line := range strings.Lines(metrics(f.t, f.url)) {
		if rest, ok := strings.CutPrefix(line, name+"{"); ok {
			var n float64
			_, _ = fmt.Sscan(rest[strings.LastIndex(rest, "}")+1:], &n)
			sum += n
		}
	}
	return sum
}

// transferring opens a side channel for one engine, and returns its connector.
func transferring(t *testing.T, id string) *Transfer {
	t.Helper()
	s, err := kvtransfer.ListenSideChannel("127.0.0.1", 0, 1, nil)
	must(t, err)
	t.Cleanup(s.Close)
	return &Transfer{EngineID: id, Host: "127.0.0.1", Port: s.Port(0), DataPlane: s}
}

// asking are the kv_transfer_params with which llm-d's sidecar asks for a prefill.
var asking = object{"kv_transfer_params": object{
	"do_remote_decode": true, "do_remote_prefill": false,
	"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
}}

// Two frontends with an engine each answer as one does, when a router lets one compute
// the prompts and the other one go on.
func TestRealFrontendsPrefillAndDecode(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			prefill := fronted(t, version, Options{Source: counting{}, Transfer: transferring(t, "p")})
			decode := fronted(t, version, Options{Source: counting{}, Transfer: transferring(t, "d")})
			status, first := prefill.post("/v1/completions", completing(40, 1, asking))
			params, _ := first["kv_transfer_params"].(object)
			if status != http.StatusOK || params["do_remote_prefill"] != true || params["remote_engine_id"] != "p" {
				t.Fatalf("prefill: HTTP %d, %v", status, first)
			}
			status, second := decode.post("/v1/completions", completing(40, 4, object{"kv_transfer_params": params}))
			if got := saidIn(second); status != http.StatusOK || got != "[45 46 47 48] length" {
				t.Errorf("decode: HTTP %d, %s", status, got)
			}
			if q, h := decode.metric("vllm:external_prefix_cache_queries_total"), decode.metric("vllm:external_prefix_cache_hits_total"); q != 40 || h != 40 {
				t.Errorf("%v of %v tokens came from the other engine, want 40 of 40", h, q)
			}
			if got := decode.metric("vllm:nixl_xfer_time_seconds_count"); (got > 0) != protocol.RustCountsTransfers.Holds(version) {
				t.Errorf("vllm-rs counts %v transfers", got)
			}
			t.Run("twice", func(t *testing.T) { neverComes(t, decode, params) })
			params["remote_engine_id"] = "somebody"
			t.Run("unknown engine", func(t *testing.T) { neverComes(t, decode, params) })
			t.Run("never computed", func(t *testing.T) { neverComes(t, decode, object{"do_remote_prefill": true}) })
			t.Run("sidecar", func(t *testing.T) { throughSidecar(t, prefill, decode) })
		})
	}
}

// neverComes asks for a KV cache that nobody keeps. Another request notices nothing.
func neverComes(t *testing.T, decode *played, params object) {
	status, answer := decode.post("/v1/completions", completing(41, 4, object{"kv_transfer_params": params}))
	require.Equal(t, status, http.StatusInternalServerError, "status of %v", answer)
	if status, answer := decode.post("/v1/completions", completing(20, 2, nil)); saidIn(answer) != "[25 26] length" {
		t.Errorf("the next request: HTTP %d, %s", status, saidIn(answer))
	}
}

// throughSidecar asks llm-d's sidecar, which VLLM_VCR_PD_SIDECAR names, instead of
// being one.
func throughSidecar(t *testing.T, prefill, decode *played) {
	binary := os.Getenv("VLLM_VCR_PD_SIDECAR")
	if binary == "" {
		t.Skip("VLLM_VCR_PD_SIDECAR names no sidecar")
	}
	free, err := kvtransfer.ListenSideChannel("127.0.0.1", 0, 1, nil)
	must(t, err)
	free.Close()
	port := fmt.Sprint(free.Port(0))
	_, vllmPort, _ := strings.Cut(strings.TrimPrefix(decode.url, "http://"), ":")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, binary, "-secure-proxy=false", "-port", port, "-vllm-port", vllmPort)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	url := "http://127.0.0.1:" + port
	for {
		resp, err := http.Get(url + "/v1/models")
		if err == nil {
			resp.Body.Close()
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the sidecar does not listen")
		}
	}
	before := decode.metric("vllm:external_prefix_cache_hits_total")
	host := strings.TrimPrefix(prefill.url, "http://")
	status, answer := post(t, url+"/v1/completions", completing(57, 3, nil), "x-prefiller-host-port", host)
	if diff := cmp.Diff("[62 63 64] length", saidIn(answer)); diff != "" || status != http.StatusOK {
		t.Errorf("HTTP %d (-want +got):\n%s", status, diff)
	}
	if got := decode.metric("vllm:external_prefix_cache_hits_total") - before; got == 0 {
		t.Error("nothing came from the prefill engine")
	}
}
