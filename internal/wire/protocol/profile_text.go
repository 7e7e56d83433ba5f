package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
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
	if p.MetricText != nil {
		metrics, err := parseRaw[map[string]Metric](p.MetricText)
		if err != nil {
			return err
		}
		writeGroup(&b, "metrics", metrics, func(m Metric) { b.WriteString(compact(m)) })
	}
	if p.NixlText != nil {
		nixl, err := parseRaw[*Boundary](p.NixlText)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\"nixl\": %s,\n", nixl.text())
	}
	b.Truncate(b.Len() - len(",\n"))
	b.WriteString("\n}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// text is the JSON of a boundary, in the form of a profile; nil without one.
func (n *Boundary) text() []byte {
	if n == nil {
		return nil
	}
	b := bytes.NewBufferString("{\n")
	writeGroup(b, "messages", n.Messages, func(m Message) { writeList(b, m, "keys", m.Keys) })
	writeGroup(b, "constants", n.Constants, func(c Constant) { b.WriteString(compact(c)) })
	writeGroup(b, "structs", n.Structs, func(s Struct) { writeList(b, s, "fields", s.Fields) })
	return append(bytes.TrimSuffix(b.Bytes(), []byte(",\n")), "\n}"...)
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

// maxProfile bounds the text of a profile, in bytes.
const maxProfile = 8 << 20

// ReadProfile reads a profile that [WriteProfile] wrote.
func ReadProfile(r io.Reader) (*Profile, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxProfile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxProfile {
		return nil, fmt.Errorf("it has more than %d bytes, so it is not a wire profile", maxProfile)
	}
	p := new(Profile)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, fmt.Errorf("it cannot be read as a wire profile: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("it cannot be read as a wire profile: something follows it")
	}
	if _, err := parseRaw[map[string]Metric](p.MetricText); err != nil {
		return nil, fmt.Errorf("it cannot be read as a wire profile: metrics: %w", err)
	}
	if _, err := parseRaw[*Boundary](p.NixlText); err != nil {
		return nil, fmt.Errorf("it cannot be read as a wire profile: nixl: %w", err)
	}
	if p.Line == "" || len(p.Structs) == 0 {
		return nil, errors.New("it is not a wire profile: it has no line or no structs")
	}
	return p, nil
}
