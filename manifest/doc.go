// Package manifest reads conformance/manifest.toml: the manifest of goldens, the
// recorded runs of real engines that everything else is compared with.
//
// # The file
//
// The file is a list of [[golden]] tables. Six keys are required; a file that has
// only these is valid:
//
//	[[golden]]
//	line = "0.33"                   # a line of compat.toml
//	bucket_path = "conformance/v0.33.0/cpu/tiny/multiturn-s7.jsonl.gz"
//	sha256 = "4ff1…"                # of the stored bytes, 64 lowercase hex digits
//	config_hash = "38d9…"           # fingerprint of the engine's configuration
//	workload = "multiturn-s7"       # what was asked of the engine
//	role = "fidelity"               # what the golden pins, see Role
//
// The others say how large the golden is, where it came from, and where else to
// find it; [Golden] documents them. The most useful is tokens_sha256, a digest of
// the token streams: with it the expectation no longer comes from the very file
// that is replayed. Keys that start with x_ are the user's.
//
// # Blocks
//
// A pair of comment lines marks the entries of one line that a capture may
// rewrite; the label is the name of the line in upper case:
//
//	# BEGIN 0.33 GOLDENS
//	# END 0.33 GOLDENS
//
// # Locations
//
// bucket_path is a key below a bucket or a directory, or a complete location with
// the scheme s3, hf, https or file. [Golden.Location] resolves it.
//
// # Use
//
// [Load] and [Parse] return the goldens and all diagnostics that need nothing but
// the file; [Policy.Check] adds those that need facts from elsewhere, such as
// which lines there are. A [Manifest] is fit for use when no diagnostic is an error
// (Severity == "error"). [Rules] lists what is checked. An [Editor] adds, replaces
// and removes goldens in the text of the file, and keeps all else in it.
package manifest
