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

// NoErrorf is [NoError] with what was done.
func NoErrorf(t testing.TB, err error, what string, args ...any) {
	if err != nil {
		t.Helper()
		t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// True marks the test as failed if ok is false, with what is so instead. The test goes on, as after all that follow.
func True(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// NoDiff fails if diff, of cmp.Diff, is not empty.
func NoDiff(t testing.TB, diff, format string, args ...any) {
	if diff != "" {
		t.Helper()
		t.Errorf("%s:\n%s", fmt.Sprintf(format, args...), diff)
	}
}

// Equal fails if got is not want, and names what that is.
func Equal[T comparable](t testing.TB, got, want T, what string, args ...any) {
	if got != want {
		t.Helper()
		verb := "%v"
		if _, isText := any(got).(string); isText {
			verb = "%q"
		}
		t.Errorf("%s: got "+verb+", want "+verb, fmt.Sprintf(what, args...), got, want)
	}
}

// Contains fails if the text lacks one of the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		True(t, strings.Contains(text, part), "%q is not in:\n%s", part, text)
	}
}

// ErrorIs fails if err is not target, or lacks one of the words.
func ErrorIs(t testing.TB, err, target error, words ...string) {
	t.Helper()
	True(t, errors.Is(err, target), "error is %v, want %v", err, target)
	if errors.Is(err, target) {
		ErrorContains(t, err, words...)
	}
}

// ErrorContains fails if there is no error, or it lacks one of the words.
func ErrorContains(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		True(t, err != nil && strings.Contains(err.Error(), word), "error is %v, want %q in it", err, word)
	}
}

// ErrorText fails unless the error has the text, or is nil where the text is empty.
func ErrorText(t testing.TB, err error, text string) {
	t.Helper()
	True(t, (err == nil) == (text == "") && (err == nil || strings.Contains(err.Error(), text)), "error is %v, want %q", err, text)
}
