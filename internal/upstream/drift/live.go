package drift

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// Live puts a frontend before the embedded player, which makes two layers: [Live.Run] and [Live.Replay].
type Live struct {
	Matrix   *compat.Matrix
	Manifest *manifest.Manifest
	Line     string // the line to judge as, which has goldens
	Binary   string // vllm-rs
	Model    string // a model directory
	Store    conformance.Store
	// Expectations are what is known to fail; may be nil.
	Expectations *conformance.Expectations
	Log          *slog.Logger
	// Progress gets each result as it is known; may be nil.
	Progress func(conformance.Result)
}

// Run is the layer live: the frontend suite.
func (l Live) Run(ctx context.Context) Layer {
	if err := Runs(ctx, l.Binary); err != nil {
		return Unjudged(LiveLayer, err)
	}
	suite, err := l.suite(ctx)
	if err != nil {
		return Unjudged(LiveLayer, err)
	}
	layer := judge(LiveLayer, suite)
	layer.Compared = "its vllm-rs before the player of line " + l.Line + ": " + asserted(suite)
	return layer
}

// asserted lists what a report checked, so that a reader knows what a verdict covers.
func asserted(report *conformance.Report) string {
	var names []string
	for _, r := range report.Results {
		if r.Asserted > 0 {
			names = append(names, r.Case.Check())
		}
	}
	return cmp.Or(strings.Join(names, ", "), "nothing")
}

// serves reports whether the frontend got beyond the handshake, as far as the layer live looked.
func (l Layer) serves() bool {
	serves := l.Verdict == Skipped
	for _, report := range l.Reports {
		for _, r := range report.Results {
			serves = serves || r.Case.Assertion == frontendsuite.Handshake && !r.Verdict.Red()
		}
	}
	return serves
}

// Replay is the layer goldens: those of the line, replayed behind the frontend. Each would wait for a frontend that did
// not get beyond the handshake, as far as live looked.
func (l Live) Replay(ctx context.Context, live Layer) Layer {
	if !live.serves() {
		return notLooked(GoldensLayer, "the frontend does not serve, see %s", LiveLayer)
	}
	replay, err := l.run(ctx, conformance.Selection{
		Assertions: []conformance.Assertion{conformance.Fidelity},
		Frontends:  map[string]conformance.RealFrontend{l.Line: {Binary: l.Binary, ModelDir: l.Model}},
		Run:        []string{l.Line + "/*/fidelity-frontend-*"},
	}, func(r *conformance.Runner, _ []conformance.Case) error {
		r.Subject = conformance.Description{Kind: "player"}
		return nil
	})
	if err != nil {
		return Unjudged(GoldensLayer, err)
	}
	layer := judge(GoldensLayer, replay)
	layer.Compared = "the streams of line " + l.Line + " through its vllm-rs with those of the real engine"
	return layer
}

// Taught looks whether a player that was taught the release's own profile serves its frontend: that is what would be so
// if the line were adopted. The process knows the line of the profile from then on.
func (l Live) Taught(ctx context.Context, p *protocol.Profile) Layer {
	name := LayerName("adopted")
	if err := protocol.Learn(p); err != nil {
		return Unjudged(name, fmt.Errorf("the player cannot use its profile: %w", err))
	}
	l.Line, l.Expectations, l.Progress = p.Line, nil, nil
	l.Matrix = &compat.Matrix{File: l.Matrix.File, Lines: []compat.Line{{Name: p.Line, Tag: "v" + p.Version}}}
	l.Manifest = &manifest.Manifest{File: l.Manifest.File}
	suite, err := l.suite(ctx)
	if err != nil {
		return Unjudged(name, err)
	}
	return judge(name, suite)
}

// suite runs the frontend suite.
func (l Live) suite(ctx context.Context) (*conformance.Report, error) {
	under := &conformance.FrontendUnderTest{Command: l.command(), Model: l.Model}
	sel := conformance.Selection{Suite: conformance.SuiteFrontend}
	report, err := l.run(ctx, sel, func(r *conformance.Runner, cases []conformance.Case) error {
		r.Frontend = under
		r.Subject = conformance.Description{Kind: "frontend", Command: under.Command}
		return under.Check(cases)
	})
	if err != nil {
		return nil, err
	}
	report.Flags = []string{"--frontend-command", under.Command, "--model", l.Model}
	return report, nil
}

// run plans what is selected of the line, every case of which counts, and runs it.
func (l Live) run(
	ctx context.Context, sel conformance.Selection, prepare func(*conformance.Runner, []conformance.Case) error,
) (*conformance.Report, error) {
	sel.Lines, sel.Enforce = []string{l.Line}, conformance.EnforceAll
	cases, err := conformance.NewPlan(l.Matrix, l.Manifest, sel)
	if err != nil {
		return nil, err
	}
	all, err := conformance.EveryCase(l.Matrix, l.Manifest, sel)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{Store: l.Store, Log: l.Log, Progress: l.Progress, Expectations: l.Expectations, All: all}
	if err := prepare(&runner, cases); err != nil {
		return nil, err
	}
	return runner.Run(ctx, cases), nil
}

// command starts the frontend with the routes that are off by default. Their switches are a part of it, so that the
// command of a report can be repeated as it is.
func (l Live) command() string {
	return commandLine([]string{
		"VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
		"VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + os.TempDir(), "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "NO_COLOR=1",
	}, []string{
		l.Binary, "serve", "{model}", "--data-parallel-size", "1", "--data-parallel-size-local", "0",
		"--data-parallel-address", "{handshake_host}", "--data-parallel-rpc-port", "{handshake_port}",
		"--host", "127.0.0.1", "--port", "{http_port}",
	})
}

// commandLine returns a command with its environment, NAME=value. Settings of vLLM that happen to be in that of this
// process are left out: an API key or a data-parallel rank would change what the frontend does. Ours, which begin
// alike, mean nothing to it.
func commandLine(env, args []string) string {
	words := []string{"env"}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "VLLM_") && !strings.HasPrefix(name, "VLLM_VCR_") {
			words = append(words, "-u", name)
		}
	}
	words = slices.Concat(words, env, args)
	for i, word := range words {
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\") {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// helpTime is how long a frontend may take to print its help.
const helpTime = 30 * time.Second

// Runs returns an error unless a vllm-rs is a program for this machine. One that is not says nothing about its release.
func Runs(ctx context.Context, binary string) error {
	var p *process.Process
	var err error
	for range 100 {
		p, err = process.Start(exec.Command(binary, "serve", "--help"), process.Options{Tail: 400})
		// A process that another goroutine forked while the binary was written has it open until it becomes a program of its own.
		if !errors.Is(err, syscall.ETXTBSY) || retry.Pause(ctx, 50*time.Millisecond) != nil {
			break
		}
	}
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err // the path is in the sentence below
	}
	if err == nil {
		limited, cancel := p.Patience(ctx, helpTime, fmt.Errorf("no end within %v", helpTime))
		defer cancel()
		if err = p.Wait(limited); err == nil {
			return nil
		}
		err = errors.Join(err, p.Stop(ctx))
		var ended *process.ExitError
		if errors.As(err, &ended) {
			err = errors.New(strings.Join(append([]string{ended.Status + ":"}, strings.Fields(ended.Tail)...), " "))
		}
	}
	return fmt.Errorf("%s does not run here: serve --help: %w", binary, err)
}
