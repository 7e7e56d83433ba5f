package inspect

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// Summary has the figures of a trace. Times are in ms; a pointer is nil where the trace does not have it.
type Summary struct {
	Name string `json:"name"`
	// Model, GPU, Version and Config are what the head of the trace says, "" for what it does not.
	Model   string `json:"model,omitempty"`
	GPU     string `json:"gpu,omitempty"`
	Version string `json:"vllm_version,omitempty"`
	Config  string `json:"engine_config,omitempty"`
	// Records is the number of requests, Silent how many of them ended without an output.
	Records int `json:"records"`
	Silent  int `json:"silent,omitempty"`
	// Turns is how many requests begin with the whole prompt of an earlier one that had ended.
	Turns *int `json:"turns,omitempty"`
	// Seconds is the time from the first arrival to the last output.
	Seconds *float64 `json:"seconds,omitempty"`
	// PromptTokens, OutputTokens and Concurrency are per request.
	PromptTokens Counts `json:"prompt_tokens"`
	OutputTokens Counts `json:"output_tokens"`
	Concurrency  Counts `json:"concurrency"`
	// Cached is the part of all prompt tokens that was found in the prefix cache, 0 to 1.
	Cached float64        `json:"cached"`
	Finish map[string]int `json:"finish,omitempty"`
	TTFT   Distribution   `json:"ttft"`
	ITL    Distribution   `json:"itl"`
	// TPOT is, of each request with more than one token, the time after the first token for each further token. E2E is the
	// time from the arrival to the last token.
	TPOT Distribution `json:"tpot"`
	E2E  Distribution `json:"e2e"`
	// Levels are the requests by the number that were in flight when they came.
	Levels []Level `json:"levels"`
	// CacheByTurn is empty if no request goes on from an earlier one.
	CacheByTurn []TurnCache `json:"cache_by_turn,omitempty"`
	// Steps is nil without step statistics.
	Steps *StepSummary `json:"steps,omitempty"`
	// Notes say what of the trace is odd, or missing.
	Notes []string `json:"notes,omitempty"`
}

// Level is the requests that came when so many requests, from From to To, were in flight, themselves included.
type Level struct {
	From         uint64       `json:"from"`
	To           uint64       `json:"to"`
	Requests     int          `json:"requests"`
	PromptTokens Counts       `json:"prompt_tokens"`
	OutputTokens Counts       `json:"output_tokens"`
	TTFT         Distribution `json:"ttft"`
	ITL          Distribution `json:"itl"`
	TPOT         Distribution `json:"tpot"`
	E2E          Distribution `json:"e2e"`
}

func (l *Level) name() string {
	if l.From == l.To {
		return strconv.FormatUint(l.From, 10)
	}
	return fmt.Sprintf("%d-%d", l.From, l.To)
}

// TurnCache is what the prefix cache held of the prompts of the same turn of all conversations.
type TurnCache struct {
	// Turn counts from 1. The last one has all later turns too if AndLater is set.
	Turn         int          `json:"turn"`
	AndLater     bool         `json:"and_later,omitempty"`
	Requests     int          `json:"requests"`
	PromptTokens int          `json:"prompt_tokens"`
	CachedTokens int          `json:"cached_tokens"`
	TTFT         Distribution `json:"ttft"`
}

// Counts is how many there were of something.
type Counts struct {
	Sum  int     `json:"sum"`
	Mean float64 `json:"mean"`
	Min  int     `json:"min"`
	P50  int     `json:"p50"`
	P90  int     `json:"p90"`
	Max  int     `json:"max"`
}

const (
	exactLevels = 64 // in flight, that have a level of their own while the trace is read
	maxLevels   = 12 // in a summary; more are put together
	maxTurns    = 12 // in a summary, the last one with all later ones
)

