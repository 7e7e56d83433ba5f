package load_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

const capturedMultiturn = "../../../testdata/captures/0.33.0-multiturn-s7.trace.jsonl.gz"

// Each real frontend lets all of every workload through to an engine, and what the client saw of it is what a tap saw.
func TestClientAndTapAgree(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		for _, workload := range load.Workloads() {
			t.Run(version+"/"+string(workload), func(t *testing.T) { tapAgrees(t, version, workload) })
		}
	}
}

func tapAgrees(t *testing.T, version string, workload load.Workload) {
	server, until, ended := tapped(t, version, testenv.ModelDir(t))
	cfg := load.Config{URL: server.url, Model: "tiny", Workload: workload, Seed: 1}
	if workload == load.Arrivals {
		cfg.Shape = load.Shape{Arrivals: capturedMultiturn, Speed: 20}
	}
	if workload == load.Bursts {
		cfg.Shape.Every = 50 * time.Millisecond
	}
	var records []load.Record
	cfg.Each = func(rec load.Record) error {
		records = append(records, rec)
		return nil
	}
	report, err := load.Run(t.Context(), cfg)
	require.NoError(t, err)
	close(until)
	require.NoError(t, <-ended)
	wantAgreement(t, records, server.trace)
	for _, no := range report.Refused {
		t.Logf("refused: %s: %d %s", no.Request, no.Status, no.Answer)
	}
	require.True(t, report.Tokens >= 2*report.Completed && len(report.Refused) <= 10, "got %+v, want few refusals", report)
	require.True(t, len(records) == report.Requests && report.Completed >= 32, "%d records of %+v", len(records), report)
	t.Logf("%d requests, %d tokens in %v", report.Requests, report.Tokens, report.Duration)
}

// wantAgreement wants a trace to have what the client saw.
func wantAgreement(t *testing.T, records []load.Record, path string) {
	t.Helper()
	tr, err := trace.Open(path, trace.Options{Strict: true, KeepExtra: true})
	require.NoError(t, err)
	defer tr.Close()
	findings, err := load.Compare(records, tr)
	require.True(t, err == nil && len(findings) == 0, "%v, %d findings: %q", err, len(findings), findings)
}

// stack is a frontend before a tap before a player that answers at random.
type stack struct {
	url, trace string
}

// tapped starts all three. The recording ends when until is closed, and tells so on ended.
func tapped(t *testing.T, version, model string) (s stack, until chan<- struct{}, ended <-chan error) {
	t.Helper()
	server, err := vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, version), ModelDir: model, ServedName: "tiny", Env: []string{"VLLM_SERVER_DEV_MODE=1"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of vllm-rs %s:\n%s", version, server.Tail())
		}
	})
	stop, finished := make(chan struct{}), make(chan error, 1)
	s = stack{url: server.URL(), trace: filepath.Join(t.TempDir(), "trace.jsonl.gz")}
	address := fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
	// Ids that every tokenizer of the lines knows: up to 0.29 another one is an error of the frontend.
	engine, err := player.New(player.Options{
		Handshake: address, VLLMVersion: "v" + version, Seed: 7, Vocab: 2048, Limits: player.Limits{MaxModelLen: 4096},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	background(t, cancel, func() error {
		_, err := recorder.Run(ctx, recorder.Config{
			Frontend: server.Handshake(), Listen: address, Observe: recorder.Options{RecordTokens: true},
			Trace: recorder.Destination{Path: s.trace}, Until: stop,
			Finished: func(_ recorder.Summary, err error) { finished <- err },
		})
		return fmt.Errorf("tap: %w", err)
	})
	background(t, cancel, func() error { return fmt.Errorf("player: %w", engine.Run(ctx)) })
	require.NoError(t, server.Healthy(ctx))
	return s, stop, finished
}

// background runs f until the test ends; its end cancels what it belongs to.
func background(t *testing.T, cancel context.CancelCauseFunc, f func() error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(f())
	}()
	t.Cleanup(func() { cancel(nil); <-done })
}
