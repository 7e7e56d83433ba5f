package serve

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/local"
)

// Kinds of frontends. Any other word is the path of a vllm-rs.
const (
	Rust   = "rust"
	Python = "python"
	// Builtin runs in this process.
	Builtin = "builtin"
)

// AnswersOne reports whether a frontend of a kind refuses requests for several answers (n above 1, several prompts).
// Only vllm-rs does.
func AnswersOne(kind string) bool { return kind != Python && kind != Builtin }

// A Frontend is a program that serves the HTTP API of vLLM.
type Frontend struct {
	Kind string // Rust, Python or Builtin
	// Release is "" for a program that was named by its path.
	Release string
	Program string
	before  []string // arguments before "serve"
	flags   []string // that it has; nil if that is not known
	home    string   // of a Python environment
}

// FrontendOptions say which frontend is wanted.
type FrontendOptions struct {
	// Wanted is [Rust], [Python], [Builtin], or the path of a vllm-rs.
	Wanted string
	// Release of vLLM, such as "0.33.0".
	Release string
	// Offline fetches nothing.
	Offline bool
	// Dir and Index are those of [local.EngineOptions].
	Dir, Index string
	Log        *slog.Logger
	Progress   func(step string)
}

// FindFrontend finds a frontend, and fetches the Rust one of a release if it is not there.
func FindFrontend(ctx context.Context, opt FrontendOptions) (f Frontend, err error) {
	at := local.EngineOptions{Release: opt.Release, Dir: opt.Dir, Index: opt.Index, Log: opt.Log, Progress: opt.Progress}
	switch opt.Wanted {
	case Builtin:
		return Frontend{Kind: Builtin}, nil
	case Rust:
		find := local.EnsureFrontend
		if opt.Offline {
			find = local.FindFrontend
		}
		engine, err := find(ctx, at)
		if errors.Is(err, fs.ErrNotExist) && opt.Offline {
			err = fmt.Errorf("vllm-rs %s is not in the cache, and --offline fetches nothing: run vllm-vcr capture engine --frontend-only %[1]s once, with a network", opt.Release)
		} else if place := (*fs.PathError)(nil); errors.As(err, &place) {
			err = fmt.Errorf("%w: name a writable folder with --peers, or an installed vllm-rs with --frontend PATH", err)
		}
		if err != nil {
			return f, err
		}
		f = Frontend{Kind: Rust, Release: opt.Release, Program: engine.VLLMRS}
	case Python:
		engine, err := local.Find(ctx, at)
		if err != nil {
			return f, fmt.Errorf("%w: install it with vllm-vcr capture engine %s, which takes 6 GB, or use --frontend rust", err, opt.Release)
		}
		return Frontend{Kind: Python, Release: opt.Release, Program: engine.Python, before: []string{"-m", "vllm.entrypoints.cli.main"}, home: engine.Home}, nil
	default:
		if _, err := os.Stat(opt.Wanted); err != nil {
			return f, fmt.Errorf("--frontend: %w: want rust, python, or the path of a vllm-rs", err)
		}
		if f.Program, err = filepath.Abs(opt.Wanted); err != nil {
			return f, err
		}
		f.Kind = Rust
	}
	f.flags, err = flagsOf(ctx, f.Program)
	return f, err
}

// aFlag begins a line of the help of vllm-rs.
var aFlag = lazyregexp.New(`(?m)^\s+(?:-\w, )?--([a-z][a-z0-9-]+)|\[aliases: (--[a-z0-9, -]+)\]`)

// flagsOf asks a vllm-rs for its flags: it ignores those that it does not know, and not all lines have the same.
func flagsOf(ctx context.Context, program string) (flags []string, err error) {
	cmd := exec.CommandContext(ctx, program, "serve", "--help")
	cmd.Env = process.Environment(os.Environ(), process.WithoutSecrets(), "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s does not run here: %w: %s; a vllm-rs of vLLM needs Linux with glibc 2.28 or newer", program, err,
			cmp.Or(safetext.Line(string(bytes.TrimSpace(out[max(0, len(out)-400):]))), "it wrote nothing"))
	}
	for _, found := range aFlag().FindAllStringSubmatch(string(out), -1) {
		flags = append(flags, found[1])
		for alias := range strings.SplitSeq(found[2], ",") {
			flags = append(flags, strings.TrimPrefix(strings.TrimSpace(alias), "--"))
		}
	}
	slices.Sort(flags)
	return slices.DeleteFunc(slices.Compact(flags), func(f string) bool { return f == "" }), nil
}

