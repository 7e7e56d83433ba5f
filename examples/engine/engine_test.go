package main

import (
	"context"
	"io/fs"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/examples/frontend"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// The player runs inside the test, behind a frontend that is no vLLM, and says what a Source of ours decides.
func TestEngineBehindOwnFrontend(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	front, err := frontend.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()

	p, err := player.New(player.Options{Handshake: front.Handshake(), VLLMVersion: "0.33", Source: Counter{Vocab: 32000}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()

	if err := front.Accept(); err != nil {
		t.Fatal(err)
	}
	got, err := front.Complete("first-1", []uint32{7, 8, 9}, 5)
	if want := []uint32{10, 11, 12, 13, 14}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the answer is %v, %v, want %v", got, err, want)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The live suite judges the program as any other engine: by a command. It knows nothing of what is inside.
func TestConformOfProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "engine")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := conformance.CommandEngine{Template: program + " --handshake {handshake} --vllm-version {line}"}
	report := conform(t, conformance.Selection{Suite: conformance.SuiteLive, Lines: []string{"0.33", "0.25"}}, command.Engine)
	if report.ExitCode != conformance.ExitOK {
		t.Errorf("exit code %d: %s", report.ExitCode, report.Reason)
	}
}

// counted is a Source around another one.
type counted struct {
	player.Source
	requests *atomic.Int64
}

func (c counted) Script(r *player.Request) (player.Script, error) {
	c.requests.Add(1)
	return c.Source.Script(r)
}

// The replay suite judges an engine that plays goldens: here the player with a Source of ours around the recorded one.
func TestConformOfSource(t *testing.T) {
	var requests atomic.Int64
	engine := func(opt player.Options) (conformance.Subject, error) {
		recorded, err := player.NewReplay(opt.Trace, player.ReplayOptions{Match: opt.Replay.Match, Strict: true})
		if err != nil {
			return nil, err
		}
		opt.Source = counted{recorded, &requests}
		return player.New(opt)
	}
	sel := conformance.Selection{Lines: []string{"0.33"}, Goldens: []string{"multiturn-s7"}}
	report := conform(t, sel, engine)
	if report.ExitCode != conformance.ExitOK {
		t.Errorf("exit code %d: %s", report.ExitCode, report.Reason)
	}
	if requests.Load() == 0 {
		t.Error("the source answered no request")
	}
}

// conform runs a selection of the goldens that the module embeds.
func conform(t *testing.T, sel conformance.Selection, engine conformance.Engine) *conformance.Report {
	t.Helper()
	read := func(path string) []byte {
		data, err := vcr.Files.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	matrix, diagnostics := compat.Parse(vcr.CompatPath, read(vcr.CompatPath))
	registry, more := manifest.Parse(vcr.ManifestPath, read(vcr.ManifestPath))
	for _, d := range append(diagnostics, more...) {
		t.Log(d)
	}
	cases, err := conformance.NewPlan(matrix, registry, sel)
	if err != nil {
		t.Fatal(err)
	}
	goldens, err := fs.Sub(vcr.Files, vcr.GoldensPath)
	if err != nil {
		t.Fatal(err)
	}
	runner := &conformance.Runner{Store: conformance.NewStore(conformance.StoreOptions{Files: goldens}), Engine: engine}
	report := runner.Run(t.Context(), cases)
	for _, result := range report.Results {
		for _, failure := range result.Failures {
			t.Logf("%s: %s", result.Case.Name(), failure.Message)
		}
	}
	return report
}
