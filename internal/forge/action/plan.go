package action

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Defaults is what the runner provides where inputs are empty. The directories are absolute.
type Defaults struct {
	ReportDir string // for the report
	CacheDir  string // for goldens that were fetched
	WorkDir   string // for what captures leave
}

// A Plan is what a step of the action does.
type Plan struct {
	Mode string
	// Args are the arguments of vllm-vcr.
	Args []string
	// Dir is where it runs, below the workspace and with slashes.
	Dir string
	// ReportDir is where the report goes, relative to Dir unless absolute; "" when the mode makes none.
	ReportDir string
	// Annotate says whether what is wrong is to be marked by annotations.
	Annotate bool
}

// Plan says what serves the inputs.
func (in Inputs) Plan(defaults Defaults) (Plan, error) {
	mode, err := in.Mode()
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Mode: mode}
	if err := in.checkUse(mode); err != nil {
		return p, err
	}
	if p.Dir, err = in.dir(); err != nil {
		return p, err
	}
	annotations, err := oneOf("annotations", cmp.Or(in["annotations"], "auto"), "auto", "on", "off")
	if err != nil {
		return p, err
	}
	p.Annotate = annotations != "off"
	if p.Args, err = in.flags(); err != nil {
		return p, err
	}
	extra, err := Split(in["args"])
	if err != nil {
		return p, fmt.Errorf("input args: %w", err)
	}
	err = in.complete(&p, defaults, annotations)
	p.Args = append(p.Args, extra...)
	return p, err
}

// complete puts the command before the flags, and what it always gets behind them.
func (in Inputs) complete(p *Plan, defaults Defaults, annotations string) (err error) {
	switch p.Mode {
	case Conform:
		p.ReportDir = cmp.Or(in["report-dir"], defaults.ReportDir)
		p.Args = append([]string{"conform"}, p.Args...)
		p.Args = append(p.Args, "--cache-dir="+in.CacheDir(defaults))
		p.Args = append(p.Args, "--report-dir="+p.ReportDir, "--annotations="+annotations, "--github-output")
	case Canary:
		p.ReportDir = cmp.Or(in["report-dir"], defaults.ReportDir)
		p.Args = append([]string{"drift", "check"}, p.Args...)
		p.Args = append(p.Args, "--report-dir="+p.ReportDir, "--annotations="+annotations, "--github-output")
	case Matrix:
		p.Args = append([]string{"compat", "matrix"}, p.Args...)
		p.Args = append(p.Args, "--github-output")
	case Validate:
		p.Args = append([]string{"compat", "check"}, p.Args...)
	case Watch:
		var axis string
		if axis, err = in.axis(); err != nil {
			return err
		}
		p.Args = append([]string{"compat", "watch", axis}, p.Args...)
		if in["tags-file"] == "" {
			p.Args = append(p.Args, "--index")
		}
		p.Args = append(p.Args, "--write", "--github-output")
	case Capture:
		p.Args, err = in.captureArgs(defaults)
	}
	return err
}

// axis is which releases are watched.
func (in Inputs) axis() (string, error) {
	return oneOf("watch", cmp.Or(in["watch"], "stable"), "stable", "rc")
}

// PullRequest is the command that brings what watch has written into a pull request. It runs at the top of the workspace,
// as files are named from there. ref is the one that the workflow runs on, such as refs/heads/main: a branch is the one
// to go into.
func (in Inputs) PullRequest(ref string) ([]string, error) {
	p, err := in.Plan(Defaults{})
	if err != nil {
		return nil, err
	}
	if p.Mode != Watch {
		return nil, fmt.Errorf("a pull request is for the mode %s, and the mode is %s", Watch, p.Mode)
	}
	axis, err := in.axis()
	if err != nil {
		return nil, err
	}
	file := filepath.ToSlash(cmp.Or(in["compat"], "compat.toml"))
	below := path.Join(p.Dir, file)
	if path.IsAbs(file) || !filepath.IsLocal(filepath.FromSlash(below)) {
		return nil, fmt.Errorf("input compat is %q: a pull request needs a file of the repository", in["compat"])
	}
	args := []string{"github", "pull-request", "--branch=auto/vllm-" + axis, "--file=" + below, "--github-output"}
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		args = append(args, "--base="+branch)
	}
	return args, nil
}

