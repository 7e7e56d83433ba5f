package httpdiff_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check/httpdiff"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// settle is how long metrics may differ in these tests. Nothing waits for it that is as it should be.
const settle = 20 * time.Second

// TestEdge: the server of `vllm-vcr serve` adds to vllm-rs only what is listed.
func TestEdge(t *testing.T) {
	behind := start(t, "0.33.0")
	proxy, err := edge.Proxy(behind, nil)
	require.NoError(t, err)
	front, err := edge.New(edge.Options{Frontends: []http.Handler{proxy}, FanOut: true})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- front.Serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); <-ended })
	compare(t, "http://"+listener.Addr().String(), start(t, "0.33.0"), "edge.toml")
}

// compare runs the corpus against two servers. Other differences than those of a file in testdata are errors.
func compare(t *testing.T, tested, reference, known string) {
	t.Helper()
	opt := httpdiff.Options{A: httpdiff.Side{URL: tested}, B: httpdiff.Side{URL: reference}, Settle: settle}
	if known != "" {
		text, err := os.ReadFile(filepath.Join("testdata", known))
		require.NoError(t, err)
		if opt.Known, err = httpdiff.ReadKnown(known, string(text)); err != nil {
			t.Fatal(err)
		}
	}
	report, err := httpdiff.Run(t.Context(), opt)
	require.NoError(t, err)
	if len(report.Unknown()) > 0 || len(report.Unused) > 0 || report.Answered < 50 {
		var text strings.Builder
		_ = report.Text(&text)
		t.Errorf("%d requests to generate were answered; want 50 or more, and no differences:\n%s", report.Answered, &text)
	}
}

// start starts the vllm-rs of a release with a player behind it, as serve does, but without the server in front.
func start(t *testing.T, release string) (url string) {
	t.Helper()
	model, err := serve.FindModel("", os.Getenv)
	require.NoError(t, err)
	t.Cleanup(model.Remove)
	frontend, err := vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, release), ModelDir: model.Dir, ServedName: model.Name,
		Args: []string{"--tool-strict-level", "parameter", "--tool-call-parser", "hermes", "--reasoning-parser", "none", "--enable-scale-out"},
		Env:  []string{"VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=/"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { frontend.Close() })
	tok, err := tokenizer.Load(model.Dir)
	require.NoError(t, err)
	text, err := player.NewSentences(tok, 0)
	require.NoError(t, err)
	p, err := player.New(player.Options{
		Handshake: frontend.Handshake(), VLLMVersion: release, Vocab: uint32(tok.VocabSize()),
		Limits: player.Limits{MaxModelLen: model.MaxModelLen}, LoRA: player.LoRAOptions{MaxLoRAs: serve.DefaultMaxLoRAs},
		Source: &player.Structured{Source: text, Encoder: tok, Answered: player.ToolAnswered(tok.Decode)},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	require.NoError(t, frontend.Healthy(t.Context()))
	return frontend.URL()
}
