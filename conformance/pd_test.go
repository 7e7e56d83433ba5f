package conformance

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/player"
)

// pdReport judges the player with a NixlConnector and a fault of its prefill.
func pdReport(t *testing.T, suite Suite, fault string, only ...Assertion) *Report {
	t.Helper()
	t.Setenv("UCX_TLS", "tcp,self,sm")
	matrix, _ := repository(t)
	line, _ := matrix.ByName("0.33")
	python, model := testenv.NIXL(t), testenv.ModelDir(t)
	log := slog.New(slog.DiscardHandler)
	runner := &Runner{NIXL: python, Timeouts: patient(), Engine: func(opt player.Options) (Subject, error) {
		opt.KVCache.NumGPUBlocks = 256
		opt.Transfer = &kvtransfer.Config{EngineID: "player", Host: "127.0.0.1", Port: testenv.FreePort(t), Lease: 2 * time.Second}
		opt.Transfer.Open = func(engine *kvtransfer.Config, form kvtransfer.Form) (kvtransfer.DataPlane, error) {
			return nixl.Open(engine, form, nixl.Options{Model: model, DType: "float32", Fault: fault}, func(length int64) (agent.Agent, error) {
				return agent.Start(t.Context(), agent.Options{Python: python, Length: length})
			}, log)
		}
		return player.New(opt)
	}}
	cases := pd.Cases(suite, line, true)
	return runner.Run(t.Context(), slices.DeleteFunc(cases, func(c Case) bool { return len(only) > 0 && !slices.Contains(only, c.Assertion) }))
}

// TestDecodePlayer: the player is a good decode.
func TestDecodePlayer(t *testing.T) { wantAllPass(t, pdReport(t, SuiteDecode, ""), nil) }

// TestPrefillPlayer: the player is a good prefill, and each of its faults fails the case that it is about.
func TestPrefillPlayer(t *testing.T) {
	wantAllPass(t, pdReport(t, SuitePrefill, ""), nil)
	for _, tt := range []struct {
		fault string
		fails Assertion
		code  Code
	}{
		{"silent", pd.Handshake, pd.CodeSideChannel},
		{"engine", pd.Params, pd.CodeParams},
		{"die:0s", pd.Handshake, pd.CodeMetadata},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			r := pdReport(t, SuitePrefill, tt.fault, tt.fails).Results[0]
			if r.Verdict != Fail || len(r.Failures) == 0 || r.Failures[0].Code != tt.code {
				t.Errorf("%s: %s, %v, want %s", r.Case.Name(), r.Verdict, r.Failures, tt.code)
			}
		})
	}
}
