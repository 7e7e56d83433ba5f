// Package live holds the checks of the live suite, which an engine under test that generates tokens of its own must pass
// whatever these are.
package live
