package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestReadPatterns(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"slow":  "# what takes long\n\n0.33/**/fidelity-*-1\n  **/schema  # and this\r\n",
		"none":  "# nothing yet\n",
		"wrong": "0.33/**\na//b\n\n/c\n",
		"large": strings.Repeat("# \n", maxPatternFile/3+1),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	at := func(name string) string { return "@" + filepath.Join(dir, name) }
	tests := []struct {
		name   string
		values []string
		want   []string
		err    string // DIR stands for the folder
	}{
		{name: "not given"},
		{name: "patterns", values: []string{"0.33/**", "*/*/schema"}, want: []string{"0.33/**", "*/*/schema"}},
		{name: "a file between others", values: []string{"a", at("slow"), "b"}, want: []string{"a", "0.33/**/fidelity-*-1", "**/schema", "b"}},
		{name: "malformed", values: []string{"a//b"}, err: `--run: pattern "a//b": component 2 is empty`},
		{
			name: "malformed in a file", values: []string{at("wrong")},
			err: "--run: DIR/wrong:2: pattern \"a//b\": component 2 is empty\nDIR/wrong:4: pattern \"/c\": component 1 is empty",
		},
		{name: "a file without", values: []string{"a", at("none")}, err: "--run: DIR/none: has no pattern"},
		{name: "no file", values: []string{at("gone")}, err: "--run: stat DIR/gone: no such file or directory"},
		{name: "a folder", values: []string{"@" + dir}, err: "--run: DIR: not a regular file"},
		{name: "too large", values: []string{at("large")}, err: "--run: DIR/large: larger than 1048576 bytes"},
		{name: "no name", values: []string{"@"}, err: "--run: stat : no such file or directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := readPatterns("--run", test.values)
			text := ""
			if err != nil {
				text, got = strings.ReplaceAll(err.Error(), dir, "DIR"), nil
			}
			if diff := cmp.Diff(test.want, got); diff != "" || text != test.err {
				t.Errorf("error %q, want %q; -want +got:\n%s", text, test.err, diff)
			}
		})
	}
}

// TestVersionsNamed: lines and releases are read with and without the v of tags. A line is the release of its tag in the
// compat matrix, or that of the profile where the matrix has no such line.
func TestVersionsNamed(t *testing.T) {
	matrix := &compat.Matrix{Lines: []compat.Line{{Name: "0.27", Tag: "v0.27.9"}}}
	tests := []struct{ given, tag, release string }{
		{"0.27", "0.27", "0.27.9"},
		{"v0.27", "0.27", "0.27.9"},
		{"0.27.1", "v0.27.1", "0.27.1"},
		{"v0.27.1", "v0.27.1", "0.27.1"},
		{"0.33", "0.33", "0.33.0"},
		{"v0.33", "0.33", "0.33.0"},
		{"v0.34.0rc1", "v0.34.0rc1", "0.34.0rc1"},
		{"nightly", "nightly", "nightly"},
		{"0.99", "0.99", "0.99"},
		{"0.33.x", "0.33.x", "0.33.x"},
		{"auto", "auto", "auto"},
		{"", "", ""},
	}
	for _, test := range tests {
		if tag, release := tagOf(test.given), releaseNamed(test.given, matrix); tag != test.tag || release != test.release {
			t.Errorf("%q is the tag %q and the release %q, want %q and %q", test.given, tag, release, test.tag, test.release)
		}
	}
}
