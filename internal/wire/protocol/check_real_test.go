package protocol

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// knownMisfits are the real messages that no engine of their line decodes as they
// were meant. 0.23 is read by the profile of 0.25; the frontend of 0.32.0 writes the
// adapter of a request as 0.31 did, which the engine of 0.32.0 refuses.
var knownMisfits = map[string][]string{
	"0.23.0/enc-ready-response": {
		"EngineCoreReadyResponse.world_size: expected int, found missing (byte 101)",
		"EngineCoreReadyResponse.data_parallel_size: expected int, found missing (byte 101)",
	},
	"0.32.0/rust-10-add-lora": {
		"EngineCoreRequest.lora_request.load_inplace: expected bool (field 4 of line 0.32), found nil (byte 307): field 4 is tensorizer_config_dict in 0.25–0.31; this is the layout of 0.31",
		"EngineCoreRequest.lora_request[6]: expected no more than the 6 fields of line 0.32, found false (byte 309): field 6 is is_3d_lora_weight in 0.25–0.31",
	},
	"0.32.0/rust-30-util-add_lora": {
		"UtilityCall.add_lora.lora_request.load_inplace: expected bool (field 4 of line 0.32), found nil (byte 38): field 4 is tensorizer_config_dict in 0.25–0.31; this is the layout of 0.25–0.31",
		"UtilityCall.add_lora.lora_request[6]: expected no more than the 6 fields of line 0.32, found false (byte 40): field 6 is is_3d_lora_weight in 0.25–0.31",
	},
}

func texts(found []Mismatch) []string {
	var lines []string
	for _, m := range found {
		lines = append(lines, m.String())
	}
	return lines
}

// What real frontends and real engines of all lines said to each other, in the
// goldens of raw frames.
func TestRealSessionsAreExactlyOfTheirLine(t *testing.T) {
	paths, err := filepath.Glob("../../../testdata/goldens/conformance/*/cpu/tiny/wire-*.jsonl.gz")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d goldens of raw frames, want one of each line (%v)", len(paths), err)
	}
	for _, path := range paths {
		release := strings.Split(path, "/")[6]
		t.Run(release, func(t *testing.T) {
			c := codecOf(t, release)
			checked := map[string]int{}
			testenv.GzipLines(t, path, func(line []byte) {
				var m testenv.Captured
				require.NoError(t, json.Unmarshal(line, &m))
				if m.Frames == nil {
					return // the meta line
				}
				kind, found := checkCaptured(c, m, checked)
				checked[kind]++
				for _, wrong := range found {
					t.Errorf("%s at %d: %v", kind, m.At, wrong)
				}
			})
			t.Logf("%v", checked)
			require.True(t, checked["init"] == 1 && checked["ready"] == 1 && checked["message"] >= 40 && checked["outputs"] >= 500, "checked %v, want a whole session", checked)
		})
	}
}

func checkCaptured(c *Codec, m testenv.Captured, before map[string]int) (kind string, found []Mismatch) {
	switch {
	case m.Channel == "handshake" && m.Direction == "f2e":
		return "init", c.CheckInit(m.Frames[0])
	case m.Channel == "handshake":
		return "status", nil
	case m.Channel == "input0" && m.Direction == "f2e":
		return "message", c.CheckMessage(m.Frames)
	case m.Channel == "input0" && before["ready"] == 0:
		return "ready", c.CheckReady(m.Frames[0])
	case m.Channel == "output0":
		return "outputs", c.CheckOutputs(m.Frames[0], m.Frames[1:]...)
	}
	return "unknown", nil
}

// A type that nobody knows would let every value pass: there is none.
func TestEveryTypeIsKnown(t *testing.T) {
	types := 0
	for _, r := range allRules() {
		for _, s := range r.structs {
			types += len(s.types)
		}
		if names := slices.Sorted(maps.Keys(r.unknown)); len(names) > 0 {
			t.Errorf("line %s: types %v mean nothing to the checker, so anything passes for them", r.profile.Line, names)
		}
	}
	require.True(t, types >= 9*200, "%d fields read, want those of nine lines", types)
}
