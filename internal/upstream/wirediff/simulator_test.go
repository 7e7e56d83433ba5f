package wirediff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// columns are those of simulator.txt: what a frontend does, and the structs and
// methods that it takes.
var columns = [][]string{
	{"EngineCoreReadyResponse", "HELLO", "READY", "INIT", "EngineZmqAddresses", "EngineHandshakeMetadata"},
	{"EngineCoreRequest", "SamplingParams", "EngineCoreOutputs", "EngineCoreOutput", "SchedulerStats", "PrefillStats", "FinishReason"},
	{"wake_up"},
	{"is_scheduler_paused"},
	{"LogprobsLists", "LogprobsTensors"},
}

// TestSimulator: engines of 0.27 break where a simulator of 0.27 was seen to, and
// nowhere else.
func TestSimulator(t *testing.T) {
	rows := readTable(t, "simulator.txt", 7)
	own := rows[slices.IndexFunc(rows, func(row []string) bool { return row[0] == "0.27" })]
	for _, row := range rows {
		t.Run(row[0], func(t *testing.T) {
			seen := make([]bool, len(columns))
			var others []string
			for _, c := range wirediff.Compare(load(t, "0.27"), load(t, row[0])).Changes {
				if !slices.Contains(c.Breaks, wirediff.Engines) {
					continue
				}
				thing, _, _ := strings.Cut(c.Subject, ".")
				if i := slices.IndexFunc(columns, func(things []string) bool { return slices.Contains(things, thing) }); i >= 0 {
					seen[i] = true
				} else {
					others = append(others, c.Subject)
				}
			}
			for i := range columns {
				fails := row[1+i] != "ok" && row[1+i] != "-" && row[1+i] != own[1+i]
				if seen[i] != fails {
					t.Errorf("column %d is %q, and by the declarations it breaks: %v", i+1, row[1+i], seen[i])
				}
			}
			slices.Sort(others)
			require.NoDiff(t, cmp.Diff(row[6], strings.Join(others, " ")), "what else breaks engines, -want +got")
		})
	}
}
