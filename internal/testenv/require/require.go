// Package require ends tests that cannot go on.
package require

import "testing"

// NoError ends the test, benchmark or fuzz target if err is not nil.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // only here: it would cost benchmarks and tests of allocations more than what they measure
		t.Fatal(err)
	}
}
