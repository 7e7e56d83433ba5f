package pack

import (
	_ "embed"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

//go:embed testdata/frames.txt
var framesText string

// frame is one real message of a released vLLM.
type frame struct {
	name  string
	bytes []byte
}

func realFrames(tb testing.TB) []frame {
	tb.Helper()
	var list []frame
	for line := range strings.Lines(framesText) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if name == "#" || !ok {
			continue
		}
		list = append(list, frame{name, unhex(tb, digits)})
	}
	if len(list) < 10 {
		tb.Fatalf("testdata/frames.txt holds %d frames, want at least 10", len(list))
	}
	return list
}

func realFrame(tb testing.TB, name string) []byte {
	tb.Helper()
	for _, f := range realFrames(tb) {
		if f.name == name {
			return f.bytes
		}
	}
	tb.Fatalf("testdata/frames.txt has no frame %s", name)
	return nil
}

// unhex decodes hex digits; spaces are allowed.
func unhex(tb testing.TB, digits string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	require.NoErrorf(tb, err, "bad hex in the test")
	return b
}

// tokenIDs returns n ids of one to five encoded bytes in random order.
func tokenIDs(n int) []uint32 {
	r := rand.New(rand.NewPCG(1, 2))
	ids := make([]uint32, n)
	for i := range ids {
		switch i % 3 {
		case 0:
			ids[i] = r.Uint32N(128)
		case 1:
			ids[i] = 256 + r.Uint32N(60_000)
		default:
			ids[i] = 65_536 + r.Uint32N(90_000)
		}
	}
	r.Shuffle(n, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}
