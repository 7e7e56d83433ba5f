package inspect

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// learned are the captures that times are learned from, of every take in takes: fixed concurrencies with three prompt
// lengths, and conversations that find their history in the prefix cache. See docs/calibration.md.
var (
	learned = []string{"sweep128-s1", "sweep512-s1", "sweep2048-s1", "long-s1"}
	takes   = []string{"first", "second", "fourth"} // of the third there is a cold load alone
)

// cold are the captures that are predicted, all there are of the load that no take is learned from: conversations of
// long prompts on an engine without a prefix cache, whose chunks hold up who decodes.
var cold = []string{
	"first/long-nocache-s2", "first/long-nocache-s3", "second/long-nocache-s2", "second/long-nocache-s3",
	"third/long-nocache-s2", "fourth/long-nocache-s4",
}

func captured(t *testing.T, name string) *trace.Trace {
	t.Helper()
	tr, err := trace.Read(filepath.Join("testdata", filepath.FromSlash(name)+".jsonl.gz"), trace.Options{})
	require.NoError(t, err)
	return tr
}

func allCaptured(t *testing.T, names []string) []*trace.Trace {
	t.Helper()
	var all []*trace.Trace
	for _, name := range names {
		all = append(all, captured(t, name))
	}
	return all
}

func learnedFrom(t *testing.T, takes ...string) []*trace.Trace {
	t.Helper()
	var names []string
	for _, take := range takes {
		for _, name := range learned {
			names = append(names, take+"/"+name)
		}
	}
	return allCaptured(t, names)
}

// judged calibrates and logs what is said to people.
func judged(t *testing.T, o Options) *Report {
	t.Helper()
	o.Seed = 1
	r, err := Calibrate(o)
	require.NoError(t, err)
	var said bytes.Buffer
	require.NoError(t, r.Text(&said, strings.TrimSpace))
	t.Log("\n" + said.String())
	return r
}

func failed(criteria []Criterion) []string {
	var names []string
	for _, c := range criteria {
		if !c.Pass {
			names = append(names, c.Name)
		}
	}
	return names
}

// What is learned from some loads predicts another that the model never saw. The machine's speed changed by as much as is
// allowed from one recording to the next, so all of them are judged together. What a recording alone is off by stays
// within the wider limits of docs/calibration.md, and which of them would not hold alone is told.
func TestGate(t *testing.T) {
	const aloneMedian, aloneBand = 0.20, 1.5
	r := judged(t, Options{Fit: learnedFrom(t, takes...), Predict: allCaptured(t, cold)})
	if names := failed(r.Criteria); len(names) > 0 || !r.Pass {
		t.Errorf("pass is %v, failed: %q", r.Pass, names)
	}
	// Knobs do not hold even at their best: most gaps are not like the mean.
	o := Options{}.withDefaults()
	require.NoDiff(t, cmp.Diff([]string{"median ITL"}, failed(o.criteria(&r.Real, &r.Knobs))), "criteria that knobs fail (-want +got)")
	alone := map[string][]string{}
	for i, p := range r.Predict {
		require.True(t, p.Turns == 150 && p.Requests == 180 && p.Clients == 4, "%s: %d requests, %d turns, %d clients: want 180, 150 and 4", p.Name, p.Requests, p.Turns, p.Clients)
		for _, c := range p.Criteria {
			limit := aloneMedian
			if c.Unit == unitPoints {
				limit = aloneBand
			}
			require.True(t, c.Off <= limit, "%s: %s, of which %v is the limit for one recording", p.Name, c, limit)
		}
		if names := failed(p.Criteria); names != nil {
			alone[cold[i]] = names
		}
	}
	want := map[string][]string{"third/long-nocache-s2": {"median ITL"}}
	require.NoDiff(t, cmp.Diff(want, alone), "criteria that fail alone (-want +got)")
}

// The gate says so when a prediction does not hold: if times are learned from a take in which the machine was faster or
// slower than in most of what is predicted, from loads that tell too little, or of an engine that is another.
func TestGateFails(t *testing.T) {
	yes := true
	tests := []struct {
		name    string
		fit     []string
		predict []string
		engine  Override
		failed  []string
	}{
		{name: "learned from the fastest take", fit: []string{"fourth"}, predict: cold, failed: []string{"median TTFT", "median ITL"}},
		{name: "and judged by its own cold load", fit: []string{"fourth"}, predict: cold[5:], failed: []string{"median ITL"}},
		{name: "learned from the slowest take", fit: []string{"first"}, predict: cold, failed: []string{"median TTFT"}},
		{
			name: "and judged by a fast cold load", fit: []string{"first", "second"}, predict: cold[4:5],
			failed: []string{"median TTFT", "median ITL"},
		},
		{
			name: "an engine with a prefix cache", fit: takes, predict: cold[:2], engine: Override{Caching: &yes},
			failed: []string{"median TTFT", "band mass"},
		},
		{
			name: "an engine with longer steps", fit: takes, predict: cold[:2], engine: Override{MaxNumBatchedTokens: 4096},
			failed: []string{"band mass"},
		},
		{
			name: "an engine that runs two requests at once", fit: takes, predict: cold[:2], engine: Override{MaxNumSeqs: 2},
			failed: []string{"median TTFT", "median ITL", "band mass"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := judged(t, Options{Fit: learnedFrom(t, test.fit...), Predict: allCaptured(t, test.predict), Engine: test.engine})
			if diff := cmp.Diff(test.failed, failed(r.Criteria)); diff != "" || r.Pass {
				t.Errorf("pass is %v; criteria that fail (-want +got):\n%s", r.Pass, diff)
			}
		})
	}
}
