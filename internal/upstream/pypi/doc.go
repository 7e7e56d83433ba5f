// Package pypi reads a Python package index: which releases of a project there are, and single files out of their
// wheels.
//
// An [Index] answers from the JSON form of the simple index (PEP 691), which pypi.org and its mirrors have, or from
// HTML (PEP 503), which is all that the index of nightly wheels has; it has no sizes and no times.
// [Index.Releases] lists the releases that are there, [Index.ReleasesAndBuilds] the development and local builds with
// them. [Release.Wheel] chooses the file for a platform, and [Index.OpenWheel] opens it, or one of which nothing but a
// URL is known, without downloading it: a wheel is a zip archive, whose directory lies at its end, so that a few range
// requests read the directory and then only the members that are asked for. A release of vLLM has 300 MB, and its
// commit costs 1.3 MB of it, all its Python sources 19 MB ([Wheel.ReadFiles]). [OpenFile] opens a wheel on disk.
//
// # What is trusted
//
// The index and the host of its files, by TLS, as any installer trusts them: plain http is refused but on this machine,
// also of redirects and of the addresses that a page lists. Of a wheel that is read in parts no digest is checked, as
// the index knows only that of the whole; each member is checked by the CRC-32 in the wheel's directory, and that the
// parts are of one and the same file by its ETag and size. That finds damage, not an attack: code that is to run is
// checked by package pinned. [Wheel.Save] writes a whole wheel, which must have the sha256 that the index lists. That a
// wheel is what its name says is for [Wheel.Version] to check.
//
// # Errors
//
// Every error names the URL, without the credentials and the query it may have, and the cause. What may pass by itself
// (429, 5xx, a connection that breaks or stalls) is tried four times. An index without a release is an error, never an
// empty list, and so is a page that ends in the middle or is none of an index.
package pypi
