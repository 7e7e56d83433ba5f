package protocol

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

//go:embed profiles/*.json
var profileFiles embed.FS

// Nightly is the name of the tracker line. Its profile is that of [Newest].
const Nightly = "nightly"

// Profile is the wire of one vLLM line, as its released wheel declares it.
type Profile struct {
	Line      string              `json:"line"`    // "0.33"
	Version   string              `json:"version"` // "0.33.0", the release that was read
	Commit    string              `json:"commit"`  // of vllm.git, as the wheel names it; empty if it does not
	Messages  map[string]Message  `json:"messages"`
	Enums     map[string]Enum     `json:"enums"`
	Constants map[string]Constant `json:"constants"`
	Utilities map[string]Utility  `json:"utilities"`
	Structs   map[string]Struct   `json:"structs"`
	// MetricText is the JSON of [Profile.Metrics]. It is read when it is asked for: no program that speaks on the wire needs it.
	MetricText json.RawMessage `json:"metrics,omitempty"`
	// NixlText is the JSON of [Profile.Nixl], read when it is asked for.
	NixlText json.RawMessage `json:"nixl,omitempty"`
}

// Boundary is what two programs must agree on that are not an engine core and its frontend.
type Boundary struct {
	Messages  map[string]Message  `json:"messages"`
	Constants map[string]Constant `json:"constants"`
	Structs   map[string]Struct   `json:"structs"`
}

// Nixl returns the boundary between a prefill engine and a decode engine with NixlConnector: its handshake, what its compatibility
// hash is computed from, its notifications, and the keys of kv_transfer_params. It returns nil for a profile without it.
func (p *Profile) Nixl() *Boundary {
	b, _ := parseRaw[*Boundary](p.NixlText) // [ReadProfile] has refused it otherwise
	return b
}

// SetNixl replaces the boundary.
func (p *Profile) SetNixl(n *Boundary) { p.NixlText = n.text() }

// Metric is a metric of the Python server, such as those of vllm/v1/metrics/loggers.py.
type Metric struct {
	Kind   string   `json:"kind"`   // "gauge", "counter" or "histogram"
	Labels []string `json:"labels"` // in their order; what is known only when the server runs is its Python source
	// Buckets are the bounds of a histogram, such as "0.3, 0.5", or the Python source that computes them from the configuration.
	// They are "" for those of prometheus_client.
	Buckets string `json:"buckets,omitempty"`
	Place
}

// Metrics returns the metrics of the Python server, by the names that it exports: that of a counter ends in "_total". They do not
// cross the boundary, so they belong to no fingerprint. It returns nil for a profile that was written before metrics were read.
func (p *Profile) Metrics() map[string]Metric {
	metrics, _ := parseRaw[map[string]Metric](p.MetricText) // [ReadProfile] has refused it otherwise
	return metrics
}

// SetMetrics replaces the metrics.
func (p *Profile) SetMetrics(metrics map[string]Metric) {
	var b bytes.Buffer
	writeGroup(&b, "metrics", metrics, func(m Metric) { b.WriteString(compact(m)) })
	p.MetricText = bytes.TrimSuffix(bytes.TrimPrefix(b.Bytes(), []byte(`"metrics": `)), []byte(",\n"))
}

// parseRaw reads a part of a profile that was kept as text; without text it is the zero value.
func parseRaw[T any](text []byte) (part T, err error) {
	if text == nil {
		return part, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return part, decoder.Decode(&part)
}

// Place is where something is declared: a file in the wheel, and a line of it.
type Place struct {
	Module string `json:"module"`       // "vllm/v1/engine/__init__.py"
	At     int    `json:"at,omitempty"` // from 1; 0 if it is not known
}

// Struct is one wire struct: vLLM's msgspec struct, dataclass or NamedTuple.
type Struct struct {
	Encoding     string `json:"encoding"` // "array" (by position) or "map" (by name)
	OmitDefaults bool   `json:"omit_defaults"`
	// Exact says that readers refuse an array of another length, as they do for a
	// NamedTuple. Other arrays may end early, and may have more than is known.
	Exact bool `json:"exact,omitempty"`
	// Tag distinguishes the struct from others of its union: at position 0 of an
	// array, in the key "type" of a map. Empty without one.
	Tag string `json:"tag,omitempty"`
	Place
	Fields []Field `json:"fields"`
}

// Field is one member of a [Struct], in wire order.
type Field struct {
	Name     string          `json:"name"`
	Type     string          `json:"type"` // Python annotation
	Required bool            `json:"required,omitempty"`
	Default  json.RawMessage `json:"default,omitempty"` // absent means None
	At       int             `json:"at,omitempty"`      // line of the module it is declared in
	Module   string          `json:"module,omitempty"`  // if another than that of the struct
}

// Enum is a class of named values that cross the wire.
type Enum struct {
	Place
	Members []Member `json:"members"`
}

// Member is one name of an [Enum] and its value on the wire; bytes are
// written "0x00".
type Member struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
	At    int             `json:"at,omitempty"`
}

