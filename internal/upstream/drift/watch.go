package drift

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// A ReleaseList has the releases of vLLM.
type ReleaseList struct {
	Where    string // a path, or a URL without credentials
	Releases []compat.Release
	// CommitOf gets the commit of a release; nil where the list has it.
	CommitOf func(compat.Version) (string, error)
}

// ListReleases lists the releases of an index.
func ListReleases(ctx context.Context, index *pypi.Index) (ReleaseList, error) {
	published, err := index.Releases(ctx, "vllm")
	if err != nil {
		return ReleaseList{}, err
	}
	list := ReleaseList{Where: index.Where()}
	for _, r := range published {
		v, err := compat.ParseVersion(r.Version)
		if err != nil {
			return ReleaseList{}, fmt.Errorf("%s: %w", list.Where, err)
		}
		list.Releases = append(list.Releases, compat.Release{Version: v, Yanked: r.Yanked})
	}
	list.CommitOf = func(v compat.Version) (string, error) {
		at := slices.IndexFunc(published, func(r pypi.Release) bool { return r.Version == v.String() })
		return index.Commit(ctx, published[at])
	}
	return list, nil
}

// maxTagsFile limits a file of tags, in bytes. That of vllm.git with all other refs has half of it.
const maxTagsFile = 16 << 20

// ReadTags reads the output of git ls-remote --tags from a file.
func ReadTags(path string) (ReleaseList, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return ReleaseList{}, err
	case !info.Mode().IsRegular(): // opening a pipe would wait for its writer
		return ReleaseList{}, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxTagsFile:
		return ReleaseList{}, fmt.Errorf("%s is larger than %d bytes: is this the right file?", path, maxTagsFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return ReleaseList{}, err
	}
	releases, err := compat.ParseTags(path, data)
	return ReleaseList{Where: path, Releases: releases}, err
}

// A Watch is a decision about the compat matrix, as the outputs of a step and as text.
type Watch struct {
	*compat.Decision
	List            ReleaseList
	missingProfiles []string // lines that this build has no wire profile of
	toDo            []string // for a person
}

// AddToDo adds what the check of the edited compat matrix leaves to a person: lines that this build, of a version, has
// no profile of, and goldens of lines that leave.
func (w *Watch) AddToDo(edited *compat.Matrix, diagnostics []tomlfile.Diagnostic, goldens map[string]int, version string) {
	for _, f := range diagnostics {
		at := slices.IndexFunc(edited.Lines, func(l compat.Line) bool { return l.Pos == f.Line })
		if f.Code == compat.CodeNoProfile && at >= 0 {
			w.missingProfiles = append(w.missingProfiles, edited.Lines[at].Name)
		}
	}
	for _, name := range w.missingProfiles {
		w.toDo = append(w.toDo, fmt.Sprintf("vllm-vcr %s has no wire profile of line %s, so that it refuses this matrix "+
			"(%s): upgrade it to a version that has", version, name, compat.CodeNoProfile))
	}
	for _, d := range w.Differences() {
		if count := goldens[d.Line()]; d.Removed() && count > 0 {
			w.toDo = append(w.toDo, fmt.Sprintf("line %s leaves goldens in the manifest (%d): remove them with the markers "+
				"of their block; `vllm-vcr compat check` lists them", d.Line(), count))
		}
	}
}

// Outputs are those of the step.
func (w *Watch) Outputs() []StepOutput {
	var head compat.Line // of the lines that change and stay, the newest
	names := []string{}
	for _, d := range w.Differences() {
		if head.Name == "" {
			head = d.To
		}
		names = append(names, d.Line())
	}
	if head.Name == "" && len(names) > 0 {
		head.Name = names[0]
	}
	all, _ := json.Marshal(names) // strings can be encoded
	standard, _ := (&compat.Matrix{Lines: w.Lines}).Default()
	body := ""
	if w.Changed() {
		body = w.Body(w.source(), w.toDo)
	}
	return []StepOutput{
		{"changed", strconv.FormatBool(w.Changed())},
		{"line", head.Name},
		{"lines", string(all)},
		{"tag", head.Tag},
		{"rev", head.ProtocolRev},
		{"default", standard.Name},
		{"missing-profiles", strings.Join(w.missingProfiles, ",")},
		{"title", w.Title()},
		{"body", body},
	}
}

// source is what the decision rests on.
func (w *Watch) source() string {
	newest := w.List.Releases[0]
	for _, r := range w.List.Releases {
		if r.Compare(newest.Version) > 0 {
			newest = r
		}
	}
	return fmt.Sprintf("the %d releases at %s, the newest %s", len(w.List.Releases), w.List.Where, newest.Tag())
}

// Text is the outputs for a reader.
func (w *Watch) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "source: %s\n", w.source())
	for _, o := range w.Outputs() {
		if o.Name != "body" && o.Value != "" {
			fmt.Fprintf(&b, "%s: %s\n", o.Name, o.Value)
		} else if o.Value != "" {
			b.WriteString("\n" + o.Value)
		}
	}
	return b.String()
}
