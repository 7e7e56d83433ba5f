package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance/expect"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// targetFlags choose what is captured.
type targetFlags struct {
	targets, compat string
	lines           []string
}

func (f *targetFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.targets, "targets", "", "what is captured (default ./"+vcr.TargetsPath+", else the one in the binary)")
	flags.StringVar(&f.compat, "compat", "", "support window (default ./"+vcr.CompatPath+", else the one in the binary)")
	flags.StringSliceVar(&f.lines, "line", nil, "only targets of this line, by name or tag; may be repeated")
}

// load reads and checks the support window and the targets. Findings that are errors end the command.
func (f targetFlags) load(a *app) (*compat.Matrix, *target.File, error) {
	window, findings := a.loadCompat(f.compat)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return nil, nil, fmt.Errorf("%s cannot be used as it is", window.File)
	}
	file, findings := loadTargets(f.targets, window)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return nil, nil, fmt.Errorf("%s cannot be used as it is", file.Name)
	}
	return window, file, nil
}

// loadTargets reads a file of targets. Of the one in the binary only errors are findings: a window without one of its
// lines is the user's.
func loadTargets(path string, window *compat.Matrix) (*target.File, []tomlfile.Diagnostic) {
	if path == "" && exists(vcr.TargetsPath) {
		path = vcr.TargetsPath
	}
	if path != "" {
		return target.Load(path, window)
	}
	file, findings := target.Parse("(embedded) "+vcr.TargetsPath, embedded(vcr.TargetsPath), window)
	return file, slices.DeleteFunc(findings, func(f tomlfile.Diagnostic) bool { return f.Severity != tomlfile.Error })
}

// resolve returns the targets that patterns such as 0.33/multiturn-* select, in the order of the file, or all if there is
// no pattern. A pattern without a slash is an id, of whatever line. One that selects nothing is an error.
func (f targetFlags) resolve(a *app, patterns []string) ([]target.Target, error) {
	window, file, err := f.load(a)
	if err != nil {
		return nil, err
	}
	targets, err := ofLines(window, file, f.lines)
	if err != nil || len(patterns) == 0 {
		return targets, err
	}
	texts, err := readPatterns("target", patterns)
	if err != nil {
		return nil, err
	}
	chosen := make([]bool, len(targets))
	var wrong []error
	for _, text := range texts {
		if err := choosePattern(text, targets, chosen); err != nil {
			wrong = append(wrong, err)
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, oneLine(err)
	}
	var selected []target.Target
	for i, t := range targets {
		if chosen[i] {
			selected = append(selected, t)
		}
	}
	return selected, nil
}

// ofLines are the targets of some lines, or of all if there are none.
func ofLines(window *compat.Matrix, file *target.File, lines []string) ([]target.Target, error) {
	if len(lines) == 0 {
		if len(file.Targets) == 0 {
			return nil, fmt.Errorf("%s asks for nothing", file.Name)
		}
		return file.Targets, nil
	}
	wanted := map[string]bool{}
	for _, line := range lines {
		known, ok := window.Lookup(line)
		if !ok {
			return nil, fmt.Errorf("--line %s: %s has no such line%s", line, window.File, nearText(line, lineNames(window)))
		}
		if !slices.ContainsFunc(file.Targets, func(t target.Target) bool { return t.Line == known.Name }) {
			return nil, fmt.Errorf("--line %s: %s asks for nothing of line %s", line, file.Name, known.Name)
		}
		wanted[known.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(file.Targets), func(t target.Target) bool { return !wanted[t.Line] }), nil
}

func lineNames(window *compat.Matrix) []string {
	var names []string
	for _, l := range window.Lines {
		names = append(names, l.Name)
	}
	return names
}

// targetPattern is a pattern of targets. Without a slash it is an id, of whatever line.
func targetPattern(text string) (expect.Pattern, error) {
	if !strings.Contains(text, "/") && text != "**" {
		text = "*/" + text
	}
	return expect.ParsePattern(text)
}

// choosePattern marks the targets that a pattern selects.
func choosePattern(text string, targets []target.Target, chosen []bool) error {
	pattern, err := targetPattern(text)
	if err != nil {
		return err
	}
	found := false
	var names []string
	for i, t := range targets {
		if pattern.Match(t.Name()) {
			chosen[i], found = true, true
		}
		names = append(names, t.Name(), t.ID)
	}
	if !found {
		return fmt.Errorf("target %q: there is none%s", text, nearText(text, names))
	}
	return nil
}

// nearText suggests the name that was meant, or says where all names are.
func nearText(word string, known []string) string {
	if near, ok := tomlfile.Nearest(word, known); ok {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return "; `vllm-vcr capture list` shows what there is"
}

// oneLine puts errors of several on a line: a command has one for its error.
func oneLine(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) }
