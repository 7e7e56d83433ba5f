package replay

import "github.com/vllm-vcr/conformance/internal/check"

// Checks are those of the replay suite, in the order in which they are made of a golden.
var Checks = []check.Check{
	integrityCheck,
	lineCheck,
	provenanceCheck,
	schemaCheck,
	fidelityCheck,
	wireCheck,
	framesCheck,
}