// Constant is a single value that both sides must agree on.
type Constant struct {
	Place
	Value json.RawMessage `json:"value"`
}

// Message is one that has no struct: a dictionary of the handshake, an array that
// is written by hand, or the frames of a multipart message.
type Message struct {
	Encoding string `json:"encoding"` // "map", "array" or "frames"
	Place
	Keys []Key `json:"keys"`
}

// Key is a key of a map, or what one element or frame holds, in their order.
type Key struct {
	Name     string `json:"name"`
	Optional bool   `json:"optional,omitempty"` // written under a condition
	At       int    `json:"at,omitempty"`
}

// Utility is a method of the engine core that a frontend can call.
type Utility struct {
	Signature string     `json:"signature"` // of the engine's method
	Result    ResultKind `json:"result"`
	Place
	// Calls are the arguments that the Python frontend passes, as it writes them;
	// several if it calls from several places.
	Calls []string `json:"calls,omitempty"`
}

// FinishReasons returns why a request ended, name to wire code.
func (p *Profile) FinishReasons() map[string]int { return members[int](p.Enums["FinishReason"]) }

func members[T any](e Enum) map[string]T {
	values := make(map[string]T, len(e.Members))
	for _, m := range e.Members {
		var v T
		if json.Unmarshal(m.Value, &v) == nil {
			values[m.Name] = v
		}
	}
	return values
}

// Index returns the position of the named field, or -1.
func (s Struct) Index(name string) int {
	return slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
}

// Lines returns the lines that have a profile, newest first: those of the build
// and those it was taught by [Learn].
func Lines() []string {
	entries, _ := profileFiles.ReadDir("profiles") // embedded: cannot fail
	var lines []string
	for _, e := range entries {
		lines = append(lines, strings.TrimSuffix(e.Name(), ".json"))
	}
	for _, line := range learned.lines() {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return compareLines(b, a) })
	return lines
}

// Newest is the newest line that has a profile, which is what the nightly
// tracker follows until a release names a newer one.
func Newest() string { return Lines()[0] }

// lineNumbers reads a line. A tracker has no numbers.
func lineNumbers(line string) (major, minor int, ok bool) {
	a, b, _ := strings.Cut(line, ".")
	major, errMajor := strconv.Atoi(a)
	minor, errMinor := strconv.Atoi(b)
	return major, minor, errMajor == nil && errMinor == nil
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
	text, known := learned.text(name)
	if !known {
		var err error
		if text, err = profileFiles.ReadFile("profiles/" + name + ".json"); err != nil {
			return nil, fmt.Errorf("no wire profile for vLLM line %q: this build knows %s and %s",
				line, strings.Join(Lines(), ", "), Nightly)
		}
	}
	p := new(Profile)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("wire profile %s: %w", name, err)
	}
	return p, nil
}

// HasProfile reports whether LoadProfile has a profile for the line, without
// reading it.
func HasProfile(line string) bool {
	name := profileOf(line)
	if _, known := learned.text(name); known {
		return true
	}
	_, err := fs.Stat(profileFiles, "profiles/"+name+".json")
	return err == nil
}

// IsLearned reports whether the profile of the line came at run time, by [Learn].
func IsLearned(line string) bool {
	_, known := learned.text(profileOf(line))
	return known
}

// profileOf is the line whose profile a line, tag or tracker has.
func profileOf(line string) string {
	name := LineOf(line)
	if name == Nightly {
		return Newest()
	}
	return name
}

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
