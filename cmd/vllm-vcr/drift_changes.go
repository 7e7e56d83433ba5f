package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// mostItems are how many things of one kind a section of Markdown names.
const mostItems = 40

// diff is what the sources declare otherwise, nil if they were not compared or say the same.
func (run *driftRun) diff() *wirediff.Diff {
	for _, l := range run.result.Layers {
		if d := l.Diff; d != nil && d.Verdict() != wirediff.None {
			return d
		}
	}
	return nil
}

// sections are the layers in Markdown, each with what was compared and what was found, within a limit of all that b
// holds. Times are left out of a text that is to stay as it is while the findings do.
func (run *driftRun) sections(b *strings.Builder, limit int, times bool) error {
	for _, l := range run.result.Layers {
		var s strings.Builder
		fmt.Fprintf(&s, "## %s: %s\n\n%s\n\n", l.Name, verdictWord(l.Verdict), inCode(l.Reason))
		if l.Verdict != drift.Skipped && times {
			fmt.Fprintf(&s, "- took %.1f s", l.Took.Seconds())
			if size := megabytes(l.Downloaded); size != "" {
				s.WriteString(", downloaded " + size)
			}
			s.WriteString("\n")
		}
		if l.Compared != "" {
			fmt.Fprintf(&s, "- compared: %s\n", inCode(l.Compared))
		}
		listed(&s, "note", l.Notes)
		listed(&s, "case", toldCases(l))
		s.WriteString("\n")
		room(b, s.String(), limit)
		if l.Diff != nil && l.Diff.Verdict() != wirediff.None {
			if err := wirediff.Markdown(b, l.Diff, (limit-b.Len())/2); err != nil {
				return err
			}
			b.WriteString("\n")
		}
	}
	if text := run.adoption(); text != "" {
		room(b, "## With the profile of the release\n\n"+inCode(text)+"\n\n", limit)
	}
	return nil
}

func listed(s *strings.Builder, what string, items []string) {
	for i, item := range items {
		if i == mostItems {
			fmt.Fprintf(s, "- and %d more\n", len(items)-i)
			return
		}
		fmt.Fprintf(s, "- %s: %s\n", what, inCode(item))
	}
}

// room appends a text if it stays within the limit.
func room(b *strings.Builder, text string, limit int) {
	if b.Len()+len(text) <= limit {
		b.WriteString(text)
	}
}

// writeSARIF writes what the sources declare otherwise, at its places upstream.
func (run *driftRun) writeSARIF(dir string) error {
	for _, l := range run.result.Layers {
		if l.Diff != nil {
			return report.WriteFile(filepath.Join(dir, driftSARIF), func(w io.Writer) error {
				return wirediff.SARIF(w, l.Diff, buildVersion())
			})
		}
	}
	return nil
}
