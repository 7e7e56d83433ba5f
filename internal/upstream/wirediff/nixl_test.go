package wirediff_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// TestNIXL: the boundary between prefill and decode is listed on its own, with whom each change breaks, and counts for no verdict.
func TestNIXL(t *testing.T) {
	for pair, want := range map[[2]string]string{
		{"0.32", "0.33"}: `
NIXL_CONNECTOR_VERSION value: 14 → 15: decode engines and prefill engines
hash of vllm_version value: 0.32.0 → 0.33.0: decode engines and prefill engines
kv_transfer_params.remote_registration_generation new: key, always:
kv_transfer_params read.remote_registration_generation new: key, not always written:
`,
		{"0.25", "0.26"}: `
handshake reply.ts new at 3: frame, always: decode engines and prefill engines
handshake request.remote_pp_rank new at 1: value, always: decode engines and prefill engines
NIXL_CONNECTOR_VERSION value: 4 → 5: decode engines and prefill engines
hash of vllm_version value: 0.25.1 → 0.26.0: decode engines and prefill engines
kv_transfer_params.remote_blocks_expiry_time new: key, always:
kv_transfer_params read.pp_size new: key, not always written:
kv_transfer_params read.remote_blocks_expiry_time new: key, not always written:
`,
	} {
		d := wirediff.Compare(load(t, pair[0]), load(t, pair[1]))
		got := "\n"
		for _, c := range d.NIXL {
			got += strings.TrimRight(fmt.Sprintf("%s %s: %s", c.Subject, c.What(), wirediff.JoinParties(c.Breaks)), " ") + "\n"
		}
		require.NoDiff(t, cmp.Diff(want, got), "%s (-want +got)", strings.Join(pair[:], " to "))
		for _, p := range []wirediff.Party{wirediff.Prefill, wirediff.Decode, wirediff.Sidecars} {
			if n := wirediff.CountBreaking(d.Changes, p); n > 0 {
				t.Errorf("%d changes of the engine core break %s", n, p)
			}
		}
	}
	gone := load(t, "0.33")
	gone.SetNixl(nil)
	if d := wirediff.Compare(load(t, "0.32"), gone); len(d.Gaps) != 1 {
		t.Errorf("a release without the boundary: gaps %v", d.Gaps)
	}
}
