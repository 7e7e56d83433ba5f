package drift

import (
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// Verdict is what a check comes to.
type Verdict string

// Verdicts.
const (
	None    Verdict = "none"    // the release works as expected
	Found   Verdict = "found"   // it does not work
	Unknown Verdict = "unknown" // it could not be checked
	// Skipped is a layer that did not run, as what it needs is missing or it was not asked for. It does not count.
	Skipped Verdict = "skipped"
)

// A LayerName names one way of looking at a release.
type LayerName string

// Layers.
const (
	StaticLayer  LayerName = "static"  // what its sources declare, compared with the line
	LiveLayer    LayerName = "live"    // its vllm-rs before the player
	GoldensLayer LayerName = "goldens" // the goldens of the line replayed behind its vllm-rs
	EngineLayer  LayerName = "engine"  // its engine for the CPU behind our frontend and our tap
	PythonLayer  LayerName = "python"  // its own Python client before the player
	BuiltinLayer LayerName = "builtin" // its vllm-rs and the builtin frontend of serve, request by request
)

// Layers are all of them, in the order in which they are listed.
func Layers() []LayerName {
	return []LayerName{StaticLayer, LiveLayer, GoldensLayer, EngineLayer, PythonLayer, BuiltinLayer}
}

// A Layer is one way of looking at a release, and what it came to.
type Layer struct {
	Name    LayerName
	Verdict Verdict
	// Vacuous: of an unknown verdict, nothing was asserted.
	Vacuous bool
	// Reason says in a few words why: for a person, in one line. It has no times, ports or temporary paths.
	Reason string
	// Compared says what was held against what, in one line; empty if nothing was.
	Compared string
	// Took is how long it took, and Downloaded how many bytes it got from the network.
	Took       time.Duration
	Downloaded int64
	// Reports are what was run, in its order.
	Reports []*conformance.Report
	// Diff is what the sources declare otherwise, and what of them could not be read; nil but for the layer static.
	Diff *wirediff.Diff
	// Cases are what the layer asserted in addition to its reports.
	Cases []LayerCase
	// Notes are what a person should know in addition to the verdict, a sentence each.
	Notes []string
}

// A LayerCase is one assertion of a layer that has no report of its own.
type LayerCase struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Message string  `json:"message,omitempty"` // what is wrong, in one line
}

// Unjudged is a layer that could not be looked at.
func Unjudged(name LayerName, err error) Layer {
	return Layer{Name: name, Verdict: Unknown, Reason: firstLine(err.Error())}
}

// notLooked is a layer that is not looked at, and why.
func notLooked(name LayerName, format string, args ...any) Layer {
	return Layer{Name: name, Verdict: Skipped, Reason: firstLine(fmt.Sprintf(format, args...))}
}

// An Outcome is what all layers of a check come to.
type Outcome struct {
	Verdict Verdict // never Skipped
	// Vacuous: of an unknown verdict, nothing was asserted.
	Vacuous bool
}

// ExitCode is the exit code of a command that looked at all layers.
func (o Outcome) ExitCode() int {
	switch {
	case o.Verdict == None:
		return conformance.ExitOK
	case o.Verdict == Found:
		return conformance.ExitFail
	case o.Vacuous:
		return conformance.ExitVacuous
	}
	return conformance.ExitInfra
}

// weight orders what layers came to: the heaviest is the outcome of all.
func (o Outcome) weight() int {
	switch {
	case o.Verdict == Found:
		return 4
	case o.Verdict == Unknown && !o.Vacuous:
		return 3
	case o.Verdict == Unknown:
		return 2
	case o.Verdict == None:
		return 1
	}
	return 0
}

// Judge is what layers come to: the worst of those that were looked at. Where none was, nothing is known.
func Judge(layers []Layer) Outcome {
	worst := Outcome{Skipped, true}
	for _, l := range layers {
		if one := (Outcome{l.Verdict, l.Vacuous}); one.weight() > worst.weight() {
			worst = one
		}
	}
	if worst.Verdict == Skipped {
		return Outcome{Unknown, true}
	}
	return worst
}

// judge is what the reports of a layer come to. Each of them must have asserted something.
func judge(name LayerName, reports ...*conformance.Report) Layer {
	l := Layer{Name: name, Verdict: None, Reports: reports}
	passed, tokens := 0, 0
	var red []conformance.Result
	for _, r := range reports {
		l.take(r)
		tokens += r.Tokens
		for _, result := range r.Results {
			if result.Verdict == conformance.Pass {
				passed++
			}
			if result.Verdict.Red() {
				red = append(red, result)
			}
		}
	}
	switch {
	case len(red) > 0:
		l.Reason = fmt.Sprintf("%s passed, %d red, first %s", safetext.Count(passed, "case"), len(red), describe(red[0]))
	case l.Verdict != None:
		l.Reason = "it " + l.Reason
	case tokens > 0:
		l.Reason = fmt.Sprintf("%s passed, %d tokens compared", safetext.Count(passed, "case"), tokens)
	default:
		l.Reason = safetext.Count(passed, "case") + " passed"
	}
	return l
}

// take makes the verdict that of a report if it weighs more: a failure more than what could not be judged, and that
// more than what asserted nothing.
func (l *Layer) take(r *conformance.Report) {
	switch {
	case r.ExitCode == conformance.ExitOK || l.Verdict == Found:
	case r.ExitCode == conformance.ExitFail:
		l.Verdict, l.Vacuous, l.Reason = Found, false, r.Reason
	case r.ExitCode != conformance.ExitVacuous:
		l.Verdict, l.Vacuous, l.Reason = Unknown, false, r.Reason
	case l.Verdict == None:
		l.Verdict, l.Vacuous, l.Reason = Unknown, true, r.Reason
	}
}

// judgeCases adds assertions to a layer, by the same weights.
func (l *Layer) judgeCases(all []LayerCase) {
	l.Cases = append(l.Cases, all...)
	passed := 0
	var red []string
	for _, c := range all {
		switch c.Verdict {
		case None:
			passed++
		case Found, Unknown:
			red = append(red, c.Name)
			if (Outcome{Verdict: c.Verdict}).weight() > (Outcome{l.Verdict, l.Vacuous}).weight() {
				l.Verdict, l.Vacuous = c.Verdict, false
			}
		}
	}
	text := safetext.Count(passed, "case") + " passed"
	if len(red) > 0 {
		text += fmt.Sprintf(", %d red, first %s", len(red), red[0])
	}
	if l.Reason != "" {
		text = l.Reason + "; " + text
	}
	l.Reason = text
}

// describe names a red case and the code of what is first wrong with it. What the failure says may be another text
// after an equal run, with other ports and ids.
func describe(r conformance.Result) string {
	if len(r.Failures) == 0 || r.Failures[0].Code == "" {
		return r.Case.Name()
	}
	return fmt.Sprintf("%s (%s)", r.Case.Name(), r.Failures[0].Code)
}

// maxReason bounds a reason, in characters.
const maxReason = 600

// firstLine returns what a text says before what a process has written, which it has on lines of its own.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return safetext.Clip(safetext.Line(line), maxReason)
}
