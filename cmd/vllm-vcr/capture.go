package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// targetOptions choose what is captured.
type targetOptions struct {
	targets, compat string
	lines           []string
}

func (opts *targetOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.targets, "targets", "", "`FILE` of capture targets (default ./"+vcr.TargetsPath+", else the one in the binary)")
	flags.StringVar(&opts.compat, "compat", "", compatUsage)
	flags.StringSliceVar(&opts.lines, "line", nil, "only targets of these vLLM lines, such as 0.33; may be repeated (default all)")
	grouped(flags, "Targets")
}

// load reads and checks the compat matrix and the targets. Diagnostics that are errors end the command.
func (opts targetOptions) load(env *environment) (*compat.Matrix, *target.File, error) {
	matrix, diagnostics := loadCompat(opts.compat)
	if err := refuse(env, matrix.File, diagnostics); err != nil {
		return nil, nil, err
	}
	file, diagnostics := loadTargets(opts.targets, matrix)
	return matrix, file, refuse(env, file.Name, diagnostics)
}

// loadTargets reads a file of targets. Of the one in the binary only errors are diagnostics: a matrix without one of its
// lines is the user's.
func loadTargets(named string, matrix *compat.Matrix) (*target.File, []tomlfile.Diagnostic) {
	if named == "" && exists(vcr.TargetsPath) {
		named = vcr.TargetsPath
	}
	if named != "" {
		return target.Load(named, matrix)
	}
	beside, err := fs.Sub(vcr.Files, path.Dir(vcr.TargetsPath))
	if err != nil {
		panic(err) // a path of the binary
	}
	file, diagnostics := target.Parse(report.Embedded+vcr.TargetsPath, embedded(vcr.TargetsPath), beside, matrix)
	return file, slices.DeleteFunc(diagnostics, func(f tomlfile.Diagnostic) bool { return f.Severity != tomlfile.Error })
}

// resolve returns the targets that patterns such as 0.33/multiturn-* select, in the order of the file, or all if there is
// no pattern. A pattern without a slash is an id, of whatever line. One that selects nothing is an error.
func (opts targetOptions) resolve(env *environment, patterns []string) ([]target.Target, error) {
	matrix, file, err := opts.load(env)
	if err != nil {
		return nil, err
	}
	targets, err := ofLines(matrix, file, opts.lines)
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
		if err := choosePattern(ofLine(text, matrix), targets, chosen); err != nil {
			wrong = append(wrong, err)
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) // a command has one line for its error
	}
	var selected []target.Target
	for i, t := range targets {
		if chosen[i] {
			selected = append(selected, t)
		}
	}
	return selected, nil
}

// choose is resolve for commands that capture: all targets of all lines are never meant.
func (opts targetOptions) choose(env *environment, patterns []string) ([]target.Target, error) {
	if len(patterns) == 0 && len(opts.lines) == 0 {
		return nil, errors.New("no target is given: want a target such as 0.33/multiturn-s7, or --line 0.33; `vllm-vcr capture list` prints all targets")
	}
	return opts.resolve(env, patterns)
}

// ofLines are the targets of some lines, or of all if there are none.
func ofLines(matrix *compat.Matrix, file *target.File, lines []string) ([]target.Target, error) {
	if len(lines) == 0 {
		if len(file.Targets) == 0 {
			return nil, fmt.Errorf("%s has no targets", file.Name)
		}
		return file.Targets, nil
	}
	wanted := map[string]bool{}
	for _, line := range lines {
		selected, err := matrix.Select([]string{line})
		if err != nil {
			return nil, fmt.Errorf("--line: %w", err)
		}
		known := selected[0]
		if !slices.ContainsFunc(file.Targets, func(t target.Target) bool { return t.Line == known.Name }) {
			return nil, fmt.Errorf("--line %s: %s has no targets of line %s", line, file.Name, known.Name)
		}
		wanted[known.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(file.Targets), func(t target.Target) bool { return !wanted[t.Line] }), nil
}

// targetPattern is a pattern of targets. Without a slash it is an id, of whatever line.
func targetPattern(text string) string {
	if !strings.Contains(text, "/") && text != "**" {
		return "*/" + text
	}
	return text
}

// ofLine gives the line of a target LINE/ID its name, if the matrix has it.
func ofLine(text string, matrix *compat.Matrix) string {
	line, id, found := strings.Cut(text, "/")
	if known, err := matrix.Select([]string{line}); found && err == nil {
		return known[0].Name + "/" + id
	}
	return text
}

// choosePattern marks the targets that a pattern selects.
func choosePattern(text string, targets []target.Target, chosen []bool) error {
	pattern, err := conformance.ParsePattern(targetPattern(text))
	if err != nil {
		return err
	}
	found := false
	var names, ofLine []string
	line, _, _ := strings.Cut(text, "/")
	for i, t := range targets {
		if pattern.Match(t.Name()) {
			chosen[i], found = true, true
		}
		names = append(names, t.Name(), t.ID)
		if rest, same := strings.CutPrefix(t.Name(), line+"/"); same {
			ofLine = append(ofLine, rest)
		}
	}
	if !found {
		meant := tomlfile.DidYouMean(text, names, "")
		switch {
		case len(ofLine) > 0 && text == line:
			meant = fmt.Sprintf(": want %s/%s, or \"%s/*\" for all of the line", line, ofLine[0], line)
		case len(ofLine) > 0 && meant == "":
			meant = fmt.Sprintf(": %s has %s", line, strings.Join(ofLine, ", "))
		}
		meant = cmp.Or(meant, "; `vllm-vcr capture list` prints all targets")
		return fmt.Errorf("there is no target %q%s", text, meant)
	}
	return nil
}

func newCaptureListCommand(env *environment) *cobra.Command {
	var opts targetOptions
	var path, format string
	cmd := &cobra.Command{
		Use:   "list [TARGET…]",
		Short: "Print the capture targets and their goldens",
		RunE: func(_ *cobra.Command, args []string) error {
			targets, err := opts.resolve(env, args)
			if err != nil {
				return err
			}
			registered, err := registeredGoldens(env, opts, path)
			if err != nil {
				return err
			}
			if format == formJSON {
				return listTargetsJSON(env, targets, registered)
			}
			return listTargets(env, targets, registered)
		},
	}
	opts.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&path, "manifest", "", manifestUsage)
	formatFlag(cmd.Flags(), &format, formText, "output format: text or json", formText, formJSON)
	return cmd
}

