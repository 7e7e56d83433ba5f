package compat

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestRows(t *testing.T) {
	const fork = `,"patch_repo":"https://example.com/fork.git","patch_rev":"0123456789abcdef0123456789abcdef01234567"`
	const (
		nightly = `"line":"nightly","tag":"nightly","protocol_rev":"4ba787ec9","fidelity_validated":false,"default":false,"has_goldens":false,"gating":false,"goldens":0`
		rc      = `"line":"rc","tag":"v0.33.1rc0","protocol_rev":"4ba787ec9","fidelity_validated":false,"default":false,"has_goldens":false,"gating":false,"goldens":0`
		newer   = `"line":"0.33","tag":"v0.33.0","protocol_rev":"4ba787ec9","fidelity_validated":true,"default":true,"has_goldens":true,"gating":true,"goldens":2`
		older   = `"line":"0.32","tag":"v0.32.0","protocol_rev":"5df63a720","fidelity_validated":false,"default":false,"has_goldens":false,"gating":false,"goldens":0`
		noFork  = `,"patch_repo":"","patch_rev":""`
	)
	m := parse(t, matrix)
	goldens := map[string]int{"0.33": 2, "0.20": 1}
	tests := []struct {
		name string
		rows any
		want []string
	}{
		{name: "ci", rows: CIRows(m.Lines, goldens), want: []string{nightly, rc, newer, older}},
		{name: "docker", rows: DockerRows(m.Lines, goldens, "1.0.0"), want: []string{
			nightly + noFork + `,"image_tags":["1.0.0-vllmnightly","vllmnightly"]`,
			rc + noFork + `,"image_tags":["1.0.0-vllmrc","vllmrc"]`,
			newer + noFork + `,"image_tags":["1.0.0-vllm0.33","vllm0.33","latest"]`,
			older + fork + `,"image_tags":["1.0.0-vllm0.32","vllm0.32"]`,
		}},
		{name: "capture", rows: CaptureRows(m.Lines, goldens), want: []string{newer + `,"version":"0.33.0"`, older + `,"version":"0.32.0"`}},
		{name: "capture of trackers", rows: CaptureRows(m.Lines[:2], goldens)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(tt.rows)
			require.NoError(t, err)
			want := "[]"
			if len(tt.want) > 0 {
				want = "[{" + strings.Join(tt.want, "},{") + "}]"
			}
			require.NoDiff(t, cmp.Diff(want, string(got)), "-want +got")
		})
	}
}

func TestSelect(t *testing.T) {
	tests := []struct {
		name  string
		names []string
		want  string // the lines, or the error
	}{
		{name: "all", want: "nightly rc 0.33 0.32"},
		{name: "in the order of the file", names: []string{"0.32", "nightly"}, want: "nightly 0.32"},
		{name: "by tag", names: []string{"v0.33.1rc0"}, want: "rc"},
		{name: "twice", names: []string{"0.33", "v0.33.0"}, want: "0.33"},
		{name: "another release", names: []string{"0.33", "0.32.7"}, want: "error: compat.toml has no release v0.32.7: line 0.32 stands for v0.32.0; select it as 0.32 or v0.32.0"},
		{name: "a candidate of a line", names: []string{"v0.32.0rc1"}, want: "error: compat.toml has no release v0.32.0rc1: line 0.32 stands for v0.32.0; select it as 0.32 or v0.32.0"},
		{name: "unknown", names: []string{"0.33", "0.3"}, want: `error: compat.toml has no line "0.3": it has nightly, rc, 0.33, 0.32`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lines, err := parse(t, matrix).Select(tt.names)
			got := strings.Join((&Matrix{Lines: lines}).names(), " ")
			if err != nil {
				got = "error: " + err.Error()
			}
			require.Equal(t, got, tt.want, "got")
		})
	}
}
