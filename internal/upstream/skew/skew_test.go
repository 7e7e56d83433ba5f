package skew_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/skew"
)

// The table has every pair of the supported lines, and the page of the documentation shows it.
func TestTable(t *testing.T) {
	table := skew.Measured()
	if n := len(table.Lines()); len(table.Cells) != n*len(table.Engines) || n < len(table.Engines) {
		t.Errorf("%d cells of %d lines", len(table.Cells), n)
	}
	for _, c := range table.Cells {
		if (c.Verdict == skew.Works) != (c.Reason == "") || (c.Verdict == skew.WorksWithout) != (len(c.Without) > 0) {
			t.Errorf("%+v: a pair that fails has a reason, and one that works has none", c)
		}
		require.True(t, c.Frontend != c.Engine || c.Verdict == skew.Works || slices.Equal(c.Without, []skew.Feature{skew.LoRA}), "%s", c)
	}
	var b bytes.Buffer
	require.NoError(t, table.Markdown(&b))
	page, err := os.ReadFile("../../../docs/skew.md")
	require.NoError(t, err)
	require.True(t, strings.Contains(string(page), "<!-- table -->\n"+b.String()+"<!-- end -->\n"), "docs/skew.md does not have the table: compat skew --format markdown prints\n%s", &b)
}

// What is measured with the frontends that are installed is what the table has.
func TestRealFrontends(t *testing.T) {
	var m skew.Measurement
	m.Model = testenv.ModelDir(t)
	for _, version := range testenv.FrontendVersions() {
		v, err := compat.ParseVersion(version)
		require.NoError(t, err)
		m.Frontends = append(m.Frontends, skew.Frontend{Line: v.Line(), Binary: testenv.Frontend(t, version)})
	}
	for _, release := range skew.Measured().Engines {
		v, err := compat.ParseVersion(release)
		require.NoError(t, err)
		m.Engines = append(m.Engines, skew.Engine{Line: v.Line(), Version: release})
	}
	cells, err := m.Make(t.Context())
	require.NoError(t, err)
	for _, sentence := range skew.Measured().Difference(&skew.Table{Cells: cells}) {
		t.Error(sentence)
	}
}