// registeredGoldens are the goldens of the manifest by line and id.
func registeredGoldens(env *environment, opts targetOptions, path string) (map[string]manifest.Golden, error) {
	matrix, _ := loadCompat(opts.compat) // its diagnostics are printed already
	mf, err := manifestAt(env, path, matrix)
	if err != nil {
		return nil, err
	}
	goldens := map[string]manifest.Golden{}
	for _, g := range mf.Goldens {
		goldens[g.Line+"/"+g.ID] = g
	}
	return goldens, nil
}

// shortDigest is how much of a digest tables have: what names of files have of it.
const shortDigest = 12

func listTargets(env *environment, targets []target.Target, registered map[string]manifest.Golden) error {
	tw := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tGPU\tMODEL\tSCENARIO\tWORKLOAD\tSEED\tCONFIG\tGOLDEN")
	for _, t := range targets {
		use := ""
		if t.Fit {
			use = " (fit)"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", t.Name(), t.Model.GPU, safetext.Line(t.Model.Served),
			t.Scenario, t.Workload.Name+use, t.Seed, t.ConfigHash()[:shortDigest], goldenText(t, registered))
	}
	return tw.Flush()
}

// goldenText is the beginning of the digests of a target's goldens.
func goldenText(t target.Target, registered map[string]manifest.Golden) string {
	var parts []string
	for _, id := range goldenIDs(t) {
		g, ok := registered[t.Line+"/"+id]
		text := "-"
		if ok {
			text = g.SHA256[:shortDigest] // the manifest was checked: it is a digest
		}
		if ok && g.ConfigHash != t.ConfigHash() {
			text += "!"
		}
		if id != t.ID {
			text = "wire " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// goldenIDs are the ids of the goldens that a target becomes.
func goldenIDs(t target.Target) []string {
	if t.Wire {
		return []string{t.ID, t.WireID()}
	}
	return []string{t.ID}
}

// listedTarget is a target in JSON.
type listedTarget struct {
	Name         string         `json:"name"`
	Line         string         `json:"line"`
	Tag          string         `json:"tag"`
	ID           string         `json:"id"`
	GPU          string         `json:"gpu"`
	Model        string         `json:"model"`
	Scenario     string         `json:"scenario"`
	Workload     string         `json:"workload"`
	Seed         uint64         `json:"seed"`
	Fit          bool           `json:"fit"`
	EngineImage  string         `json:"engine_image,omitempty"`
	EngineConfig string         `json:"engine_config"`
	ConfigHash   string         `json:"config_hash"`
	Goldens      []listedGolden `json:"goldens"`
}

// listedGolden is a golden that a target becomes. Without a digest there is none yet.
type listedGolden struct {
	ID         string `json:"id"`
	SHA256     string `json:"sha256,omitempty"`
	ConfigHash string `json:"config_hash,omitempty"`
}

func listTargetsJSON(env *environment, targets []target.Target, registered map[string]manifest.Golden) error {
	all := make([]listedTarget, len(targets))
	for i, t := range targets {
		all[i] = listedTarget{
			Name: t.Name(), Line: t.Line, Tag: t.Tag, ID: t.ID, GPU: t.Model.GPU, Model: t.Model.Served,
			Scenario: string(t.Scenario), Workload: t.Workload.Name, Seed: t.Seed, Fit: t.Fit, EngineImage: t.Images.Engine,
			EngineConfig: t.EngineConfig(), ConfigHash: t.ConfigHash(),
		}
		for _, id := range goldenIDs(t) {
			g := registered[t.Line+"/"+id]
			all[i].Goldens = append(all[i].Goldens, listedGolden{ID: id, SHA256: g.SHA256, ConfigHash: g.ConfigHash})
		}
	}
	return jsonout.Write(env.stdout, all)
}
