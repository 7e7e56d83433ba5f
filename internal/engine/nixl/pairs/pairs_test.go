package pairs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestTable: there is a reason wherever a pair does not work, and what was measured is what the profiles predict.
func TestTable(t *testing.T) {
	table, err := Table()
	require.NoError(t, err)
	if n := len(protocol.Lines()); len(table) != n*n {
		t.Errorf("%d pairs of %d lines", len(table), n)
	}
	for _, p := range table {
		require.True(t, (p.Checked == Works) == (p.Checks == "") && (p.Lenient == Works) == (p.Leniency == ""), "an outcome without a reason, or a reason without one: %+v", p)
		if p.Measured == "" {
			continue
		}
		prefill, err := nixl.Load(p.Prefill)
		require.NoError(t, err)
		decode, err := nixl.Load(p.Decode)
		require.NoError(t, err)
		if predicted := Predict(prefill, decode); predicted.Checked != p.Checked || predicted.Lenient != p.Lenient {
			t.Errorf("%s to %s was measured as %s and %s, and the profiles predict %s and %s",
				p.Prefill, p.Decode, p.Checked, p.Lenient, predicted.Checked, predicted.Lenient)
		}
	}
}

func TestPredict(t *testing.T) {
	for _, tt := range []struct{ prefill, decode, want string }{
		{"0.33", "0.33", "works, works"},
		{"0.32", "0.33", "refuses (the compatibility hash contains vllm_version, 0.32.0 and 0.33.0, and nixl_connector_version, 14 and 15), works"},
		{"0.26", "0.27", "refuses (the compatibility hash contains vllm_version, 0.26.0 and 0.27.1), works"},
		{"0.28", "0.33", "refuses (the compatibility hash contains vllm_version, 0.28.0 and 0.33.0, and nixl_connector_version, 7 and 15), refuses (the decode engine requires block_strides in NixlAgentMetadata)"},
		{"0.33", "0.25", "breaks (the request for the handshake has 2 values, and the prefill engine unpacks 3), breaks (the request for the handshake has 2 values, and the prefill engine unpacks 3)"},
	} {
		t.Run(tt.prefill+" to "+tt.decode, func(t *testing.T) {
			prefill, err := nixl.Load(tt.prefill)
			require.NoError(t, err)
			decode, err := nixl.Load(tt.decode)
			require.NoError(t, err)
			p := Predict(prefill, decode)
			got := strings.ReplaceAll(fmt.Sprintf("%s (%s), %s (%s)", p.Checked, p.Checks, p.Lenient, p.Leniency), " ()", "")
			require.True(t, got == tt.want, "%s\nwant %s", got, tt.want)
		})
	}
}