// summarizer takes a trace record by record, and keeps no record.
type summarizer struct {
	s          Summary
	inFlight   sketch
	cached     int
	levels     map[uint64]*levelSketch // by their upper end
	turns      Turns[int32]
	byTurn     []turnSketch
	first      float64
	last       float64
	arrivals   int
	meanOnly   int                       // records that have a mean of their gaps alone
	negative   int                       // records with a negative time
	negativeAt int                       // the line of the first of them
	clocks     map[trace.EngineClock]int // records by whose clock their times are by
}

type levelSketch struct {
	from, to                             uint64
	requests                             int
	prompt, output, ttft, itl, tpot, e2e sketch
}

type turnSketch struct {
	requests, prompt, cached int
	ttft                     sketch
}

// Summarize summarizes a trace in memory.
func Summarize(t *trace.Trace) Summary {
	c := newSummarizer(t.Name, t.Meta)
	for i := range t.Records {
		c.add(&t.Records[i])
	}
	return *c.finish()
}

// SummarizeReader summarizes a trace that it reads once: memory does not grow with the number of records.
func SummarizeReader(r *trace.Reader) (*Summary, error) {
	c := newSummarizer(r.Name(), r.Meta())
	var rec trace.Record
	for {
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		c.add(&rec)
	}
	if c.s.Records == 0 {
		return nil, fmt.Errorf("%s: the trace has no records, so there is nothing to summarize", r.Name())
	}
	return c.finish(), nil
}

func newSummarizer(name string, meta trace.Meta) *summarizer {
	return &summarizer{
		s: Summary{
			Name: name, Model: trace.Or(meta.Model, ""), GPU: trace.Or(meta.GPU, ""), Version: trace.Or(meta.VLLMVersion, ""),
			Config: trace.Or(meta.EngineConfig, ""), Finish: map[string]int{},
		},
		levels: map[uint64]*levelSketch{}, clocks: map[trace.EngineClock]int{},
	}
}

// add counts a request. It returns which turn of its conversation it is, from 1, or 0 where that is not known.
func (c *summarizer) add(r *trace.Record) (turn int32) {
	s := &c.s
	s.Records++
	c.inFlight.add(float64(min(r.Concurrency, 1<<31)))
	c.cached += r.CachedTokens
	if r.FinishReason != trace.FinishAbsent {
		s.Finish[r.FinishReason.String()]++
	}
	level := c.level(r.Concurrency)
	level.requests++
	level.prompt.add(float64(r.PromptTokens))
	level.output.add(float64(r.OutputTokens))
	if r.EngineClock != "" {
		c.clocks[r.EngineClock]++
	}
	whole, isNegative := r.EndMs(0), r.TTFTMs < 0
	for _, ms := range r.ITLMs {
		isNegative = isNegative || ms < 0
		if r.OutputTokens > 0 {
			level.itl.add(ms)
		}
	}
	if r.ITLMs == nil && r.ITLSummary != nil {
		c.meanOnly++
	}
	if isNegative {
		if c.negative++; c.negative == 1 {
			c.negativeAt = r.Line
		}
	}
	if r.OutputTokens == 0 {
		s.Silent++
	} else {
		level.ttft.add(r.TTFTMs)
		level.e2e.add(whole)
	}
	if r.OutputTokens > 1 {
		level.tpot.add((whole - r.TTFTMs) / float64(r.OutputTokens-1))
	}
	if r.ArrivalMs == nil {
		return 0
	}
	if c.arrivals == 0 || *r.ArrivalMs < c.first {
		c.first = *r.ArrivalMs
	}
	c.last = max(c.last, *r.ArrivalMs+whole)
	c.arrivals++
	return c.turn(r, *r.ArrivalMs+whole)
}

// turn counts a request for its place in its conversation, which it returns.
func (c *summarizer) turn(r *trace.Record, end float64) int32 {
	depth := int32(1)
	if parent, ok := c.turns.Parent(r); ok {
		depth = parent + 1
	}
	c.turns.Add(r, end, depth)
	at := min(int(depth), maxTurns) - 1
	for len(c.byTurn) <= at {
		c.byTurn = append(c.byTurn, turnSketch{})
	}
	t := &c.byTurn[at]
	t.requests, t.prompt, t.cached = t.requests+1, t.prompt+r.PromptTokens, t.cached+r.CachedTokens
	if r.OutputTokens > 0 {
		t.ttft.add(r.TTFTMs)
	}
	return depth
}

