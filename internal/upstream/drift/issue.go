package drift

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/forge/github"
)

// The issues of a nightly check, one for each line:
//
//	verdict   no issue   open                                      closed
//	found     opened     updated, with a comment on another state  opened again
//	unknown   opened     its text kept, with a comment likewise    opened again
//	none      nothing    closed                                    nothing
//
// A check that left no verdict is unknown. What could not be checked closes nothing. The state is the verdict and a
// fingerprint of what leads to it.

// keyPrefix begins the keys of the issues.
const keyPrefix = "canary/"

// An Outputs is what a check of a release left: the outputs of its step. All of it was written where a program of that
// release ran.
type Outputs struct {
	Drift   Verdict `json:"drift"` // None, Found or Unknown
	Version string  `json:"vllm-version"`
	Summary string  `json:"summary"`
	Body    string  `json:"body"`   // Markdown
	Layers  string  `json:"layers"` // JSON: the verdict of each layer
	Wire    string  `json:"wire"`   // fingerprint of what the release declares
}

// maxVerdict bounds the file of a verdict, in bytes. GitHub bounds the outputs of a job to 1 MB.
const maxVerdict = 4 << 20

// errNoVerdict is for a check that was cut off.
var errNoVerdict = errors.New("the check left no verdict")

// ReadOutputs reads the verdict on a row: verdict-LINE/verdict.json, which holds the outputs of the step as JSON. A
// check that did not get as far has left none: that is an error, as is a file that is none.
func ReadOutputs(folder fs.FS, r Row) (v Outputs, err error) {
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
		return Outputs{}, fmt.Errorf("%s: %w", name, err)
	}
	switch v.Drift {
	case None, Found, Unknown:
		return v, nil
	case "":
		return v, fmt.Errorf("%w: %s has no drift", errNoVerdict, name)
	}
	return Outputs{}, fmt.Errorf("%s: drift %q: want none, found or unknown", name, safetext.Line(string(v.Drift)))
}

// IssueOf returns what there should be about a row. A check that left no verdict is a zero one.
func IssueOf(r Row, v Outputs, labels []string) github.Issue {
	drift := cmp.Or(v.Drift, Unknown)
	summary := safetext.Code(safetext.Clip(cmp.Or(v.Summary, "The check ended without a verdict."), maxSummary))
	issue := github.Issue{Key: keyPrefix + r.Line, Labels: labels, Comment: fmt.Sprintf("**drift: %s**: %s", drift, summary)}
	if drift == None {
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
	issue.Open, issue.Unclear = true, drift == Unknown
	issue.Title = what + ": drift " + string(drift)
	issue.Body = issue.Comment + "\n\nSee the runs of the workflow."
	if v.Body != "" { // of a job that ran a program of the release
		issue.Body = issue.Comment + "\n" + safetext.Quotation(v.Body)
	}
	// The state names the verdict and what leads to it. What could not be looked at may have another reason each night.
	issue.State = string(Unknown)
	if drift != Unknown {
		issue.State = fmt.Sprintf("%s %.4x", drift, sha256.Sum256(fmt.Appendf(nil, "%q", []string{v.Layers, v.Wire})))
	}
	return issue
}

// Bounds on what a check left.
const (
	maxSummary = 1000 // characters
	maxVersion = 100  // bytes
)

// An IssueResult is what was done about an issue.
type IssueResult struct {
	Key    string   `json:"key"`
	Action string   `json:"action,omitempty"`
	Number int      `json:"number,omitempty"`
	URL    string   `json:"url,omitempty"`
	Notes  []string `json:"notes"`
	Error  string   `json:"error,omitempty"`

	Outcome github.Outcome `json:"-"`
	Err     error          `json:"-"`
}

// SyncIssues brings the issue of each row to the state that its verdict in a folder asks for, and closes the issues of
// lines that are no longer checked. An issue that fails does not keep the others from it. A verdict that cannot be read
// is passed to unread. The error is about the list of issues.
func SyncIssues(ctx context.Context, client *github.Client, folder fs.FS, rows []Row, labels []string, unread func(Row, error)) ([]IssueResult, error) {
	var wanted []github.Issue
	for _, row := range rows {
		verdict, err := ReadOutputs(folder, row)
		if err != nil {
			unread(row, err)
		}
		wanted = append(wanted, IssueOf(row, verdict, labels))
	}
	keys, err := client.OpenKeys(ctx, keyPrefix)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !slices.ContainsFunc(wanted, func(i github.Issue) bool { return i.Key == key }) {
			const body = "This line is no longer checked: it has left the matrix, or there is a release of it."
			wanted = append(wanted, github.Issue{Key: key, Body: body})
		}
	}
	results := []IssueResult{}
	for _, issue := range wanted {
		done, err := client.EnsureIssue(ctx, issue)
		r := IssueResult{issue.Key, string(done.Action), done.Number, done.URL, slices.Concat([]string{}, done.Notes), "", done, err}
		if err != nil {
			r.Error = err.Error()
		}
		results = append(results, r)
	}
	return results, nil
}
