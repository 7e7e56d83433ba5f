package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// What compat watch looks after.
const (
	watchStable = "stable"
	watchRC     = "rc"
)

// defaultIndex is what --index without a URL means.
const defaultIndex = "default"

// maxTagsFile is the size of a list of tags that is still read. One of vllm.git with all
// other refs has half of it.
const maxTagsFile = 16 << 20

// compatWatchOptions are the flags of compat watch.
type compatWatchOptions struct {
	in              inputs
	tagsFile, index string
	maxStable       int
	dryRun, write   bool
	outputs         bool
}

func newCompatWatchCommand(env *environment) *cobra.Command {
	var opts compatWatchOptions
	cmd := &cobra.Command{
		Use:   "watch stable|rc",
		Short: "Update compat.toml to the current vLLM releases",
		Long: "Compare compat.toml with the vLLM releases and print what has to change. With --write, also change compat.toml; " +
			"comments and everything else stay as they are.\n\n" +
			"  stable  each line moves to its newest release (.postN too) and away from a yanked one; a line newer than all others is added on top and becomes the default; the oldest lines are removed if there are more than --max-stable\n" +
			"  rc      the tracker rc follows the newest release candidate that is newer than the newest release; without one, it is removed\n\n" +
			"A new or moved line is not validated, because no golden was captured from it. A new line without a wire profile in " +
			"this binary is written too, and reported: as error C020 on stderr and in the output missing-profiles.\n\n" +
			"Releases are those of the package index (--index) or the tags of the git repository (--tags-file, with the output " +
			"of git ls-remote --tags https://github.com/vllm-project/vllm). Only git has release candidates. --github-output " +
			"writes changed, line, lines (JSON), tag, rev, default, title, body and missing-profiles. Exit code 3: the index " +
			"could not be read.",
		Example: "  vllm-vcr compat watch stable --index --write --github-output\n" +
			"  vllm-vcr compat watch rc --tags-file tags.txt",
		Args: watchArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCompatWatch(cmd.Context(), env, args[0], opts)
		},
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *compatWatchOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.tagsFile, "tags-file", "", "`FILE` with the output of git ls-remote --tags")
	flags.StringVar(&opts.index, "index", "",
		"`URL` of the Python package index; --index without a URL is $PIP_INDEX_URL, else "+pypi.DefaultURL)
	flags.Lookup("index").NoOptDefVal = defaultIndex
	flags.IntVar(&opts.maxStable, "max-stable", 9, "maximum number of stable lines in compat.toml")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what has to change and write nothing, as without --write")
	flags.BoolVar(&opts.write, "write", false, "change compat.toml")
	addOutputFlag(flags, &opts.outputs)
	grouped(flags, "Update")
	opts.in.addFlags(flags)
}

func watchArgs(_ *cobra.Command, args []string) error {
	if len(args) == 2 && strings.Contains(args[1], "://") {
		return fmt.Errorf("give the URL of the index as --index=%s", safetext.Line(args[1]))
	}
	if len(args) != 1 {
		return errors.New("want one argument: compat watch stable, or compat watch rc")
	}
	_, err := chooseOne("compat watch", args[0], watchStable, watchRC)
	return err
}

func (opts *compatWatchOptions) check() error {
	switch {
	case opts.write && opts.dryRun:
		return errors.New("--write and --dry-run: give only one of them")
	case opts.tagsFile == "" && opts.index == "":
		return errors.New("no list of releases is given: want --index, or --tags-file FILE")
	case opts.tagsFile != "" && opts.index != "":
		return errors.New("--index and --tags-file: give only one of them")
	case opts.maxStable < 1:
		return fmt.Errorf("--max-stable %d: want 1 or more", opts.maxStable)
	case opts.write && opts.in.compat == "" && !exists(vcr.CompatPath):
		return fmt.Errorf("--write: there is no %s in this folder: give the file with --compat", vcr.CompatPath)
	}
	return nil
}

// releaseList is where the releases of vLLM are listed.
type releaseList struct {
	where    string // to be shown
	releases []compat.Release
	// commitOf asks for the commit of a release, where the list does not name it.
	commitOf func(compat.Version) (string, error)
	failure  int // the exit code when nothing can be made of the list
}

func runCompatWatch(ctx context.Context, env *environment, axis string, opts compatWatchOptions) error {
	if err := opts.check(); err != nil {
		return err
	}
	matrix, data, err := watchedMatrix(env, opts.in.compat)
	if err != nil {
		return err
	}
	list, err := listReleases(ctx, env, opts)
	if err != nil {
		return err
	}
	var decision *compat.Decision
	if axis == watchRC {
		decision, err = matrix.WatchRC(list.releases)
	} else {
		decision, err = matrix.WatchStable(list.releases, opts.maxStable)
	}
	if err != nil {
		return exitError{list.failure, fmt.Errorf("%s: %w", list.where, err)}
	}
	if err := decision.Resolve(list.commitOf); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	for _, n := range decision.Notes {
		env.printErr("vllm-vcr: note: " + n)
	}
	return concludeWatch(env, opts, matrixEdit{Matrix: matrix, before: data}, watchReport{Decision: decision, list: list})
}

// watchedMatrix loads a compat matrix without errors, and its text.
func watchedMatrix(env *environment, path string) (*compat.Matrix, []byte, error) {
	matrix, diagnostics := loadCompat(path)
	if tomlfile.HasErrors(diagnostics) {
		printDiagnostics(env, diagnostics)
		return nil, nil, unusable(matrix.File)
	}
	if isEmbedded(matrix.File) {
		return matrix, embedded(vcr.CompatPath), nil
	}
	data, matrix, err := compat.LoadText(matrix.File)
	return matrix, data, err
}

