package conformance

// Infra tells whether the case is an [Error] whose cause lies around the subject:
// a fetch, a deadline, an interruption.
func (r Result) Infra() bool { return r.infra }

// WithInfra is the result with that said of it, for one that is read back from a
// report rather than run.
func (r Result) WithInfra(infra bool) Result {
	r.infra = infra
	return r
}
