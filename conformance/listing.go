package conformance

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/trace"
)

// List writes a table of cases, a row each: its name, which is a pattern that selects
// it, its suite, the role and the entry of its golden, whether it gates, and why it
// will not run.
func List(w io.Writer, cases []Case) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CASE\tSUITE\tROLE\tGATE\tGOLDEN\tNOTE")
	for _, c := range cases {
		gate := "-"
		if c.Gating {
			gate = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Name(), c.Suite,
			cmp.Or(string(c.Golden.Role), "-"), gate, cmp.Or(c.Entry, "-"), cmp.Or(c.Skip, "-"))
	}
	return tw.Flush()
}

// Requests writes a table of the requests of each fidelity case: the name that
// expectations know it by, the line of its record in the golden, and its recorded
// stream. Goldens are fetched; one that cannot be read is an error. Other cases have
// no requests of their own.
func (r *Runner) Requests(ctx context.Context, w io.Writer, cases []Case) error {
	run := r.begin(ctx)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REQUEST\tLINE\tPROMPT TOKENS\tTOKENS\tCHUNKS\tFINISH")
	var g *check.Golden
	var last Case
	for _, c := range cases {
		if c.Assertion != Fidelity {
			continue
		}
		if g == nil || !sameGolden(c, last) {
			g, last = run.load(ctx, c), c
		}
		if err := g.Unusable(Fidelity); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
		var f check.Outcome
		_, streams := replay.ReplayableStreams(&f, g, c.Variant.Match)
		for _, s := range streams {
			finish, chunks := s.Record.FinishReason, "-"
			if finish == trace.FinishAbsent {
				finish = trace.FinishLength
			}
			if s.Chunks != nil {
				chunks = fmt.Sprint(len(s.Chunks))
			}
			fmt.Fprintf(tw, "%s/%s\t%d\t%d\t%d\t%s\t%v\n", c.Name(), s.ID(), s.Record.Line,
				len(s.Prompt), len(s.Record.OutputTokenIDs), chunks, finish)
		}
	}
	return tw.Flush()
}
