package inspect

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/trace"
)

// learned are the captures that times are learned from: fixed concurrencies with three prompt lengths, and
// conversations that find their history in the prefix cache, each of them taken twice. See docs/calibration.md.
var learned = []string{"sweep128-s1", "sweep512-s1", "sweep2048-s1", "long-s1"}

func captured(t *testing.T, name string) *trace.Trace {
	t.Helper()
	tr, err := trace.Read(filepath.Join("testdata", filepath.FromSlash(name)+".jsonl.gz"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func learnedFrom(t *testing.T) []*trace.Trace {
	t.Helper()
	var all []*trace.Trace
	for _, take := range []string{"first/", "second/"} {
		for _, name := range learned {
			all = append(all, captured(t, take+name))
		}
	}
	return all
}

// What is learned from one load predicts another that the model never saw: conversations of long prompts
// on an engine without a prefix cache, whose chunks hold up who decodes. The takes in which the engine
// itself was faster than in what was learned from are here as well, and the gate has to say so.
func TestGate(t *testing.T) {
	fit := learnedFrom(t)
	tests := []struct {
		name   string
		failed []string
	}{
		{"second/long-nocache-s2", nil},
		{"second/long-nocache-s3", nil},
		{"first/long-nocache-s2", []string{"median TTFT"}},
		{"first/long-nocache-s3", []string{"median TTFT"}},
		{"third/long-nocache-s2", []string{"median TTFT", "median ITL", "band mass"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := Calibrate(Options{Fit: fit, Predict: captured(t, test.name), Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			if err := r.Text(&said, strings.TrimSpace); err != nil {
				t.Fatal(err)
			}
			t.Log("\n" + said.String())
			var failed []string
			for _, c := range r.Criteria {
				if !c.Pass {
					failed = append(failed, c.Name)
				}
			}
			if diff := cmp.Diff(test.failed, failed); diff != "" {
				t.Errorf("criteria that fail (-want +got):\n%s", diff)
			}
			if r.Turns != 150 || r.Requests != 180 || r.Clients != 4 {
				t.Errorf("%d requests, %d turns, %d clients: want 180, 150 and 4", r.Requests, r.Turns, r.Clients)
			}
		})
	}
}

// The captures are of two loads: none has a record of what it is asked to predict.
func TestGateRefusesItself(t *testing.T) {
	cold := captured(t, "second/long-nocache-s2")
	_, err := Calibrate(Options{Fit: append(learnedFrom(t), cold), Predict: cold, Seed: 1})
	if err == nil || !strings.Contains(err.Error(), "never learn from what is predicted") {
		t.Errorf("got %v, want that it is refused", err)
	}
}