// What decides which goldens a run fetches: selecting is what the command that prints the key looks at, and narrowing what
// it does not know.
var (
	selecting = []string{"line", "golden", "compat", "manifest", "goldens", "bucket", "bundle"}
	narrowing = []string{"assertion", "suite", "run", "skip", "self-test", "args"}
)

// Key is the command that prints which goldens a run would fetch, or nil when there is nothing to keep.
func (in Inputs) Key(defaults Defaults) ([]string, error) {
	p, err := in.Plan(defaults)
	if err != nil || p.Mode != Conform {
		return nil, err
	}
	if keep, err := in.Cache(); err != nil || !keep {
		return nil, err
	}
	key := []string{"golden", "pull", "--cache-key"}
	for _, name := range selecting {
		at := slices.IndexFunc(everyInput, func(i input) bool { return i.name == name })
		flags, err := everyInput[at].flags(in[name])
		if err != nil {
			return nil, err
		}
		key = append(key, flags...)
	}
	return key, nil
}

// KeySuffix distinguishes runs that would fetch different goldens under the same key: a cache is never written twice, so the
// one that fetches fewer must not be taken for the other.
func (in Inputs) KeySuffix() string {
	var narrowed []string
	for _, name := range narrowing {
		if value, given := in[name]; given {
			narrowed = append(narrowed, name, value)
		}
	}
	if narrowed == nil {
		return ""
	}
	return fmt.Sprintf("-%.6x", sha256.Sum256(fmt.Appendf(nil, "%q", narrowed)))
}

// CacheDir is where goldens are kept.
func (in Inputs) CacheDir(defaults Defaults) string {
	return cmp.Or(in["cache-dir"], defaults.CacheDir)
}

// checkUse refuses inputs that the mode would not look at.
func (in Inputs) checkUse(mode string) error {
	for _, known := range everyInput {
		if _, given := in[known.name]; given && known.modes != nil && !slices.Contains(known.modes, mode) {
			return fmt.Errorf("input %s is for the mode %s, and the mode is %s", known.name, either(known.modes), mode)
		}
	}
	for _, name := range []string{"cache", "upload-reports", "pull-request"} {
		if _, err := in.toggle(name, false); err != nil {
			return err
		}
	}
	return nil
}

// dir is the working directory. It lies below the workspace, as annotations are of files there.
func (in Inputs) dir() (string, error) {
	dir := cmp.Or(in["working-directory"], ".")
	if !filepath.IsLocal(filepath.FromSlash(dir)) {
		return "", fmt.Errorf("input working-directory is %q: want a directory below the workspace, such as ci", dir)
	}
	return filepath.ToSlash(filepath.Clean(dir)), nil
}

// flags are those of the inputs that are flags.
func (in Inputs) flags() ([]string, error) {
	var all []string
	for _, known := range everyInput {
		flags, err := known.flags(in[known.name])
		if err != nil {
			return nil, err
		}
		all = append(all, flags...)
	}
	return all, nil
}

func (i input) flags(value string) ([]string, error) {
	if value == "" || i.kind == own {
		return nil, nil
	}
	flag := "--" + cmp.Or(i.flag, i.name) + "="
	switch i.kind {
	case list:
		var flags []string
		for _, one := range values(value) {
			flags = append(flags, flag+one)
		}
		if flags == nil {
			return nil, fmt.Errorf("input %s is %q: there is no value in it", i.name, value)
		}
		return flags, nil
	case toggle:
		if _, err := oneOf(i.name, value, "true", "false"); err != nil {
			return nil, err
		}
	}
	return []string{flag + value}, nil
}

// captureArgs capture a line on this machine, or goldens of it. That of the raw frames comes with the one of the same run.
func (in Inputs) captureArgs(defaults Defaults) ([]string, error) {
	lines := values(in["line"])
	if len(lines) != 1 {
		return nil, errors.New("the mode capture needs the input line, with one line such as 0.33")
	}
	args := []string{"capture", "run", "--local", "--line=" + lines[0], "--work=" + defaults.WorkDir}
	for _, golden := range values(in["golden"]) {
		if golden[0] == '-' {
			return nil, fmt.Errorf("%q is not a name of a golden", golden)
		}
		if target := strings.TrimPrefix(golden, "wire-"); !slices.Contains(args, target) {
			args = append(args, target)
		}
	}
	return args, nil
}
