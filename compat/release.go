package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Release is a release of vLLM, or a candidate, as some list of them has it.
type Release struct {
	Version
	// Rev is the commit of vllm.git that it was built from; empty when the list does
	// not say.
	Rev string
	// Yanked releases were taken back: they are never chosen.
	Yanked bool
}

const tagPrefix = "refs/tags/"

// ParseTags reads what "git ls-remote --tags" printed about vllm.git: a commit, a tab
// and a ref a line. It returns the tags that are releases or candidates, the oldest
// first. For an annotated tag git prints the tag object and, as a ref that ends in
// ^{}, the commit, which is what counts. Name is the path that errors mention.
//
// Anything but such lines is an error, an end within a line too: a list that was cut
// off must not look like one of fewer releases.
func ParseTags(name string, data []byte) ([]Release, error) {
	rows := strings.Split(string(data), "\n")
	if last := len(rows) - 1; rows[last] != "" {
		return nil, fmt.Errorf("%s:%d: the list is cut off: its last line has no end", name, last+1)
	}
	refs := tagRefs{name: name, commits: map[string]string{}, at: map[string]int{}}
	for i, row := range rows[:len(rows)-1] {
		if err := refs.add(i+1, strings.TrimSuffix(row, "\r")); err != nil {
			return nil, err
		}
	}
	if len(refs.commits) == 0 {
		return nil, fmt.Errorf("%s: has no tags: write what \"git ls-remote --tags\" prints about vllm.git into it", name)
	}
	return refs.releases(), nil
}

// tagRefs are the tags of a dump.
type tagRefs struct {
	name    string
	commits map[string]string // by ref; of tags only
	at      map[string]int    // the line of each
}

func (t *tagRefs) add(line int, row string) error {
	commit, ref, _ := strings.Cut(row, "\t")
	isCommit := len(commit) == fullRev && strings.Trim(commit, "0123456789abcdef") == ""
	if !isCommit || ref == "" || strings.TrimSpace(ref) != ref {
		return fmt.Errorf("%s:%d: %q is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref",
			t.name, line, safetext.Clip(row, 80))
	}
	tag, ok := strings.CutPrefix(ref, tagPrefix)
	if !ok {
		return nil // a branch, or HEAD
	}
	if old, ok := t.commits[tag]; ok && old != commit {
		return fmt.Errorf("%s:%d: %q is another commit than at line %d", t.name, line, safetext.Clip(ref, 80), t.at[tag])
	}
	t.commits[tag], t.at[tag] = commit, line
	return nil
}

func (t *tagRefs) releases() []Release {
	const peeled = "^{}"
	commits := map[Version]string{}
	for ref, commit := range t.commits {
		tag := strings.TrimSuffix(ref, peeled)
		v, err := ParseVersion(tag)
		if err != nil || v.Tag() != tag {
			continue // of something else, or spelt so that no line could name it
		}
		if _, hasBetter := t.commits[tag+peeled]; ref == tag && hasBetter {
			continue
		}
		commits[v] = commit
	}
	var all []Release
	for v, commit := range commits {
		all = append(all, Release{Version: v, Rev: commit})
	}
	slices.SortFunc(all, func(a, b Release) int { return a.Compare(b.Version) })
	return all
}
