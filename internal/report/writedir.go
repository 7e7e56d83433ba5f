package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// Formats are all of them.
func Formats() []Format {
	return []Format{FormatJSON, FormatJUnit, FormatSARIF, FormatMarkdown, FormatHTML, FormatBadges}
}

// FileName is what WriteDir names the file of a format; the badges have a directory of
// that name, with a file for each line.
func (f Format) FileName() string {
	switch f {
	case FormatJSON:
		return "report.json"
	case FormatJUnit:
		return "junit.xml"
	case FormatSARIF:
		return "report.sarif"
	case FormatMarkdown:
		return "summary.md"
	case FormatHTML:
		return "report.html"
	}
	return string(f)
}

// file is one file of a report.
type file struct {
	name  string
	write func(io.Writer) error
}

// filesOf are the files of a format.
func filesOf(d *Document, f Format) ([]file, error) {
	name := f.FileName()
	switch f {
	case FormatJSON:
		return []file{{name, func(w io.Writer) error { return JSON(w, d) }}}, nil
	case FormatJUnit:
		return []file{{name, func(w io.Writer) error { return JUnit(w, d) }}}, nil
	case FormatSARIF:
		return []file{{name, func(w io.Writer) error { return SARIF(w, d) }}}, nil
	case FormatMarkdown:
		return []file{{name, func(w io.Writer) error { return Markdown(w, d, MarkdownLimit) }}}, nil
	case FormatHTML:
		return []file{{name, func(w io.Writer) error { return HTML(w, d) }}}, nil
	case FormatBadges:
		var files []file
		for _, l := range d.Lines {
			files = append(files, file{filepath.Join(name, fileName(l.Line)+".json"), BadgeOf(l).write})
		}
		return files, nil
	}
	return nil, fmt.Errorf("unknown report format %q: want one of %v", f, Formats())
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

// WriteDir writes the files of formats into a directory, which it makes if need
// be. Every file appears at once, whole; what cannot be written does not keep the
// others from it. The error names each file that is missing.
func WriteDir(dir string, d *Document, formats []Format) error {
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
		path := filepath.Join(dir, f.name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		} else {
			err = WriteFile(path, f.write)
		}
		if err != nil {
			failed = append(failed, err)
			if len(failed) == 1 && errors.Is(err, os.ErrPermission) {
				break // the others would say the same
			}
		}
	}
	return errors.Join(failed...)
}
