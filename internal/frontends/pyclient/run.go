package pyclient

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed driver.py
var driver []byte

// Options configures [Run].
type Options struct {
	// Python is an interpreter whose packages have torch, msgspec, zmq and what else the release imports.
	Python string
	// Sources is the release, from [Sources].
	Sources Tree
	// Model is a model directory; no weights are read.
	Model string
	// MaxModelLen, NumGPUBlocks and BlockSize are what the engine registers with. The first is to be below 4096, which
	// the client is configured for: then it shows whether the client minds what was registered.
	MaxModelLen, NumGPUBlocks, BlockSize int
	// Says returns what the engine answers to a request, token by token from position 0: always the same, and without
	// an end.
	Says func(id string) func(position int) uint32
	// Engine prepares an engine that dials a handshake, and returns what runs it until its context ends. It is called
	// for each client. An error of Engine is one of Run, an error of the run a finding.
	Engine func(handshake string) (run func(context.Context) error, err error)
	// Patience is how long an answer may take; default a minute: engines may start at the same time.
	Patience time.Duration
	// Deadline bounds everything; default 5 minutes. Time in which others had the processors does not count.
	Deadline time.Duration
	// Log gets what the driver does; nil logs nothing.
	Log *slog.Logger
}

const (
	defaultPatience = time.Minute
	defaultDeadline = 5 * time.Minute
	driverName      = "driver.py"
)

func (o Options) withDefaults() (Options, error) {
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Deadline <= 0 {
		o.Deadline = defaultDeadline
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	switch {
	case o.Sources.Dir == "":
		return o, errors.New("no sources of a release are given")
	case o.MaxModelLen <= 0 || o.MaxModelLen >= contextSize:
		return o, fmt.Errorf("the engine registers max_model_len %d: want less than %d", o.MaxModelLen, contextSize)
	case o.NumGPUBlocks <= 0 || o.BlockSize <= 0:
		return o, fmt.Errorf("the engine registers %d blocks of %d tokens: want some", o.NumGPUBlocks, o.BlockSize)
	case o.Says == nil || o.Engine == nil:
		return o, errors.New("no engine is given, or not what it says")
	}
	return o, nil
}

// Run tries all cases with the clients of a release, and returns what each came to, in their order. The error is why
// they could not all be tried, for reasons that are not the wire's.
func Run(ctx context.Context, opt Options) ([]Result, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("python client: %w", err)
	}
	home, remove, err := process.MkdirTemp("vllm-vcr-pyclient-*")
	if err != nil {
		return nil, fmt.Errorf("python client: %w", err)
	}
	defer remove()
	r := newRun(opt)
	err = r.drive(ctx, home)
	if err != nil {
		err = fmt.Errorf("python client of %s: %w", opt.Sources.name(), err)
	}
	return r.results, err
}

// name is the tree in messages.
func (t Tree) name() string {
	return cmp.Or(t.Wheel, t.Dir)
}

// drive starts the driver and follows it to its end.
func (r *run) drive(ctx context.Context, home string) error {
	script := filepath.Join(home, driverName)
	if err := os.WriteFile(script, driver, 0o644); err != nil {
		return err
	}
	text, err := json.Marshal(r.plan)
	if err != nil {
		return err
	}
	cmd := exec.Command(r.opt.Python, "-B", script)
	cmd.Dir, cmd.Env = home, environment(os.Environ(), r.opt.Sources, home)
	cmd.Stdin = strings.NewReader(string(text) + "\n")
	reader, writer := io.Pipe()
	defer reader.Close()
	cmd.Stdout = writer
	p, err := process.Start(cmd, process.Options{Name: "driver"})
	if err != nil {
		return err
	}
	stopping := context.WithoutCancel(ctx)
	ctx, cancel := p.Patience(ctx, r.opt.Deadline, fmt.Errorf("no end within %v", r.opt.Deadline))
	defer cancel()
	defer func() { _ = p.Stop(stopping) }() // of a process that survives SIGKILL there is nothing more to learn
	defer reader.Close()
	defer func() { r.stopEngine() }()
	lines := make(chan []byte)
	go readLines(ctx, reader, lines)
	go func() {
		<-p.Done()
		writer.Close()
	}()
	return r.follow(ctx, p, lines)
}

