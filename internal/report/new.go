package report

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Meta has what a document contains of a run in addition to its outcome.
type Meta struct {
	Tool      Tool
	Started   time.Time
	OS, Arch  string
	Arguments []string
	Inputs    []Input
	// Root is the top directory of the repository, and Dir the one that relative
	// paths of the run start from. Without Root no case has a place in the
	// repository.
	Root, Dir string
	// Matrix is the compat matrix as the run names it. Cases without an entry in
	// the manifest are placed at their line in it.
	Matrix string
	// Title returns what a finding code means in a few words, "" when it is
	// unknown. It may be nil.
	Title func(conformance.Code) string
	// Deterministic leaves out what differs between equal runs: times, durations,
	// the machine, ports, and the paths of temporary files, which TempDir and Host
	// tell from others.
	Deterministic bool
	Origin        *Origin
	AnnotateFile  string // see [Run]
	TempDir, Host string
}

// New makes the document of a run.
func New(r *conformance.Report, m Meta) *Document {
	run := Run{
		Tool: m.Tool, Started: m.Started.UTC().Truncate(time.Millisecond), DurationMs: milliseconds(r.Duration),
		OS: m.OS, Arch: m.Arch, Arguments: slices.Clone(m.Arguments), Inputs: slices.Clone(m.Inputs),
		Subject: Subject{r.Subject.Kind, r.Subject.Command, r.Subject.Versions}, Claims: slices.Clone(r.Claims), Origin: m.Origin,
		AnnotateFile: m.AnnotateFile,
	}
	d := &Document{Schema: SchemaVersion, Runs: []Run{run}, Problems: slices.Clone(r.Problems), Coverage: r.Coverage}
	for i := range r.Results {
		d.Cases = append(d.Cases, m.caseOf(&r.Results[i], r.Flags))
	}
	d.conclude(r.Summary)
	d.DurationMs = run.DurationMs
	d.title(m.Title)
	d.scrub(m)
	d.Causes = d.causes()
	d.fill()
	return d
}

// conclude takes over what the cases come to.
func (d *Document) conclude(s check.Summary) {
	d.Verdict, d.Reason, d.ExitCode, d.Tokens, d.Counts, d.Lines, d.Levels = s.Verdict, s.Reason, s.ExitCode, s.Tokens, s.Counts, s.Lines, s.Levels
}