// level is where a request belongs that came as one of so many in flight.
func (c *summarizer) level(inFlight uint64) *levelSketch {
	from, to := inFlight, inFlight
	if inFlight > exactLevels {
		from, to = doubling(inFlight)
	}
	l := c.levels[to]
	if l == nil {
		l = &levelSketch{from: from, to: to}
		c.levels[to] = l
	}
	return l
}

// doubling is the range that a number is in: 1, 2, 3 to 4, 5 to 8, 9 to 16 and so on.
func doubling(n uint64) (from, to uint64) {
	if n <= 2 {
		return n, n
	}
	top := bits.Len64(n - 1)
	if top == 64 {
		return 1<<63 + 1, 1<<64 - 1
	}
	return 1<<(top-1) + 1, 1 << top
}

func (c *summarizer) finish() *Summary {
	s := &c.s
	var all levelSketch
	for _, l := range c.order() {
		all.add(l)
		s.Levels = append(s.Levels, Level{
			l.from, l.to, l.requests, l.prompt.whole(), l.output.whole(), l.ttft.distribution(), l.itl.distribution(),
			l.tpot.distribution(), l.e2e.distribution(),
		})
	}
	s.PromptTokens, s.OutputTokens, s.Concurrency = all.prompt.whole(), all.output.whole(), c.inFlight.whole()
	s.TTFT, s.ITL, s.TPOT, s.E2E = all.ttft.distribution(), all.itl.distribution(), all.tpot.distribution(), all.e2e.distribution()
	if s.PromptTokens.Sum > 0 {
		s.Cached = float64(c.cached) / float64(s.PromptTokens.Sum)
	}
	if c.arrivals > 0 {
		turns := c.arrivals - c.byTurn[0].requests
		s.Turns = &turns
	}
	if c.arrivals > 0 && c.arrivals == s.Records {
		seconds := (c.last - c.first) / 1000
		s.Seconds = &seconds
	}
	if len(c.byTurn) > 1 {
		for i := range c.byTurn {
			t := &c.byTurn[i]
			s.CacheByTurn = append(s.CacheByTurn, TurnCache{i + 1, i+1 == maxTurns, t.requests, t.prompt, t.cached, t.ttft.distribution()})
		}
	}
	s.Notes = c.notes(all.itl.many != nil)
	return s
}

// order are the levels, the least first. If they are too many to read, each has a range of numbers that ends at twice
// the last one.
func (c *summarizer) order() []*levelSketch {
	levels := c.levels
	if len(levels) > maxLevels {
		levels = map[uint64]*levelSketch{}
		for _, key := range slices.Sorted(maps.Keys(c.levels)) {
			from, to := doubling(key)
			if levels[to] == nil {
				levels[to] = &levelSketch{from: from, to: to}
			}
			levels[to].add(c.levels[key])
		}
	}
	var all []*levelSketch
	for _, key := range slices.Sorted(maps.Keys(levels)) {
		all = append(all, levels[key])
	}
	return all
}

func (l *levelSketch) add(o *levelSketch) {
	l.requests += o.requests
	for _, pair := range [][2]*sketch{
		{&l.prompt, &o.prompt}, {&l.output, &o.output}, {&l.ttft, &o.ttft}, {&l.itl, &o.itl}, {&l.tpot, &o.tpot}, {&l.e2e, &o.e2e},
	} {
		pair[0].merge(pair[1])
	}
}

