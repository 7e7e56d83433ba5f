package load_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/vllm-vcr/conformance/internal/load"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/vllmrs"
	"github.com/vllm-vcr/conformance/player"
)

// Each real frontend lets all of every workload through to an engine.
func TestRealFrontendsTakeTheWorkloads(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			url := behind(t, version)
			for _, workload := range load.Workloads() {
				t.Run(string(workload), func(t *testing.T) {
					report, err := load.Run(t.Context(), load.Config{URL: url, Model: "tiny", Workload: workload, Seed: 1})
					if err != nil {
						t.Fatal(err)
					}
					for _, no := range report.Refused {
						t.Logf("refused: %s: %d %s", no.Request, no.Status, no.Answer)
					}
					if report.Tokens < 2*report.Completed || len(report.Refused) > 10 || report.Completed < 50 {
						t.Errorf("got %+v, want 50 answers or more and few refusals", report)
					}
				})
			}
		})
	}
}

// behind starts a frontend with a player of its line that answers at random, and returns the frontend's address.
func behind(t *testing.T, version string) string {
	t.Helper()
	server, err := vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), ServedName: "tiny", Env: []string{"VLLM_SERVER_DEV_MODE=1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of vllm-rs %s:\n%s", version, server.Tail())
		}
	})
	// Ids that every tokenizer of the lines knows: up to 0.29 another one is an error of the frontend.
	engine, err := player.New(player.Options{
		Handshake: server.Handshake(), VLLMVersion: "v" + version, Seed: 7, Vocab: 2048, MaxModelLen: 4096,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(fmt.Errorf("player: %w", engine.Run(ctx)))
	}()
	t.Cleanup(func() { cancel(nil); <-done })
	if err := server.Healthy(ctx); err != nil {
		t.Fatal(err)
	}
	return server.URL()
}
