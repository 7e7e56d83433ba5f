package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteProfile writes a profile as JSON with one field, member, key or method in
// a line of text, so that the difference of two releases reads well in a review.
func WriteProfile(w io.Writer, p *Profile) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n\"line\": %s,\n\"version\": %s,\n\"commit\": %s,\n", compact(p.Line), compact(p.Version), compact(p.Commit))
	writeGroup(&b, "messages", p.Messages, func(m Message) { writeList(&b, m, "keys", m.Keys) })
	writeGroup(&b, "enums", p.Enums, func(e Enum) { writeList(&b, e, "members", e.Members) })
	writeGroup(&b, "constants", p.Constants, func(c Constant) { b.WriteString(compact(c)) })
	writeGroup(&b, "utilities", p.Utilities, func(u Utility) { b.WriteString(compact(u)) })
	writeGroup(&b, "structs", p.Structs, func(s Struct) { writeList(&b, s, "fields", s.Fields) })
	b.Truncate(b.Len() - len(",\n"))
	b.WriteString("\n}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// writeGroup writes the things of one kind, by name.
func writeGroup[T any](b *bytes.Buffer, name string, things map[string]T, write func(T)) {
	fmt.Fprintf(b, "%s: {\n", compact(name))
	for i, key := range slices.Sorted(maps.Keys(things)) {
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(b, "%s: ", compact(key))
		write(things[key])
	}
	b.WriteString("\n},\n")
}

// writeList writes a thing whose last member is a list, with an item a line.
func writeList[T, I any](b *bytes.Buffer, thing T, name string, items []I) {
	head, _, _ := strings.Cut(compact(thing), compact(name)+":")
	fmt.Fprintf(b, "%s%s: [", head, compact(name))
	for i, item := range items {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(b, "\n  %s", compact(item))
	}
	b.WriteString("\n]}")
}

// compact is a value as JSON in one line, with the signs of annotations as they
// are.
func compact(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "null" // a raw value that is no JSON: the reader of the profile says so
	}
	return strings.TrimSpace(b.String())
}
