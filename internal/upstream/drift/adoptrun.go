package drift

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/manifest"
)

// maxFailures is how many failures of conform a report has.
const maxFailures = 20

// An Adoption adopts a release: it makes the plan, writes it, captures and measures what is missing, and runs conform. The
// functions are called in the order of the fields.
type Adoption struct {
	AdoptOptions
	DryRun    bool // nothing is written
	Validated bool // the line gates, if all its targets are captured and pass
	NoEngine  bool // nothing is captured or measured with an engine

	// Lock reads what may run of the release, by its digests; nil if an index cannot have the release.
	Lock func(ctx context.Context) (*pinned.Release, error)
	// Targets reads the targets of the tree, once the plan is written.
	Targets func() ([]target.Target, error)
	// HasEngine reports whether an engine of the release runs on this machine, or may be installed.
	HasEngine func(ctx context.Context) (bool, error)
	// Capture captures a target on this machine, and registers its goldens.
	Capture func(ctx context.Context, t target.Target) ([]capture.Outcome, error)
	// Measure writes the table of what a frontend or engine of the release accepts, and returns its path; nil where the
	// tree has no such tables.
	Measure func(ctx context.Context, peer string) (path string, err error)
	// Judge runs conform on the tree.
	Judge func(ctx context.Context) (*conformance.Report, error)

	plan   *AdoptPlan
	report *AdoptReport
	code   int // exit code so far
}

// Do adopts the release. A release that does not fit is a report; so is what fails once the plan is written. Any other
// failure is an error, and nothing is written. The exit code is that of a command: 1 if something is left to do, 3 if
// it was interrupted.
func (r *Adoption) Do(ctx context.Context) (*AdoptReport, int, error) {
	var todo string
	if r.Release == nil && !r.DryRun {
		r.Release, todo = r.lock(ctx)
	}
	var err error
	r.plan, err = PrepareAdoption(r.AdoptOptions)
	var unfit *UnfitError
	if errors.As(err, &unfit) {
		return newUnfit(r.Profile, unfit), conformance.ExitFail, nil
	}
	if err != nil {
		return nil, conformance.ExitUsage, err
	}
	r.report = newAdoptReport(r.plan)
	r.report.Reason = "nothing was written"
	if todo != "" {
		r.report.ToDo = append(r.report.ToDo, todo)
	}
	if r.DryRun {
		return r.report, conformance.ExitOK, nil
	}
	if err := r.plan.Write(); err != nil {
		return nil, conformance.ExitInfra, err
	}
	r.carryOut(ctx)
	return r.report, r.code, nil
}

// lock reads what may run of a release that is not known yet, by its digests, and makes it known to this process. The
// release works without that, so a failure is left to a person.
func (r *Adoption) lock(ctx context.Context) (release *pinned.Release, todo string) {
	version := r.Profile.Version
	if known := pinned.Lookup(version); known != nil && known.Engine != nil {
		return nil, ""
	}
	command := "vllm-vcr capture engine --lock " + version
	if r.Lock == nil {
		return nil, fmt.Sprintf("write the digests of what may run of %s once the index has it: %s", version, command)
	}
	release, err := r.Lock(ctx)
	if err != nil {
		return nil, fmt.Sprintf("write the digests of what may run of %s: %s: %v", version, command, oneLine(err))
	}
	pinned.Learn(release)
	return release, ""
}

// carryOut captures, measures, and looks whether the tree conforms.
func (r *Adoption) carryOut(ctx context.Context) {
	r.report.Outcome = Green
	captured, err := r.capture(ctx)
	if err != nil && ctx.Err() == nil {
		r.fail(conformance.ExitFail, fmt.Sprintf("find out why line %s could not be captured: %v", r.plan.Line, oneLine(err)))
	}
	r.measure(ctx)
	if ctx.Err() == nil {
		r.conform(ctx, captured && err == nil)
	}
	if ctx.Err() != nil {
		r.code = conformance.ExitInfra
		r.addToDo("run the same again: it was interrupted, and captures what is absent")
	}
	switch report := r.report; {
	case r.code != conformance.ExitOK:
		report.Outcome, report.Reason = Red, "the files are written, and something is left to do"
	case len(report.ToDo) > 0:
		report.Reason = fmt.Sprintf("line %s is in, and the tree conforms; %d left to do", report.Line, len(report.ToDo))
	default:
		report.Reason = fmt.Sprintf("line %s is in, and the tree conforms", report.Line)
	}
}

// addToDo leaves something to a person.
func (r *Adoption) addToDo(format string, args ...any) {
	r.report.ToDo = append(r.report.ToDo, fmt.Sprintf(format, args...))
}

// fail notes what a person has to do about a failure.
func (r *Adoption) fail(code int, todo string) {
	r.code = cmp.Or(r.code, code)
	r.report.ToDo = append(r.report.ToDo, todo)
}

