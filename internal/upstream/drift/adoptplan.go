package drift

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// DefaultLines is how many stable lines a compat matrix keeps.
const DefaultLines = 9

// AdoptOptions say what is adopted, and where.
type AdoptOptions struct {
	Tree    Tree
	Profile *protocol.Profile // of the release
	// Release is what may run of it, by its digests; nil if that is not written now.
	Release *pinned.Release
	// Rev is the commit of vllm.git that the release was built from, if its profile does not name it.
	Rev string
	// Lines is how many stable lines the compat matrix keeps, [DefaultLines] if it is not positive.
	Lines int
	// Prune deletes the files of goldens that leave the manifest with their line.
	Prune bool
}

// A AdoptPlan is what adopting a release comes to. Nothing of it is written yet.
type AdoptPlan struct {
	Line, Release, Rev string
	Profile            string         // path of its file
	Dropped            []string       // lines that leave the compat matrix
	Wire               *wirediff.Diff // from the newest profile that is not newer; nil if there is none
	Matrix             *compat.Matrix // as it will be
	Files              []PlannedFile  // to be written, in this order
	Done               []string       // what the plan does, a sentence each
	ToDo               []string       // what it leaves to a person

	version     compat.Version
	before      *compat.Matrix
	diagnostics struct{ before, after []tomlfile.Diagnostic } // of the compat matrix alone
	lines       []compat.Line                                 // of Matrix
	manifest    *manifest.Manifest                            // as it will be; nil if there is none
}

// A PlannedFile is an edit of one file.
type PlannedFile struct {
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

// PrepareAdoption decides what it takes to adopt a release, and teaches this process its line: what runs after this speaks it.
// An [*UnfitError] is about the release; any other error is about the tree or the options.
func PrepareAdoption(opt AdoptOptions) (*AdoptPlan, error) {
	if opt.Lines <= 0 {
		opt.Lines = DefaultLines
	}
	p := &AdoptPlan{Line: opt.Profile.Line, Release: opt.Profile.Version, Rev: cmp.Or(opt.Rev, opt.Profile.Commit)}
	var err error
	if p.version, err = compat.ParseVersion(p.Release); err != nil || p.version.IsCandidate() || p.version.Line() != p.Line {
		return nil, fmt.Errorf("%q is not a release that a line can have: want one such as 0.33.0", p.Release)
	}
	if p.Rev == "" {
		return nil, fmt.Errorf("vLLM %s: its sources name no commit: find the one that the release was built from, and give it with --rev", p.Release)
	}
	for _, line := range protocol.Lines() { // the newest first
		before, err := protocol.LoadProfile(line)
		if err != nil {
			continue
		}
		if v, err := compat.ParseVersion(before.Version); err == nil && v.Compare(p.version) <= 0 {
			p.Wire = wirediff.Compare(before, opt.Profile)
			break
		}
	}
	if err := protocol.Learn(opt.Profile); err != nil {
		return nil, &UnfitError{p.Release, fmt.Errorf("no codec can be made of its profile: %w", err)}
	}
	for _, step := range []func(AdoptOptions) error{p.planProfile, p.planMatrix, p.planGoldens, p.planTargets, p.check} {
		if err := step(opt); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *AdoptPlan) note(format string, args ...any) {
	p.Done = append(p.Done, fmt.Sprintf(format, args...))
}

func (p *AdoptPlan) do(format string, args ...any) {
	p.ToDo = append(p.ToDo, fmt.Sprintf(format, args...))
}

// edit plans that a file becomes after, unless it is that already.
func (p *AdoptPlan) edit(path string, before, after []byte) {
	if before == nil || !bytes.Equal(before, after) {
		p.Files = append(p.Files, PlannedFile{path, before, after})
	}
}

// planProfile plans the files of the profile and of the digests.
func (p *AdoptPlan) planProfile(opt AdoptOptions) error {
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
	if opt.Release == nil {
		return nil
	}
	path := opt.Tree.Release(p.Release)
	if before, err = readFile(path); err != nil {
		return err
	}
	p.edit(path, before, opt.Release.Text())
	p.note("%s: the digests of what may run of %s, and of the packages of its engine", path, p.Release)
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

// planMatrix decides which lines the compat matrix has with the release, and plans the edit of its file.
func (p *AdoptPlan) planMatrix(opt AdoptOptions) error {
	path := opt.Tree.Compat
	before, diagnostics := compat.Load(path)
	if tomlfile.HasErrors(diagnostics) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, diagnostics[0])
	}
	text, _, err := compat.LoadText(path)
	if err != nil {
		return err
	}
	newest, _ := before.Default()
	p.before, p.diagnostics.before = before, diagnostics
	if p.lines, err = p.moved(before, opt); err != nil {
		return err
	}
	// Nightly follows the release if the file says that it follows the newest.
	remark := func(line string) []byte { return []byte("that of " + line + ", the newest release") }
	now, _ := (&compat.Matrix{Lines: p.lines}).Default()
	at := slices.IndexFunc(p.lines, func(l compat.Line) bool { return l.Name == compat.Nightly })
	follows := at >= 0 && now.Name == p.Line && bytes.Contains(text, remark(newest.Name)) &&
		sameCommit(p.lines[at].ProtocolRev, newest.ProtocolRev)
	if follows {
		p.lines[at].ProtocolRev = now.ProtocolRev
	}
	after, err := compat.Rewrite(path, text, p.lines)
	if err != nil {
		return err
	}
	if follows {
		after = bytes.Replace(after, remark(newest.Name), remark(p.Line), 1)
	}
	p.Matrix, p.diagnostics.after = compat.Parse(path, after)
	p.edit(path, text, after)
	for _, d := range compat.Diff(p.before.Lines, p.lines) {
		p.note("compat.toml: %s", d)
		if d.Moved() && d.Line() == p.Line && d.From.PatchRepo != "" {
			p.do("line %s takes its protocol from a fork at %s, which may not fit %s: look at patch_repo", p.Line, d.From.PatchRev, d.To.Tag)
		}
	}
	return nil
}

// moved returns the lines of the compat matrix with the release in it.
func (p *AdoptPlan) moved(before *compat.Matrix, opt AdoptOptions) ([]compat.Line, error) {
	tag := p.version.Tag()
	change := compat.Change{Line: p.Line, Tag: &tag, Rev: &p.Rev, Add: true, Default: true}
	oldest := ""
	for _, l := range before.Lines {
		if l.IsTracker() {
			continue
		}
		oldest = l.Name
		current, err := compat.ParseVersion(l.Tag)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: line %s: %w", before.File, l.Pos, l.Name, err)
		}
		switch {
		case l.Name == p.Line && p.version.Compare(current) < 0:
			return nil, fmt.Errorf("%s:%d: line %s has %s, which is newer than %s", before.File, l.Pos, l.Name, l.Tag, p.version)
		case l.Name == p.Line && l.Tag == tag && sameCommit(l.ProtocolRev, p.Rev):
			change.Rev = nil // it may be longer there
		case l.Name != p.Line && p.version.Compare(current) < 0:
			change.Default = false
		}
	}
	lines, err := before.Set(change)
	if err != nil {
		return nil, err
	}
	// The tracker of a candidate that leads to this release, or to one before it, goes.
	lines = slices.DeleteFunc(lines, func(l compat.Line) bool {
		candidate, err := compat.ParseVersion(l.Tag)
		return l.Name == compat.RC && err == nil && candidate.Compare(p.version) < 0
	})
	var stable []string // the newest first
	for _, l := range lines {
		if !l.IsTracker() {
			stable = append(stable, l.Name)
		}
	}
	if p.Dropped = stable[min(opt.Lines, len(stable)):]; slices.Contains(p.Dropped, p.Line) {
		return nil, fmt.Errorf("%s is of a line before the oldest of %s, %s, and its matrix keeps %d: allow more with --max-stable",
			p.version, before.File, oldest, opt.Lines)
	}
	return slices.DeleteFunc(lines, func(l compat.Line) bool { return slices.Contains(p.Dropped, l.Name) }), nil
}

