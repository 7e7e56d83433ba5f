package conformance

import (
	"math"
	"slices"
	"time"
)

// judge applies expectations to the results of a run.
type judge struct {
	inForce []rule
	// problems are the expectations that cannot be applied.
	problems []Failure
}

// rule is an expectation that holds.
type rule struct {
	Expectation
	pattern Pattern
}

// newJudge takes the expectations that hold now. Those that match none of all cases,
// have expired, or are about what may not fail, become problems instead.
func newJudge(e *Expectations, all []Case, now time.Time) *judge {
	j := &judge{}
	if e == nil {
		return j
	}
	for _, one := range e.List {
		p, err := ParsePattern(one.Pattern)
		switch wrong := ruledOut(one, p, all, now); {
		case err != nil:
			j.blame(one, problem(CodeExpectPattern, "%v", err))
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
	if r.Outcome == Flaky {
		return 0
	}
	return 1
}

// ruledOut returns why an expectation is not applied, a Failure without code if it is.
func ruledOut(e Expectation, p Pattern, all []Case, now time.Time) Failure {
	matched := slices.DeleteFunc(slices.Clone(all), func(c Case) bool { return c.Assertion == "" || !p.Match(c.Name()) })
	expectable := slices.DeleteFunc(slices.Clone(matched), func(c Case) bool { return !c.mayFail() })
	switch {
	case len(matched) == 0:
		return problem(CodeUnmatched, "pattern %q matches no case%s", p, nearestCase(e.Pattern, all))
	case len(expectable) == 0:
		return problem(CodeUnexpectable, "pattern %q matches only cases that may not be expected to fail, such as %s: what is stored is mended, not expected to be wrong", p, matched[0].Name())
	case !slices.ContainsFunc(expectable, p.hasRequest):
		return problem(CodeUnmatched, "pattern %q matches no request: %s has %d", p, expectable[0].Name(), expectable[0].requests())
	case !e.Expires.IsZero() && !now.Before(e.Expires):
		return problem(CodeExpired, "the expectation of %q expired on %s: mend what fails, or look at it anew and set another date (%s; %s)",
			p, e.Expires.Format(time.DateOnly), e.Reason, e.Issue)
	}
	return Failure{}
}

// hasRequest tells whether the case may have the request that the pattern is about,
// as every case has what a pattern of whole cases is about.
func (p Pattern) hasRequest(c Case) bool { return p.request < c.requests() }

// requests is how many requests of a case can be told apart, at most: those that
// fidelity replays. Not every registration counts its records.
func (c Case) requests() int {
	switch {
	case c.Assertion != Fidelity:
		return 0
	case c.Golden.Records == 0:
		return math.MaxInt
	}
	return c.Golden.Records
}

func (j *judge) blame(e Expectation, wrong Failure) {
	wrong.Message = e.Pos + ": " + wrong.Message
	j.problems = append(j.problems, wrong)
}

// about returns the expectations that hold of a case, or of one of its requests.
func (j *judge) about(c Case) []rule {
	if !c.mayFail() {
		return nil
	}
	name := c.Name()
	return slices.DeleteFunc(slices.Clone(j.inForce), func(r rule) bool { return !r.pattern.Match(name) || !r.pattern.hasRequest(c) })
}

// covers tells whether the failure is one that was expected.
func (r rule) covers(f Failure) bool {
	return f.mayBeExpected() && (r.pattern.request < 0 || r.pattern.request == f.Request)
}

// judge turns the verdict on a case into the one by the expectations. A case whose
// failures were all expected is [XFail], or [Flaky]; one that shows that an
// expectation is stale is [XPass]. A failure that nobody expected weighs most.
func (j *judge) judge(result Result) Result {
	rules := j.about(result.Case)
	if len(rules) == 0 || result.Verdict != Fail && result.Verdict != Pass {
		return result
	}
	decisive, covered := cover(rules, result.Failures)
	if !covered {
		return result
	}
	if stale := staleOf(rules, result.Failures); len(stale) > 0 {
		result.Verdict, result.Expected = XPass, &stale[0].Expectation
		for _, r := range stale {
			result.Failures = append(slices.Clone(result.Failures), r.stale())
		}
		return result
	}
	if decisive == nil {
		return result
	}
	result.Expected, result.Verdict = &decisive.Expectation, XFail
	if decisive.Outcome == Flaky {
		result.Verdict = Flaky
	}
	return result
}

// cover finds an expectation for every failure, and returns the one that decides: of
// several, one of what fails now and then.
func cover(rules []rule, failures []Failure) (decisive *rule, covered bool) {
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
func staleOf(rules []rule, failures []Failure) []rule {
	var stale []rule
	for _, r := range rules {
		within := func(wider rule) bool {
			return wider.Outcome == Flaky && (wider.pattern.request < 0 || wider.pattern.request == r.pattern.request)
		}
		if !slices.ContainsFunc(rules, within) && !slices.ContainsFunc(failures, r.covers) {
			stale = append(stale, r)
		}
	}
	return stale
}

// stale is the failure of a case, or of one of its requests, that passes.
func (r rule) stale() Failure {
	return problem(CodeStale, "passes, but %s expects it to fail: remove the expectation of %q, or narrow it (%s; %s)",
		r.Pos, r.pattern, r.Reason, r.Issue).of(r.pattern.request).compared(Fail, Pass)
}
