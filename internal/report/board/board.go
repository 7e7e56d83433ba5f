// Package board writes a static site of the results of many subjects: which vLLM lines, and which levels of the wire, each of them
// conforms to, since when, and how to repeat it. Its input are the reports of conform as JSON.
package board

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/report"
)

// Schema is that of board.json.
const Schema = "vllm-vcr/board/1"

// A Board has a row for each subject and vLLM line.
type Board struct {
	Schema  string        `json:"schema"`
	Levels  []check.Level `json:"levels"` // the columns
	Rows    []Row         `json:"rows"`
	Changes []Change      `json:"changes"` // the newest first

	reports map[string]*report.Document // by the file of the site
}

// A Row is what a subject's newest report of a line says.
type Row struct {
	Subject string         `json:"subject"`
	Line    string         `json:"line"`
	Verdict string         `json:"verdict"` // of the line
	Started time.Time      `json:"started"` // of the run
	Origin  *report.Origin `json:"origin,omitempty"`
	Report  string         `json:"report"` // file of the site
	Badge   string         `json:"badge"`  // file of the site
	Cells   []Cell         `json:"cells"`

	line report.Line
}

// A Cell is a level of a row. Code, Consequence and Message are of its worst failure.
type Cell struct {
	check.LevelSummary
	Since time.Time `json:"since"` // the first of the reports that have had this verdict since
}

// A Change is a verdict that differs from that of the report before.
type Change struct {
	At      time.Time          `json:"at"`
	Subject string             `json:"subject"`
	Line    string             `json:"line"`
	Level   check.Level        `json:"level"`
	Before  check.LevelVerdict `json:"before"`
	After   check.LevelVerdict `json:"after"`
	Message string             `json:"message,omitempty"`
}

// String is the change as a sentence.
func (c Change) String() string {
	text := fmt.Sprintf("%s, vLLM %s, %s: %s, before %s", c.Subject, c.Line, c.Level, c.After, c.Before)
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text
}

// result is the report of a subject.
type result struct {
	subject string
	*report.Document
}

func (r result) started() time.Time {
	if len(r.Runs) == 0 {
		return time.Time{}
	}
	return r.Runs[len(r.Runs)-1].Started
}

// Read makes a board of reports: files, or folders that are searched for *.json. The subject of a report is the name of the folder
// below the one that was given, or of the file if there is none. A file that is not a report is an error.
func Read(paths []string) (*Board, error) {
	var results []result
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path != root && filepath.Ext(path) != ".json" {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			doc, err := readHTTP(file)
			if err == nil && doc == nil {
				doc, err = report.Read(path, file)
			}
			if err != nil {
				return err
			}
			below, _ := filepath.Rel(root, path)
			subject, _, nested := strings.Cut(filepath.ToSlash(below), "/")
			if !nested {
				subject = strings.TrimSuffix(filepath.Base(path), ".json")
			}
			results = append(results, result{subject, doc})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("%s: no report: conform --report-json FILE writes one", strings.Join(paths, ", "))
	}
	slices.SortStableFunc(results, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.subject, b.subject), a.started().Compare(b.started()))
	})
	b := &Board{Schema: Schema, reports: map[string]*report.Document{}, Changes: []Change{}}
	for _, r := range results {
		for _, l := range r.Lines {
			b.add(r, l)
		}
	}
	for _, level := range check.Levels() {
		if slices.ContainsFunc(b.Rows, func(r Row) bool {
			return slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Level == level && c.Verdict != check.LevelNotJudged })
		}) {
			b.Levels = append(b.Levels, level)
		}
	}
	slices.SortStableFunc(b.Changes, func(x, y Change) int { return y.At.Compare(x.At) })
	return b, nil
}

// httpLine is in the place of a line in a row of what conform http has compared.
const httpLine = "HTTP"

// readHTTP reads what conform http --json has written, as a report with one verdict. It returns nil for another file, which it has not read.
func readHTTP(file *os.File) (*report.Document, error) {
	var got struct {
		Schema   string `json:"schema"`
		Requests []any  `json:"requests"`
		Same     int    `json:"same"`
		Known    int    `json:"known"`
		ExitCode int    `json:"exit_code"`
	}
	err := json.NewDecoder(file).Decode(&got)
	if _, back := file.Seek(0, io.SeekStart); back != nil {
		return nil, back
	}
	info, statErr := file.Stat()
	if err != nil || statErr != nil || got.Schema != httpSchema {
		return nil, statErr // report.Read says what is wrong
	}
	verdict, level := check.Pass, check.LevelPass
	if got.ExitCode != 0 {
		verdict, level = check.Fail, check.LevelFail
	}
	text := fmt.Sprintf("%d of %d requests are answered as by the reference, %d as is known", got.Same, len(got.Requests), got.Known)
	counts := report.Counts{check.Pass: got.Same + got.Known, check.Fail: max(len(got.Requests)-got.Same-got.Known, 0)}
	return &report.Document{
		Counts: counts,
		Schema: report.SchemaVersion, Verdict: verdict, Reason: text, ExitCode: got.ExitCode, Runs: []report.Run{{Started: info.ModTime().UTC()}},
		Lines:  []report.Line{{Line: httpLine, Gating: true, Verdict: verdict, Counts: counts, Asserted: len(got.Requests)}},
		Levels: []check.LevelSummary{{Line: httpLine, Level: check.LevelCore, Verdict: level, Message: text}},
	}, nil
}

