package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// parseBuiltin reads the text of a profile of the build. Every process reads one before it can answer, and encoding/json
// takes a millisecond for it, ten times as long. The text is ours, so that only what [WriteProfile] writes is understood.
func parseBuiltin(text string) (p *Profile, err error) {
	p = &Profile{
		Messages: map[string]Message{}, Enums: map[string]Enum{}, Constants: map[string]Constant{},
		Utilities: map[string]Utility{}, Structs: map[string]Struct{},
	}
	r := &profileReader{text: text}
	group := func(read func(name string)) func() { return func() { r.object(read) } }
	r.members(
		entry{"line", &p.Line}, entry{"version", &p.Version}, entry{"commit", &p.Commit},
		entry{"messages", group(func(name string) { p.Messages[name] = r.message() })},
		entry{"enums", group(func(name string) { p.Enums[name] = r.enum() })},
		entry{"constants", group(func(name string) { p.Constants[name] = r.constant() })},
		entry{"utilities", group(func(name string) { p.Utilities[name] = r.utility() })},
		entry{"structs", group(func(name string) { p.Structs[name] = r.structure() })},
		entry{"metrics", func() {
			// Each metric has a line of text, so the group ends with the first line that begins with a brace.
			length := strings.Index(r.text[r.at:], "\n}")
			if length < 0 {
				r.fail("the end of the metrics")
				return
			}
			p.MetricText = json.RawMessage(strings.TrimSpace(r.text[r.at : r.at+length+2]))
			r.at += length + 2
		}},
	)
	if r.space(); !r.failed && r.at < len(text) {
		r.fail("the end")
	}
	if r.failed {
		return nil, fmt.Errorf("byte %d: want %s", r.at, r.want)
	}
	return p, nil
}

// profileReader walks the JSON of a profile. After a failure its methods return zero values.
type profileReader struct {
	text   string
	at     int
	failed bool
	want   string
}

// entry is a key of an object, and where its value goes: a pointer, or a func that reads it.
type entry struct {
	key string
	to  any
}

// members reads an object that has these keys and no others.
func (r *profileReader) members(all ...entry) {
	r.object(func(key string) {
		for i := range all {
			if all[i].key == key {
				r.value(all[i].to)
				return
			}
		}
		r.fail("an unknown key " + key)
	})
}

func (r *profileReader) value(to any) {
	switch to := to.(type) {
	case *string:
		*to = r.str()
	case *bool:
		*to = r.boolean()
	case *int:
		*to = r.number()
	case *json.RawMessage:
		*to = r.raw()
	case func():
		to()
	}
}

func (r *profileReader) message() (m Message) {
	keys := func() {
		m.Keys = []Key{}
		r.array(func() {
			var k Key
			r.members(entry{"name", &k.Name}, entry{"optional", &k.Optional}, entry{"at", &k.At})
			m.Keys = append(m.Keys, k)
		})
	}
	r.members(entry{"encoding", &m.Encoding}, entry{"keys", keys}, entry{"module", &m.Module}, entry{"at", &m.At})
	return m
}

func (r *profileReader) enum() (e Enum) {
	members := func() {
		e.Members = []Member{}
		r.array(func() {
			var m Member
			r.members(entry{"name", &m.Name}, entry{"value", &m.Value}, entry{"at", &m.At})
			e.Members = append(e.Members, m)
		})
	}
	r.members(entry{"members", members}, entry{"module", &e.Module}, entry{"at", &e.At})
	return e
}

func (r *profileReader) constant() (c Constant) {
	r.members(entry{"value", &c.Value}, entry{"module", &c.Module}, entry{"at", &c.At})
	return c
}

func (r *profileReader) utility() (u Utility) {
	calls := func() { r.array(func() { u.Calls = append(u.Calls, r.str()) }) }
	r.members(entry{"signature", &u.Signature}, entry{"result", (*string)(&u.Result)}, entry{"calls", calls},
		entry{"module", &u.Module}, entry{"at", &u.At})
	return u
}