func (c *summarizer) notes(isRounded bool) []string {
	var notes []string
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if c.negative > 0 {
		where := ""
		if c.negativeAt > 0 {
			where = fmt.Sprintf(", the first in line %d", c.negativeAt)
		}
		add("%d of %d records have a negative time%s: the clock of the recorder was set back, or the trace was edited", c.negative, c.s.Records, where)
	}
	for _, clock := range slices.Sorted(maps.Keys(c.clocks)) {
		if clock == trace.ClockUsed || clock == trace.ClockUnproven && c.clocks[trace.ClockUsed] > 0 { // every recording begins so
			continue
		}
		add("%d of %d records have times by when the recorder received the messages, which are late on a busy machine: the timestamps of the engine are not used (engine_clock is %q)",
			c.clocks[clock], c.s.Records, clock)
	}
	switch missing := c.s.Records - c.arrivals; {
	case missing == 0:
	case c.arrivals == 0:
		add("no record has arrival_ms, so the duration and the turns of conversations are unknown")
	default:
		add("%d of %d records have no arrival_ms, so the duration is unknown, and these records are in no turn", missing, c.s.Records)
	}
	if c.meanOnly > 0 {
		add("%d of %d records have only the mean of their gaps (itl_summary): they are in TPOT and E2E, and not in ITL", c.meanOnly, c.s.Records)
	}
	if isRounded {
		add("p50, p90 and p99 of more than %d values are rounded to 0.1 %%", fewValues)
	}
	return notes
}

// Turns finds the request whose conversation another one goes on with: the latest earlier request that had ended, and
// whose prompt's blocks another prompt begins with. The zero value knows of none.
type Turns[T any] struct{ ended map[uint64]turnEnd[T] }

// turnEnd is the last request that had a prompt: when it ended, how many blocks it has, and what the caller wants to know of it.
type turnEnd[T any] struct {
	end    float64
	blocks int32
	of     T
}

// Parent is what the caller wanted to know of the request that r goes on from. r must have an arrival.
func (x *Turns[T]) Parent(r *trace.Record) (of T, ok bool) {
	for k := len(r.BlockHashes) - 1; k > 0; k-- {
		if e, ok := x.ended[r.BlockHashes[k-1]]; ok && int(e.blocks) == k && e.end <= *r.ArrivalMs {
			return e.of, true
		}
	}
	return of, false
}

// Add adds a request that ended then.
func (x *Turns[T]) Add(r *trace.Record, end float64, of T) {
	if n := len(r.BlockHashes); n > 0 {
		if x.ended == nil {
			x.ended = map[uint64]turnEnd[T]{}
		}
		x.ended[r.BlockHashes[n-1]] = turnEnd[T]{end, int32(n), of}
	}
}

// Summaries are the summaries of several traces, side by side.
type Summaries []*Summary

// JSON writes the summary of one trace as an object, and those of several as an object with an array.
func (all Summaries) JSON(w io.Writer, schema string) error {
	if len(all) == 1 {
		return jsonout.Write(w, struct {
			Schema string `json:"schema"`
			*Summary
		}{schema, all[0]})
	}
	return jsonout.Write(w, struct {
		Schema string    `json:"schema"`
		Traces Summaries `json:"traces"`
	}{schema, all})
}

// Text writes the summaries for people.
func (all Summaries) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i, s := range all {
		if i > 0 {
			fmt.Fprintf(out, "\n")
		}
		for _, line := range s.facts() {
			fmt.Fprintf(out, "%-10s %s\n", line[0], safetext.Line(line[1]))
		}
	}
	for _, t := range all.tables() {
		fmt.Fprintf(out, "\n")
		t.text(out)
	}
	return out.Flush()
}

// Markdown writes the summaries for a renderer of Markdown, such as that of a job summary.
func (all Summaries) Markdown(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, s := range all {
		for _, line := range s.facts() {
			fmt.Fprintf(out, "- %s: %s\n", line[0], safetext.Markdown(line[1]))
		}
		fmt.Fprintf(out, "\n")
	}
	for i, t := range all.tables() {
		if i > 0 {
			fmt.Fprintf(out, "\n")
		}
		t.markdown(out)
	}
	return out.Flush()
}

