package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/manifest"
)

// DescribeOptions say which change is described.
type DescribeOptions struct {
	Line   string // name of a line of Matrix
	Matrix *compat.Matrix
	// New and Base are the manifest with the change and without it; NewStore and BaseStore have their goldens.
	New, Base           *manifest.Manifest
	NewStore, BaseStore conformance.Store
	// Run is the page of the run that publishes; may be empty.
	Run string

	Log *slog.Logger
}

// A Description is the text of a pull request with the goldens of a line.
type Description struct {
	// Body is Markdown, of at most MaxDescription bytes.
	Body string
	// Report is of the replay of all goldens that differ; nil if none does.
	Report *conformance.Report
	// Changed counts the goldens of the line that differ or are new, Dropped those that are gone.
	Changed, Dropped int
	// Elsewhere are the goldens of other lines that differ, as "0.32/edge-s1": there should be none.
	Elsewhere []string
}

// MaxDescription is the most bytes of a body. GitHub takes 65,536 characters, and somebody may put a line below it.
const MaxDescription = 60_000

// Describe says what a change of the manifest does to the goldens of a line. It goes by the bytes of the goldens, which it
// replays and measures, and not by what the manifest or the person who captured them says; what it quotes of those is
// quoted so that it is neither markup nor a mention. The same goldens give the same text.
func Describe(ctx context.Context, opt DescribeOptions) (Description, error) {
	d := describer{DescribeOptions: opt}
	if err := d.compare(); err != nil {
		return Description{}, err
	}
	if err := d.replay(ctx); err != nil {
		return Description{}, err
	}
	for _, r := range d.rows {
		if err := d.measure(ctx, r); err != nil {
			return Description{}, err
		}
	}
	d.result.Body = d.body()
	return d.result, ctx.Err()
}

type describer struct {
	DescribeOptions
	line   compat.Line
	rows   []*row
	same   int      // goldens of the line that did not change
	gone   []string // their ids
	warn   []string // Markdown
	result Description
}

// A row is one golden that is new or differs.
type row struct {
	now      manifest.Golden
	before   *manifest.Golden
	measured *measure // nil for raw frames
	old      *measure // nil if there is none, or its bytes are not to be had
	verdicts []conformance.Result
}

// compare finds out which goldens differ.
func (d *describer) compare() error {
	at := slices.IndexFunc(d.Matrix.Lines, func(l compat.Line) bool { return l.Name == d.Line })
	if at < 0 {
		return fmt.Errorf("line %q: %s has no such line", d.Line, d.Matrix.File)
	}
	d.line = d.Matrix.Lines[at]
	before := byName(d.Base)
	for _, g := range d.New.Goldens {
		old, had := before[g.Line+"/"+g.ID]
		delete(before, g.Line+"/"+g.ID)
		switch {
		case had && sameGolden(old, g):
			if g.Line == d.Line {
				d.same++
			}
		case g.Line != d.Line:
			d.result.Elsewhere = append(d.result.Elsewhere, g.Line+"/"+g.ID)
		case had:
			d.rows = append(d.rows, &row{now: g, before: &old})
		default:
			d.rows = append(d.rows, &row{now: g})
		}
	}
	for name, g := range before {
		if g.Line == d.Line {
			d.gone = append(d.gone, g.ID)
		} else {
			d.result.Elsewhere = append(d.result.Elsewhere, name)
		}
	}
	slices.Sort(d.gone)
	slices.Sort(d.result.Elsewhere)
	slices.SortStableFunc(d.rows, func(a, b *row) int { return cmp.Compare(a.now.ID, b.now.ID) })
	d.result.Changed, d.result.Dropped = len(d.rows), len(d.gone)
	return nil
}

func byName(m *manifest.Manifest) map[string]manifest.Golden {
	all := map[string]manifest.Golden{}
	if m != nil {
		for _, g := range m.Goldens {
			all[g.Line+"/"+g.ID] = g
		}
	}
	return all
}

// sameGolden reports whether two entries say the same, wherever they stand.
func sameGolden(a, b manifest.Golden) bool {
	a.Pos, b.Pos = 0, 0
	same := a.CapturedAt.Equal(b.CapturedAt)
	a.CapturedAt, b.CapturedAt = time.Time{}, time.Time{}
	return same && reflect.DeepEqual(a, b)
}

// replay makes every assertion of the goldens that differ.
func (d *describer) replay(ctx context.Context) error {
	if len(d.rows) == 0 {
		return nil
	}
	changed := &manifest.Manifest{File: d.New.File}
	for _, r := range d.rows {
		changed.Goldens = append(changed.Goldens, r.now)
	}
	cases, err := conformance.NewPlan(d.Matrix, changed, conformance.Selection{Lines: []string{d.Line}, Enforce: conformance.EnforceAll})
	if err != nil {
		return err
	}
	runner := conformance.Runner{Store: d.NewStore, Log: d.Log}
	d.result.Report = runner.Run(ctx, cases)
	for _, r := range d.rows {
		for _, result := range d.result.Report.Results {
			if result.Case.Golden.ID == r.now.ID {
				r.verdicts = append(r.verdicts, result)
			}
		}
	}
	return ctx.Err()
}