const httpSchema = "vllm-vcr/conform-http/1"

// add adds a line of a report that is newer than those before it of its subject.
func (b *Board) add(r result, l report.Line) {
	name := fileName(r.subject + "-" + l.Line)
	row := Row{
		Subject: r.subject, Line: l.Line, Verdict: string(l.Verdict), Started: r.started(), Report: "reports/" + name + ".html", Badge: "badges/" + name + ".json",
		line: l,
	}
	if n := len(r.Runs); n > 0 {
		row.Origin = r.Runs[n-1].Origin
	}
	for _, level := range r.Levels {
		if level.Line == l.Line {
			row.Cells = append(row.Cells, Cell{level, row.Started})
		}
	}
	b.reports[row.Report] = r.Document
	at := slices.IndexFunc(b.Rows, func(known Row) bool { return known.Subject == row.Subject && known.Line == row.Line })
	if at < 0 {
		b.Rows = append(b.Rows, row)
		return
	}
	for i := range row.Cells {
		c := &row.Cells[i]
		before := b.Rows[at].cell(c.Level)
		switch {
		case c.Verdict == before.Verdict:
			c.Since = before.Since
		case c.Verdict == check.LevelNotJudged && before.Verdict != "": // another suite: what was known stays
			*c = before
		case before.Verdict != "" && before.Verdict != check.LevelNotJudged:
			b.Changes = append(b.Changes, Change{row.Started, row.Subject, row.Line, c.Level, before.Verdict, c.Verdict, c.Message})
		}
	}
	b.Rows[at] = row
}

func (r Row) cell(l check.Level) Cell {
	for _, c := range r.Cells {
		if c.Level == l {
			return c
		}
	}
	return Cell{}
}

// Columns are the cells of the row in the order of the levels of a board.
func (r Row) Columns(levels []check.Level) (cells []Cell) {
	for _, l := range levels {
		cells = append(cells, r.cell(l))
	}
	return cells
}

// fileName keeps what is safe in a name of a file.
func fileName(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c) {
			return c
		}
		return '-'
	}, strings.TrimLeft(s, "."))
}

//go:embed page
var pages embed.FS

var page = report.NewPageTemplate(pages, nil, "page/*.html")

// Write writes the site into a folder: index.html, board.json, feed.xml (RSS of the changes), a report for each row, and a badge
// for shields.io. home is the address that the site will have, for the links of the feed.
func (b *Board) Write(dir, home string) error {
	files := map[string][]byte{}
	render := func(name string, write func(*bytes.Buffer) error) error {
		var text bytes.Buffer
		err := write(&text)
		files[name] = text.Bytes()
		return err
	}
	errs := []error{
		render("index.html", func(w *bytes.Buffer) error { return page.Write(w, b) }),
		render("board.json", func(w *bytes.Buffer) error { return jsonout.Write(w, b) }),
		render("feed.xml", func(w *bytes.Buffer) error { return b.feed(w, home) }),
	}
	for _, r := range b.Rows {
		errs = append(errs,
			render(r.Report, func(w *bytes.Buffer) error { return report.HTML(w, b.reports[r.Report]) }),
			render(r.Badge, func(w *bytes.Buffer) error { return jsonout.Write(w, report.BadgeOf(r.line)) }))
	}
	for _, folder := range []string{"reports", "badges"} {
		errs = append(errs, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for name, text := range files {
		if err := atomicfile.Write(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// feed writes the changes as RSS 2.0.
func (b *Board) feed(w *bytes.Buffer, home string) error {
	type guid struct {
		Permanent bool   `xml:"isPermaLink,attr"`
		Text      string `xml:",chardata"`
	}
	type item struct {
		Title   string `xml:"title"`
		Link    string `xml:"link"`
		GUID    guid   `xml:"guid"`
		PubDate string `xml:"pubDate"`
	}
	type channel struct {
		Title       string `xml:"title"`
		Link        string `xml:"link"`
		Description string `xml:"description"`
		Items       []item `xml:"item"`
	}
	feed := struct {
		XMLName xml.Name `xml:"rss"`
		Version string   `xml:"version,attr"`
		Channel channel  `xml:"channel"`
	}{Version: "2.0", Channel: channel{Title: "vLLM conformance", Link: home, Description: "Verdicts that changed"}}
	for _, c := range b.Changes {
		link := strings.TrimSuffix(home, "/") + "/reports/" + fileName(c.Subject+"-"+c.Line) + ".html"
		feed.Channel.Items = append(feed.Channel.Items, item{
			c.String(), link, guid{false, fmt.Sprintf("%s-%s-%s-%d", c.Subject, c.Line, c.Level, c.At.Unix())}, c.At.UTC().Format(time.RFC1123Z),
		})
	}
	w.WriteString(xml.Header)
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	return enc.Encode(feed)
}
