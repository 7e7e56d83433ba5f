// Package conformance decides whether an engine core says exactly what the real
// engine of each vLLM line said.
//
// [NewPlan] is a pure function of the compat matrix (compat.toml), the
// manifest of goldens (manifest.toml) and a [Selection]: it lists every [Case],
// line × golden × assertion, before anything runs. [Runner.Run] fetches and
// verifies the goldens, boots a player of the line for each schema, fidelity
// and wire case, is the frontend in front of it over real ZeroMQ connections, and returns
// a [Report] with one [Result] a case. "go test" of this package makes the same
// run as subtests, see TestConformance.
//
// # Verdicts
//
// A case passes, fails (the subject or the golden is wrong), errs (it could not be
// judged) or is skipped (nothing to judge, with the reason). [Expectations] turn
// failures that are known into others, see [XFail], [XPass] and [Flaky]. What keeps all cases
// of a golden from being judged is reported by the first of them; the others are
// skipped and name it. A line gates when the enforcement policy says so. An error
// that lies around the subject (a fetch, a deadline, an interruption) has an exit
// code of its own, and so has a gating line that executed no assertion, which is
// vacuous: a green run has asserted something.
//
// # Assertions
//
//   - integrity: the stored bytes have the registered sha256 and size
//   - line: the captured engine was of the line
//   - provenance: config_hash is the registered one, and follows from the
//     configuration wherever its inputs are known
//   - schema: what the subject registers with has every key the captured engine
//     had, of the same kind, nested ones included, and all the line requires
//   - fidelity: every recorded stream comes back token by token, in the
//     recorded chunks, with its finish reason, exactly one terminal output, for
//     requests matched by index and by prompt, alone and interleaved; and the
//     streams have the digest and the counts that the manifest pins, so the
//     expectation does not come from the file that the player reads
//   - wire: sent what the real frontend sent, the subject says what the real
//     engine said, message by message, but for a declared mask
//
// # Suites
//
// These are the assertions of the replay suite. An engine that generates tokens
// of its own is asked those of [SuiteLive], a frontend those of [SuiteFrontend];
// see [AssertionsOf]. Engine and frontend under test
// are named by [Runner.Engine] ([CommandEngine]), [Runner.Address] and
// [Runner.Frontend]; the default is the embedded player.
package conformance