// follow minds the driver, the engine and the clock, whichever is first.
func (r *run) follow(ctx context.Context, p *process.Process, lines <-chan []byte) error {
	for {
		select {
		case line, more := <-lines:
			if !more {
				<-p.Done()
				return fmt.Errorf("%s%w", r.at(), p.Exit())
			}
			if err := r.take(ctx, line); err != nil || r.over {
				return err
			}
		case err := <-r.engineEnded:
			r.engineEnded, r.lost = nil, endOf(err)
		case <-ctx.Done():
			return fmt.Errorf("%s%w%s", r.at(), context.Cause(ctx), tailOf(p))
		}
	}
}

// tailOf is what a process wrote last, as an error shows it.
func tailOf(p *process.Process) string {
	if tail := safetext.Block(p.Tail()); tail != "" {
		return "; the last of its output:\n" + tail
	}
	return ""
}

var inheritedNames = []string{"PATH", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH"}

// environment is what the driver gets of its owner's: no secret, and nothing that leads Python or vLLM elsewhere.
func environment(inherited []string, tree Tree, home string) []string {
	keep := func(name, _ string) bool { return slices.Contains(inheritedNames, strings.ToUpper(name)) }
	return process.Environment(inherited, keep,
		"PYTHONPATH="+tree.Dir, "PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "LANG=C.UTF-8",
		"NO_COLOR=1", "HOME="+home, "USERPROFILE="+home, "VLLM_CACHE_ROOT="+tree.State, "VLLM_CONFIG_ROOT="+home, "VLLM_NO_USAGE_STATS=1",
		"DO_NOT_TRACK=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_PLUGINS=", "VLLM_CPU_KVCACHE_SPACE=1",
		"OMP_NUM_THREADS=1", "VLLM_LOGGING_LEVEL=WARNING",
	)
}

// An Environment is an installed CPU engine, whose packages a release can run on.
type Environment struct {
	Release string // of the engine: "0.33.0"
	Python  string // path of its interpreter
}

// Nearest returns the environment for a release among those of the CPU engines that are installed below a folder: that
// of the release, else of the newest release before it, else of the oldest.
func Nearest(dir string, release compat.Version) (Environment, error) {
	engines := filepath.Join(dir, "engines")
	entries, err := os.ReadDir(engines)
	if err != nil && !os.IsNotExist(err) {
		return Environment{}, fmt.Errorf("look for environments: %w", err)
	}
	var best compat.Version
	var found Environment
	for _, entry := range entries {
		v, err := compat.ParseVersion(entry.Name())
		if err != nil {
			continue
		}
		python := filepath.Join(engines, entry.Name(), "bin", "python")
		if !whole(filepath.Dir(filepath.Dir(python)), python) {
			continue
		}
		if found.Python == "" || v.Nearer(best, release) {
			best, found = v, Environment{Release: entry.Name(), Python: python}
		}
	}
	if found.Python == "" {
		return found, fmt.Errorf("no environment with torch is installed in %s: a CPU engine has one", engines)
	}
	return found, nil
}

// whole reports whether an environment was finished, and its interpreter is there.
func whole(home, python string) bool {
	_, unfinished := os.Stat(filepath.Join(home, "whole"))
	info, err := os.Stat(python)
	return unfinished == nil && err == nil && info.Mode().IsRegular()
}

// maxLine limits a line of the driver's, in bytes.
const maxLine = 4 << 20

// readLines passes on what a process writes, line by line, until its output or ctx ends. A line that is too long is the last one.
func readLines(ctx context.Context, r io.Reader, lines chan<- []byte) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		select {
		case lines <- bytes.Clone(scanner.Bytes()):
		case <-ctx.Done():
			return
		}
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		select {
		case lines <- []byte(scanner.Err().Error()):
		case <-ctx.Done():
		}
		return
	}
	close(lines)
}

func newRun(opt Options) *run {
	r := &run{opt: opt, plan: newPlan(opt), stopEngine: func() {}}
	r.sessions = r.plan.Sessions
	return r
}

// take reads a line of the driver's.
func (r *run) take(ctx context.Context, line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil || m.Event == "" {
		return fmt.Errorf("%sthe driver wrote an unknown message: %q", r.at(), cut(string(line)))
	}
	switch m.Event {
	case "ready":
		r.opt.Log.Info("python client", "release", m.Version, "wheel", r.opt.Sources.Wheel)
		return nil
	case "unusable":
		return fmt.Errorf("%s%s", r.at(), oneLine(m.Message))
	case "case":
		r.last = m.Case
		r.opt.Log.Debug("python client", "case", m.Case)
		return nil
	case "engine":
		return r.startEngine(ctx, m.Address)
	case "kill":
		r.stopEngine()
		return nil
	case "result":
		return r.judge(m)
	case "end":
		r.endSession()
		return nil
	case "done":
		r.over = true
		return nil
	}
	return fmt.Errorf("%sthe driver wrote an unknown event %q", r.at(), cut(m.Event))
}

