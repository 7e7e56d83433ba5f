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
	r.object(func(key string) {
		switch key {
		case "line":
			p.Line = r.str()
		case "version":
			p.Version = r.str()
		case "commit":
			p.Commit = r.str()
		case "messages":
			r.object(func(name string) { p.Messages[name] = r.message() })
		case "enums":
			r.object(func(name string) { p.Enums[name] = r.enum() })
		case "constants":
			r.object(func(name string) {
				var c Constant
				r.object(func(key string) {
					if key == "value" {
						c.Value = r.raw()
					} else {
						r.place(&c.Place, key)
					}
				})
				p.Constants[name] = c
			})
		case "utilities":
			r.object(func(name string) { p.Utilities[name] = r.utility() })
		case "structs":
			r.object(func(name string) { p.Structs[name] = r.structure() })
		case "metrics":
			// Each metric has a line of text, so the group ends with the first line that begins with a brace.
			if length := strings.Index(r.text[r.at:], "\n}"); length < 0 {
				r.fail("the end of the metrics")
			} else {
				p.MetricText = json.RawMessage(strings.TrimSpace(r.text[r.at : r.at+length+2]))
				r.at += length + 2
			}
		default:
			r.fail("an unknown key " + key)
		}
	})
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

func (r *profileReader) message() (m Message) {
	r.object(func(key string) {
		switch key {
		case "encoding":
			m.Encoding = r.str()
		case "keys":
			m.Keys = []Key{}
			r.array(func() {
				var k Key
				r.object(func(key string) {
					switch key {
					case "name":
						k.Name = r.str()
					case "optional":
						k.Optional = r.boolean()
					case "at":
						k.At = r.number()
					default:
						r.fail("an unknown key " + key)
					}
				})
				m.Keys = append(m.Keys, k)
			})
		default:
			r.place(&m.Place, key)
		}
	})
	return m
}

func (r *profileReader) enum() (e Enum) {
	r.object(func(key string) {
		if key != "members" {
			r.place(&e.Place, key)
			return
		}
		e.Members = []Member{}
		r.array(func() {
			var m Member
			r.object(func(key string) {
				switch key {
				case "name":
					m.Name = r.str()
				case "value":
					m.Value = r.raw()
				case "at":
					m.At = r.number()
				default:
					r.fail("an unknown key " + key)
				}
			})
			e.Members = append(e.Members, m)
		})
	})
	return e
}

func (r *profileReader) utility() (u Utility) {
	r.object(func(key string) {
		switch key {
		case "signature":
			u.Signature = r.str()
		case "result":
			u.Result = ResultKind(r.str())
		case "calls":
			r.array(func() { u.Calls = append(u.Calls, r.str()) })
		default:
			r.place(&u.Place, key)
		}
	})
	return u
}

func (r *profileReader) structure() (s Struct) {
	r.object(func(key string) {
		switch key {
		case "encoding":
			s.Encoding = r.str()
		case "omit_defaults":
			s.OmitDefaults = r.boolean()
		case "exact":
			s.Exact = r.boolean()
		case "tag":
			s.Tag = r.str()
		case "fields":
			s.Fields = []Field{}
			r.array(func() { s.Fields = append(s.Fields, r.field()) })
		default:
			r.place(&s.Place, key)
		}
	})
	return s
}

func (r *profileReader) field() (f Field) {
	r.object(func(key string) {
		switch key {
		case "name":
			f.Name = r.str()
		case "type":
			f.Type = r.str()
		case "required":
			f.Required = r.boolean()
		case "default":
			f.Default = r.raw()
		case "at":
			f.At = r.number()
		case "module":
			f.Module = r.str()
		default:
			r.fail("an unknown key " + key)
		}
	})
	return f
}

func (r *profileReader) place(p *Place, key string) {
	switch key {
	case "module":
		p.Module = r.str()
	case "at":
		p.At = r.number()
	default:
		r.fail("an unknown key " + key)
	}
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
