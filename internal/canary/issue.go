package canary

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/github"
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
	return Verdict{}, fmt.Errorf("%s: drift %q: want none, found or unknown", name, printable(v.Drift))
}

// Key is that of the issue about a line.
func Key(line string) string { return KeyPrefix + line }

// Issue is what there should be about a row. A check that left no verdict is a zero one.
func Issue(r Release, v Verdict, labels []string) github.Issue {
	drift, version := cmp.Or(v.Drift, unknown), versionOf(r, v)
	what := "vLLM " + r.Line
	if version != "" && version != r.Line {
		what += " (" + version + ")"
	}
	said := inCode(cmp.Or(v.Summary, "The check ended without a verdict."))
	issue := github.Issue{Key: Key(r.Line), Labels: labels, Comment: "**drift: " + drift + "**: " + said}
	if drift == none {
		issue.Body = issue.Comment
		return issue
	}
	issue.Open, issue.Unclear = true, drift == unknown
	issue.Title = what + ": drift " + drift
	issue.State = state(drift, v)
	issue.Body = cmp.Or(v.Body, issue.Comment+"\n\nSee the runs of the workflow.")
	return issue
}

// Unwatched is what there should be about a line that is looked at no more.
func Unwatched(key string) github.Issue {
	return github.Issue{Key: key, Body: "This line is looked at no more: it has left the window, or there is a release of it."}
}

// state names a verdict and what leads to it. What could not be looked at has none: it may be another reason each night.
func state(drift string, v Verdict) string {
	if drift == unknown {
		return unknown
	}
	return fmt.Sprintf("%s %.4x", drift, sha256.Sum256(fmt.Appendf(nil, "%q", []string{v.Layers, v.Wire})))
}

const maxVersion = 100 // bytes

// versionOf is the version that was looked at: of a row that names none, what the check says, if it is one.
func versionOf(r Release, v Verdict) string {
	if r.Version != "" {
		return r.Version
	}
	b, err := compat.ParseBuild(v.Version)
	if err != nil || len(v.Version) > maxVersion {
		return ""
	}
	return b.String()
}

// maxSaid bounds a sentence, in bytes.
const maxSaid = 1000

// inCode shows a sentence in Markdown as it is.
func inCode(text string) string {
	if len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
	}
	return "`" + strings.ReplaceAll(printable(text), "`", "'") + "`"
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