// facts are what is not in the tables of a summary, each with its name.
func (s *Summary) facts() [][2]string {
	requests := strconv.Itoa(s.Records)
	if s.Turns != nil {
		requests += fmt.Sprintf(", %d of them turns that wait for an answer", *s.Turns)
	}
	if s.Silent > 0 {
		requests += fmt.Sprintf(", %d without an output", s.Silent)
	}
	if s.Seconds != nil {
		requests += fmt.Sprintf(", in %.1f s", *s.Seconds)
	}
	var ends []string
	for _, reason := range slices.Sorted(maps.Keys(s.Finish)) {
		ends = append(ends, fmt.Sprintf("%d %s", s.Finish[reason], reason))
	}
	facts := [][2]string{
		{"trace", s.Name},
		{"model", s.Model},
		{"GPU", s.GPU},
		{"vLLM", s.Version},
		{"engine", s.Config},
		{"requests", requests},
		{"finished", strings.Join(ends, ", ")},
		{"tokens", fmt.Sprintf("%d prompt, %.1f %% of them cached; %d output", s.PromptTokens.Sum, 100*s.Cached, s.OutputTokens.Sum)},
	}
	if s.Steps != nil {
		facts = append(facts, s.Steps.facts()...)
	}
	for _, note := range s.Notes {
		facts = append(facts, [2]string{"note", note})
	}
	return slices.DeleteFunc(facts, func(fact [2]string) bool { return fact[1] == "" })
}

func (all Summaries) tables() []*table {
	tables := []*table{all.figures(), all.levels()}
	if turns := all.turns(); len(turns.rows) > 0 {
		tables = append(tables, turns)
	}
	return tables
}

// forTrace is a table whose rows begin with the trace if there are several.
func (all Summaries) forTrace(t *table, rows func(s *Summary, add func(cells ...string))) *table {
	for _, s := range all {
		rows(s, func(cells ...string) {
			if len(all) > 1 {
				cells = slices.Insert(cells, t.left, s.Name)
			}
			t.rows = append(t.rows, cells)
		})
	}
	// Rows of the same name follow each other, in the order of the first trace that has them.
	place := map[string]int{}
	for _, row := range t.rows {
		if _, ok := place[row[0]]; !ok {
			place[row[0]] = len(place)
		}
	}
	slices.SortStableFunc(t.rows, func(a, b []string) int { return cmp.Compare(place[a[0]], place[b[0]]) })
	if len(all) > 1 {
		t.head = slices.Insert(t.head, t.left, "trace")
		t.left++
	}
	return t
}

func (all Summaries) figures() *table {
	t := &table{left: 1, head: []string{"", "mean", "min", "p50", "p90", "p99", "max"}}
	return all.forTrace(t, func(s *Summary, add func(...string)) {
		for _, row := range []struct {
			name string
			of   Counts
		}{{"prompt tokens", s.PromptTokens}, {"output tokens", s.OutputTokens}, {"concurrency", s.Concurrency}} {
			add(row.name, fmt.Sprintf("%.1f", row.of.Mean), strconv.Itoa(row.of.Min), strconv.Itoa(row.of.P50), strconv.Itoa(row.of.P90), "",
				strconv.Itoa(row.of.Max))
		}
		for _, row := range []struct {
			name string
			of   Distribution
		}{{"TTFT ms", s.TTFT}, {"ITL ms", s.ITL}, {"TPOT ms", s.TPOT}, {"E2E ms", s.E2E}} {
			if row.of.Count > 0 {
				two := func(ms float64) string { return fmt.Sprintf("%.2f", ms) }
				add(row.name, two(row.of.Mean), "", two(row.of.P50), two(row.of.P90), two(row.of.P99), "")
			}
		}
	})
}

