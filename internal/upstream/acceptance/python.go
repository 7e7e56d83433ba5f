package acceptance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

//go:embed python_peer.py
var pythonPeer []byte

// loadTime is how long an interpreter may take to load vLLM.
const loadTime = 5 * time.Minute

// StartPython loads the vLLM of an interpreter, of which each frontend is a copy, and returns what comes before the
// command line of a frontend, for [Rust]: then its measurement is one of the release's Python client. stop ends all of
// them.
func StartPython(ctx context.Context, python, model string) (before []string, stop func(), err error) {
	return servePython(ctx, python, model, "client")
}

// StartEngine loads the engine core of an interpreter, of which each engine is a copy, for [Engine].
func StartEngine(ctx context.Context, python, model string) (start func(handshake string) (*process.Process, error), stop func(), err error) {
	before, stop, err := servePython(ctx, python, model, "engine")
	if err != nil {
		return nil, nil, err
	}
	return func(handshake string) (*process.Process, error) {
		cmd := exec.Command(python, append(before, "engine", handshake)...)
		return process.Start(cmd, process.Options{Name: "the engine core", Guarded: true})
	}, stop, nil
}

func servePython(ctx context.Context, python, model, what string) (before []string, stop func(), err error) {
	dir, remove, err := process.MkdirTemp("vllm-vcr-accept-*")
	if err != nil {
		return nil, nil, err
	}
	script, socket := filepath.Join(dir, "peer.py"), filepath.Join(dir, "socket")
	if err := os.WriteFile(script, pythonPeer, 0o644); err != nil {
		remove()
		return nil, nil, err
	}
	cmd := exec.Command(python, "-B", script, "serve", socket, model, what)
	keep := func(name, _ string) bool { return name == "PATH" || name == "TMPDIR" }
	cmd.Env = process.Environment(os.Environ(), keep, "HOME="+dir, "LANG=C.UTF-8", "VLLM_CACHE_ROOT="+dir, "VLLM_CONFIG_ROOT="+dir,
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "HF_HUB_OFFLINE=1", "VLLM_PLUGINS=", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1",
		"VLLM_LOGGING_LEVEL=ERROR", "VLLM_CPU_OMP_THREADS_BIND=nobind")
	if what == "engine" { // with workers in it, which a copy has then too
		cmd.Env = append(cmd.Env, "VLLM_ENABLE_V1_MULTIPROCESSING=0")
	}
	ready := &readiness{line: make(chan struct{})}
	cmd.Stdout = ready
	p, err := process.Start(cmd, process.Options{Name: "vLLM in Python", Guarded: true})
	if err != nil {
		remove()
		return nil, nil, err
	}
	stop = func() {
		_ = p.Stop(context.WithoutCancel(ctx))
		remove()
	}
	patience, cancel := p.Patience(ctx, loadTime, fmt.Errorf("it does not load within %v", loadTime))
	defer cancel()
	select {
	case <-ready.line:
		return []string{"-B", "-I", "-S", script, socket}, stop, nil
	case <-p.Done():
		err = p.Exit()
	case <-patience.Done():
		err = context.Cause(patience)
	}
	tail := strings.TrimSpace(p.Tail())
	stop()
	return nil, nil, fmt.Errorf("load vLLM in Python: %w", errors.Join(err, errors.New(tail)))
}

// readiness waits for a line.
type readiness struct {
	line chan struct{}
	said bool
}

func (r *readiness) Write(p []byte) (int, error) {
	if !r.said && bytes.Contains(p, []byte("ready")) {
		r.said = true
		close(r.line)
	}
	return len(p), nil
}