// conform runs conform on the tree. A line that was captured whole gates from here on, if that is wanted.
func (r *Adoption) conform(ctx context.Context, whole bool) {
	if r.Validated && whole {
		if _, err := SetValidated(r.Tree.Compat, r.plan.Line, true); err != nil {
			r.fail(conformance.ExitFail, err.Error())
			return
		}
	}
	result, err := r.Judge(ctx)
	if err != nil {
		r.fail(conformance.ExitFail, "mend the tree: "+err.Error())
		return
	}
	r.report.Conform = report.Verdict(report.New(result, report.Meta{}))
	r.code = cmp.Or(r.code, result.ExitCode)
	count := 0
	for _, c := range result.Results {
		for _, failure := range c.Failures {
			if count++; count <= maxFailures {
				r.addToDo("%s %s: %s", c.Verdict, c.Case.Name(), failure.Message)
			}
		}
	}
	if count > maxFailures {
		r.addToDo("and %d more: vllm-vcr conform", count-maxFailures)
	}
}

// capture captures the targets of the line that have no golden of its release yet, and reports whether the line has all
// of its goldens then. An error is about targets that failed, or about all of them.
func (r *Adoption) capture(ctx context.Context) (whole bool, err error) {
	here, elsewhere, err := r.uncaptured()
	if err != nil {
		return false, err
	}
	for _, t := range elsewhere {
		r.addToDo("capture %s on a cluster: vllm-vcr capture run %s", t.Name(), t.Name())
	}
	if len(here) == 0 {
		return len(elsewhere) == 0, nil
	}
	if found, err := r.hasEngine(ctx); err != nil || !found {
		why := "there is no engine of it for the CPU here"
		if err != nil {
			why = err.Error()
		}
		if r.NoEngine {
			why = "--engine never"
		}
		r.addToDo("capture %d targets of line %s (%s): vllm-vcr drift adopt %s --engine install --fidelity-validated, "+
			"or make goldens LINE=%s and then vllm-vcr compat set --line %s --fidelity-validated", len(here), r.plan.Line, why, r.plan.Release,
			r.plan.Line, r.plan.Line)
		return false, nil
	}
	var outcomes []capture.Outcome
	for _, t := range here { // one after the other, so that each is registered whatever happens to the next
		one, err := r.Capture(ctx, t)
		if err != nil {
			return false, errors.Join(err, r.addOutcomes(outcomes))
		}
		outcomes = append(outcomes, one...)
	}
	return len(elsewhere) == 0, r.addOutcomes(outcomes)
}

func (r *Adoption) hasEngine(ctx context.Context) (bool, error) {
	if r.NoEngine {
		return false, nil
	}
	return r.HasEngine(ctx)
}

// uncaptured are the targets of the line that the manifest has no golden of the release of: those of this machine, and
// those that need a cluster.
func (r *Adoption) uncaptured() (here, elsewhere []target.Target, err error) {
	targets, err := r.Targets()
	if err != nil {
		return nil, nil, err
	}
	mf := &manifest.Manifest{}
	if exists(r.Tree.Manifest) {
		mf, _ = manifest.Load(r.Tree.Manifest) // the plan has reported its diagnostics
	}
	for _, t := range targets {
		switch {
		case t.Line != r.plan.Line || isCaptured(mf, t):
		case local.CheckTarget(t) == nil:
			here = append(here, t)
		default:
			elsewhere = append(elsewhere, t)
		}
	}
	return here, elsewhere, nil
}

// isCaptured reports whether all goldens of a target are registered, and are of its release.
func isCaptured(mf *manifest.Manifest, t target.Target) bool {
	ids := []string{t.ID}
	if t.Wire {
		ids = append(ids, t.WireID())
	}
	for _, id := range ids {
		if !slices.ContainsFunc(mf.Goldens, func(g manifest.Golden) bool {
			release, _, _ := strings.Cut(g.VLLMVersion, "+")
			return g.Line == t.Line && g.ID == id && release == t.Release()
		}) {
			return false
		}
	}
	return true
}

// addOutcomes puts what became of the captures into the report.
func (r *Adoption) addOutcomes(outcomes []capture.Outcome) error {
	var failed []string
	for _, o := range outcomes {
		for _, w := range o.Accepted.Warnings {
			r.addToDo("look at %s: %s", o.Target.Name(), w)
		}
		if o.Err != nil {
			failed = append(failed, o.Err.Error())
			continue
		}
		r.report.Goldens = append(r.report.Goldens, strings.Split(o.Text(), "\n")...)
	}
	if len(failed) > 0 {
		return oneLine(fmt.Errorf("%d of %d targets failed: %s", len(failed), len(outcomes), strings.Join(failed, "; ")))
	}
	return nil
}

// measure measures the frontends of the release, and its engine. The Python client and the engine need an engine for
// CPUs.
func (r *Adoption) measure(ctx context.Context) {
	if r.Measure == nil || ctx.Err() != nil {
		return
	}
	peers := []string{acceptance.RustFrontend}
	if found, err := r.hasEngine(ctx); err == nil && found {
		peers = append(peers, acceptance.PythonFrontend, acceptance.EngineCore)
	}
	for _, peer := range peers {
		path, err := r.Measure(ctx, peer)
		if err != nil {
			r.addToDo("measure which messages it accepts: vllm-vcr drift accept %s%s: %v", r.plan.Release, acceptance.Flag(peer), oneLine(err))
			continue
		}
		r.report.Files = append(r.report.Files, "write "+path)
	}
}

func oneLine(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) }