// caseOf is a result as the document has it.
func (m Meta) caseOf(r *conformance.Result, flags []string) Case {
	g := r.Case.Golden
	c := Case{
		Name: r.Case.Name(), Line: r.Case.Line.Name, Tag: r.Case.Line.Tag, Suite: r.Case.Suite, Golden: g.ID,
		Assertion: r.Case.Assertion, Verdict: r.Verdict, Gating: r.Case.Gating, Infra: r.Infra,
		Location: r.Location, Entry: r.Case.Entry, SHA256: g.SHA256, TokensSHA256: g.TokensSHA256,
		Asserted: r.Asserted, Tokens: r.Tokens, DurationMs: milliseconds(r.Duration), Note: r.Note, Needs: r.Needs,
		Failures: slices.Clone(r.Failures), Unclaimed: r.Unclaimed, Levels: slices.Clone(conformance.LevelsOf(r.Case)),
	}
	c.File, c.FileLine = m.place(r.Case)
	if r.Case.Assertion != "" {
		c.Check, c.Repeat = r.Case.Check(), Repeat(r.Case, flags...)
	}
	if e := r.Expected; e != nil {
		c.Expected = &Expectation{Pattern: e.Pattern, Outcome: e.Outcome, Reason: e.Reason, Issue: e.Issue, Pos: e.Pos}
		if !e.Expires.IsZero() {
			c.Expected.Expires = e.Expires.Format(time.DateOnly)
		}
	}
	return c
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// title looks up what the codes of the document mean.
func (d *Document) title(look func(conformance.Code) string) {
	d.Findings = map[conformance.Code]string{}
	if look == nil {
		return
	}
	name := func(failures []conformance.Failure) {
		for _, f := range failures {
			if _, known := d.Findings[f.Code]; known {
				continue
			}
			if title := look(f.Code); title != "" {
				d.Findings[f.Code] = title
			}
		}
	}
	name(d.Problems)
	for i := range d.Cases {
		name(d.Cases[i].Failures)
	}
}

// fill makes empty what is nil, so that equal documents are written equally, and
// have every list that the schema promises.
func (d *Document) fill() {
	d.Runs, d.Problems = notNil(d.Runs), notNil(d.Problems)
	d.Lines, d.Cases, d.Levels, d.Causes = notNil(d.Lines), notNil(d.Cases), notNil(d.Levels), notNil(d.Causes)
	for i := range d.Runs {
		d.Runs[i].Arguments, d.Runs[i].Inputs = notNil(d.Runs[i].Arguments), notNil(d.Runs[i].Inputs)
		if len(d.Runs[i].Subject.Versions) == 0 {
			d.Runs[i].Subject.Versions = nil
		}
	}
	for i := range d.Cases {
		if len(d.Cases[i].Failures) == 0 {
			d.Cases[i].Failures = nil
		}
	}
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Embedded begins the name of a file that is in the binary.
const Embedded = "(embedded) "

// place is where a case is written down, below the root of the repository: its
// golden in the manifest, else its line in the compat matrix. A file of the
// binary, or of another tree, has no place.
func (m Meta) place(c conformance.Case) (file string, line int) {
	file, line = splitPlace(c.Entry)
	if file == "" {
		file, line = m.Matrix, c.Line.Pos
	}
	if file == "" || m.Root == "" || strings.HasPrefix(file, Embedded) {
		return "", 0
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(m.Dir, file)
	}
	below, err := filepath.Rel(m.Root, file)
	if err != nil || !filepath.IsLocal(below) {
		return "", 0
	}
	return filepath.ToSlash(below), line
}

// splitPlace takes "manifest.toml:14" apart.
func splitPlace(entry string) (file string, line int) {
	at := strings.LastIndexByte(entry, ':')
	if at < 0 {
		return entry, 0
	}
	line, err := strconv.Atoi(entry[at+1:])
	if err != nil || line < 0 {
		return entry, 0
	}
	return entry[:at], line
}

// Repeat is the command that runs a case alone, ready for a shell. flags are
// those of [conformance.Report.Flags].
func Repeat(c conformance.Case, flags ...string) string {
	args := append([]string{"vllm-vcr", "conform"}, flags...)
	if c.Suite == conformance.SuiteSelfTest {
		args = append(args, "--self-test")
	}
	if c.Variant.ThroughFrontend() {
		args = append(args, "--frontend", c.Line.Name+"="+c.Variant.Frontend.Binary, "--model", c.Variant.Frontend.ModelDir)
	}
	if n := c.Variant.Concurrency; c.Assertion == conformance.Fidelity && n != 16 && (n != 1 || c.Variant.ThroughFrontend()) {
		args = append(args, "--concurrency", strconv.Itoa(n)) // which no plan has unless it is asked for
	}
	args = append(args, "--run", c.Name())
	for i, arg := range args {
		args[i] = quote(arg)
	}
	return strings.Join(args, " ")
}

// quote protects an argument from the shell where that is needed.
func quote(arg string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if arg != "" && strings.TrimFunc(arg, plain) == "" {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// userinfo is the part of an URL that may hold a password.
var userinfo = lazyregexp.New(`://[^/@\s'"]+@`)

// port is the address of a listener of this machine.
var port = lazyregexp.New(`\b(127\.0\.0\.1|localhost|\[::1\]):\d+`)

// scrub takes passwords out of every text, and what JSON cannot hold; and, of a
// deterministic document, whatever differs between equal runs.
func (d *Document) scrub(m Meta) {
	clean := m.cleaner()
	d.Reason = clean(d.Reason)
	scrubFailures(d.Problems, clean)
	for i := range d.Levels {
		d.Levels[i].Message = clean(d.Levels[i].Message)
	}
	for i := range d.Runs {
		d.Runs[i].scrub(clean)
		if m.Deterministic {
			d.Runs[i].Started, d.Runs[i].DurationMs, d.Runs[i].OS, d.Runs[i].Arch = time.Time{}, 0, "", ""
		}
	}
	if m.Deterministic {
		d.DurationMs = 0
	}
	for i := range d.Cases {
		d.Cases[i].scrub(clean)
		if m.Deterministic {
			d.Cases[i].DurationMs = 0
		}
	}
}

func (r *Run) scrub(clean func(string) string) {
	for i := range r.Arguments {
		r.Arguments[i] = clean(r.Arguments[i])
	}
	for i := range r.Inputs {
		r.Inputs[i].Path = clean(r.Inputs[i].Path)
	}
	r.Subject.Command = clean(r.Subject.Command)
	versions := map[string]string{}
	for line, version := range r.Subject.Versions {
		versions[line] = clean(version)
	}
	r.Subject.Versions = versions
}

func (c *Case) scrub(clean func(string) string) {
	for _, text := range []*string{&c.Location, &c.Entry, &c.Note, &c.Repeat} {
		*text = clean(*text)
	}
	scrubFailures(c.Failures, clean)
	if c.Expected != nil {
		c.Expected.Pos = clean(c.Expected.Pos)
	}
}

func scrubFailures(failures []conformance.Failure, clean func(string) string) {
	for i := range failures {
		f := &failures[i]
		f.Message, f.Expected, f.Actual = clean(f.Message), clean(f.Expected), clean(f.Actual)
	}
}

// cleaner returns what makes a text fit for the document. The name that a run
// gives its temporary directory goes with it.
func (m Meta) cleaner() func(string) string {
	secrets := func(text string) string {
		text = strings.ToValidUTF8(text, "\uFFFD") // as JSON has it
		if !strings.Contains(text, "://") {
			return text
		}
		return userinfo().ReplaceAllString(text, "://***@")
	}
	if !m.Deterministic {
		return secrets
	}
	var temporary, host *regexp.Regexp
	if m.TempDir != "" {
		dir := regexp.QuoteMeta(strings.TrimRight(filepath.ToSlash(m.TempDir), "/"))
		temporary = regexp.MustCompile(dir + `\b(/[^/\s'":,]+)?`)
	}
	if m.Host != "" {
		host = regexp.MustCompile(`\b` + regexp.QuoteMeta(m.Host) + `\b`)
	}
	return func(text string) string {
		text = port().ReplaceAllString(secrets(text), "$1:*")
		if temporary != nil {
			text = temporary.ReplaceAllLiteralString(text, "$TMPDIR")
		}
		if host != nil {
			text = host.ReplaceAllLiteralString(text, "HOST")
		}
		return text
	}
}
