package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance/expect"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/report"
)

// loadExpectations reads what is known to fail: the file, else that of the working
// directory, else the one in the binary. Findings that are errors end the command. What
// the binary's own expects of goldens that all does not have is left out: the user did
// not write it there.
func loadExpectations(env *environment, path string, all []conformance.Case) (*expect.Expectations, error) {
	var expected *expect.Expectations
	var findings []tomlfile.Diagnostic
	if path = expectationsPath(path); path != "" {
		expected, findings = expect.Load(path)
	} else {
		expected, findings = expect.Parse("(embedded) "+vcr.ExpectationsPath, embedded(vcr.ExpectationsPath))
		keepMatching(expected, all)
	}
	printDiagnostics(env, findings)
	if tomlfile.HasErrors(findings) {
		return nil, fmt.Errorf("%s cannot be used as it is", expected.File)
	}
	return expected, nil
}

// expectationsPath is the file, empty when there is none but in the binary.
func expectationsPath(path string) string {
	if path == "" && exists(vcr.ExpectationsPath) {
		return vcr.ExpectationsPath
	}
	return path
}

// keepMatching leaves out the expectations that match no case.
func keepMatching(expected *expect.Expectations, all []conformance.Case) {
	expected.List = slices.DeleteFunc(expected.List, func(e expect.Expectation) bool {
		p, err := expect.ParsePattern(e.Pattern)
		return err == nil && !slices.ContainsFunc(all, func(c conformance.Case) bool { return p.Match(c.Name()) })
	})
}

// errNoExpectations is why there is no file to bring up to date.
var errNoExpectations = errors.New("--update-expectations: there is no " + vcr.ExpectationsPath + " here: name the file with --expectations")

// updateExpectations brings the file up to date with a report on some of all cases, and
// says on stderr what it did and what is left to do.
func updateExpectations(env *environment, path string, r *conformance.Report, all []conformance.Case) error {
	if path = expectationsPath(path); path == "" {
		return errNoExpectations
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	update, err := expect.Update(path, data, r.Results, all, time.Now())
	if err != nil {
		return err
	}
	if string(update.Data) != string(data) {
		if err := tomlfile.Replace(path, update.Data); err != nil {
			return err
		}
	}
	for _, p := range update.Removed {
		fmt.Fprintf(env.stderr, "%s: removed %s\n", path, report.OneLine(p))
	}
	for _, p := range update.Added {
		fmt.Fprintf(env.stderr, "%s: added %s: fill in its reason and its issue\n", path, report.OneLine(p))
	}
	for _, note := range update.Notes {
		fmt.Fprintln(env.stderr, report.OneLine(strings.TrimSpace(note)))
	}
	return nil
}
