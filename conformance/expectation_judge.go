package conformance

import (
	"math"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
)

// Judge applies expectations to the results of a run.
type Judge struct {
	inForce []rule
	// Failures are the expectations that cannot be applied.
	Failures []check.Failure
}

// rule is an expectation that holds.
type rule struct {
	check.Expectation
	pattern Pattern
}

// NewJudge takes the expectations that hold now. Those that match none of all cases,
// have expired, or are about what may not fail, become problems instead.
func NewJudge(e *Expectations, all []check.Case, now time.Time) *Judge {
	j := &Judge{}
	if e == nil {
		return j
	}
	for _, one := range e.List {
		p, err := ParsePattern(one.Pattern)
		switch wrong := ruledOut(one, p, all, now); {
		case err != nil:
			j.blame(one, check.Failed(CodeExpectPattern, "%v", err))
		case wrong.Code != "":
			j.blame(one, wrong)
		default:
			j.inForce = append(j.inForce, rule{one, p})
		}
	}
	// An allowance for what fails now and then is the wider one: where both are
	// listed, it decides.
	slices.SortStableFunc(j.inForce, func(a, b rule) int { return a.rank() - b.rank() })
	return j
}

func (r rule) rank() int {
	if r.Outcome == check.Flaky {
		return 0
	}
	return 1
}

// ruledOut returns why an expectation is not applied, a Failure without code if it is.
func ruledOut(e check.Expectation, p Pattern, all []check.Case, now time.Time) check.Failure {
	matched := slices.DeleteFunc(slices.Clone(all), func(c check.Case) bool { return c.Assertion == "" || !p.Match(c.Name()) })
	expectable := slices.DeleteFunc(slices.Clone(matched), func(c check.Case) bool { return !mayFail(c) })
	switch {
	case len(matched) == 0:
		return check.Failed(CodeUnmatched, "pattern %q matches no case%s", p, NearestCase(e.Pattern, all))
	case len(expectable) == 0:
		return check.Failed(CodeUnexpectable, "pattern %q matches only cases that may not be expected to fail, such as %s: restore or register the golden, and remove this expectation", p, matched[0].Name())
	case !slices.ContainsFunc(expectable, p.hasRequest):
		return check.Failed(CodeUnmatched, "pattern %q matches no request: %s has %d", p, expectable[0].Name(), requestsOf(expectable[0]))
	case !e.Expires.IsZero() && !now.Before(e.Expires):
		return check.Failed(CodeExpired, "the expectation of %q expired on %s: fix what fails, or set another date (%s; %s)",
			p, e.Expires.Format(time.DateOnly), e.Reason, e.Issue)
	}
	return check.Failure{}
}

// hasRequest reports whether the case may have the request that the pattern is about,
// as every case has what a pattern of whole cases is about.
func (p Pattern) hasRequest(c check.Case) bool { return p.request < requestsOf(c) }

// requests is how many requests of a case can be distinguished, at most: those that
// fidelity replays. Not every registration counts its records.
func requestsOf(c check.Case) int {
	switch {
	case c.Assertion != check.Fidelity:
		return 0
	case c.Golden.Records == 0:
		return math.MaxInt
	}
	return c.Golden.Records
}

func (j *Judge) blame(e check.Expectation, wrong check.Failure) {
	wrong.Message = e.Pos + ": " + wrong.Message
	j.Failures = append(j.Failures, wrong)
}

// about returns the expectations that hold of a case, or of one of its requests.
func (j *Judge) about(c check.Case) []rule {
	if !mayFail(c) {
		return nil
	}
	name := c.Name()
	return slices.DeleteFunc(slices.Clone(j.inForce), func(r rule) bool { return !r.pattern.Match(name) || !r.pattern.hasRequest(c) })
}

// covers reports whether the failure is one that was expected.
func (r rule) covers(f check.Failure) bool {
	named := slices.Contains(r.Codes, f.Code)
	return (named || len(r.Codes) == 0 && mayBeExpected(f)) && (r.pattern.request < 0 || r.pattern.request == f.Request)
}

// Apply turns the verdict on a case into the one by the expectations. A case whose
// failures were all expected is [XFail], or [Flaky]; one that shows that an
// expectation is stale is [XPass]. A failure that nobody expected weighs most.
func (j *Judge) Apply(result check.Result) check.Result {
	rules := j.about(result.Case)
	if len(rules) == 0 || result.Verdict != check.Fail && result.Verdict != check.Pass && result.Verdict != check.Error {
		return result
	}
	decisive, covered := cover(rules, result.Failures)
	if !covered {
		return result
	}
	// A case that broke off does not show that anything passes.
	brokeOff := slices.ContainsFunc(result.Failures, func(f check.Failure) bool { return !mayBeExpected(f) })
	if stale := staleOf(rules, result.Failures); len(stale) > 0 && !brokeOff {
		result.Verdict, result.Expected = check.XPass, &stale[0].Expectation
		for _, r := range stale {
			result.Failures = append(slices.Clone(result.Failures), r.stale())
		}
		return result
	}
	if decisive == nil {
		return result
	}
	result.Expected, result.Verdict = &decisive.Expectation, check.XFail
	if decisive.Outcome == check.Flaky {
		result.Verdict = check.Flaky
	}
	return result
}

// cover finds an expectation for every failure, and returns the one that decides: of
// several, one of what fails now and then.
func cover(rules []rule, failures []check.Failure) (decisive *rule, covered bool) {
	for _, f := range failures {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.covers(f) })
		if i < 0 {
			return nil, false
		}
		if decisive == nil || rules[i].rank() < decisive.rank() {
			decisive = &rules[i]
		}
	}
	return decisive, true
}

// staleOf returns the expectations of a case that ran which nothing fails by any
// more. What may fail now and then is never stale, nor what lies within that.
func staleOf(rules []rule, failures []check.Failure) []rule {
	var stale []rule
	for _, r := range rules {
		within := func(wider rule) bool {
			return wider.Outcome == check.Flaky && (wider.pattern.request < 0 || wider.pattern.request == r.pattern.request)
		}
		if !slices.ContainsFunc(rules, within) && !slices.ContainsFunc(failures, r.covers) {
			stale = append(stale, r)
		}
	}
	return stale
}

// stale is the failure of a case, or of one of its requests, that passes.
func (r rule) stale() check.Failure {
	return check.Failed(CodeStale, "the case passes, but %s expects it to fail: remove the expectation of %q, or narrow its pattern (%s; %s)",
		r.Pos, r.pattern, r.Reason, r.Issue).Of(r.pattern.request).Compared(check.Fail, check.Pass)
}
