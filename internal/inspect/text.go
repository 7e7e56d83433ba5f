package inspect

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// JSON writes the report as one indented object.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Text writes the report for people. Names of recordings are written by clean, which makes
// foreign text harmless.
func (r *Report) Text(w io.Writer, clean func(string) string) error {
	out := bufio.NewWriter(w)
	for _, s := range r.Fit {
		fmt.Fprintf(out, "learned from  %s: %d records\n", clean(s.Name), s.Records)
	}
	for i := range r.Predict {
		p := &r.Predict[i]
		fmt.Fprintf(out, "predicted     %s: %d requests, %d of them turns that wait for an answer", clean(p.Name), p.Requests, p.Turns)
		if p.Clients > 0 {
			fmt.Fprintf(out, "; clients that ask one after the other: %d", p.Clients)
		}
		fmt.Fprintf(out, "\n")
	}
	if l := r.Learning; l == nil {
		fmt.Fprintf(out, "runs          %d\n", r.Runs)
	} else {
		fmt.Fprintf(out, "engine        %s\n", &l.Engine)
	}
	if c := r.Confidence; c.Spread > 0 {
		fmt.Fprintf(out, "confidence    recordings differ by %.1f %% in what the same step takes; learned to within %.1f %%; up to %.1f %% off is noise\n",
			100*c.Spread, 100*c.Learned, 100*c.Expected)
		if c.TooNoisy {
			fmt.Fprintf(out, "warning       the recordings to learn from are too noisy for a limit of %.1f %%: stop other work on the machine and "+
				"record again, or record the load more often\n", 100*r.Criteria[0].Limit)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(out, "note          %s\n", clean(note))
	}
	fmt.Fprintf(out, "\n")
	if r.Learning != nil {
		r.Learning.table().text(out)
	} else {
		r.table(out)
	}
	fmt.Fprintf(out, "\n")
	r.Accuracy.table().text(out)
	fmt.Fprintf(out, "\n")
	for _, c := range r.Criteria {
		fmt.Fprintf(out, "%s\n", c)
	}
	if len(r.Predict) > 1 {
		r.alone(out, clean)
	}
	verdict := "FAIL: the prediction is off"
	if r.Pass {
		verdict = "PASS: the prediction holds"
	}
	fmt.Fprintf(out, "\n%s\n", verdict)
	if !r.Pass {
		list := func(title string, lines []string) {
			if len(lines) > 0 {
				fmt.Fprintf(out, "\n%s:\n", title)
			}
			for _, line := range lines {
				fmt.Fprintf(out, "  - %s\n", clean(line))
			}
		}
		list("why it may be off, and what helps", r.Advice)
		if r.Learning == nil {
			list("what the figures mean", meaning)
		}
	}
	return out.Flush()
}

// table has a row for each figure, and a column for each outcome.
func (r *Report) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	all := []*Outcome{&r.Real, &r.Predicted, &r.Knobs}
	row := func(name string, figure func(*Outcome) string) {
		fmt.Fprintf(t, "%s\t", name)
		for _, o := range all {
			fmt.Fprintf(t, "%s\t", figure(o))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "\treal\tpredicted\tbest knobs\t\n")
	times := func(prefix string, of func(*Outcome) Distribution) {
		row(prefix+" mean ms", func(o *Outcome) string { return fmt.Sprintf("%.2f", of(o).Mean) })
		row(prefix+" p50 ms", func(o *Outcome) string { return fmt.Sprintf("%.2f", of(o).P50) })
		row(prefix+" p90 ms", func(o *Outcome) string { return fmt.Sprintf("%.2f", of(o).P90) })
		row(prefix+" p99 ms", func(o *Outcome) string { return fmt.Sprintf("%.2f", of(o).P99) })
	}
	times("TTFT", func(o *Outcome) Distribution { return o.TTFT })
	times("ITL", func(o *Outcome) Distribution { return o.ITL })
	row(fmt.Sprintf("ITL above %.2f ms", r.BandFromMs), func(o *Outcome) string { return fmt.Sprintf("%.2f %%", 100*o.BandMass) })
	row("ITL p99.9 / p50", func(o *Outcome) string { return fmt.Sprintf("%.1f", o.Tail) })
	if accepted := max(len(r.Real.Accepted), len(r.Predicted.Accepted)); accepted > 0 {
		row("tokens in an output", func(o *Outcome) string { return fmt.Sprintf("%.3f", max(o.TokensPerOutput, 1)) })
		for i := range min(accepted, shownPositions) {
			row(fmt.Sprintf("outputs of %d tokens or more", i+2), func(o *Outcome) string {
				if i >= len(o.Accepted) {
					return "0.00 %"
				}
				return fmt.Sprintf("%.2f %%", 100*o.Accepted[i])
			})
		}
	}
	_ = t.Flush() // w keeps the error
}

// shownPositions is how many sizes of outputs have a row.
const shownPositions = 8

// alone writes the error of the prediction of each recording by itself.
func (r *Report) alone(out io.Writer, clean func(string) string) {
	fmt.Fprintf(out, "\neach alone, which decides nothing:\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i := range r.Predict {
		p := &r.Predict[i]
		if i == 0 {
			for _, c := range p.Criteria {
				fmt.Fprintf(t, "%s\t", c.Name)
			}
			fmt.Fprintln(t)
		}
		for _, c := range p.Criteria {
			fmt.Fprintf(t, "%s\t", c.signed())
		}
		fmt.Fprintf(t, "  %s\n", clean(p.Name))
	}
	_ = t.Flush() // out keeps the error
}

// signed is by how much more than the real value was predicted.
func (c Criterion) signed() string {
	off := math.Copysign(c.Off, c.Predicted-c.Real)
	if c.Unit == unitPoints {
		return fmt.Sprintf("%+.2f points", off)
	}
	return fmt.Sprintf("%+.1f %%", 100*off)
}

// String is the criterion in a line.
func (c Criterion) String() string {
	verdict := "fail"
	if c.Pass {
		verdict = "pass"
	}
	if c.Unit == unitPoints {
		return fmt.Sprintf("%s  %s: %.2f %% predicted, %.2f %% real: off by %.2f points, %.2f allowed",
			verdict, c.Name, 100*c.Predicted, 100*c.Real, c.Off, c.Limit)
	}
	if c.Unit == unitTokens {
		return fmt.Sprintf("%s  %s: %.3f predicted, %.3f real: off by %.1f %%, %.1f %% allowed", verdict, c.Name, c.Predicted, c.Real, 100*c.Off, 100*c.Limit)
	}
	return fmt.Sprintf("%s  %s: %.2f ms predicted, %.2f ms real: off by %.1f %%, %.1f %% allowed",
		verdict, c.Name, c.Predicted, c.Real, 100*c.Off, 100*c.Limit)
}
