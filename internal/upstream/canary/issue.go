package canary

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/forge/github"
)

// KeyPrefix begins the keys of the issues of this package.
const KeyPrefix = "canary/"

// The words for what a check came to.
const (
	none    = "none"
	found   = "found"
	unknown = "unknown"
)

// A Verdict is what a check of a release left: the outputs of its step. All of it was written where a program of that
// release ran.
type Verdict struct {
	Drift   string `json:"drift"` // none, found or unknown
	Version string `json:"vllm-version"`
	Summary string `json:"summary"`
	Body    string `json:"body"`   // Markdown
	Layers  string `json:"layers"` // JSON: the verdict of each layer
	Wire    string `json:"wire"`   // fingerprint of what the release declares
}

// maxVerdict bounds the file of a verdict, in bytes. GitHub bounds the outputs of a job to 1 MB.
const maxVerdict = 4 << 20

// errNoVerdict is for a check that was cut off.
var errNoVerdict = errors.New("the check left no verdict")

// Read reads the verdict on a row: verdict-LINE/verdict.json, which holds the outputs of the step as JSON. A check that
// did not get as far has left none: that is an error, as is a file that is none.
func Read(folder fs.FS, r Release) (v Verdict, err error) {
	name := "verdict-" + r.Line + "/verdict.json"
	file, err := folder.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return v, fmt.Errorf("%w: there is no %s", errNoVerdict, name)
	}
	if err != nil {
		return v, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxVerdict+1))
	if err != nil {
		return v, err
	}
	if len(text) > maxVerdict {
		return v, fmt.Errorf("%s has more than %d bytes", name, maxVerdict)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return Verdict{}, fmt.Errorf("%s: %w", name, err)
	}
	switch v.Drift {
	case none, found, unknown:
		return v, nil
	case "":
		return v, fmt.Errorf("%w: %s has no drift", errNoVerdict, name)
	}
	return Verdict{}, fmt.Errorf("%s: drift %q: want none, found or unknown", name, safetext.Line(v.Drift))
}

// Key returns that of the issue about a line.
func Key(line string) string { return KeyPrefix + line }

// Issue returns what there should be about a row. A check that left no verdict is a zero one.
func Issue(r Release, v Verdict, labels []string) github.Issue {
	drift := cmp.Or(v.Drift, unknown)
	summary := safetext.Code(safetext.Clip(cmp.Or(v.Summary, "The check ended without a verdict."), maxSummary))
	issue := github.Issue{Key: Key(r.Line), Labels: labels, Comment: "**drift: " + drift + "**: " + summary}
	if drift == none {
		issue.Body = issue.Comment
		return issue
	}
	version := r.Version
	if b, err := compat.ParseBuild(v.Version); version == "" && err == nil && len(v.Version) <= maxVersion {
		version = b.String() // of a row that names none, that of the check, if it is one
	}
	what := "vLLM " + r.Line
	if version != "" && version != r.Line {
		what += " (" + version + ")"
	}
	issue.Open, issue.Unclear = true, drift == unknown
	issue.Title = what + ": drift " + drift
	issue.Body = issue.Comment + "\n\nSee the runs of the workflow."
	if v.Body != "" { // of a job that ran a program of the release
		issue.Body = issue.Comment + "\n" + safetext.Quotation(v.Body)
	}
	// The state names the verdict and what leads to it. What could not be looked at may have another reason each night.
	issue.State = unknown
	if drift != unknown {
		issue.State = fmt.Sprintf("%s %.4x", drift, sha256.Sum256(fmt.Appendf(nil, "%q", []string{v.Layers, v.Wire})))
	}
	return issue
}

// Bounds on what a check left.
const (
	maxSummary = 1000 // characters
	maxVersion = 100  // bytes
)

// Unwatched returns what there should be about a line that is looked at no more.
func Unwatched(key string) github.Issue {
	return github.Issue{Key: key, Body: "This line is looked at no more: it has left the matrix, or there is a release of it."}
}
