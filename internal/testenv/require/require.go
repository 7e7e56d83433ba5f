// Package require makes checks of tests one line long.
package require

import (
	"errors"
	"fmt"
	"strings"
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

// ErrorIs marks the test as failed if err is not target, or lacks one of the words. The test goes on.
func ErrorIs(t testing.TB, err, target error, words ...string) {
	if !errors.Is(err, target) {
		t.Helper()
		t.Errorf("error is %v, want %v", err, target)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Helper()
			t.Errorf("error is %v, want %q in it", err, word)
		}
	}
}

// ErrorContains marks the test as failed if there is no error, or it lacks one of the words. The test goes on.
func ErrorContains(t testing.TB, err error, words ...string) {
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Helper()
			t.Errorf("error is %v, want %q in it", err, word)
		}
	}
}
