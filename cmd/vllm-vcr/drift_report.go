package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// newDriftReport is the report on a check, with those of all cases that ran.
func newDriftReport(env *environment, run *driftRun) (*drift.Report, error) {
	opts, s := &run.flags, &run.subject
	r := &drift.Report{
		Build: s.build, Uploaded: s.uploaded, Wheel: cmp.Or(s.source.File.Name, filepath.Base(s.wheel)),
		Compat: run.window.File, Line: run.line, Own: run.own, Failed: run.failed, Result: run.result, Took: time.Since(run.started),
	}
	if s.known() && opts.frontend == "" && s.wheel == "" {
		r.Repeat = s.String()
		if opts.nightly {
			r.Repeat += " --nightly"
		}
	}
	in := conformOptions{in: opts.in, store: opts.store, enforce: string(conformance.EnforceAll)}
	in.plan.expectations = opts.expectations
	var parts, stable []report.Named
	for _, layer := range run.result.Layers {
		for _, ran := range layer.Reports {
			ran.Flags = append(in.inputFlags(), ran.Flags...)
			meta := newReportMeta(env, opts.report, &opts.in, run.started, run.window.File, run.registry.File)
			meta.Arguments = opts.report.command("vllm-vcr", "drift", "check")
			parts = append(parts, report.Named{Name: string(layer.Name), Document: report.New(ran, meta)})
			meta.Deterministic = true
			stable = append(stable, report.Named{Name: string(layer.Name), Document: report.New(ran, meta)})
		}
	}
	if len(parts) == 0 {
		return r, nil
	}
	var err error
	if r.Runs, err = report.Merge(parts); err == nil {
		r.Stable, err = report.Merge(stable)
	}
	return r, err
}

// printDrift writes everything of a finished check. What cannot be written keeps neither the others from it nor a found
// drift from its exit code.
func printDrift(env *environment, r *drift.Report, opts *driftOptions) error {
	var failed []error
	if path := env.getenv("GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, r.Markdown))
	}
	failed = append(failed, r.Text(env.stdout))
	if opts.layersJSON != "" {
		failed = append(failed, r.WriteJSON(opts.layersJSON))
	}
	if opts.report.dir != "" {
		failed = append(failed, r.WriteDir(opts.report.dir, buildVersion()))
	}
	if r.Runs != nil {
		_, err := fmt.Fprintln(env.stdout)
		failed = append(failed, err, report.Text(env.stdout, r.Runs, report.TextOptions{Colour: env.colours(env.stdout)}))
		failed = append(failed, writeReports(env, r.Runs, opts.report))
	}
	_, err := fmt.Fprintf(env.stdout, "drift: %s: %s\n", r.Result.Verdict, r.Summary())
	failed = append(failed, err)
	if opts.report.githubOutput {
		outputs, err := driftOutputs(r)
		failed = append(failed, err, setOutputs(env, outputs...))
	}
	code := r.Result.ExitCode()
	if err := errors.Join(failed...); err != nil {
		return exitError{cmp.Or(code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if code != conformance.ExitOK {
		return exitError{code, errReported}
	}
	return nil
}

// driftOutputs are what the next steps of a workflow get, beside the outputs of the report.
func driftOutputs(r *drift.Report) ([]output, error) {
	body, err := r.Issue(bodyLimit)
	verdicts := map[drift.LayerName]drift.Verdict{}
	changes := ""
	for _, l := range r.Result.Layers {
		verdicts[l.Name] = l.Verdict
		if l.Diff != nil {
			changes = strconv.Itoa(len(l.Diff.Changes))
		}
	}
	layers, failed := json.Marshal(verdicts)
	return []output{
		{"drift", string(r.Result.Verdict)},
		{"version", r.Release()},
		{"line", r.Line.Name},
		{"summary", r.Summary()},
		{"layers", string(layers)},
		{"changes", changes},
		{"wire", drift.Fingerprint(r.Result.Profile)},
		{"body", strings.ReplaceAll(body, outputFence, "(fence)")},
	}, errors.Join(err, failed)
}
