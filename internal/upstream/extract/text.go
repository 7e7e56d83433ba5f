package extract

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Text is a profile as tables for people. Its names and types come from foreign sources.
func Text(p *protocol.Profile) string {
	var b, safe strings.Builder
	commit := ""
	if p.Commit != "" {
		commit = ", commit " + p.Commit
	}
	fmt.Fprintf(&b, "vLLM %s, line %s%s\n", p.Version, p.Line, commit)
	section(&b, "MESSAGES WITHOUT A STRUCT", p.Messages, messageText)
	section(&b, "ENUMS", p.Enums, func(e protocol.Enum) []string {
		var members []string
		for _, m := range e.Members {
			members = append(members, plain(m.Name)+"="+plain(string(m.Value)))
		}
		return []string{place(e.Place), strings.Join(members, ", ")}
	})
	section(&b, "CONSTANTS", p.Constants, func(c protocol.Constant) []string { return []string{place(c.Place), plain(string(c.Value))} })
	section(&b, "UTILITIES", p.Utilities, func(u protocol.Utility) []string {
		return []string{plain(string(u.Result)), place(u.Place), plain(u.Signature)}
	})
	structsText(&b, p.Structs)
	if metrics := p.Metrics(); len(metrics) > 0 {
		section(&b, "METRICS", metrics, func(m protocol.Metric) []string {
			labels := plain(strings.Join(m.Labels, ", "))
			if m.Buckets != "" {
				labels += "; buckets " + plain(m.Buckets)
			}
			return []string{plain(m.Kind), place(m.Place), labels}
		})
	}
	for line := range strings.Lines(b.String()) {
		safe.WriteString(safetext.Line(strings.TrimRight(line, " \n")) + "\n")
	}
	return safe.String()
}

// plain is a text in a table: one that has no line break or tab to break it.
func plain(text string) string { return strings.ReplaceAll(safetext.Line(text), "\t", " ") }

func place(p protocol.Place) string { return fmt.Sprintf("%s:%d", plain(p.Module), p.At) }

// section writes a table of the things of one kind, a row each: their names, and the cells that row returns.
func section[T any](b *strings.Builder, title string, things map[string]T, row func(T) []string) {
	fmt.Fprintf(b, "\n%s\n", title)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(things)) {
		fmt.Fprintf(t, "  %s\t%s\n", plain(name), strings.Join(row(things[name]), "\t"))
	}
	_ = t.Flush() // a Builder takes everything
}

func messageText(m protocol.Message) []string {
	var keys []string
	for _, k := range m.Keys {
		key := plain(k.Name)
		if k.Optional {
			key += "?"
		}
		keys = append(keys, key)
	}
	return []string{plain(m.Encoding), place(m.Place), strings.Join(keys, ", ")}
}

func structsText(b *strings.Builder, structs map[string]protocol.Struct) {
	fmt.Fprintf(b, "\nSTRUCTS\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(structs)) {
		s := structs[name]
		head := []string{s.Encoding}
		if s.OmitDefaults {
			head = append(head, "defaults left out")
		}
		if s.Tag != "" {
			head = append(head, "tag "+s.Tag)
		}
		fmt.Fprintf(t, "%s (%s) %s\n", plain(name), plain(strings.Join(head, ", ")), place(s.Place))
		for i, f := range s.Fields {
			preset := "= None"
			switch {
			case f.Required:
				preset = "required"
			case f.Default != nil:
				preset = "= " + plain(string(f.Default))
			}
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\n", i, plain(f.Name), plain(f.Type), preset)
		}
	}
	_ = t.Flush()
}
