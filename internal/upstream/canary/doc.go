// Package canary chooses the releases of vLLM that are checked every night, and what the issues about them should be.
//
// [Releases] makes of a compat matrix and of what was published a row for each line: those of the matrix, those that came
// after it, and the trackers. Each is looked at by itself, in a job without rights, and leaves a [Verdict]. [Issue] is
// what there should be on GitHub then, one issue a line:
//
//	verdict   no issue   open                                      closed
//	found     opened     updated, with a comment on another state  opened again
//	unknown   opened     its text kept, with a comment likewise    opened again
//	none      nothing    closed                                    nothing
//
// A check that left no verdict is unknown. What could not be looked at closes nothing. The state is the verdict and a
// fingerprint of what leads to it.
package canary
