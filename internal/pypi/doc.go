// Package pypi reads a Python package index: which releases of a project there are, and single files out of their
// wheels.
//
// An [Index] answers from the JSON form of the simple index (PEP 691), which pypi.org and its mirrors have.
// [Index.Releases] lists what is there, [Release.Wheel] chooses the file for a platform, and [Index.OpenWheel]
// opens it without downloading it: a wheel is a zip archive, whose directory lies at its end, so that a few range
// requests read the directory and then only the members that are asked for. A release of vLLM has 300 MB, and its
// commit costs 1.3 MB of it.
//
// # What is trusted
//
// The index and the host of its files, by TLS, as any installer trusts them. Of a wheel that is read in parts no
// digest is checked, as the index knows only that of the whole; each member is checked by the CRC-32 in the wheel's
// directory, and that the parts are of one and the same file by its ETag and size. A wheel that is downloaded whole
// must have the sha256 that the index names.
//
// # Errors
//
// Every error names the URL, without the credentials and the query it may have, and the cause. What may pass by itself
// (429, 5xx, a connection that breaks or stalls) is tried four times. An index without a release is an error, never an
// empty list.
package pypi
