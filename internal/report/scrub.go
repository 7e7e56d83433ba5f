package report

import (
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
)

// userinfo is the part of an URL that may hold a password.
var userinfo = regexp.MustCompile(`://[^/@\s'"]+@`)

// port is the address of a listener of this machine.
var port = regexp.MustCompile(`\b(127\.0\.0\.1|localhost|\[::1\]):\d+`)

// scrub takes passwords out of every text, and what JSON cannot hold; and, of a
// deterministic document, whatever differs between equal runs.
func (d *Document) scrub(m Meta) {
	clean := m.cleaner()
	d.Reason = clean(d.Reason)
	scrubFailures(d.Problems, clean)
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
		return userinfo.ReplaceAllString(text, "://***@")
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
		text = port.ReplaceAllString(secrets(text), "$1:*")
		if temporary != nil {
			text = temporary.ReplaceAllLiteralString(text, "$TMPDIR")
		}
		if host != nil {
			text = host.ReplaceAllLiteralString(text, "HOST")
		}
		return text
	}
}
