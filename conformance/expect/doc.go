// Package expect reads the expectations of a run, which list the cases that are known to fail, and applies them to
// results. See docs/findings.md for their codes.
package expect
