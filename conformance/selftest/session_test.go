package selftest

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestSessionIsCutAtRest: of a session of recorded frames some is left, and in what is
// left the real engine had answered everything.
func TestSessionIsCutAtRest(t *testing.T) {
	cfg := repository(t)
	tasks, err := cfg.tasks(t.Context())
	require.NoError(t, err)
	for _, task := range tasks {
		if task.fault.red != nil {
			continue // the control of each line will do
		}
		s := task.scene
		whole, _, err := cfg.Store.Fetch(t.Context(), s.framed.golden)
		if err != nil || len(s.framed.data) == 0 || len(s.framed.data) > len(whole)/2 {
			t.Errorf("line %s: %d of %d bytes are left (%v)", s.profile.Line, len(s.framed.data), len(whole), err)
		}
		if n := unansweredIn(t, s); n > 0 {
			t.Errorf("line %s: %d requests and calls are not answered", s.profile.Line, n)
		}
	}
}

// unansweredIn counts what the frames of a scene leave open.
func unansweredIn(t *testing.T, s *scene) int {
	t.Helper()
	codec, err := protocol.NewCodec(s.profile)
	require.NoError(t, err)
	b := s.framed.stored
	reader, err := trace.NewFrameReader(bytes.NewReader(b.data), b.location, trace.IsGzip(b.location), trace.Options{Strict: true})
	require.NoError(t, err)
	open := unanswered{codec: codec, requests: map[string]bool{}, calls: map[uint64]bool{}}
	for {
		var m trace.Message
		err := reader.Next(&m)
		if errors.Is(err, io.EOF) {
			return len(open.requests) + len(open.calls)
		}
		if err == nil {
			err = open.see(&m)
		}
		require.NoError(t, err)
	}
}
