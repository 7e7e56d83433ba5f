package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestColours: only a terminal that can show them gets colours.
func TestColours(t *testing.T) {
	_, programs := terminal(t, 60)
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	with := func(name, value string) *environment {
		return newEnvironment(programs, file, func(n string) (string, bool) {
			if n != name {
				return "", false
			}
			return value, true
		})
	}
	flag := func(color, name string) *environment {
		env := with(name, "1")
		env.color = color
		return env
	}
	for name, test := range map[string]struct{ got, want bool }{
		"a terminal":      {with("", "").colours(programs), true},
		"an empty twin":   {with("NO_COLOR", "").colours(programs), true},
		"NO_COLOR":        {with("NO_COLOR", "1").colours(programs), false},
		"a dumb terminal": {with("TERM", "dumb").colours(programs), false},
		"a file":          {with("", "").colours(file), false},
		"a buffer":        {with("", "").colours(&bytes.Buffer{}), false},
		"FORCE_COLOR":     {with("FORCE_COLOR", "1").colours(file), true},
		"FORCE_COLOR=0":   {with("FORCE_COLOR", "0").colours(programs), false},
		"--color always":  {flag(colorAlways, "NO_COLOR").colours(file), true},
		"--color never":   {flag(colorNever, "FORCE_COLOR").colours(programs), false},
		"--color auto":    {flag(colorAuto, "NO_COLOR").colours(programs), false},
	} {
		require.Equal(t, test.got, test.want, "%s", name)
	}
}