// sameCommit reports whether two revisions, which may be abbreviated, are of one commit.
func sameCommit(a, b string) bool {
	n := min(len(a), len(b))
	return n > 0 && a[:n] == b[:n]
}

// planGoldens plans what becomes of the goldens of lines that leave the compat matrix: they leave the manifest, and
// their files stay unless they are to be pruned.
func (p *AdoptPlan) planGoldens(opt AdoptOptions) error {
	path := opt.Tree.Manifest
	text, err := readFile(path)
	if err != nil || text == nil {
		return err
	}
	before, diagnostics := manifest.Parse(path, text)
	if tomlfile.HasErrors(diagnostics) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, diagnostics[0])
	}
	p.manifest = before
	if len(p.Dropped) == 0 {
		return nil
	}
	var names []string
	for _, l := range p.lines {
		names = append(names, l.Name)
	}
	editor, err := manifest.NewEditor(path, text, names)
	if err != nil {
		return err
	}
	for _, line := range p.Dropped {
		if err := editor.RemoveLine(line); err != nil {
			return err
		}
	}
	p.manifest = editor.Manifest()
	p.edit(path, text, editor.Bytes())
	// No two goldens share a file, by the rules of a manifest: nothing registers those of the dropped lines any more.
	var left, elsewhere []string
	count := 0
	for _, g := range before.Goldens {
		if !slices.Contains(p.Dropped, g.Line) {
			continue
		}
		count++
		file := g.Location("", opt.Tree.Goldens)
		data, err := os.ReadFile(file)
		switch {
		case err != nil || !filepath.IsLocal(filepath.FromSlash(g.BucketPath)):
			elsewhere = append(elsewhere, file)
		case opt.Prune:
			p.Files = append(p.Files, PlannedFile{Path: file, Before: data})
		default:
			left = append(left, file)
		}
	}
	dropped := strings.Join(p.Dropped, ", ")
	p.note("%s: %d goldens of %s removed: the line is in the matrix no more", path, count, dropped)
	if len(left) > 0 {
		p.do("delete the files of goldens that are registered no more, or adopt with --prune: %s", strings.Join(left, " "))
	}
	if len(elsewhere) > 0 {
		p.do("goldens of %s that are kept elsewhere are registered no more: %s", dropped, strings.Join(elsewhere, " "))
	}
	return nil
}

