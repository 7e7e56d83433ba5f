package protocol

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed profiles/*.json
var profileFiles embed.FS

// Newest is the line that the nightly tracker follows until a release names a
// newer one.
const Newest = "0.33"

// Nightly is the name of the tracker line. Its profile is that of [Newest].
const Nightly = "nightly"

// Profile is the wire of one vLLM line, as its released wheel declares it.
type Profile struct {
	Line          string             `json:"line"`           // "0.33"
	Version       string             `json:"version"`        // "0.33.0", the release that was read
	RequestTypes  map[string]string  `json:"request_types"`  // name to byte, "0x00"
	FinishReasons map[string]int     `json:"finish_reasons"` // name to wire code
	Utilities     map[string]Utility `json:"utilities"`
	Structs       map[string]Struct  `json:"structs"`
}

// Struct is one wire struct: vLLM's msgspec struct, dataclass or NamedTuple.
type Struct struct {
	Encoding     string  `json:"encoding"` // "array" (by position) or "map" (by name)
	OmitDefaults bool    `json:"omit_defaults"`
	Module       string  `json:"module"` // file in the wheel
	Fields       []Field `json:"fields"`
}

// Field is one member of a [Struct], in wire order.
type Field struct {
	Name     string          `json:"name"`
	Type     string          `json:"type"` // Python annotation
	Required bool            `json:"required"`
	Default  json.RawMessage `json:"default"` // absent means None
}

// Index returns the position of the named field, or -1.
func (s Struct) Index(name string) int {
	for i, f := range s.Fields {
		if f.Name == name {
			return i
		}
	}
	return -1
}

// Utility is a method of the engine core that a frontend can call.
type Utility struct {
	Signature string     `json:"signature"` // of vllm/v1/engine/core.py
	Result    ResultKind `json:"result"`
}

// Lines returns the lines with an embedded profile, newest first.
func Lines() []string {
	entries, _ := profileFiles.ReadDir("profiles") // embedded: cannot fail
	var lines []string
	for _, e := range entries {
		lines = append(lines, strings.TrimSuffix(e.Name(), ".json"))
	}
	slices.SortFunc(lines, func(a, b string) int {
		majorA, minorA := lineNumbers(a)
		majorB, minorB := lineNumbers(b)
		return cmp.Or(cmp.Compare(majorB, majorA), cmp.Compare(minorB, minorA))
	})
	return lines
}

func lineNumbers(line string) (major, minor int) {
	a, b, _ := strings.Cut(line, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}

// LineOf reduces a release tag or version ("v0.27.1", "0.33.0.dev1") to its
// line ("0.27", "0.33"). Tracker names ("nightly") are returned as they are.
func LineOf(tag string) string {
	s := strings.TrimPrefix(strings.TrimSpace(tag), "v")
	major, rest, ok := strings.Cut(s, ".")
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	if _, err := strconv.ParseUint(major, 10, 32); !ok || err != nil || digits == 0 {
		return tag
	}
	return major + "." + rest[:digits]
}

// LoadProfile returns the profile of a line, given by line name, release tag
// or [Nightly].
func LoadProfile(line string) (*Profile, error) {
	name := profileOf(line)
	data, err := profileFiles.ReadFile(profileFile(name))
	if err != nil {
		return nil, fmt.Errorf("no wire profile for vLLM line %q: this build knows %s and %s",
			line, strings.Join(Lines(), ", "), Nightly)
	}
	p := new(Profile)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("wire profile %s: %w", name, err)
	}
	return p, nil
}

// HasProfile tells whether LoadProfile has a profile for the line, without
// reading it.
func HasProfile(line string) bool {
	file, err := profileFiles.Open(profileFile(profileOf(line)))
	if err != nil {
		return false
	}
	file.Close()
	return true
}

// profileOf is the line whose profile a line, tag or tracker has.
func profileOf(line string) string {
	name := LineOf(line)
	if name == Nightly {
		return Newest
	}
	return name
}

func profileFile(name string) string { return "profiles/" + name + ".json" }

// needStruct returns the named struct or an error naming line and struct.
func (p *Profile) needStruct(name, encoding string) (Struct, error) {
	s, ok := p.Structs[name]
	if !ok {
		return s, fmt.Errorf("wire profile %s has no struct %s", p.Line, name)
	}
	if s.Encoding != encoding {
		return s, fmt.Errorf("wire profile %s: %s is encoded as %s, this codec writes %s",
			p.Line, name, s.Encoding, encoding)
	}
	return s, nil
}
