package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
)

// lineOutput is a line in the output "lines".
type lineOutput struct {
	Line    string              `json:"line"`
	Tag     string              `json:"tag"`
	Gating  bool                `json:"gating"`
	Verdict conformance.Verdict `json:"verdict"`
}

// reportOutputs are what a workflow is told of a report: the verdict, how many cases
// had which, and where the files are, by their complete paths.
func reportOutputs(d *report.Document, opts reportOptions) ([]output, error) {
	lines := []lineOutput{}
	for _, l := range d.Lines {
		lines = append(lines, lineOutput{l.Line, l.Tag, l.Gating, l.Verdict})
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return nil, err
	}
	outputs := []output{
		{"verdict", string(d.Verdict)},
		{"exit-code", strconv.Itoa(d.ExitCode)},
		{"reason", report.OneLine(d.Reason)},
		{"passed", countOutput(d, conformance.Pass)},
		{"failed", countOutput(d, conformance.Fail, conformance.XPass)},
		{"errors", countOutput(d, conformance.Error)},
		{"expected", countOutput(d, conformance.XFail, conformance.Flaky)},
		{"skipped", countOutput(d, conformance.Skip)},
		{"tokens", strconv.Itoa(d.Tokens)},
		{"lines", string(text)},
	}
	paths, err := opts.pathOutputs()
	return append(outputs, paths...), err
}

func countOutput(d *report.Document, verdicts ...conformance.Verdict) string {
	n := 0
	for _, v := range verdicts {
		n += d.Counts[v]
	}
	return strconv.Itoa(n)
}

// pathOutputs name the directory of the report and its files: "report-junit" and so on.
func (opts reportOptions) pathOutputs() ([]output, error) {
	if opts.dir == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(opts.dir)
	if err != nil {
		return nil, err
	}
	outputs := []output{{"report-dir", dir}}
	for _, format := range report.Formats() {
		if slices.Contains(opts.formats, string(format)) {
			outputs = append(outputs, output{"report-" + string(format), filepath.Join(dir, format.FileName())})
		}
	}
	return outputs, nil
}