// Keys of a file of targets.
const (
	targetArray = "target"
	linesKey    = "lines"
)

// planTargets plans the edit of the file of targets: a list of lines that has the line before the new one gets the new
// one too, and loses those that leave the compat matrix. An exception stays as it is: what was wrong with an engine is
// not of the next.
func (p *AdoptPlan) planTargets(opt AdoptOptions) error {
	path := opt.Tree.Targets
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, diagnostics := target.Parse(path, text, os.DirFS(filepath.Dir(path)), p.before); tomlfile.HasErrors(diagnostics) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, diagnostics[0])
	}
	after := text
	for i, list := range slices.Backward(lineLists(path, text)) {
		left := slices.DeleteFunc(slices.Clone(list), func(line string) bool { return slices.Contains(p.Dropped, line) })
		if len(left) == len(list) {
			continue
		}
		if after, err = setLineList(path, after, i, left); err != nil {
			return err
		}
		p.note("%s: [[target]] %d asks for %s no more", path, i+1, strings.Join(p.Dropped, ", "))
	}
	if _, isOld := p.before.ByName(p.Line); !isOld {
		after = p.extendTargets(path, after)
	}
	if _, diagnostics := target.Parse(path, after, os.DirFS(filepath.Dir(path)), p.Matrix); tomlfile.HasErrors(diagnostics) {
		return fmt.Errorf("the change would break a rule: %s", diagnostics[0])
	}
	p.edit(path, text, after)
	return nil
}

// lineLists returns the lists of lines of a file of targets, in its order.
func lineLists(path string, text []byte) (lists [][]string) {
	for _, t := range tomlfile.Parse(path, text, tomlfile.Codes{}).Root().Tables(targetArray) {
		lists = append(lists, t.Strings(linesKey))
	}
	return lists
}

// setLineList gives a target another list of lines, or takes it out if that is empty.
func setLineList(path string, text []byte, index int, list []string) ([]byte, error) {
	editor, err := tomlfile.NewEditor(path, text, func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		err = editor.Remove(targetArray, index)
	} else {
		err = editor.Set(targetArray, index, linesKey, list, nil)
	}
	return editor.Bytes(), err
}

// extendTargets adds the line where the one before it is. What the rules are against, such as a GPU without an image of
// the release, is left to a person.
func (p *AdoptPlan) extendTargets(path string, text []byte) []byte {
	previous := "" // the newest stable line before it
	if at := slices.IndexFunc(p.lines, func(l compat.Line) bool { return l.Name == p.Line }); at >= 0 && at+1 < len(p.lines) {
		previous = p.lines[at+1].Name
	}
	for i, list := range lineLists(path, text) {
		at := slices.Index(list, previous)
		if at < 0 || previous == "" || slices.Contains(list, p.Line) || slices.Contains(list, "*") {
			continue
		}
		after, err := setLineList(path, text, i, slices.Insert(slices.Clone(list), at, p.Line))
		if err == nil {
			if _, diagnostics := target.Parse(path, after, os.DirFS(filepath.Dir(path)), p.Matrix); tomlfile.HasErrors(diagnostics) {
				err = fmt.Errorf("%s", diagnostics[0])
			}
		}
		if err != nil {
			p.do("%s: [[target]] %d asks for line %s, and could not be made to ask for %s too: %v", path, i+1, previous, p.Line, err)
			continue
		}
		text = after
		p.note("%s: [[target]] %d, which asks for line %s, asks for %s too", path, i+1, previous, p.Line)
	}
	return text
}

// check compares what the files will be with each other, as compat check does: an error that is new is in the way.
func (p *AdoptPlan) check(AdoptOptions) error {
	goldens := cmp.Or(p.manifest, &manifest.Manifest{})
	known := slices.Concat(p.diagnostics.before, conformance.CheckInputs(p.before, goldens))
	for _, d := range slices.Concat(p.diagnostics.after, conformance.CheckInputs(p.Matrix, goldens)) {
		isKnown := slices.ContainsFunc(known, func(k tomlfile.Diagnostic) bool { return k.Code == d.Code && k.Message == d.Message })
		switch {
		case isKnown:
		case d.Severity == tomlfile.Error:
			return fmt.Errorf("the change would break a rule: %s", d)
		default:
			p.do("%s", d)
		}
	}
	return nil
}
