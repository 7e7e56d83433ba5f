package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// Each record here takes 30 ms: its first token comes after 20, its second after 10 more.
func TestClients(t *testing.T) {
	at := func(times ...float64) (all []trace.Record) {
		for _, ms := range times {
			all = append(all, record(ms, 8, 20, 10))
		}
		return all
	}
	tests := []struct {
		name    string
		records []trace.Record
		clients int
		parents []int
		after   []float64 // ms after the end of the parent, or the first arrival
	}{
		{"one after the other", at(0, 31, 62), 1, []int{-1, 0, 1}, []float64{0, 1, 1}},
		{"two clients", at(0, 10, 31, 40), 2, []int{-1, -1, 0, 1}, []float64{0, 10, 1, 0}},
		{"at times of their own", at(0, 50, 140, 200), 0, []int{-1, -1, -1, -1}, []float64{0, 50, 140, 200}},
		{"all at once", at(0, 0, 0), 0, []int{-1, -1, -1}, []float64{0, 0, 0}},
		{"that took no time", []trace.Record{record(0, 8, 0), record(1, 8, 0)}, 0, []int{-1, -1}, []float64{0, 1}},
		{"one alone", at(0), 0, []int{-1}, []float64{0}},
		{
			"conversations",
			[]trace.Record{
				hashed(record(0, 4, 20, 10), 1), hashed(record(40, 8, 20, 10), 1, 2), // ends at 70
				hashed(record(5, 4, 20, 10), 5), hashed(record(45, 8, 20, 10), 5, 6), // ends at 75
				hashed(record(71, 4, 20, 10), 7), hashed(record(77, 4, 20, 10), 8),
			},
			2,
			[]int{-1, -1, 0, 1, 2, 3},
			[]float64{0, 5, 10, 10, 1, 2},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := mustWorkload(t, recorded(test.records...))
			var parents []int
			var after []float64
			for i := range w.asks {
				parents, after = append(parents, w.asks[i].parent), append(after, w.asks[i].at)
			}
			require.NoDiff(t, cmp.Diff(test.parents, parents), "parents (-want +got)")
			require.NoDiff(t, cmp.Diff(test.after, after), "times (-want +got)")
			require.True(t, w.clients == test.clients, "%d clients, want %d", w.clients, test.clients)
		})
	}
}
