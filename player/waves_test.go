package player

import (
	"testing"
)

// What the ranks of a group say of their waves, line by line as in the sources of the
// engines (vllm/v1/engine/core.py DPEngineCoreProc of 0.27.1, 0.32.0 and 0.33.0).
func TestWaves(t *testing.T) {
	const frontend = -1 // began a wave and excludes nobody
	type does struct {
		what string // add, begin, idle, pause or resume
		rank int
		wave int
		by   int // begin: the engine that is excluded
	}
	tests := []struct {
		name  string
		line  string
		part  bool // the other ranks are elsewhere
		does  []does
		start []int // the waves that ranks asked the coordinator to begin, or told it that they have joined
		end   []int // the waves that ended
		at    [3]int
	}{
		{
			name: "a request begins a wave", line: "0.33",
			does: []does{{what: "add", rank: 1}}, start: []int{0},
		},
		{
			name: "only the first of them does", line: "0.33",
			does: []does{{what: "add", rank: 1}, {what: "add", rank: 1}, {what: "begin", rank: 2, by: 1}, {what: "add", rank: 2}}, start: []int{0},
		},
		{
			name: "the frontend begins it, before 0.29", line: "0.28",
			does: []does{{what: "add", rank: 0}, {what: "add", rank: 1}},
		},
		{
			name: "the first rank tells of it, before 0.33", line: "0.32",
			does: []does{{what: "add", rank: 1}, {what: "add", rank: 0}}, start: []int{0},
		},
		{
			name: "the first rank tells of a wave it has joined, once", line: "0.32",
			does: []does{{what: "begin", rank: 0, by: 1}, {what: "add", rank: 0}, {what: "begin", rank: 0, by: 1}}, start: []int{0},
		},
		{
			name: "and did not, before 0.29", line: "0.28",
			does: []does{{what: "begin", rank: 0, by: 1}, {what: "add", rank: 0}},
		},
		{
			name: "the others never do", line: "0.33",
			does: []does{{what: "begin", rank: 1, by: 0}, {what: "begin", rank: 2, by: 0}},
		},
		{
			name: "a wave ends when all have joined it and none works", line: "0.33",
			does: []does{
				{what: "add", rank: 1},
				{what: "begin", rank: 0, by: 1},
				{what: "begin", rank: 1, by: 1},
				{what: "begin", rank: 2, by: 1},
				{what: "idle", rank: 1},
			},
			start: []int{0, 0}, end: []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "whoever is slow to join is waited for", line: "0.33",
			does:  []does{{what: "add", rank: 1}, {what: "begin", rank: 0, by: 1}, {what: "idle", rank: 1}},
			start: []int{0, 0},
		},
		{
			name: "and ends it", line: "0.33",
			does: []does{
				{what: "add", rank: 1}, {what: "begin", rank: 0, by: 1}, {what: "idle", rank: 1}, {what: "begin", rank: 2, by: 1},
			},
			start: []int{0, 0}, end: []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "the engine that is excluded has not joined", line: "0.27",
			does: []does{{what: "begin", rank: 0, by: 1}, {what: "begin", rank: 1, by: 1}, {what: "begin", rank: 2, by: 1}},
		},
		{
			name: "a wave without work", line: "0.27",
			does: []does{{what: "begin", rank: 0, by: frontend}, {what: "begin", rank: 1, by: frontend}, {what: "begin", rank: 2, by: frontend}},
			end:  []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "the beginning of a wave that is over", line: "0.33",
			does: []does{
				{what: "begin", rank: 0, by: frontend},
				{what: "begin", rank: 1, by: frontend},
				{what: "begin", rank: 2, by: frontend},
				{what: "begin", rank: 0, by: frontend},
				{what: "begin", rank: 1, by: frontend},
				{what: "begin", rank: 2, by: frontend},
			},
			start: []int{0}, end: []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "a request of a wave that is over begins the next one on every line", line: "0.25",
			does: []does{
				{what: "begin", rank: 0, by: frontend},
				{what: "begin", rank: 1, by: frontend},
				{what: "begin", rank: 2, by: frontend},
				{what: "add", rank: 2, wave: 0},
			},
			start: []int{1}, end: []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "a request of a later wave", line: "0.27",
			does: []does{{what: "add", rank: 2, wave: 4}}, at: [3]int{0, 0, 4},
		},
		{
			name: "a request of a later wave, since 0.33", line: "0.33",
			does: []does{{what: "add", rank: 2, wave: 4}}, start: []int{4}, at: [3]int{0, 0, 4},
		},
		{
			name: "a later wave", line: "0.33",
			does: []does{{what: "begin", rank: 2, wave: 3, by: 1}}, at: [3]int{0, 0, 3},
		},
		{
			name: "ranks elsewhere may be at work", line: "0.33", part: true,
			does: []does{
				{what: "add", rank: 1},
				{what: "begin", rank: 0, by: 1},
				{what: "begin", rank: 2, by: 1},
				{what: "idle", rank: 1},
				{what: "add", rank: 1},
			},
			start: []int{0, 0},
		},
		{
			name: "a pause ends a wave that nobody began, and who is paused joins none", line: "0.33",
			does: []does{
				{what: "pause", rank: 0},
				{what: "pause", rank: 1},
				{what: "pause", rank: 2},
				{what: "add", rank: 1},
				{what: "begin", rank: 0, by: 1},
				{what: "begin", rank: 0, wave: 1, by: 1},
			},
			end: []int{0}, at: [3]int{1, 1, 1},
		},
		{
			name: "a pause ends the wave, and whoever has work left goes on with the others", line: "0.33",
			does: []does{
				{what: "add", rank: 1},
				{what: "begin", rank: 0, by: 1},
				{what: "begin", rank: 2, by: 1},
				{what: "pause", rank: 0},
				{what: "pause", rank: 1},
				{what: "pause", rank: 2},
				{what: "resume", rank: 1},
				{what: "resume", rank: 0},
				{what: "resume", rank: 2},
				{what: "idle", rank: 1},
			},
			start: []int{0, 0, 1}, end: []int{0, 1}, at: [3]int{2, 2, 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWaves(tt.line, 3, !tt.part)
			var start, end []int
			w.subscribe(0, func(wave int) { start = append(start, wave) }, func(wave int) { end = append(end, wave) })
			left := [3]bool{} // requests, also while paused
			for _, d := range tt.does {
				switch d.what {
				case "add":
					left[d.rank] = true
					if wave := w.requestAdded(d.rank, d.rank, d.wave); wave >= 0 {
						start = append(start, wave)
					}
				case "begin":
					w.begin(d.rank, d.rank, d.wave, d.by)
				case "idle":
					left[d.rank] = false
					w.setWork(d.rank, false, false)
				case "pause":
					w.setWork(d.rank, false, true)
				case "resume":
					w.setWork(d.rank, left[d.rank], false)
				default:
					t.Fatal(d.what)
				}
			}
			equal(t, "waves to begin", tt.start, start)
			equal(t, "waves that ended", tt.end, end)
			if at := [3]int{w.current(0), w.current(1), w.current(2)}; at != tt.at {
				t.Errorf("the ranks are at waves %v, want %v", at, tt.at)
			}
		})
	}
}
