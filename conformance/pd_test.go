package conformance

import (
	"log/slog"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/player"
)

// pdReport judges the player with a NixlConnector.
func pdReport(t *testing.T, suite Suite) *Report {
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
			return nixl.Open(engine, form, nixl.Options{Model: model, DType: "float32"}, func(length int64) (agent.Agent, error) {
				return agent.Start(t.Context(), agent.Options{Python: python, Length: length})
			}, log)
		}
		return player.New(opt)
	}}
	return runner.Run(t.Context(), pd.Cases(suite, line, true))
}

// TestDecodePlayer: the player is a good decode.
func TestDecodePlayer(t *testing.T) { wantAllPass(t, pdReport(t, SuiteDecode), nil) }

// TestPrefillPlayer: the player is a good prefill. Faults of both are in the self-test.
func TestPrefillPlayer(t *testing.T) { wantAllPass(t, pdReport(t, SuitePrefill), nil) }
