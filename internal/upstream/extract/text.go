package extract

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// profileText is a profile as tables for people. Its names and types come from foreign sources.
func profileText(p *protocol.Profile) string {
	var b, safe strings.Builder
	commit := ""
	if p.Commit != "" {
		commit = ", commit " + p.Commit
	}
	fmt.Fprintf(&b, "vLLM %s, line %s%s\n", p.Version, p.Line, commit)
	for _, section := range []func(io.Writer, *protocol.Profile){
		textMessages, textEnums, textConstants, textUtilities, textStructs, textMetrics,
	} {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		section(t, p)
		_ = t.Flush() // a Builder takes everything
	}
	for line := range strings.Lines(b.String()) {
		safe.WriteString(safetext.Line(strings.TrimRight(line, " \n")) + "\n")
	}
	return safe.String()
}

// plain is a text in a table: one that has no line break or tab to break it.
func plain(text string) string { return strings.ReplaceAll(safetext.Line(text), "\t", " ") }

func place(p protocol.Place) string { return fmt.Sprintf("%s:%d", plain(p.Module), p.At) }

func textMessages(w io.Writer, p *protocol.Profile) {
	fmt.Fprintf(w, "\nMESSAGES WITHOUT A STRUCT\n")
	for _, name := range slices.Sorted(maps.Keys(p.Messages)) {
		m := p.Messages[name]
		var keys []string
		for _, k := range m.Keys {
			key := plain(k.Name)
			if k.Optional {
				key += "?"
			}
			keys = append(keys, key)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", plain(name), plain(m.Encoding), place(m.Place), strings.Join(keys, ", "))
	}
}

func textEnums(w io.Writer, p *protocol.Profile) {
	fmt.Fprintf(w, "\nENUMS\n")
	for _, name := range slices.Sorted(maps.Keys(p.Enums)) {
		e := p.Enums[name]
		var members []string
		for _, m := range e.Members {
			members = append(members, plain(m.Name)+"="+plain(string(m.Value)))
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", plain(name), place(e.Place), strings.Join(members, ", "))
	}
}

func textConstants(w io.Writer, p *protocol.Profile) {
	fmt.Fprintf(w, "\nCONSTANTS\n")
	for _, name := range slices.Sorted(maps.Keys(p.Constants)) {
		c := p.Constants[name]
		fmt.Fprintf(w, "  %s\t%s\t%s\n", plain(name), place(c.Place), plain(string(c.Value)))
	}
}

func textUtilities(w io.Writer, p *protocol.Profile) {
	fmt.Fprintf(w, "\nUTILITIES\n")
	for _, name := range slices.Sorted(maps.Keys(p.Utilities)) {
		u := p.Utilities[name]
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", plain(name), plain(string(u.Result)), place(u.Place), plain(u.Signature))
	}
}

func textStructs(w io.Writer, p *protocol.Profile) {
	fmt.Fprintf(w, "\nSTRUCTS\n")
	for _, name := range slices.Sorted(maps.Keys(p.Structs)) {
		s := p.Structs[name]
		head := []string{s.Encoding}
		if s.OmitDefaults {
			head = append(head, "defaults left out")
		}
		if s.Tag != "" {
			head = append(head, "tag "+s.Tag)
		}
		fmt.Fprintf(w, "%s (%s) %s\n", plain(name), plain(strings.Join(head, ", ")), place(s.Place))
		for i, f := range s.Fields {
			preset := "= None"
			switch {
			case f.Required:
				preset = "required"
			case f.Default != nil:
				preset = "= " + plain(string(f.Default))
			}
			fmt.Fprintf(w, "  %d\t%s\t%s\t%s\n", i, plain(f.Name), plain(f.Type), preset)
		}
	}
}

func textMetrics(w io.Writer, p *protocol.Profile) {
	metrics := p.Metrics()
	if len(metrics) == 0 {
		return
	}
	fmt.Fprintf(w, "\nMETRICS\n")
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		m := metrics[name]
		labels := plain(strings.Join(m.Labels, ", "))
		if m.Buckets != "" {
			labels += "; buckets " + plain(m.Buckets)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", plain(name), plain(m.Kind), place(m.Place), labels)
	}
}