// A message is a line of the driver's.
type message struct {
	Event   string `json:"event"`
	Version string `json:"version"`
	Address string `json:"address"`
	Case    string `json:"case"`
	OK      bool   `json:"ok"`
	Unable  bool   `json:"unable"` // it could not be tried
	Late    bool   `json:"late"`   // no answer came
	Message string `json:"message"`
	Where   string `json:"where"`
	facts
}

// A run is one driver at work.
type run struct {
	opt     Options
	plan    *plan
	results []Result
	over    bool

	sessions []*session // that are not over
	last     string     // the case that was begun last

	engineEnded chan error // by itself
	lost        string     // how the engine of this session ended by itself
	failed      bool       // a case of this session
	stopEngine  func()
}

// at is where the driver is, for the beginning of a message.
func (r *run) at() string {
	if r.last == "" {
		return "before the first case: "
	}
	return "at " + r.last + ": "
}

// judge ends the case that is tried.
func (r *run) judge(m message) error {
	var left []*aCase
	if len(r.sessions) > 0 {
		left = r.sessions[0].Cases
	}
	if len(left) == 0 || left[0].Name != m.Case {
		return fmt.Errorf("%sthe driver has a result of %q, which is not tried", r.at(), cut(m.Case))
	}
	c := left[0]
	r.sessions[0].Cases = left[1:]
	result := Result{Case: c.Name, Verdict: Passed, Message: oneLine(m.Message), Where: oneLine(m.Where)}
	switch {
	case !m.OK && m.Unable && c.optional:
		result.Verdict = Skipped
	case !m.OK && m.Unable:
		result.Verdict = Unjudged
	case !m.OK:
		result.Verdict = Failed
	default:
		result = c.compare(result, m.facts)
	}
	if result.Verdict != Passed && result.Message == "" {
		result.Message = "the driver gave no reason"
	}
	if m.Late && r.lost != "" {
		result.Message += "; " + r.lost
	}
	r.failed = r.failed || result.Verdict == Failed
	r.results = append(r.results, result)
	return nil
}

// compare judges what came out of a case.
func (c *aCase) compare(result Result, f facts) Result {
	if err := c.judge(f); err != nil {
		result.Verdict, result.Message = Failed, oneLine(err.Error())
		return result
	}
	for _, a := range f.Answers {
		result.Tokens += len(a.Tokens)
	}
	return result
}

// endSession ends a client. Cases that it did not come to were not tried.
func (r *run) endSession() {
	r.stopEngine()
	if r.lost != "" && !r.failed { // where a client gave up, its engine ends as well
		r.results = append(r.results, Result{Case: r.last, Verdict: Failed, Message: "meanwhile " + r.lost})
	}
	r.lost, r.failed = "", false
	for _, c := range r.sessions[0].Cases {
		r.results = append(r.results, Result{Case: c.Name, Verdict: Unjudged, Message: "not tried after " + r.last})
	}
	r.sessions = r.sessions[1:]
}

// startEngine has an engine dial the driver.
func (r *run) startEngine(ctx context.Context, address string) error {
	r.stopEngine()
	serve, err := r.opt.Engine(address)
	if err != nil {
		return fmt.Errorf("%sengine: %w", r.at(), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		ended <- serve(ctx)
	}()
	r.engineEnded = ended
	r.stopEngine = func() {
		select {
		case err := <-ended:
			r.lost = endOf(err)
		default:
		}
		cancel()
		<-gone
		r.engineEnded, r.stopEngine = nil, func() {}
	}
	return nil
}

// endOf says how an engine ended that was to go on.
func endOf(err error) string {
	if err == nil {
		return "the engine ended"
	}
	return "the engine ended: " + oneLine(err.Error())
}

// maxText limits what is quoted of the driver, in characters.
const maxText = 600

// oneLine makes a text of the release fit for a report: a line of what can be printed.
func oneLine(text string) string {
	return cut(strings.Join(strings.Fields(safetext.Line(text)), " "))
}

func cut(text string) string { return safetext.Clip(text, maxText) }
