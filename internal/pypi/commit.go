package pypi

import (
	"context"
	"fmt"
	"regexp"
)

const (
	versionFile = "vllm/_version.py"
	maxVersion  = 64 << 10 // bytes
	commitSize  = 9        // digits
)

// commitPattern is what the build of vLLM writes: __commit_id__ = commit_id = 'g4ba787ec9'.
var commitPattern = regexp.MustCompile(`(?m)^__commit_id__ *(?:= *commit_id *)?= *['"]g([0-9a-f]+)['"]`)

// Commit returns the commit of vllm.git that a release was built from, as its wheel names it: nine hexadecimal
// digits. The wheels of a release are built from one commit, except that a later build of a wheel may be of
// another, and counts.
func (x *Index) Commit(ctx context.Context, r Release) (string, error) {
	file, err := r.choose("any platform", func(string) bool { return true })
	if err != nil {
		return "", err
	}
	wheel, err := x.OpenWheel(ctx, file)
	if err != nil {
		return "", err
	}
	return wheel.Commit()
}

// Commit returns the commit of vllm.git that the wheel was built from: nine hexadecimal digits.
func (w *Wheel) Commit() (string, error) {
	text, err := w.ReadFile(versionFile, maxVersion)
	if err != nil {
		return "", fmt.Errorf("commit of %s: %w", w.File.Name, err)
	}
	found := commitPattern.FindSubmatch(text)
	if found == nil || len(found[1]) < commitSize {
		return "", fmt.Errorf("commit of %s: %s names no commit of %d digits", w.File.Name, versionFile, commitSize)
	}
	return string(found[1][:commitSize]), nil
}
