package replay

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func TestPartOfOne(t *testing.T) {
	frame := [][]byte{{0x90}}
	messages := []trace.Message{
		{Note: "a frontend came"},
		{Channel: "handshake", Frames: frame},
		{Channel: "input", Rank: 1, Frames: frame},
		{Channel: "output", Client: 1, Frames: frame},
		{Channel: "coordinator_output", Frames: frame},
		{Channel: "output", Frames: frame},
		{Channel: "output", Frames: [][]byte{[]byte(protocol.EngineDead)}},
		{Channel: "output", Frames: frame},
	}
	require.NoDiff(t, cmp.Diff([]trace.Message{messages[0], messages[1], messages[5]}, partOfOne(messages)), "-want +got")
}
