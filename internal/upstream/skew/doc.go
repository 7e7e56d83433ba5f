// Package skew answers which frontends of vLLM work with which engines of other lines, as they meet in a rolling upgrade.
//
// The answers are measured: [Measurement.Make] puts each released frontend in front of each engine, and sends a request of each
// [Feature]. [Measured] is the table of this build; compat skew prints it, and compat skew --measure makes it again.
package skew
