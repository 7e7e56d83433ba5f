package drift_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// window is one of the tags, by line.
func matrix(tags ...string) *compat.Matrix {
	m := &compat.Matrix{File: "compat.toml", Lines: []compat.Line{{Name: compat.Nightly, Tag: "nightly"}}}
	for _, tag := range tags {
		name, _ := compat.MinorLine(tag)
		m.Lines = append(m.Lines, compat.Line{Name: name, Tag: tag})
	}
	return m
}

// published are releases, those with a "-" yanked.
func published(t *testing.T, versions string) []compat.Release {
	t.Helper()
	var all []compat.Release
	for _, text := range strings.Fields(versions) {
		bare, yanked := strings.CutPrefix(text, "-")
		v, err := compat.ParseVersion(bare)
		require.NoError(t, err)
		all = append(all, compat.Release{Version: v, Yanked: yanked})
	}
	return all
}

func TestReleases(t *testing.T) {
	newest := []string{"v0.33.0"}
	tests := []struct {
		name      string
		matrix    []string
		published string
		nightly   bool
		want      string // line:version:kind of each row
		adopt     string // lines
		err       string
	}{
		{name: "as it is", matrix: []string{"v0.33.0", "v0.27.1"}, published: "0.27.0 0.27.1 0.28.0 0.33.0", want: "0.33:0.33.0:known 0.27:0.27.1:known"},
		{
			name: "patch, and two new lines", matrix: []string{"v0.33.0", "v0.32.0"}, nightly: true,
			published: "0.32.0 0.33.0 0.33.1 0.33.2 0.34.0 0.34.1 0.35.0 0.31.9", adopt: "0.33 0.34 0.35",
			want: "nightly::nightly 0.35:0.35.0:added 0.34:0.34.1:added 0.33:0.33.2:patch 0.32:0.32.0:known",
		},
		{name: "another major", matrix: newest, published: "0.33.0 1.0.0", want: "1.0:1.0.0:added 0.33:0.33.0:known", adopt: "1.0"},
		{name: "candidate of the next line", matrix: newest, published: "0.33.0 0.34.0rc1 0.34.0rc2", want: "rc:0.34.0rc2:candidate 0.33:0.33.0:known"},
		{name: "candidate of the past", matrix: newest, published: "0.33.0rc3 0.33.0", want: "0.33:0.33.0:known"},
		{name: "candidate of a patch", matrix: newest, published: "0.33.0 0.33.1rc1", want: "rc:0.33.1rc1:candidate 0.33:0.33.0:known"},
		{name: "candidate older than an added line", matrix: newest, published: "0.33.0 0.34.0rc1 0.34.0", want: "0.34:0.34.0:added 0.33:0.33.0:known", adopt: "0.34"},
		{name: "yanked", matrix: []string{"v0.33.1"}, published: "0.33.0 -0.33.1 -0.34.0 -0.34.0rc1", want: "0.33:0.33.0:patch", adopt: "0.33"},
		{name: "a list that lags", matrix: []string{"v0.33.1", "v0.32.0"}, published: "0.33.0", want: "0.33:0.33.1:known 0.32:0.32.0:known"},
		{name: "all yanked", matrix: newest, published: "-0.33.0", err: "none of 1 releases is stable"},
		{name: "candidates only", matrix: newest, published: "0.33.0rc1", err: "none of 1 releases is stable"},
		{name: "nothing", matrix: newest, err: "none of 0 releases is stable"},
		{name: "trackers only", published: "0.33.0", err: "the matrix has no stable line"},
		{name: "a broken tag", matrix: []string{"main"}, published: "0.33.0", err: `"main" is not a version`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rows, err := drift.Rows(matrix(test.matrix...), published(t, test.published), test.nightly)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			var got, adopt []string
			for _, r := range rows {
				got = append(got, r.Line+":"+r.Version+":"+string(r.Kind))
				require.True(t, (r.Version == "" || r.Check == r.Version) && (r.Version != "" || r.Check == "--nightly"), "row %+v is checked as %s", r, r.Check)
			}
			for _, r := range drift.ToAdopt(rows) {
				adopt = append(adopt, r.Line)
			}
			require.NoDiff(t, cmp.Diff(test.want, strings.Join(got, " ")), "rows (-want +got)")
			require.NoDiff(t, cmp.Diff(test.adopt, strings.Join(adopt, " ")), "to adopt (-want +got)")
		})
	}
}