// measure reads the bytes of a golden and of the one before it, and notes what is unlike.
func (d *describer) measure(ctx context.Context, r *row) error {
	if r.now.Role.Raw() {
		return nil
	}
	m, err := measureGolden(ctx, d.NewStore, r.now)
	if err != nil {
		// The replay says so too, and the text of a change that cannot be read should exist.
		d.warnf("%s cannot be read: %s", quote(r.now.ID), quote(err.Error()))
		return ctx.Err()
	}
	r.measured = &m
	if r.before != nil && d.BaseStore != nil && !r.before.Role.Raw() {
		old, err := measureGolden(ctx, d.BaseStore, *r.before)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			d.warnf("%s as it was before cannot be read: %s", quote(r.now.ID), quote(err.Error()))
		default:
			r.old = &old
			d.note(r, m.unlike(old, "the golden before"))
		}
	}
	return d.measureSiblings(ctx, r)
}

// measureSiblings compares a golden with those of other seeds.
func (d *describer) measureSiblings(ctx context.Context, r *row) error {
	for _, g := range d.New.Goldens {
		if g.Line != d.Line || g.ID == r.now.ID || g.Role.Raw() || !akin(g, r.now.ID, r.now.ConfigHash) {
			continue
		}
		if other, err := measureGolden(ctx, d.NewStore, g); err == nil {
			d.note(r, r.measured.unlike(other, g.ID))
		}
	}
	return ctx.Err()
}

func (d *describer) note(r *row, differences []string) {
	for _, what := range differences {
		d.warnf("%s: %s", quote(r.now.ID), quote(what))
	}
}

func (d *describer) warnf(format string, args ...any) {
	d.warn = append(d.warn, fmt.Sprintf(format, args...))
}

// body puts the text together. What is too much for GitHub is left out, and the text says so.
func (d *describer) body() string {
	var b strings.Builder
	d.writeVerdict(&b)
	fmt.Fprintf(&b, "Goldens of vLLM %s, line %s: %d new or different", strings.TrimPrefix(d.line.Tag, "v"), d.Line, len(d.rows))
	if d.same > 0 {
		fmt.Fprintf(&b, ", %d as they were", d.same)
	}
	b.WriteString(". Times and verdicts are of the files in this change, replayed when this text was made.\n")
	if len(d.result.Elsewhere) > 0 {
		fmt.Fprintf(&b, "\n**Other lines differ too, which a capture never does:** %s\n", quoteAll(d.result.Elsewhere))
	}
	if len(d.gone) > 0 {
		fmt.Fprintf(&b, "\n**Gone from the line:** %s\n", quoteAll(d.gone))
	}
	d.writeTable(&b)
	d.writeWarnings(&b)
	if d.Run != "" {
		fmt.Fprintf(&b, "\nRun: %s\n", address(d.Run))
	}
	return b.String()
}

// writeVerdict says first what matters most: whether the goldens hold, and whether the engine says what it said.
func (d *describer) writeVerdict(b *strings.Builder) {
	if d.result.Report == nil {
		return
	}
	counts := d.result.Report.Counts
	if d.result.Report.ExitCode == conformance.ExitOK {
		fmt.Fprintf(b, "**The replay holds: %d assertions.**", counts[conformance.Pass])
	} else {
		fmt.Fprintf(b, "**The replay does not hold: %s**", quote(d.result.Report.Reason))
	}
	same, of := 0, 0
	for _, r := range d.rows {
		if r.measured != nil && r.old != nil {
			same += r.measured.sameAnswers(*r.old)
			of += max(r.measured.Records, r.old.Records)
		}
	}
	if of > 0 {
		fmt.Fprintf(b, " **%d of %d answers are as they were**, prompt by prompt.", same, of)
	}
	b.WriteString("\n\n")
}

// tableBudget and warningBudget are parts of MaxDescription, so that neither crowds out the other.
const (
	tableBudget   = 40_000
	warningBudget = 50_000
)

func (d *describer) writeTable(b *strings.Builder) {
	if len(d.rows) == 0 {
		return
	}
	b.WriteString("\n| golden | replay | answers as before | records | tokens | TTFT p50 / p99, ms | ITL p50 / p99, ms | role | engine | config | sha256 |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i, r := range d.rows {
		line := "| " + strings.Join(r.cells(), " | ") + " |\n"
		if b.Len()+len(line) > tableBudget {
			fmt.Fprintf(b, "\nand %d more, for which there is no space here\n", len(d.rows)-i)
			return
		}
		b.WriteString(line)
	}
}