func listReleases(ctx context.Context, env *environment, opts compatWatchOptions) (releaseList, error) {
	if opts.tagsFile != "" {
		releases, err := readTags(opts.tagsFile)
		return releaseList{where: opts.tagsFile, releases: releases, failure: conformance.ExitUsage}, err
	}
	index := &pypi.Index{Log: env.log}
	if opts.index != defaultIndex && opts.index != "true" {
		index.URL = opts.index
	}
	published, err := index.Releases(ctx, "vllm")
	if err != nil {
		return releaseList{}, exitError{conformance.ExitInfra, err}
	}
	list := releaseList{where: index.Where(), failure: conformance.ExitInfra}
	for _, r := range published {
		v, err := compat.ParseVersion(r.Version)
		if err != nil {
			return releaseList{}, exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", list.where, err)}
		}
		list.releases = append(list.releases, compat.Release{Version: v, Yanked: r.Yanked})
	}
	list.commitOf = func(v compat.Version) (string, error) {
		at := slices.IndexFunc(published, func(r pypi.Release) bool { return r.Version == v.String() })
		return index.Commit(ctx, published[at])
	}
	return list, nil
}

// readTags reads a list of tags, of a size that such a list can have.
func readTags(path string) ([]compat.Release, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--tags-file: %w", err)
	case !info.Mode().IsRegular(): // opening a pipe would wait for its writer
		return nil, fmt.Errorf("--tags-file %s: it is not a regular file", path)
	case info.Size() > maxTagsFile:
		return nil, fmt.Errorf("--tags-file %s: it is larger than %d bytes: is this the right file?", path, maxTagsFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--tags-file: %w", err)
	}
	return compat.ParseTags(path, data)
}

// concludeWatch says what was decided, and writes it. The outputs come before the file: once
// it is edited, the next run says that nothing has changed.
func concludeWatch(env *environment, opts compatWatchOptions, edit matrixEdit, decided watchReport) (err error) {
	done := "unchanged"
	if decided.Changed() {
		done = "has to change, see --write"
		if edit.after, err = compat.Rewrite(edit.File, edit.before, decided.Lines); err != nil {
			return err
		}
		checked, err := checkEdit(env, edit, opts.in.manifest, true)
		if err != nil {
			return err
		}
		decided.addToDo(checked)
	}
	if opts.outputs {
		if err := setOutputs(env, decided.outputs()...); err != nil {
			return err
		}
	}
	if decided.Changed() && opts.write {
		done = "edited"
		if err := edit.write(); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s\n%s", edit.File, done, decided.text())
	return err
}

// watchReport is a decision about the compat matrix, as the outputs of a step and as text.
type watchReport struct {
	*compat.Decision
	list            releaseList
	missingProfiles []string // lines that this binary has no wire profile of
	toDo            []string // for a person
}

// addToDo adds what the check of the edited compat matrix leaves to a person.
func (n *watchReport) addToDo(checked checkedMatrix) {
	for _, f := range checked.diagnostics {
		at := slices.IndexFunc(checked.matrix.Lines, func(l compat.Line) bool { return l.Pos == f.Line })
		if f.Code == compat.CodeNoProfile && at >= 0 {
			n.missingProfiles = append(n.missingProfiles, checked.matrix.Lines[at].Name)
		}
	}
	for _, name := range n.missingProfiles {
		n.toDo = append(n.toDo, fmt.Sprintf("vllm-vcr %s has no wire profile of line %s, so that it refuses this matrix "+
			"(%s): upgrade it to a version that has", buildVersion(), name, compat.CodeNoProfile))
	}
	goldens := countGoldens(checked.mf)
	for _, d := range n.Differences() {
		if count := goldens[d.Line()]; d.Removed() && count > 0 {
			n.toDo = append(n.toDo, fmt.Sprintf("line %s leaves goldens in the manifest (%d): remove them with the markers "+
				"of their block; `vllm-vcr compat check` lists them", d.Line(), count))
		}
	}
}

// outputs are those of the step.
func (n *watchReport) outputs() []output {
	var head compat.Line // of the lines that change and stay, the newest
	names := []string{}
	for _, d := range n.Differences() {
		if head.Name == "" {
			head = d.To
		}
		names = append(names, d.Line())
	}
	if head.Name == "" && len(names) > 0 {
		head.Name = names[0]
	}
	all, err := json.Marshal(names)
	if err != nil {
		all = nil // not reached: they are strings
	}
	standard, _ := (&compat.Matrix{Lines: n.Lines}).Default()
	body := ""
	if n.Changed() {
		body = n.Body(n.source(), n.toDo)
	}
	return []output{
		{"changed", strconv.FormatBool(n.Changed())},
		{"line", head.Name},
		{"lines", string(all)},
		{"tag", head.Tag},
		{"rev", head.ProtocolRev},
		{"default", standard.Name},
		{"missing-profiles", strings.Join(n.missingProfiles, ",")},
		{"title", n.Title()},
		{"body", body},
	}
}

// source says what the decision rests on.
func (n *watchReport) source() string {
	newest := n.list.releases[0]
	for _, r := range n.list.releases {
		if r.Compare(newest.Version) > 0 {
			newest = r
		}
	}
	return fmt.Sprintf("the %d releases at %s, the newest %s", len(n.list.releases), n.list.where, newest.Tag())
}

// text is the outputs for a reader.
func (n *watchReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "source: %s\n", n.source())
	for _, o := range n.outputs() {
		if o.name != "body" && o.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", o.name, o.value)
		} else if o.value != "" {
			b.WriteString("\n" + o.value)
		}
	}
	return b.String()
}
