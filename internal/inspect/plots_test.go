package inspect

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func TestPlots(t *testing.T) {
	r, err := Calibrate(Options{Fit: []*trace.Trace{steady("fit.jsonl", 40, 10)}, Predict: []*trace.Trace{stalled(steady("p.jsonl", 30, 10.3))}})
	require.NoError(t, err)
	lines := map[string]int{}
	for _, p := range r.Plots() {
		var b bytes.Buffer
		require.NoError(t, p.Write(&b))
		lines[p.Name] += strings.Count(b.String(), ` class="line c-`) + strings.Count(b.String(), `stroke-dasharray="2 3"`)
		wellFormed(t, p.Name, b.Bytes())
		for _, word := range []string{"NaN", "Inf", "href", "script"} {
			require.True(t, !strings.Contains(b.String(), word), "%s has %s", p.Name, word)
		}
		if n := b.Len(); n > 50_000 {
			t.Errorf("%s has %d bytes", p.Name, n)
		}
	}
	// Each curve has a path and one in the legend; the band has a mark, and quantiles have three.
	want := map[string]int{"e2e-survival": 4, "error-by-load": 6, "tpot-survival": 4, "itl-survival": 7, "itl-qq": 9, "ttft-survival": 6, "ttft-qq": 9}
	require.NoDiff(t, cmp.Diff(want, lines), "paths (-want +got)")
}

func wellFormed(t *testing.T, name string, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// Times that do not vary, or are all 0, have no plot or one that is whole.
func TestPlotsOfLittle(t *testing.T) {
	one := samples{ttft: times{5}, itl: times{3, 3}}
	r := Report{Real: Outcome{samples: one}, Predicted: Outcome{samples: one}, Knobs: Outcome{samples: one}}
	for _, p := range r.Plots() {
		var b bytes.Buffer
		if err := p.Write(&b); err != nil || strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%s: %v, %s", p.Name, err, b.String())
		}
	}
	zero := samples{ttft: times{0}, itl: times{0}}
	none := Report{Real: Outcome{samples: zero}, Predicted: Outcome{samples: zero}, Knobs: Outcome{samples: zero}}
	if got := none.Plots(); len(got) != 0 {
		t.Errorf("%d plots of times that are 0", len(got))
	}
}

// Where a curve is: half of the times are above the median.
func TestSurvival(t *testing.T) {
	ten := times{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	l := survivalOf("x", "c-black", ten, axis{low: 1, high: 10, decades: true})
	want := map[float64]float64{1: 0.9, 5: 0.5, 9: 0.1, 10: 0.05}
	got := map[float64]float64{}
	for _, p := range l.points[1:] {
		if _, ok := want[p[0]]; ok {
			got[p[0]] = math.Round(p[1]*1e9) / 1e9
		}
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}