func (r *profileReader) structure() (s Struct) {
	fields := func() {
		s.Fields = []Field{}
		r.array(func() { s.Fields = append(s.Fields, r.field()) })
	}
	r.members(entry{"encoding", &s.Encoding}, entry{"omit_defaults", &s.OmitDefaults}, entry{"exact", &s.Exact}, entry{"tag", &s.Tag},
		entry{"fields", fields}, entry{"module", &s.Module}, entry{"at", &s.At})
	return s
}

func (r *profileReader) field() (f Field) {
	r.members(entry{"name", &f.Name}, entry{"type", &f.Type}, entry{"required", &f.Required}, entry{"default", &f.Default},
		entry{"at", &f.At}, entry{"module", &f.Module})
	return f
}

func (r *profileReader) fail(want string) {
	if !r.failed {
		r.failed, r.want = true, want
	}
}

func (r *profileReader) space() {
	for r.at < len(r.text) && (r.text[r.at] == ' ' || r.text[r.at] == '\n') {
		r.at++
	}
}

func (r *profileReader) accept(c byte) bool {
	r.space()
	if r.failed || r.at >= len(r.text) || r.text[r.at] != c {
		return false
	}
	r.at++
	return true
}

func (r *profileReader) expect(c byte) {
	if !r.accept(c) {
		r.fail(string(c))
	}
}

func (r *profileReader) object(member func(key string)) {
	r.list('{', '}', func() {
		key := r.str()
		r.expect(':')
		member(key)
	})
}

func (r *profileReader) array(item func()) { r.list('[', ']', item) }

func (r *profileReader) list(open, end byte, item func()) {
	if r.expect(open); r.accept(end) {
		return
	}
	for !r.failed {
		if item(); !r.accept(',') {
			r.expect(end)
			return
		}
	}
}

// raw returns the text of a value: a word or number, a string, or an array or object of any values.
func (r *profileReader) raw() json.RawMessage {
	r.space()
	from := r.at
	for depth := 0; !r.failed && r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			r.str()
			r.at--
		case c == '[' || c == '{':
			depth++
		case depth > 0 && (c == ']' || c == '}'):
			depth--
		case depth == 0 && (c == ',' || c == ']' || c == '}'):
			return json.RawMessage(r.text[from:r.at])
		}
	}
	r.fail("a value")
	return nil
}

func (r *profileReader) str() (s string) {
	r.expect('"')
	length := strings.IndexAny(r.text[r.at:], `"\`)
	if r.failed || length < 0 {
		r.fail("a string")
		return ""
	}
	if r.text[r.at+length] == '"' {
		s = r.text[r.at : r.at+length]
		r.at += length + 1
		return s
	}
	// It has an escape.
	end := r.at + length
	for end < len(r.text) && r.text[end] != '"' {
		if r.text[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(r.text) || json.Unmarshal([]byte(r.text[r.at-1:end+1]), &s) != nil {
		r.fail("a string")
		return ""
	}
	r.at = end + 1
	return s
}

func (r *profileReader) number() int {
	r.space()
	end := r.at
	for end < len(r.text) && r.text[end] >= '0' && r.text[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(r.text[r.at:end])
	if err != nil {
		r.fail("a number")
	}
	r.at = end
	return n
}

func (r *profileReader) boolean() bool {
	r.space()
	for _, word := range []string{"true", "false"} {
		if strings.HasPrefix(r.text[r.at:], word) {
			r.at += len(word)
			return word == "true"
		}
	}
	r.fail("true or false")
	return false
}

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
		metrics, err := parseMetrics(p.MetricText)
		if err != nil {
			return err
		}
		writeGroup(&b, "metrics", metrics, func(m Metric) { b.WriteString(compact(m)) })
	}
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

// maxProfile bounds the text of a profile, in bytes.
const maxProfile = 8 << 20

// ReadProfile reads a profile that [WriteProfile] wrote.
func ReadProfile(r io.Reader) (*Profile, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxProfile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxProfile {
		return nil, fmt.Errorf("it has more than %d bytes: no wire profile", maxProfile)
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
	if _, err := parseMetrics(p.MetricText); err != nil {
		return nil, fmt.Errorf("it cannot be read as a wire profile: %w", err)
	}
	if p.Line == "" || len(p.Structs) == 0 {
		return nil, errors.New("it is no wire profile: it names no line or no structs")
	}
	return p, nil
}