// set are the flags that serve gives the frontend itself, and what to use in their place.
var set = map[string]string{
	"host": "--host", "port": "--port", "uds": "--uds", "served-model-name": "--served-model-name", "headless": "",
	"data-parallel-size": "--data-parallel-size", "data-parallel-size-local": "", "data-parallel-address": "", "handshake-host": "",
	"data-parallel-rpc-port": "--frontend-handshake", "handshake-port": "--frontend-handshake", "engine-ready-timeout-secs": "--handshake-timeout",
	"ssl-certfile": "--ssl-certfile", "ssl-keyfile": "--ssl-keyfile", "api-key": "--api-key", "python": "",
}

// Check refuses flags for the frontend that it would ignore, or that serve sets itself. engine are the names of flags
// that the player has.
func (f Frontend) Check(args, engine []string) error {
	for _, arg := range args {
		name, isFlag := strings.CutPrefix(arg, "--")
		if !isFlag || name == "" {
			continue
		}
		name, _, _ = strings.Cut(name, "=")
		instead, taken := set[name]
		switch {
		case taken && instead == "":
			return fmt.Errorf("--%s behind --: serve sets this flag of the frontend itself: leave it out", name)
		case taken:
			return fmt.Errorf("--%s behind --: serve sets this flag of the frontend itself: give %s before the --", name, instead)
		case f.flags == nil || slices.Contains(f.flags, name):
		case slices.Contains(engine, name):
			return fmt.Errorf("--%s behind --: vllm-rs has no such flag, but the player does: give it before the --", name)
		default:
			var known []string
			for _, flag := range f.flags {
				known = append(known, "--"+flag)
			}
			return fmt.Errorf("--%s behind --: %s has no such flag, and would ignore it%s", name, strings.TrimRight("vllm-rs "+f.Release, " "),
				tomlfile.DidYouMean("--"+name, known, f.Program+" serve --help lists its flags"))
		}
	}
	return nil
}

// defaults are the flags that make answers useful without a model, but for those that args have. maxLoRAs is 0 of an
// engine that has no adapters. vllm-rs lets the arguments of a tool without "strict" be any object, and a player that is
// asked for any object has no reason to write the required keys.
func (f Frontend) defaults(m Model, maxLoRAs int, engines *Engines, args []string) (add []string) {
	has := func(name string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return a == "--"+name || strings.HasPrefix(a, "--"+name+"=") })
	}
	give := func(name string, value ...string) {
		if !has(name) && (f.flags == nil || slices.Contains(f.flags, name)) {
			add = append(append(add, "--"+name), value...)
		}
	}
	if f.Kind == Python {
		give("enable-auto-tool-choice")
		give("tool-call-parser", "hermes")
		if found, _ := filepath.Glob(filepath.Join(f.home, "lib", "python3*", "site-packages", "vllm", "tool_parsers", "tool_strict_level.py")); found != nil && !engines.Compute {
			give("tool-strict-level", "parameter")
		}
		if maxLoRAs > 0 {
			give("enable-lora")
			give("max-loras", strconv.Itoa(maxLoRAs)) // a label of its metrics
		}
		if engines.Transfer != "" {
			give("kv-transfer-config", engines.Transfer) // without it, the Python frontend fails at the first kv_connector_stats
		}
		return add
	}
	if !engines.Compute {
		give("tool-strict-level", "parameter")
	}
	if m.StandIn {
		// The frontend chooses parsers by the name of the folder.
		give("tool-call-parser", "hermes")
		give("reasoning-parser", "none")
	}
	return add
}

// environment of the frontend. It serves adapters only if that is allowed. Here it is: nothing of them is loaded.
func (f Frontend) environment() []string {
	env := []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=/"}
	if f.home != "" {
		env = append(env, "VLLM_CACHE_ROOT="+filepath.Join(f.home, "cache"), "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1")
	}
	return env
}
