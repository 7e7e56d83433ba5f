// Package trace reads and writes traces: what a real vLLM engine did,
// one JSON object per line, optionally gzipped.
//
// # The file
//
// A trace is UTF-8 JSON Lines. The first line that is not blank may be
// {"meta":{…}}, which is about the capture ([Meta]); every other line is one
// finished request ([Record]), in the order the requests ended. Lines have no
// length limit. Whether a file is gzipped follows from its name alone ([IsGzip]),
// never by its content. A second file, the step-stats sidecar ([StepStats]),
// may hold the scheduler statistics of the same capture; it has no meta line.
//
// # Which call
//
// [Read] loads a whole trace, [Open] and [Reader.Next] stream one, whose header
// is read by Open. [NewWriter] writes. [ReplaySubset] gives the canonical order
// in which records are replayed, [TokensDigest] pins the tokens they generated,
// [BlockHashes] is the prompt's prefix chain and [ConfigHash] the
// fingerprint of the capture's configuration.
//
// # Rules of the reader
//
// The reader is strict about what it reads: JSON by RFC 8259, valid UTF-8, no
// byte order mark, one object per line. Counts are integers (10.0 is not one),
// 64-bit hashes never pass through a float, numbers beyond a float64 are
// refused, enum values are matched exactly. Surrounding white space and blank
// lines are allowed, and blank lines count in line numbers. Every error is an
// [*Error] that names the file, the line and, where there is one, the field.
//
//   - A JSON null in an optional field means absent. Required fields, and
//     cached_tokens and concurrency, which have a default, do not take null.
//   - A key this package knows must not occur twice in one object. Of a
//     repeated unknown key the last occurrence is kept.
//   - Unknown keys of the meta object are kept in Meta.Extra and written back.
//     Unknown keys of a record are checked for being JSON and dropped, or kept
//     in Record.Extra when [Options.KeepExtra] asks. Unknown keys beside
//     "meta", and inside itl_summary and itl_ctx, are dropped.
//   - Unknown values may nest 128 deep.
//
// Counts that contradict each other are errors: itl_tokens, itl_ctx and tap_times run
// parallel to itl_ms, the tokens of the gaps leave at least one for the first
// chunk, output_token_ids has output_tokens entries and prompt_token_ids has
// prompt_tokens entries ([Record.Validate]).
//
// # Broken ends
//
// A recorder that is killed leaves a gzip stream without its trailer. By
// default that ends the trace: whole lines are kept, a half line is dropped,
// and [Reader.Truncated] and [Reader.Warnings] say so. [Options.Strict], meant
// for pinned goldens, makes it an error, and asks for more (see there). In a
// plain file a half line is an error always; the records before it have been
// returned by then.
//
// # Prompt ids
//
// prompt_token_ids is this project's own optional key: the exact prompt, for
// recorders asked to keep it. Readers that do not know it skip it.
//
// Types of this package are not safe for concurrent use.
package trace
