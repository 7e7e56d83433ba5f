// Package wirediff lists what changed on the engine-core wire between two releases
// of vLLM, and which side fails because of it.
//
// [Compare] takes the profiles of a release A and a release B. Each [Change] has a
// [Level], the parties that it breaks, the reason in a sentence, the place
// upstream, and what this project's own programs need. The list is written as
// text, JSON, Markdown or SARIF. Nothing here reads sources or the network.
//
// # Who fails
//
// The parties are those that were written for A and meet B:
//
//   - engines: an engine, simulator or player, with a frontend of B;
//   - frontends: a frontend or router, with an engine of B;
//   - recorders: programs that read both directions of B by the layout of A. Consumers of KV
//     events count as recorders: they read, and write nothing.
//
// A struct goes to the engine (from EngineCoreRequest, INIT, arguments of methods),
// to the frontend (EngineCoreOutputs, the registration, results), or to consumers of
// events (KVEventBatch): whatever the fields of its root reach, goes the same way.
// Its readers are engines, frontends, or recorders, and recorders are readers in any case; its
// writers are the other side. What is on no known way may go any, and breaks
// everybody.
//
// # Verdicts
//
//	change                                     breaks
//	array: field at the end, optional          nobody: readers ignore the rest, writers may end before it
//	array: field at the end, required          writers
//	array: field inserted, removed, moved      readers and writers
//	array: last field removed                  readers, if they required it
//	array: field renamed                       nobody: an array has no names
//	NamedTuple: field at the end               readers, and writers if it is required
//	NamedTuple: last field removed             writers, and readers if it was required
//	map: key added, optional                   nobody: readers skip it
//	map: key added, required                   writers
//	map: key removed                           readers, if they required it
//	map: key renamed                           readers and writers
//	type: more values than before              readers (None added, int to float, a word more)
//	type: fewer values than before             writers
//	type: others                               readers and writers
//	required, was optional                     writers that left it out
//	optional, was required                     readers, in a map that omits defaults
//	default, in a map that omits defaults      who fills in the old one for what B left out, and B what A left out
//	default, elsewhere                         nobody: it is written in any case
//	struct: array or map                       readers and writers
//	struct: omits defaults now                 readers of a map that want every key
//	struct: another tag                        readers and writers
//	struct: another module, or a new struct    nobody: what refers to it is a change of its own
//	enum: member added                         readers
//	enum: member removed                       writers
//	enum: another value                        readers and writers
//	constant: another value                    readers and writers, unless it is not sent
//	constant: a new call id                    frontends, which never asked for it
//	method: called now                         engines, in what needs the call
//	method: called no more                     nobody
//	metric: any change                         nothing: it is not a message
//	method: arguments                          engines if frontends of B pass what A's method does not take, and
//	                                           frontends the other way round
//	method: result                             engines and frontends, in that call
//	message: key always written, added         writers
//	message: key always written, removed       readers
//	message: key under a condition             nobody
//	message: frames, values of an array        readers and writers: their number is fixed
//	message: added, removed                    readers
//
// What breaks a program is [Breaking]. What changes bytes and breaks nothing is
// [Compatible]. All else is [Informational].
//
// These are the rules of the declarations, which are those of msgspec and of
// vLLM's Python. The Rust frontend is stricter in places: up to 0.30 it refuses an
// EngineCoreOutput longer than its own, and in every release such an
// EngineCoreOutputs. A change at which it fails is [Breaking] for frontends, and its
// Caution says so. Decoders of others check the length of every array: Readers
// has a verdict for each kind of reader, and AsStrict makes what fails those breaking.
//
// A field that goes where another of the same type and default comes is a rename.
//
// # NIXL
//
// The boundary between prefill and decode engines is compared by the same rules ([Diff].NIXL). Its parties are decode engines, prefill
// engines and sidecars. A change of what the compatibility hash is computed from breaks both engines.
//
// # What is not seen
//
// Behaviour: when a field is set, what a scheduler does, which routes there are.
// And the structs of the Rust crate, which a wheel has as a program only.
package wirediff
