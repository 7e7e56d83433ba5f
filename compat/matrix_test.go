package compat

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const matrix = `
[[vllm]]
line = "nightly"
tag = "nightly"
protocol_rev = "4ba787ec9"

[[vllm]]
line = "rc"
tag = "v0.33.1rc0"
protocol_rev = "4ba787ec9"

[[vllm]]
line = "0.33"
tag = "v0.33.0"
protocol_rev = "4ba787ec9"
fidelity_validated = true
default = true

[[vllm]]
line = "0.32"
tag = "v0.32.0"
protocol_rev = "5df63a720"
patch_repo = "https://example.com/fork.git"
patch_rev = "0123456789abcdef0123456789abcdef01234567"
`

func parse(t *testing.T, src string) *Matrix {
	t.Helper()
	m, diagnostics := Parse("compat.toml", []byte(src))
	if len(diagnostics) != 0 {
		t.Fatalf("diagnostics: %v", diagnostics)
	}
	return m
}

func TestLookup(t *testing.T) {
	m := parse(t, matrix)
	tests := []struct {
		name, tag string
		found     string // empty when the matrix has no such line
	}{
		{name: "exact", tag: "v0.33.0", found: "0.33"},
		{name: "exact before major.minor", tag: "v0.33.1rc0", found: "rc"},
		{name: "another patch", tag: "v0.32.7", found: "0.32"},
		{name: "a version, not a tag", tag: "0.33.0", found: "0.33"},
		{name: "a line", tag: "0.33", found: "0.33"},
		{name: "a line like a tag", tag: "v0.33", found: "0.33"},
		{name: "the exact version", tag: "0.33.1rc0", found: "rc"},
		{name: "no version of the line", tag: "0.33.banana"},
		{name: "no line", tag: "0.333"},
		{name: "another candidate", tag: "v0.33.1rc1", found: "0.33"},
		{name: "nightly", tag: "nightly", found: "nightly"},
		{name: "not in the matrix", tag: "v0.20.0"},
		{name: "not a version", tag: "main"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, ok := m.Lookup(tt.tag)
			require.True(t, l.Name == tt.found && ok == (tt.found != ""), "Lookup(%q) = %q, %v, want %q", tt.tag, l.Name, ok, tt.found)
		})
	}
}
