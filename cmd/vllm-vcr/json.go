package main

import (
	"errors"
	"io"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Results of commands as JSON, for programs. docs/json.md lists every key; keys are added without notice, and a key that
// changes its meaning or goes away makes the number in "schema" one higher.

// addJSONFlag adds the flag of the commands that print their result as JSON. The short help of a command that has one lists it.
func addJSONFlag(flags *pflag.FlagSet, wanted *bool) {
	flags.BoolVar(wanted, "json", false, "print the result as one JSON value instead of text; docs/json.md has its keys")
	annotate(flags.Lookup("json"), noteGroup, "Output")
	isShort := false
	inOrder(flags, func(f *pflag.Flag) { isShort = isShort || f.Annotations[noteCommon] != nil })
	if isShort {
		common(flags, "json")
	}
}

// schemaOf is the value of "schema" of what a command prints.
func schemaOf(command string) string { return "vllm-vcr/" + command + "/1" }

// printResult prints the result of a command: the value as JSON if that is wanted, else the text.
func printResult(env *environment, asJSON bool, value any, text func(io.Writer) error) error {
	if asJSON {
		return jsonout.Write(env.stdout, value)
	}
	return text(env.stdout)
}

// errorText is an error in JSON, left out where there is none.
func errorText(err error) string {
	if err == nil || errors.Is(err, errReported) {
		return ""
	}
	return err.Error()
}

type versionJSON struct {
	Schema  string   `json:"schema"`
	Version string   `json:"version"`
	Commit  string   `json:"commit,omitempty"`
	Go      string   `json:"go"`
	OS      string   `json:"os"`
	Arch    string   `json:"arch"`
	Lines   []string `json:"lines"`
}

// casesJSON are the cases that conform --list prints.
type casesJSON struct {
	Schema string     `json:"schema"`
	Cases  []caseJSON `json:"cases"`
}

type caseJSON struct {
	Name      string `json:"name"`
	Line      string `json:"line"`
	Suite     string `json:"suite,omitempty"`
	Assertion string `json:"assertion,omitempty"`
	Golden    string `json:"golden,omitempty"`
	Role      string `json:"role,omitempty"`
	Entry     string `json:"entry,omitempty"`
	Gating    bool   `json:"gating"`
	Skip      string `json:"skip,omitempty"`
	Fault     string `json:"fault,omitempty"`
}

func caseResult(c conformance.Case) caseJSON {
	return caseJSON{
		Name: c.Name(), Line: c.Line.Name, Suite: string(c.Suite), Assertion: string(c.Assertion), Golden: c.Golden.ID, Role: string(c.Golden.Role),
		Entry: c.Entry, Gating: c.Gating, Skip: c.Skip,
	}
}

func casesResult(cases []conformance.Case) casesJSON {
	result := casesJSON{Schema: schemaOf("conform-list"), Cases: make([]caseJSON, len(cases))}
	for i, c := range cases {
		result.Cases[i] = caseResult(c)
	}
	return result
}

// compareJSON is the difference of two reports.
type compareJSON struct {
	Schema string `json:"schema"`
	Worse  bool   `json:"worse"`
	*report.Difference
	OldFile  string `json:"old"`
	NewFile  string `json:"new"`
	ExitCode int    `json:"exit_code"`
}

type goldensJSON struct {
	Schema   string            `json:"schema"`
	Manifest string            `json:"manifest"`
	Goldens  []manifest.Golden `json:"goldens"`
}

// fetchedJSON are the goldens that golden pull or golden verify read.
type fetchedJSON struct {
	Schema   string         `json:"schema"`
	OK       bool           `json:"ok"`
	ExitCode int            `json:"exit_code"`
	Goldens  []fetchedEntry `json:"goldens"`
}

type fetchedEntry struct {
	Line   string `json:"line"`
	ID     string `json:"id"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	State  string `json:"state"`
	From   string `json:"from,omitempty"`
	Error  string `json:"error,omitempty"`
}

// fetchState is what became of a golden.
func fetchState(run *fetch, p golden.Pulled) string {
	switch {
	case errors.As(p.Err, new(*golden.MismatchError)):
		return "mismatch"
	case p.Err != nil:
		return "missing"
	case p.Cached:
		return "cached"
	case run.store.Bytes.IsRemote(p.Object):
		return "downloaded"
	}
	return "local"
}

// registeredJSON is what golden add did, or why it refused.
type registeredJSON struct {
	Schema   string `json:"schema"`
	OK       bool   `json:"ok"`
	ExitCode int    `json:"exit_code"`
	DryRun   bool   `json:"dry_run"`
	Trace    string `json:"trace"`
	Manifest string `json:"manifest"`
	conformance.Registered
	Verdict  string   `json:"verdict,omitempty"`
	Problems []string `json:"problems"`
}

func registeredResult(req conformance.Registration, done conformance.Registered, refusal *conformance.RegistrationError) registeredJSON {
	result := registeredJSON{
		Schema: schemaOf("golden-add"), OK: refusal == nil, DryRun: req.DryRun, Trace: req.Trace, Manifest: req.Manifest, Registered: done, Problems: []string{},
	}
	result.Changed, result.Warnings = done.Changed && !req.DryRun, diagnosticsResult(done.Warnings)
	if done.Report != nil {
		result.Verdict = report.Verdict(report.New(done.Report, report.Meta{}))
	}
	if refusal != nil {
		result.ExitCode = refusal.ExitCode
		for _, p := range refusal.Problems {
			result.Problems = append(result.Problems, p.Error())
		}
	}
	return result
}

// diagnosticsResult is a list also where there are none.
func diagnosticsResult(all []tomlfile.Diagnostic) []tomlfile.Diagnostic {
	return append([]tomlfile.Diagnostic{}, all...)
}

// checkedJSON is the result of compat check.
type checkedJSON struct {
	Schema      string                `json:"schema"`
	OK          bool                  `json:"ok"`
	ExitCode    int                   `json:"exit_code"`
	Compat      string                `json:"compat"`
	Lines       int                   `json:"lines"`
	Manifest    string                `json:"manifest"`
	Goldens     int                   `json:"goldens"`
	TargetsFile string                `json:"targets_file,omitempty"`
	Targets     int                   `json:"targets,omitempty"`
	Diagnostics []tomlfile.Diagnostic `json:"diagnostics"`
}

// changedJSON is the result of compat set.
type changedJSON struct {
	Schema      string                `json:"schema"`
	File        string                `json:"file"`
	Changed     bool                  `json:"changed"`
	Changes     []lineChangeJSON      `json:"changes"`
	Diagnostics []tomlfile.Diagnostic `json:"diagnostics"`
}

type lineChangeJSON struct {
	Line string `json:"line"`
	Text string `json:"text"`
}

// enginesJSON are the engines or frontends that capture engine looked after.
type enginesJSON struct {
	Schema  string       `json:"schema"`
	Engines []engineJSON `json:"engines"`
}

type engineJSON struct {
	Kind string `json:"kind"`
	local.Engine
	LockFile string `json:"lock_file,omitempty"`
	Wheels   int    `json:"wheels,omitempty"`
}

// playedJSON is how play answered the requests of a session.
type playedJSON struct {
	Schema  string                `json:"schema"`
	Line    string                `json:"line"`
	Ready   bool                  `json:"ready"`
	Trace   *player.ReplaySummary `json:"trace,omitempty"`
	Dataset *dataset.Summary      `json:"dataset,omitempty"`
	Error   string                `json:"error,omitempty"`
}
