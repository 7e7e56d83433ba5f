// Package require makes checks of tests one line long.
package require

import (
	"fmt"
	"testing"
)

// NoError ends the test, benchmark or fuzz target if err is not nil.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // only here: it would cost benchmarks and tests of allocations more than what they measure
		t.Fatal(err)
	}
}

// NoDiff marks the test as failed if diff, of cmp.Diff, is not empty. The test goes on.
func NoDiff(t testing.TB, diff, format string, args ...any) {
	if diff != "" {
		t.Helper()
		t.Errorf("%s:\n%s", fmt.Sprintf(format, args...), diff)
	}
}
