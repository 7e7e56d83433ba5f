package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/tomlfile"
	"github.com/vllm-vcr/conformance/internal/wirediff"
	"github.com/vllm-vcr/conformance/manifest"
)

// Options say what is adopted, and where.
type Options struct {
	Tree    Tree
	Profile *protocol.Profile // of the release
	// Rev is the commit of vllm.git that the release was built from, if its profile does not name it.
	Rev string
	// Window is how many stable lines the window keeps, [DefaultWindow] if it is not positive.
	Window int
	// Prune deletes the files of goldens that leave the registry with their line.
	Prune bool
}

// A Plan is what adopting a release comes to. Nothing of it is written yet.
type Plan struct {
	Line, Release, Rev string
	Profile            string         // path of its file
	Dropped            []string       // lines that leave the window
	Wire               *wirediff.Diff // from the newest profile that is not newer; nil if there is none
	Window             *compat.Matrix // as it will be
	Files              []File         // to be written, in this order
	Done               []string       // what the plan does, a sentence each
	ToDo               []string       // what it leaves to a person

	version  compat.Version
	before   *compat.Matrix
	findings struct{ before, after []tomlfile.Finding } // about the window alone
	lines    []compat.Line                              // of Window
	registry *manifest.Manifest                         // as it will be; nil if there is none
}

// A File is an edit of one file.
type File struct {
	Path          string
	Before, After []byte // nil if there is none
}

// An UnfitError says that a release cannot be adopted without a person, and why. Nothing was written.
type UnfitError struct {
	Release string
	Reason  error
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("vLLM %s cannot be adopted as it is: %v", e.Release, e.Reason)
}

func (e *UnfitError) Unwrap() error { return e.Reason }

// Prepare decides what it takes to adopt a release, and teaches this process its line: what runs after this speaks it.
// An [*UnfitError] is about the release; any other error is about the tree or the options.
func Prepare(opt Options) (*Plan, error) {
	if opt.Window <= 0 {
		opt.Window = DefaultWindow
	}
	p := &Plan{Line: opt.Profile.Line, Release: opt.Profile.Version, Rev: opt.Profile.Commit}
	var err error
	if p.version, err = compat.ParseVersion(p.Release); err != nil || p.version.IsCandidate() || p.version.Line() != p.Line {
		return nil, fmt.Errorf("%q is no release that a line can stand for: want one such as 0.33.0", p.Release)
	}
	if opt.Rev != "" {
		p.Rev = opt.Rev
	}
	if p.Rev == "" {
		return nil, fmt.Errorf("vLLM %s: its sources name no commit: find the one that the release was built from, and give it with --rev", p.Release)
	}
	p.compare(opt.Profile)
	if err := protocol.Learn(opt.Profile); err != nil {
		return nil, &UnfitError{p.Release, fmt.Errorf("no codec can be made of its profile: %w", err)}
	}
	for _, step := range []func(Options) error{p.profile, p.window, p.goldens, p.targets, p.check} {
		if err := step(opt); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// compare tells what the release changes on the wire.
func (p *Plan) compare(profile *protocol.Profile) {
	for _, line := range protocol.Lines() { // the newest first
		before, err := protocol.LoadProfile(line)
		if err != nil {
			continue
		}
		v, err := compat.ParseVersion(before.Version)
		if err == nil && v.Compare(p.version) <= 0 {
			p.Wire = wirediff.Compare(before, profile)
			return
		}
	}
}

func (p *Plan) note(format string, args ...any) {
	p.Done = append(p.Done, fmt.Sprintf(format, args...))
}

func (p *Plan) do(format string, args ...any) { p.ToDo = append(p.ToDo, fmt.Sprintf(format, args...)) }

// edit plans that a file becomes after, unless it is that already.
func (p *Plan) edit(path string, before, after []byte) {
	if before == nil || !bytes.Equal(before, after) {
		p.Files = append(p.Files, File{path, before, after})
	}
}

// profile plans the file of the profile.
func (p *Plan) profile(opt Options) error {
	var text bytes.Buffer
	if err := protocol.WriteProfile(&text, opt.Profile); err != nil {
		return err
	}
	p.Profile = filepath.Join(opt.Tree.Profiles, p.Line+".json")
	before, err := readFile(p.Profile)
	if err != nil {
		return err
	}
	p.edit(p.Profile, before, text.Bytes())
	p.note("%s: the wire of %s: %d structs, %d utility methods", p.Profile, p.Release, len(opt.Profile.Structs), len(opt.Profile.Utilities))
	return nil
}

// readFile is a file, or nil if there is none.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// check holds what the files will be against each other, as compat check does: an error that is new is in the way.
func (p *Plan) check(Options) error {
	registry := p.registry
	if registry == nil {
		registry = &manifest.Manifest{}
	}
	known := slices.Concat(p.findings.before, conformance.CheckInputs(p.before, registry))
	findings := slices.Concat(p.findings.after, conformance.CheckInputs(p.Window, registry))
	for _, f := range findings {
		isKnown := slices.ContainsFunc(known, func(k tomlfile.Finding) bool { return k.Code == f.Code && k.Message == f.Message })
		switch {
		case isKnown:
		case f.Severity == tomlfile.Error:
			return fmt.Errorf("the change would break a rule: %s", f)
		default:
			p.do("%s", f)
		}
	}
	return nil
}