func (d *describer) writeWarnings(b *strings.Builder) {
	if len(d.warn) == 0 {
		return
	}
	b.WriteString("\nTo look at:\n\n")
	for i, text := range d.warn {
		line := "- " + text + "\n"
		if b.Len()+len(line) > warningBudget {
			fmt.Fprintf(b, "- and %d more\n", len(d.warn)-i)
			return
		}
		b.WriteString(line)
	}
}

func (r *row) cells() []string {
	records, tokens, as, ttft, itl := "-", "-", "-", "-", "-"
	if m := r.measured; m != nil {
		records, tokens = fmt.Sprint(m.Records), fmt.Sprint(m.Tokens)
		ttft, itl = m.TTFT.String(), m.ITL.String()
	}
	if m, old := r.measured, r.old; m != nil && old != nil {
		records, tokens = change(fmt.Sprint(old.Records), records), change(fmt.Sprint(old.Tokens), tokens)
		ttft, itl = change(old.TTFT.String(), ttft), change(old.ITL.String(), itl)
		as = m.again(*old)
	}
	role, engine, config, sum := quote(string(r.now.Role)), engineOf(r.now), short(r.now.ConfigHash), short(r.now.SHA256)
	if old := r.before; old == nil {
		as = "new"
	} else {
		role, engine = change(quote(string(old.Role)), role), change(engineOf(*old), engine)
		config, sum = change(short(old.ConfigHash), config), change(short(old.SHA256), sum)
	}
	return []string{quote(r.now.ID), r.verdict(), as, records, tokens, ttft, itl, role, engine, config, sum}
}

// engineOf says what spoke.
func engineOf(g manifest.Golden) string {
	if g.EngineImage != "" {
		return quote(g.EngineImage) + " on " + quote(g.GPU)
	}
	if g.EngineBuild != "" {
		return "CPU engine " + quote(g.VLLMVersion) + ", " + g.EngineBuild
	}
	if g.GPU == "cpu" {
		return "CPU engine, wheels of " + quote(g.VLLMVersion)
	}
	return quote(g.VLLMVersion) + " on " + quote(g.GPU) + ", image unknown"
}

// verdict counts what the replay asserted.
func (r *row) verdict() string {
	passed, skipped := 0, 0
	bad := map[string]int{}
	for _, v := range r.verdicts {
		switch v.Verdict {
		case conformance.Pass:
			passed++
		case conformance.Skip:
			skipped++
		default:
			bad[string(v.Verdict)+" "+string(v.Case.Assertion)]++
		}
	}
	switch {
	case len(bad) > 0:
		var all []string
		for _, what := range slices.Sorted(maps.Keys(bad)) {
			all = append(all, fmt.Sprintf("%s (%d)", what, bad[what]))
		}
		return "**" + strings.Join(all, ", ") + "**"
	case passed == 0:
		return "**nothing asserted**"
	case skipped > 0:
		return fmt.Sprintf("pass %d, skip %d", passed, skipped)
	}
	return fmt.Sprintf("pass %d", passed)
}

func (s spread) String() string { return ms(s.P50) + " / " + ms(s.P99) }

// change is "before → now", or what both are.
func change(before, now string) string {
	if before == now {
		return now
	}
	return before + " → " + now
}

// short is the head of a digest.
func short(digest string) string { return quote(digest[:min(12, len(digest))]) }

// quoted is the most characters of one quotation.
const quoted = 200

// quote makes a text of others a span of code in a table, in which GitHub reads neither markup nor mentions, nor references where
// the text is used without its markup, as the message of a squashed commit.
func quote(text string) string {
	text = strings.Map(func(c rune) rune {
		switch {
		case c == '`':
			return '\''
		case !unicode.IsPrint(c):
			return ' '
		}
		return c
	}, text)
	if runes := []rune(text); len(runes) > quoted {
		text = string(runes[:quoted]) + "…"
	}
	if text = strings.TrimSpace(text); text == "" {
		return "-"
	}
	return "`" + strings.ReplaceAll(safetext.Inert(text), "|", `\|`) + "`"
}

// quoteAll quotes the head of a list.
func quoteAll(texts []string) string {
	const most = 50
	var all []string
	for _, text := range texts[:min(most, len(texts))] {
		all = append(all, quote(text))
	}
	if more := len(texts) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// address is a link, if it is one.
func address(url string) string {
	plain := func(c rune) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune("<>`|()[]\\\"@", c) }
	if strings.HasPrefix(url, "https://") && strings.IndexFunc(url, func(c rune) bool { return !plain(c) }) < 0 {
		return url
	}
	return quote(url)
}
