package acceptance

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// What the player makes of each message of a frontend is what the released engine core made of it, or there is a
// reason.
func TestPlayerAgreesWithEngines(t *testing.T) {
	reasons := readReasons(t, "reasons_player.toml")
	tables, err := readTables(os.DirFS("tables"))
	require.NoError(t, err)
	for _, table := range tables {
		if table.Frontend != EngineCore {
			continue
		}
		m, err := NewRequests(protocol.LineOf(table.Version))
		require.NoError(t, err)
		start := func(handshake string) (func(), <-chan struct{}, error) {
			p, err := player.New(player.Options{
				Handshake: handshake, VLLMVersion: table.Version, Source: player.Random{Seed: 1, Vocab: 2048}, Vocab: 2048, Codec: m.Codec, Linger: time.Millisecond,
				Limits: player.Limits{MaxModelLen: 64, MaxNumSeqs: 4}, KVCache: player.KVCacheOptions{NumGPUBlocks: 64},
			})
			if err != nil {
				return nil, nil, err
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = p.Run(ctx)
			}()
			return func() { cancel(); <-ended }, ended, nil
		}
		m.Probes = slices.DeleteFunc(m.Probes, func(p Probe) bool { return diesAnyway(table, p) })
		outcomes, err := measure(t.Context(), m, 16, nil, func() prober { return &engineWorker{m: m, start: start} })
		require.NoError(t, err)
		for i, p := range m.Probes {
			want, is := table.Of(p)
			if !is || want == outcomes[i] {
				continue
			}
			verdict := fmt.Sprintf("%s, player %s", want, outcomes[i])
			covered := false
			for _, r := range reasons {
				if r.covers(p, verdict) {
					r.used, covered = true, true
				}
			}
			require.True(t, covered, "%s, %s: engine %s", p.Place, p.Variant, verdict)
		}
	}
	for _, r := range reasons {
		require.True(t, r.used, "reasons_player.toml: %s %v %v: nothing needs this reason", r.Verdict, r.Places, r.Variants)
	}
}

// diesAnyway reports whether an engine ends with the sample of what a place lies in: then nothing is known of the
// place.
func diesAnyway(table *Table, p Probe) bool {
	for at := p.tamper.at; at != nil && at.parent != nil; at = at.parent {
		if outcome, is := table.Of(Probe{Place: at.parent.place, Variant: "sample"}); is && outcome == Dead {
			return true
		}
	}
	return false
}
