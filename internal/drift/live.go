package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// Live puts a frontend before the embedded player, which makes two layers: [Live.Run] and [Live.Replay].
type Live struct {
	Window   *compat.Matrix
	Registry *manifest.Manifest
	Line     string // the line to judge as, which has goldens
	Binary   string // vllm-rs
	Model    string // a model directory
	Store    conformance.Store
	// Expectations are what is known to fail; may be nil.
	Expectations *conformance.Expectations
	Log          *slog.Logger
	// Progress is told each result as it is known; may be nil.
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

// asserted lists what a report looked at, so that nobody has to guess what a verdict covers.
func asserted(report *conformance.Report) string {
	var names []string
	for _, r := range report.Results {
		if r.Asserted > 0 {
			names = append(names, r.Case.Check())
		}
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// Replay is the layer goldens: those of the line, replayed behind the frontend. Each would wait for a frontend that did
// not get beyond the handshake, as live says.
func (l Live) Replay(ctx context.Context, live Layer) Layer {
	if !serves(live) {
		return notLooked(GoldensLayer, "the frontend does not serve, see %s", LiveLayer)
	}
	replay, err := l.replay(ctx)
	if err != nil {
		return Unjudged(GoldensLayer, err)
	}
	layer := judge(GoldensLayer, replay)
	layer.Compared = "the streams of line " + l.Line + " through its vllm-rs with those of the real engine"
	return layer
}

// serves tells whether the frontend got beyond the handshake, as far as live looked.
func serves(live Layer) bool {
	if live.Verdict == Skipped {
		return true
	}
	for _, report := range live.Reports {
		for _, r := range report.Results {
			if r.Case.Assertion == conformance.FrontendHandshake {
				return !r.Verdict.Red()
			}
		}
	}
	return false
}

// Taught asks of a frontend whether a player that was taught the release's own profile serves it: that is what would be
// so if the line were adopted. The process knows the line of the profile from then on.
func (l Live) Taught(ctx context.Context, p *protocol.Profile) Layer {
	name := LayerName("adopted")
	if err := protocol.Learn(p); err != nil {
		return Unjudged(name, fmt.Errorf("the player cannot be taught its profile: %w", err))
	}
	l.Line, l.Expectations, l.Progress = p.Line, nil, nil
	l.Window = &compat.Matrix{File: l.Window.File, Lines: []compat.Line{{Name: p.Line, Tag: "v" + p.Version}}}
	l.Registry = &manifest.Manifest{File: l.Registry.File}
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

// replay replays the goldens of the line behind the frontend.
func (l Live) replay(ctx context.Context) (*conformance.Report, error) {
	return l.run(ctx, conformance.Selection{
		Assertions: []conformance.Assertion{conformance.Fidelity},
		Frontends:  map[string]conformance.RealFrontend{l.Line: {Binary: l.Binary, ModelDir: l.Model}},
		Run:        []string{l.Line + "/*/fidelity-frontend-*"},
	}, func(r *conformance.Runner, _ []conformance.Case) error {
		r.Subject = conformance.Description{Kind: "player"}
		return nil
	})
}

// run plans what is selected of the line, every case of which counts, and runs it.
func (l Live) run(
	ctx context.Context, sel conformance.Selection, put func(*conformance.Runner, []conformance.Case) error,
) (*conformance.Report, error) {
	sel.Lines, sel.Enforce = []string{l.Line}, conformance.EnforceAll
	cases, err := conformance.NewPlan(l.Window, l.Registry, sel)
	if err != nil {
		return nil, err
	}
	all, err := conformance.EveryCase(l.Window, l.Registry, sel)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{Store: l.Store, Log: l.Log, Progress: l.Progress, Expectations: l.Expectations, All: all}
	if err := put(&runner, cases); err != nil {
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

// commandLine is a command with its environment, NAME=value, and without what happens to be in that of this process.
func commandLine(env, args []string) string {
	words := []string{"env"}
	for _, name := range inherited() {
		words = append(words, "-u", name)
	}
	words = slices.Concat(words, env, args)
	for i, word := range words {
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\") {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// inherited are the settings of vLLM that happen to be in the environment: an API key or a data-parallel rank would
// change what the frontend does. Ours, which begin alike, mean nothing to it.
func inherited() []string {
	var names []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "VLLM_") && !strings.HasPrefix(name, "VLLM_VCR_") {
			names = append(names, name)
		}
	}
	return names
}

// helpTime is how long a frontend may take to tell what it is.
const helpTime = 30 * time.Second

// Runs returns an error unless a vllm-rs is a program for this machine. One that is not says nothing about its release.
func Runs(ctx context.Context, binary string) error {
	limited, cancel := context.WithTimeoutCause(ctx, helpTime, fmt.Errorf("no end within %v", helpTime))
	defer cancel()
	var said tail
	cmd := exec.CommandContext(limited, binary, "serve", "--help")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if cause := context.Cause(limited); cause != nil {
		err = cause
	}
	if text := strings.Join(strings.Fields(string(said)), " "); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return fmt.Errorf("%s does not run here: serve --help: %w", binary, noPath(err))
}

// noPath takes the path out of an error that is told behind it.
func noPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// tailSize is how much is kept of what a program writes, in bytes.
const tailSize = 400

// tail keeps the end of what is written.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	if extra := len(*t) - tailSize; extra > 0 {
		*t = append((*t)[:0], (*t)[extra:]...)
	}
	return len(p), nil
}
