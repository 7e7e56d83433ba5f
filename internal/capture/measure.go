package capture

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// A measure is what a trace comes to: counts, times, and what its meta line says.
type measure struct {
	Meta    trace.Meta
	Records int
	Tokens  int
	// Bare is the first record without the tokens of its answer, by its line in the file; 0 if all have them. Aborted
	// requests count as such too, as only their client knows how far they should have come.
	Bare int
	// Ends is when the last answer was complete, in ms on the zero of the trace.
	Ends float64
	// Said is what was answered to each prompt, by its digest: the digests of the answers, as one prompt may be asked twice.
	Said      map[fingerprint][]fingerprint
	TTFT, ITL spread
}

type fingerprint = [sha256.Size]byte

// A spread is the middle and the worst percentile of a time, in ms. Both are NaN where there is none.
type spread struct{ P50, P99 float64 }

// measureTrace reads the trace at path to its end, strictly.
func measureTrace(path string) (measure, error) {
	r, err := trace.Open(path, trace.Options{Strict: true})
	if err != nil {
		return measure{}, err
	}
	defer r.Close()
	return measureRecords(r)
}

func measureRecords(r *trace.Reader) (measure, error) {
	m := newMeasurer(r.Meta())
	var rec trace.Record
	for {
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			return m.result(), nil
		}
		if err != nil {
			return m.result(), err
		}
		m.add(&rec)
	}
}

// A measurer takes the measure of one record after another.
type measurer struct {
	measure
	ttft, itl []float64
}

func newMeasurer(meta trace.Meta) measurer {
	return measurer{measure: measure{Meta: meta, Said: map[fingerprint][]fingerprint{}}}
}

func (m *measurer) add(rec *trace.Record) {
	m.Records++
	m.Tokens += rec.OutputTokens
	if m.Bare == 0 && (rec.OutputTokenIDs == nil || rec.FinishReason == trace.FinishAbort && !rec.EndedByFrontend) {
		m.Bare = rec.Line
	}
	m.ttft = append(m.ttft, rec.TTFTMs)
	m.itl = append(m.itl, rec.ITLMs...)
	m.Ends = max(m.Ends, rec.EndMs(trace.Or(rec.ArrivalMs, 0)))
	// The digest of what was answered, however it was cut into chunks.
	prompt, answer := rec.PromptDigest(), sha256.Sum256(fmt.Appendf(nil, "%d %d", rec.OutputTokenIDs, rec.FinishReason))
	m.Said[prompt] = append(m.Said[prompt], answer)
}

// sameAnswers counts the answers that both captures have to the same prompts. Neither when nor in which order they came
// matters.
func (m measure) sameAnswers(than measure) int {
	same := 0
	for prompt, answers := range m.Said {
		left := slices.Clone(than.Said[prompt])
		for _, answer := range answers {
			if at := slices.Index(left, answer); at >= 0 {
				left = slices.Delete(left, at, at+1)
				same++
			}
		}
	}
	return same
}

// again is that count of how many there are.
func (m measure) again(than measure) string {
	return fmt.Sprintf("%d of %d", m.sameAnswers(than), max(m.Records, than.Records))
}

func (m *measurer) result() measure {
	m.TTFT, m.ITL = spreadOf(m.ttft), spreadOf(m.itl)
	return m.measure
}

// measureGolden takes the measure of a registered trace.
func measureGolden(ctx context.Context, store conformance.Store, g manifest.Golden) (measure, error) {
	data, location, err := store.Fetch(ctx, g)
	if err != nil {
		return measure{}, err
	}
	gzip := trace.IsGzip(g.BucketPath)
	opt, err := trace.GoldenOptions(data, location, gzip)
	if err != nil {
		return measure{}, err
	}
	r, err := trace.NewReader(bytes.NewReader(data), location, gzip, opt)
	if err != nil {
		return measure{}, err
	}
	return measureRecords(r)
}

func spreadOf(times []float64) spread {
	if len(times) == 0 {
		return spread{math.NaN(), math.NaN()}
	}
	slices.Sort(times)
	at := func(part float64) float64 { return times[int(part*float64(len(times)-1)+0.5)] }
	return spread{at(0.50), at(0.99)}
}

// What counts as unlike: a factor, and for times a least difference, below which a factor says nothing.
const (
	unlikeMiddle = 2.0
	unlikeWorst  = 4.0
	unlikeTokens = 1.25
	leastMs      = 2.0
)

// unlike says in what a measure differs from that of a capture which should be much the same. other names that one.
// It shows a machine that was busy or an engine in trouble, which a person should look at: no rule can tell.
func (m measure) unlike(than measure, other string) []string {
	var found []string
	for _, pair := range []struct {
		what        string
		now, before float64
		factor      float64
	}{
		{"TTFT p50", m.TTFT.P50, than.TTFT.P50, unlikeMiddle},
		{"TTFT p99", m.TTFT.P99, than.TTFT.P99, unlikeWorst},
		{"ITL p50", m.ITL.P50, than.ITL.P50, unlikeMiddle},
		{"ITL p99", m.ITL.P99, than.ITL.P99, unlikeWorst},
	} {
		if math.Abs(pair.now-pair.before) >= leastMs && ratio(pair.now, pair.before) > pair.factor {
			found = append(found, fmt.Sprintf("%s is %s ms, but %s ms in %s", pair.what, ms(pair.now), ms(pair.before), other))
		}
	}
	if ratio(float64(m.Tokens), float64(than.Tokens)) > unlikeTokens {
		found = append(found, fmt.Sprintf("%d tokens, but %d in %s", m.Tokens, than.Tokens, other))
	}
	if m.Records != than.Records {
		found = append(found, fmt.Sprintf("%d records, but %d in %s", m.Records, than.Records, other))
	}
	return found
}

// ratio is the larger of two numbers by the smaller, 1 where there is nothing to compare.
func ratio(a, b float64) float64 {
	small, large := min(a, b), max(a, b)
	switch {
	case math.IsNaN(small) || large <= 0:
		return 1
	case small <= 0:
		return math.Inf(1)
	}
	return large / small
}

// ms is a time as people read it: 3 digits, or a dash for none.
func ms(t float64) string {
	switch {
	case math.IsNaN(t):
		return "-"
	case t >= 100:
		return fmt.Sprintf("%.0f", t)
	}
	return fmt.Sprintf("%.3g", t)
}
