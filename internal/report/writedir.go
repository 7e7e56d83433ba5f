package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Format names a kind of report file.
type Format string

// Formats.
const (
	FormatJSON     Format = "json"
	FormatJUnit    Format = "junit"
	FormatSARIF    Format = "sarif"
	FormatMarkdown Format = "markdown"
	FormatHTML     Format = "html"
	FormatBadges   Format = "badges"
)

// formats are all of them, with what [Dir.Write] names the file of each. The badges have a directory of that name, with a file
// for each line.
var formats = []struct {
	format Format
	name   string
	write  func(io.Writer, *Document) error // nil for the badges
}{
	{FormatJSON, "report.json", JSON},
	{FormatJUnit, "junit.xml", JUnit},
	{FormatSARIF, "report.sarif", SARIF},
	{FormatMarkdown, "summary.md", func(w io.Writer, d *Document) error { return Markdown(w, d, MarkdownLimit) }},
	{FormatHTML, "report.html", HTML},
	{FormatBadges, "badges", nil},
}

// Formats are all of them.
func Formats() []Format {
	var all []Format
	for _, f := range formats {
		all = append(all, f.format)
	}
	return all
}

// FileName is what [Dir.Write] names the file of a format, or the directory of the badges.
func (f Format) FileName() string { return formats[slices.Index(Formats(), f)].name }

// file is one file of a report.
type file struct {
	name  string
	write func(io.Writer) error
}

// filesOf are the files of a format.
func filesOf(d *Document, format Format) (files []file, err error) {
	at := slices.Index(Formats(), format)
	if at < 0 {
		return nil, fmt.Errorf("unknown report format %q: want one of %s", format, safetext.Words(Formats()))
	}
	f := formats[at]
	if f.write != nil {
		return []file{{f.name, func(w io.Writer) error { return f.write(w, d) }}}, nil
	}
	for _, l := range d.Lines {
		files = append(files, file{filepath.Join(f.name, fileName(l.Line)+".json"), BadgeOf(l).write})
	}
	return files, nil
}

// fileName is the name of a line as the name of a file.
func fileName(line string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || r == ':' || r < ' ' {
			return '_'
		}
		return r
	}, strings.TrimLeft(line, "."))
}

// A Dir is the directory of a report. It is opened before a subject runs and stays the
// same directory: links that a subject puts into it, or into its place, are not
// followed.
type Dir struct{ root *os.Root }

// OpenDir opens a directory, which it makes if need be. Close ends its use.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the report: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the report: %w", err)
	}
	return &Dir{root}, nil
}

// Close ends its use.
func (dir *Dir) Close() { _ = dir.root.Close() }

// WriteFile writes a file that appears at once, whole, or not at all.
func (dir *Dir) WriteFile(name string, write func(io.Writer) error) error {
	return atomicfile.WriteIn(dir.root, name, 0o644, write)
}

// Write writes the files of formats. Every file appears at once, whole; what cannot be
// written does not keep the others from it. The error names each file that is missing.
func (dir *Dir) Write(d *Document, formats []Format) error {
	var files []file
	for _, f := range slices.Compact(slices.Sorted(slices.Values(formats))) {
		more, err := filesOf(d, f)
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	var failed []error
	for _, f := range files {
		if err := dir.WriteFile(f.name, f.write); err != nil {
			failed = append(failed, err)
			if len(failed) == 1 && errors.Is(err, os.ErrPermission) {
				break // the others would say the same
			}
		}
	}
	return errors.Join(failed...)
}

// Badge is what shields.io draws a badge of, by its endpoint API.
type Badge struct {
	SchemaVersion int    `json:"schemaVersion"` // 1
	Label         string `json:"label"`
	Message       string `json:"message"`
	Color         string `json:"color"`
	IsError       bool   `json:"isError,omitempty"`
}

// BadgeOf is the badge of a line.
func BadgeOf(l Line) Badge {
	b := Badge{SchemaVersion: 1, Label: safetext.Line("vLLM " + l.Line), Message: "conforms", Color: "brightgreen"}
	failed, errors := l.Counts[conformance.Fail]+l.Counts[conformance.XPass], l.Counts[conformance.Error]
	switch {
	case failed > 0:
		b.Message, b.Color, b.IsError = fmt.Sprintf("%d failed", failed), "red", true
	case errors > 0:
		b.Message, b.Color, b.IsError = "not judged: "+safetext.Count(errors, "error"), "orange", true
	case l.Asserted == 0:
		b.Message, b.Color, b.IsError = "nothing asserted", "lightgrey", l.Gating
	case l.Counts[conformance.XFail]+l.Counts[conformance.Flaky] > 0:
		b.Message, b.Color = fmt.Sprintf("conforms, %d known", l.Counts[conformance.XFail]+l.Counts[conformance.Flaky]), "yellowgreen"
	}
	if !l.Gating {
		b.Message += ", not gating"
		if b.IsError {
			b.Color, b.IsError = "yellow", false
		}
	}
	return b
}

func (b Badge) write(w io.Writer) error { return jsonout.Write(w, b) }