func (all Summaries) levels() *table {
	t := &table{
		title: "by concurrency (requests in flight when a request came, itself included), times in ms as p50 / p90 / p99", left: 1,
		head: []string{"concurrency", "requests", "prompt tokens", "output tokens", "TTFT", "ITL", "TPOT", "E2E"},
	}
	t = all.forTrace(t, func(s *Summary, add func(...string)) {
		for i := range s.Levels {
			l := &s.Levels[i]
			add(l.name(), strconv.Itoa(l.Requests), rangeText(l.PromptTokens), rangeText(l.OutputTokens), quantilesText(l.TTFT),
				quantilesText(l.ITL), quantilesText(l.TPOT), quantilesText(l.E2E))
		}
	})
	slices.SortStableFunc(t.rows, func(a, b []string) int { return cmp.Compare(levelNumber(a[0]), levelNumber(b[0])) })
	return t
}

// rangeText is the least and the largest of whole numbers.
func rangeText(c Counts) string {
	if c.Min == c.Max {
		return fmt.Sprint(c.Min)
	}
	return fmt.Sprintf("%d-%d", c.Min, c.Max)
}

// levelNumber is the number that a level begins with.
func levelNumber(name string) uint64 {
	from, _, _ := strings.Cut(name, "-")
	n, _ := strconv.ParseUint(from, 10, 64) // it is the name of a level
	return n
}

func (all Summaries) turns() *table {
	t := &table{
		title: "by turn of a conversation", left: 1,
		head: []string{"turn", "requests", "prompt tokens", "cached", "TTFT ms p50 / p90 / p99"},
	}
	return all.forTrace(t, func(s *Summary, add func(...string)) {
		for _, turn := range s.CacheByTurn {
			name := strconv.Itoa(turn.Turn)
			if turn.AndLater {
				name += " and later"
			}
			add(name, strconv.Itoa(turn.Requests), strconv.Itoa(turn.PromptTokens),
				fmt.Sprintf("%.1f %%", 100*float64(turn.CachedTokens)/float64(max(turn.PromptTokens, 1))), quantilesText(turn.TTFT))
		}
	})
}

// CSV writes a row for all requests of each trace, and one for each of its levels. What is not known is empty.
func (all Summaries) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	head := []string{
		"trace", "concurrency", "requests", "prompt_tokens_min", "prompt_tokens_p50", "prompt_tokens_max", "output_tokens_min", "output_tokens_p50",
		"output_tokens_max",
	}
	for _, kind := range []string{"ttft", "itl", "tpot", "e2e"} {
		for _, figure := range []string{"count", "mean_ms", "p50_ms", "p90_ms", "p99_ms"} {
			head = append(head, kind+"_"+figure)
		}
	}
	rows := [][]string{head}
	for _, s := range all {
		whole := Level{Requests: s.Records, PromptTokens: s.PromptTokens, OutputTokens: s.OutputTokens, TTFT: s.TTFT, ITL: s.ITL, TPOT: s.TPOT, E2E: s.E2E}
		rows = append(rows, whole.cells(s.Name, "all"))
		for i := range s.Levels {
			rows = append(rows, s.Levels[i].cells(s.Name, s.Levels[i].name()))
		}
	}
	return out.WriteAll(rows)
}

func (l *Level) cells(name, level string) []string {
	cells := []string{safetext.Line(name), level, strconv.Itoa(l.Requests)}
	for _, c := range []Counts{l.PromptTokens, l.OutputTokens} {
		cells = append(cells, strconv.Itoa(c.Min), strconv.Itoa(c.P50), strconv.Itoa(c.Max))
	}
	for _, d := range []Distribution{l.TTFT, l.ITL, l.TPOT, l.E2E} {
		cells = append(cells, strconv.Itoa(d.Count))
		for _, ms := range []float64{d.Mean, d.P50, d.P90, d.P99} {
			if d.Count == 0 {
				cells = append(cells, "")
			} else {
				cells = append(cells, strconv.FormatFloat(ms, 'f', 3, 64))
			}
		}
	}
	return cells
}
