package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file of 100 MB is refused, whichever it is, without being read: the process needs no
// more memory than for files that are fit for use.
func TestHugeFilesAreRefused(t *testing.T) {
	const size, room = 100 << 20, 30 << 20
	huge := filepath.Join(t.TempDir(), "huge.toml")
	if err := os.WriteFile(huge, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, size); err != nil {
		t.Fatal(err)
	}
	most := peakMemory(t, 0, "", "compat", "check") + room
	tests := []struct {
		name, said string
		args       []string
	}{
		{name: "compat.toml", said: ": C001 error: is larger than 1048576 bytes", args: []string{"compat", "check", "--compat", huge}},
		{name: "manifest", said: ": M001 error: is larger than 1048576 bytes", args: []string{"compat", "check", "--manifest", huge}},
		{name: "compat.toml to be edited", said: ": C001 error: is larger than 1048576 bytes", args: []string{"compat", "set", "--line", "0.33", "--default", "--compat", huge}},
		{name: "tags", said: "is larger than 16777216 bytes", args: []string{"compat", "watch", "rc", "--tags-file", huge}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := peakMemory(t, 2, test.said, test.args...); got > most {
				t.Errorf("needs %d MB, want at most %d", got>>20, most>>20)
			}
		})
	}
}

// peakMemory runs the command, which has to end with a code and to say something on
// stderr, and returns the most memory it had, in bytes.
func peakMemory(t *testing.T, code int, said string, args ...string) int64 {
	t.Helper()
	c := start(t, args...)
	if got := c.end(t); got != code || !strings.Contains(c.stderr.String(), said) {
		t.Fatalf("%s: exit code %d, %q, want %d, %q", args, got, c.stderr.String(), code, said)
	}
	usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatalf("no usage of %s", args)
	}
	return usage.Maxrss << 10
}
