package pyclient

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
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
	// MaxModelLen, NumGPUBlocks and BlockSize are what the engine registers with. The first is to be below 4096, which the
	// client is configured for: then it shows whether the client minds what was registered.
	MaxModelLen, NumGPUBlocks, BlockSize int
	// Says returns what the engine says to a request, token by token from position 0: always the same, and without an end.
	Says func(id string) func(position int) uint32
	// Engine prepares an engine that dials a handshake, and returns what runs it until its context ends. It is called for
	// each client. An error of Engine is one of Run, an error of the run a finding.
	Engine func(handshake string) (run func(context.Context) error, err error)
	// Patience is how long an answer may take; default a minute: engines may boot beside it.
	Patience time.Duration
	// Deadline bounds everything; default 5 minutes.
	Deadline time.Duration
	// Log is told what the driver does; nil logs nothing.
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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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
	late := fmt.Errorf("no end within %v", opt.Deadline)
	ctx, cancel := context.WithTimeoutCause(ctx, opt.Deadline, late)
	defer cancel()
	home, err := os.MkdirTemp("", "vllm-vcr-pyclient-*")
	if err != nil {
		return nil, fmt.Errorf("python client: %w", err)
	}
	defer os.RemoveAll(home)
	r := newRun(opt)
	err = r.drive(ctx, home)
	if err != nil {
		err = fmt.Errorf("python client of %s: %w", opt.Sources.name(), err)
	}
	return r.results, err
}

// name is the tree in messages.
func (t Tree) name() string {
	if t.Wheel != "" {
		return t.Wheel
	}
	return t.Dir
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
	lines := newLines()
	cmd.Stdout = lines
	p, err := process.Start(cmd, process.Options{Name: "driver"})
	if err != nil {
		return err
	}
	stopping := context.WithoutCancel(ctx)
	// A process that survives SIGKILL has nothing more to tell.
	defer func() { _ = p.Stop(stopping) }()
	defer lines.drop()
	defer func() { r.stopEngine() }()
	return r.follow(ctx, p, lines)
}

// follow minds the driver, the engine and the clock, whichever is first.
func (r *run) follow(ctx context.Context, p *process.Process, lines *lines) error {
	for {
		select {
		case line := <-lines.whole:
			if err := r.take(ctx, line); err != nil || r.over {
				return err
			}
		case err := <-r.engineEnded:
			r.engineEnded, r.lost = nil, endOf(err)
		case <-p.Done():
			return fmt.Errorf("%s%w", r.at(), p.Exit())
		case <-ctx.Done():
			return fmt.Errorf("%s%w%s", r.at(), context.Cause(ctx), tailOf(p))
		}
	}
}

// tailOf is what a process wrote last, as an error shows it.
func tailOf(p *process.Process) string {
	if tail := process.Quote(p.Tail()); tail != "" {
		return "; the last of its output:\n" + tail
	}
	return ""
}

// environment is what the driver gets of its owner's: no secret, and nothing that leads Python or vLLM elsewhere.
func environment(inherited []string, tree Tree, home string) []string {
	var env []string
	for _, entry := range inherited {
		switch name, _, _ := strings.Cut(entry, "="); strings.ToUpper(name) {
		case "PATH", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH":
			env = append(env, entry)
		}
	}
	return append(env,
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

// whole tells whether an environment was finished, and its interpreter is there.
func whole(home, python string) bool {
	_, unfinished := os.Stat(filepath.Join(home, "whole"))
	info, err := os.Stat(python)
	return unfinished == nil && err == nil && info.Mode().IsRegular()
}

// mostLine bounds a line of the driver's, in bytes. A longer one is passed on in pieces, of which none is a message.
const mostLine = 4 << 20

// lines hands on what a process writes, line by line. The process waits until a line is taken, or until nobody will.
type lines struct {
	whole   chan []byte
	dropped chan struct{}
	once    sync.Once
	begun   []byte
}

func newLines() *lines {
	return &lines{whole: make(chan []byte), dropped: make(chan struct{})}
}

// Write never fails: an error would end the reading of a process that goes on writing.
func (l *lines) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			if l.begun = append(l.begun, p...); len(l.begun) > mostLine {
				l.pass()
			}
			break
		}
		l.begun = append(l.begun, p[:end]...)
		p = p[end+1:]
		l.pass()
	}
	return size, nil
}

func (l *lines) pass() {
	line := l.begun
	l.begun = nil
	select {
	case l.whole <- line:
	case <-l.dropped:
	}
}

// drop takes no more lines.
func (l *lines) drop() { l.once.Do(func() { close(l.dropped) }) }
