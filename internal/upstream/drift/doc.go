// Package drift checks whether a release of vLLM still speaks the wire that this build knows.
//
// A [Check] looks at one release in layers, of which each is a [Layer] with a [Verdict] of its own:
//
//   - static: the Python sources in its wheel are read ([Source.Extract]) and compared with the profile of the line
//     ([Static]). A breaking change is drift; what could not be read leaves it unknown.
//   - live: its frontend, vllm-rs, is taken out of its wheel ([Fetch]) and put before the embedded player ([Live]): the
//     frontend suite.
//   - goldens: those of the line are replayed behind that frontend.
//   - engine: its engine for the CPU, where one is installed, under the live suite, and then behind the tap with its own
//     vllm-rs in front. What the tap records must be whole, be what the client saw, and replay.
//   - python: its own Python client before the player, on the packages of an engine.
//   - builtin: its vllm-rs and the builtin frontend of serve get the same requests, and their answers are compared ([Builtin]).
//
// The outcome is the worst of the layers that were looked at. One that needs what is not here was not looked at
// ([Skipped]): that weighs nothing, and where all are, nothing was asserted.
//
// A release is judged as its own line of the compat matrix. One that has none yet, which is what a nightly check
// is for, is judged as the newest line before it ([LineFor]): if it declares the same, engines of that line serve it.
// Whether adopting the line would be enough is another question, which [Live.Taught] answers in addition to the
// verdict: it runs a player with the release's own profile behind its frontend.
//
// A verdict is never [None] unless something was asserted.
//
// # Adopting a release
//
// An [Adoption] brings a release into a repository that has a compat matrix: its wire profile, its line in compat.toml, what
// is captured of it, and what has to go with the line that leaves the matrix. [PrepareAdoption] decides, teaches this process
// the line, and writes nothing. The edits that it plans keep every comment, and break no rule of compat, manifest and target
// that was not broken before. [AdoptPlan.Write] puts all of them in place, or none.
//
// A release is adopted without a change of code, as a line is data: what cannot be read from its sources, or what no
// codec can be made of, is an [UnfitError], which says what a person has to do.
package drift
