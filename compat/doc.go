// Package compat reads compat.toml: the list of vLLM lines that a project says
// it works with, and how much of that is a promise.
//
// # The file
//
// The file is a list of [[vllm]] tables, the newest line first, trackers on top:
//
//	[[vllm]]
//	line = "0.33"                # major.minor, or a tracker: nightly, rc
//	tag = "v0.33.0"              # the release of vLLM that represents the line
//	protocol_rev = "4ba787ec9"   # commit of vllm.git that the tag was built from
//	fidelity_validated = true    # a failing golden fails the run (default false)
//	default = true               # exactly one line has it (default false)
//
// Two more keys, patch_repo and patch_rev, name a fork to read the protocol
// from; they come together or not at all. Keys that start with x_ are the user's.
//
// A commit may be abbreviated. Released wheels of vLLM carry nine hexadecimal
// digits of theirs and nothing published with them carries more, so nine or more
// are taken without a word, seven or eight with a warning.
//
// # Words
//
// A stable line is a major.minor series of releases. A tracker follows what is
// not released yet: nightly the main branch, rc the newest release candidate. A
// tracker is never the default and never a gate. Two entries may share a
// major.minor, as rc does with the line it becomes; so a tag is looked up as it
// is written first, and only then by its major.minor ([Matrix.Lookup]).
//
// # Use
//
// [Load] and [Parse] return the lines and all diagnostics that need nothing but the
// file; [Policy.Check] adds those that need facts from elsewhere, such as which
// goldens exist. A [Matrix] is fit for use when no diagnostic is an error
// (Severity == "error"). [Rules] lists what is checked.
//
// [Matrix.Set] says what a change of one line makes of the matrix, and
// [Matrix.WatchStable] and [Matrix.WatchRC] what the releases of vLLM make of it;
// these come from a list of git's tags ([ParseTags]) or from a package index. None of
// them touches the file: [Rewrite] brings its text to the lines that are wanted, and
// keeps all else in it. [Diff] compares two matrices. [CIRows] and its like turn
// lines into the matrix of a workflow.
package compat
