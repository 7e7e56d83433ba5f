package wirediff_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// parseStruct reads "array! a:int b:str=\"x\" c:int|None=", a struct in a line: "!"
// omits defaults, "tuple" is a NamedTuple, a field without "=" is required, and none
// after it is None.
func parseStruct(t *testing.T, text string) protocol.Struct {
	t.Helper()
	words := strings.Fields(text)
	head, tag, _ := strings.Cut(words[0], "#")
	s := protocol.Struct{Encoding: strings.TrimSuffix(head, "!"), OmitDefaults: strings.HasSuffix(head, "!"), Tag: tag}
	if s.Exact = head == "tuple"; s.Exact {
		s.Encoding = "array"
	}
	s.Module, s.At = "vllm/m.py", 10
	for i, word := range words[1:] {
		name, rest, _ := strings.Cut(word, ":")
		annotation, def, optional := strings.Cut(rest, "=")
		f := protocol.Field{Name: name, Type: annotation, Required: !optional, At: 11 + i}
		if def != "" {
			f.Default = json.RawMessage(def)
		}
		s.Fields = append(s.Fields, f)
	}
	return s
}

// checkChanges compares changes as [sayings], in which another word stands for the subject.
func checkChanges(t *testing.T, d *wirediff.Diff, subject, word, want string) {
	t.Helper()
	got := sayings(d)
	for i := range got {
		got[i] = strings.Replace(got[i], subject, word, 1)
	}
	require.NoDiff(t, cmp.Diff(strings.ReplaceAll(want, "; ", "\n"), strings.Join(got, "\n")), "-want +got")
}

// sayings are changes as lines: "breaking field-added X.c@2 [engines recorders]".
func sayings(d *wirediff.Diff) []string {
	var lines []string
	for _, c := range d.Changes {
		lines = append(lines, saying(c))
	}
	return lines
}

func saying(c wirediff.Change) string {
	position := ""
	if c.Position != nil {
		position = fmt.Sprintf("@%d", *c.Position)
	}
	return fmt.Sprintf("%s %s %s%s %v", c.Level, c.Kind, c.Subject, position, c.Breaks)
}

func profile(line string, structs map[string]protocol.Struct) *protocol.Profile {
	return &protocol.Profile{Line: line, Version: line + ".0", Structs: structs}
}

const (
	engine  = "EngineCoreRequest"
	outputs = "EngineCoreOutputs"
	event   = "KVEventBatch"
	exact   = "LogprobsLists"
)

// structCases are the rules, each on a struct on its way to the engine, to the
// frontend, or to consumers of events.
var structCases = []struct{ name, in, a, b, want string }{
	{"the same", engine, "array a:int b:int=0", "array a:int b:int=0", ""},
	{"appended", engine, "array a:int", "array a:int b:int=0", "compatible field-added X.b@1 []"},
	{"appended, required, to the engine", engine, "array a:int", "array a:int b:int", "breaking field-added X.b@1 [frontends]"},
	{"appended, required, to the frontend", outputs, "array a:int", "array a:int b:int", "breaking field-added X.b@1 [engines]"},
	{"appended, required, of an event", event, "array a:int", "array a:int b:int", "breaking field-added X.b@1 [engines]"},
	{"appended to a NamedTuple", exact, "tuple a:int", "tuple a:int b:int=0", "breaking field-added X.b@1 [frontends recorders]"},
	{"inserted", outputs, "array a:int b:int", "array a:int c:int=0 b:int", "breaking field-added X.c@1 [engines frontends recorders]"},
	{
		"two inserted and one appended", engine, "array a:int b:int", "array n:int a:int c:int=0 b:int d:int=0",
		"breaking field-added X.n@0 [engines frontends recorders]; breaking field-added X.c@2 [engines frontends recorders]; compatible field-added X.d@4 []",
	},
	{"an event's tag is at 0", event, "array#X a:int", "array#X a:int b:int=0", "compatible field-added X.b@2 []"},
	{"removed in the middle", engine, "array a:int b:int=0 c:int=0", "array a:int c:int=0", "breaking field-removed X.b@1 [engines frontends recorders]"},
	{"removed at the end", engine, "array a:int b:int=0", "array a:int", "compatible field-removed X.b@1 []"},
	{"required removed at the end", engine, "array a:int b:int", "array a:int", "breaking field-removed X.b@1 [engines recorders]"},
	{"removed at the end of a NamedTuple", exact, "tuple a:int b:int=0", "tuple a:int", "breaking field-removed X.b@1 [engines]"},
	{"moved", engine, "array a:int b:str c:bool", "array c:bool a:int b:str", "breaking field-moved X.c@0 [engines frontends recorders]"},
	{"renamed in an array", engine, "array a:int b:int=0", "array a:int c:int=0", "informational field-renamed X.c@1 []"},
	{
		"another of the same type, with another default", outputs, "map a:int b:int=0", "map a:int c:int=1",
		"compatible field-removed X.b []; compatible field-added X.c []",
	},
	{
		"another of the same type, required", outputs, "map a:int b:int|None=", "map a:int c:int|None",
		"breaking field-added X.c [engines]; compatible field-removed X.b []",
	},
	{"renamed in a map", outputs, "map a:int b:int=0", "map a:int c:int=0", "breaking field-renamed X.c [engines frontends recorders]"},
	{
		"two for one at the end", engine, "array a:int b:int=0", "array a:int c:str|None= d:int=0",
		"breaking field-removed X.b@1 [engines frontends recorders]; breaking field-added X.c@1 [engines frontends recorders]; compatible field-added X.d@2 []",
	},
	{
		"another in its place", engine, "array a:int b:int=0", "array a:int c:str|None=",
		"breaking field-removed X.b@1 [engines frontends recorders]; breaking field-added X.c@1 [engines frontends recorders]",
	},
	{"a key more", outputs, "map a:int", "map b:int=0 a:int", "compatible field-added X.b []"},
	{"a required key more", outputs, "map a:int", "map a:int b:int", "breaking field-added X.b [engines]"},
	{"a key less", outputs, "map a:int b:int=0", "map a:int", "compatible field-removed X.b []"},
	{"a required key less", outputs, "map a:int b:int", "map a:int", "breaking field-removed X.b [frontends recorders]"},
	{"keys in another order", engine, "map a:int b:str", "map b:str a:int", ""},
	{"nil where none was", engine, "map a:int", "map a:int|None", "breaking field-type X.a [engines recorders]"},
	{"nil no more", engine, "array a:int|None", "array a:int", "breaking field-type X.a@0 [frontends]"},
	{"another type", outputs, "array a:int", "array a:str", "breaking field-type X.a@0 [engines frontends recorders]"},
	{"the type in other words", engine, "map a:Optional[int]", "map a:int|None", ""},
	{"a set for a list", engine, "map a:list[int]", "map a:set[int]", ""},
	{"encoding", event, "array a:int", "map a:int", "breaking struct-encoding X [engines recorders]"},
	{"a tag", event, "map#X a:int", "map a:int", "breaking struct-tag X [recorders]"},
	{"a new tag", event, "map a:int", "map#X a:int", "breaking struct-tag X [engines]"},
	{"another tag", event, "map#Y a:int", "map#X a:int", "breaking struct-tag X [engines recorders]"},
	{"a tag of an array", event, "array a:int", "array#X a:int", "breaking struct-tag X [engines recorders]"},
	{"omits defaults", outputs, "map a:int b:int=0", "map! a:int b:int=0", "breaking struct-omit-defaults X [frontends recorders]"},
	{"omits no defaults", outputs, "map! a:int b:int=0", "map a:int b:int=0", "compatible struct-omit-defaults X []"},
	{"an array omits nothing", outputs, "array a:int b:int=0", "array! a:int b:int=0", "informational struct-omit-defaults X []"},
	{"omits defaults, and has none", outputs, "map a:int", "map! a:int", "informational struct-omit-defaults X []"},
	{"another default, omitted", engine, "map! a:int=0", "map! a:int=1", "breaking field-default X.a [engines frontends recorders]"},
	{"another default, written", engine, "map a:int=0", "map a:int=1", "informational field-default X.a []"},
	{"None in two spellings", engine, "map! a:int|None=", "map! a:int|None=null", ""},
	{"required from now on", engine, "map a:int=0", "map a:int", "breaking field-required X.a [frontends]"},
	{"required no more, omitted", outputs, "map! a:int", "map! a:int=0", "breaking field-required X.a [frontends recorders]"},
	{"required no more, written", outputs, "map a:int", "map a:int=0", "compatible field-required X.a []"},
}

func TestCompareStructs(t *testing.T) {
	for _, test := range structCases {
		t.Run(test.name, func(t *testing.T) {
			a := profile("0.1", map[string]protocol.Struct{test.in: parseStruct(t, test.a)})
			b := profile("0.2", map[string]protocol.Struct{test.in: parseStruct(t, test.b)})
			if test.in == exact { // which way it goes is known by what refers to it
				root := parseStruct(t, "array x:LogprobsLists")
				a.Structs[outputs], b.Structs[outputs] = root, root
			}
			checkChanges(t, wirediff.Compare(a, b), test.in, "X", test.want)
		})
	}
}

func TestVerdict(t *testing.T) {
	none, gaps := []wirediff.Gap(nil), []wirediff.Gap{{What: "struct X", Why: "it is declared under a condition"}}
	tests := []struct {
		name, a, b string
		gaps       []wirediff.Gap
		want       wirediff.Verdict
	}{
		{"nothing", "map a:int", "map a:int", none, wirediff.None},
		{"nothing, as far as it was read", "map a:int", "map a:int", gaps, wirediff.Unknown},
		{"compatible", "map a:int", "map a:int b:int=0", none, wirediff.Changed},
		{"compatible, as far as it was read", "map a:int", "map a:int b:int=0", gaps, wirediff.Unknown},
		{"breaking", "map a:int", "map a:int b:int", none, wirediff.Breaks},
		{"breaking, and not all read", "map a:int", "map a:int b:int", gaps, wirediff.Breaks},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := wirediff.Compare(
				profile("0.1", map[string]protocol.Struct{engine: parseStruct(t, test.a)}),
				profile("0.2", map[string]protocol.Struct{engine: parseStruct(t, test.b)}))
			d.Gaps = test.gaps
			require.Equal(t, d.Verdict(), test.want, "Verdict")
			if said := strings.Contains(d.Headline(), "nothing changed"); said != (test.want == wirediff.None) {
				t.Errorf("the headline is %q", d.Headline())
			}
		})
	}
}

// raw is JSON with single quotes.
func raw(text string) json.RawMessage { return json.RawMessage(strings.ReplaceAll(text, "'", `"`)) }

// edited are two empty profiles, each filled by a function.
func edited(fillA, fillB func(*protocol.Profile)) *wirediff.Diff {
	var both [2]*protocol.Profile
	for i, fill := range []func(*protocol.Profile){fillA, fillB} {
		p := profile([]string{"0.1", "0.2"}[i], map[string]protocol.Struct{})
		p.Messages, p.Enums = map[string]protocol.Message{}, map[string]protocol.Enum{}
		p.Constants, p.Utilities = map[string]protocol.Constant{}, map[string]protocol.Utility{}
		fill(p)
		both[i] = p
	}
	return wirediff.Compare(both[0], both[1])
}

// A partCase has the text of what a profile says of something, before and after; there is nothing if it is empty.
type partCase struct{ name, in, a, b, want string }

// compareParts compares profiles that hold only what fill makes of the text of a case.
func compareParts(t *testing.T, word string, tests []partCase, fill func(p *protocol.Profile, in, text string)) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			side := func(text string) func(*protocol.Profile) {
				return func(p *protocol.Profile) {
					if text != "" {
						fill(p, test.in, text)
					}
				}
			}
			checkChanges(t, edited(side(test.a), side(test.b)), test.in, word, test.want)
		})
	}
}

func TestCompareMessages(t *testing.T) {
	// "map a b?", "?" being optional
	compareParts(t, "M", []partCase{
		{"the same", "READY", "map a b?", "map b? a", ""},
		{"an optional key", "READY", "map a", "map a b?", "compatible key-added M.b []"},
		{"a key of the engine", "READY", "map a", "map a b", "breaking key-added M.b [engines]"},
		{"a key of the frontend", "INIT.x", "map a", "map a b", "breaking key-added M.b [frontends]"},
		{"a key less", "HELLO", "map a b", "map a", "breaking key-removed M.b [frontends recorders]"},
		{"an optional key less", "HELLO", "map a b?", "map a", "compatible key-removed M.b []"},
		{"optional now", "INIT.x", "map a", "map a?", "breaking key-optional M.a [engines recorders]"},
		{"always now", "INIT.x", "map a?", "map a", "compatible key-optional M.a []"},
		{"a frame more", "KV events", "frames a b", "frames n a b", "breaking key-added M.n@0 [engines recorders]"},
		{"a frame less", "KV events", "frames a b", "frames a", "breaking key-removed M.b@1 [engines recorders]"},
		{"frames turned", "KV events", "frames a b", "frames b a", "breaking key-removed M.a@0 [engines recorders]; breaking key-added M.a@1 [engines recorders]"},
		{"an empty frame more", "KV x end", "frames id e end e", "frames id e e end e", "breaking key-added M.e@2 [engines recorders]"},
		{"a value more", "coordinator counts", "array a b", "array a b c", "breaking key-added M.c@2 [frontends]"},
		{"no more first requests", "coordinator first request", "array a", "", "breaking message-removed M [engines]"},
		{"encoding", "READY", "map a", "frames a", "breaking message-encoding M [engines frontends recorders]"},
		{"a message more", "READY", "", "map a", "breaking message-added M [frontends recorders]"},
		{"a message less", "INIT.x", "map a", "", "breaking message-removed M [engines recorders]"},
		{"on no known way", "Other", "map a", "map", "breaking key-removed M.a [engines frontends recorders]"},
	}, func(p *protocol.Profile, in, text string) {
		words := strings.Fields(text)
		m := protocol.Message{Encoding: words[0]}
		for _, word := range words[1:] {
			m.Keys = append(m.Keys, protocol.Key{Name: strings.TrimSuffix(word, "?"), Optional: strings.HasSuffix(word, "?")})
		}
		p.Messages[in] = m
	})
}

func TestCompareEnumsAndConstants(t *testing.T) {
	// "A=1 B=2" for an enum, else the value of a constant
	compareParts(t, "X", []partCase{
		{"the same in another order", "FinishReason", "A=1 B=2", "B=2 A=1", ""},
		{"a member more", "FinishReason", "A=1", "A=1 B=2", "breaking member-added X.B [frontends recorders]"},
		{"a type more", "EngineCoreRequestType", "A=1", "A=1 B=2", "breaking member-added X.B [engines recorders]"},
		{"a member less", "FinishReason", "A=1 B=2", "A=1", "breaking member-removed X.B [engines]"},
		{"another value", "FinishReason", "A=1", "A=2", "breaking member-value X.A [engines frontends recorders]"},
		{"another name", "FinishReason", "A=1", "B=1", "informational member-renamed X.B []"},
		{"it never leaves the engine", "EngineCoreRequestType", "A=1", "A=1 WAKEUP=2", "informational member-added X.WAKEUP []"},
		{"an enum more", "FinishReason", "", "A=1", "informational enum-added X []"},
		{"an enum less", "FinishReason", "A=1", "", "informational enum-removed X []"},
		{"a constant more", "MEDIUM_TAPE", "", "'TAPE'", "informational constant-added X []"},
		{"a constant less", "MEDIUM_TAPE", "'TAPE'", "", "informational constant-removed X []"},
		{"another medium", "MEDIUM_CPU", "'CPU'", "'cpu'", "breaking constant-value X [engines recorders]"},
		{"an id more", "NEW_CALL_ID", "", "-3", "breaking constant-added X [frontends]"},
		{"another id", "NEW_CALL_ID", "-3", "-4", "breaking constant-value X [engines frontends recorders]"},
		{"a code of no known use", "CUSTOM_TYPE_X", "3", "4", "breaking constant-value X [engines frontends recorders]"},
		{"not sent", "HANDSHAKE_TIMEOUT_MINS", "5", "6", "informational constant-value X []"},
		{"a word more", "PauseMode", "'Literal[0]'", "'Literal[0, 1]'", "breaking constant-value X [engines recorders]"},
		{"a word less", "PauseMode", "'Literal[0, 1]'", "'Literal[0]'", "breaking constant-value X [frontends]"},
	}, func(p *protocol.Profile, in, text string) {
		var e protocol.Enum
		for _, word := range strings.Fields(text) {
			if name, v, isEnum := strings.Cut(word, "="); isEnum {
				e.Members = append(e.Members, protocol.Member{Name: name, Value: raw(v)})
			}
		}
		if p.Enums[in] = e; len(e.Members) == 0 {
			delete(p.Enums, in)
			p.Constants[in] = protocol.Constant{Value: raw(text)}
		}
	})
}

func TestCompareUtilities(t *testing.T) {
	// "signature/result/call/call"
	compareParts(t, "m", []partCase{
		{"the same", "m", "(self, a: int) -> None/none/a", "(self, a: int) -> None/none/a", ""},
		{"called now", "m", "", "(self)/none/", "breaking utility-added m [engines]"},
		{"called no more", "m", "(self)/none/", "", "informational utility-removed m []"},
		{"another result", "m", "(self)/none", "(self) -> bool/bool", "breaking utility-result m [engines frontends]"},
		{"a result that may be anything", "m", "(self) -> bool/bool", "(self) -> X/any", "breaking utility-result m [frontends]"},
		{"other words for a kind", "m", "(self) -> None/none", "(self) -> None | Future/none", ""},
		{"another list", "m", "(self) -> list[int]/list", "(self) -> list[str]/list", "breaking utility-result m [engines frontends]"},
		{"an argument more is passed", "m", "(self, a)/none/a", "(self, a, b=1)/none/a, b", "breaking utility-arguments m [engines]"},
		{"an argument more may be passed", "m", "(self, a)/none/a", "(self, a, b=1)/none/a", "compatible utility-arguments m []"},
		{"an argument more is needed", "m", "(self, a)/none/a", "(self, a, b)/none/a, b", "breaking utility-arguments m [engines frontends]"},
		{"an argument of another type", "m", "(self, a: int)/none/a", "(self, a: int | None)/none/a", "breaking utility-arguments m [engines]"},
		{"another default, and all is passed", "m", "(self, a: int=1)/none/a", "(self, a: int=2)/none/a", "compatible utility-arguments m []"},
		{"called from one more place", "m", "(self, a, b=1)/none/a, b", "(self, a, b=1)/none/a, b/a", "informational utility-calls m []"},
		{"called with more than is taken", "m", "(self, a)/none/a", "(self, a)/none/a, b", "breaking utility-calls m [engines]"},
		{"calls that were not read before", "m", "(self, a)/none", "(self, a)/none/a", ""},
		{"a method without a signature", "m", "/any/a", "/any/a, b", "informational utility-calls m []"},
		{"how much is passed is not declared", "m", "(self, a)/none/*args", "(self, a, b=1)/none/*args", "compatible utility-arguments m []"},
	}, func(p *protocol.Profile, in, text string) {
		parts := strings.Split(text, "/")
		p.Utilities[in] = protocol.Utility{Signature: parts[0], Result: protocol.ResultKind(parts[1]), Calls: parts[2:]}
	})
}

func TestCompareMetrics(t *testing.T) {
	// "kind label label; buckets", a metric in a line each, in the order of their declarations
	tests := []struct {
		name, a, b string
		want       string
	}{
		{"the same", "x gauge a b", "x gauge b a", ""},
		{"elsewhere", "x gauge a\ny gauge", "y gauge\nx gauge a", ""},
		{"added", "x gauge a", "x gauge a\ny_total counter a b", "informational metric-added y_total []: new metric: counter by a, b"},
		{"removed", "x gauge a\ny gauge", "x gauge a", "informational metric-removed y []: metric removed: gauge without labels"},
		{"renamed", "w gauge\nx gauge a\nz gauge", "w gauge\ny gauge a\nz gauge", "informational metric-renamed y []: metric renamed: x → y"},
		{
			"another in its place", "w gauge\nx gauge a", "w gauge\ny gauge b",
			"informational metric-removed x []: metric removed: gauge by a\ninformational metric-added y []: new metric: gauge by b",
		},
		{"another kind", "x gauge a", "x counter a", "informational metric-kind x []: kind: gauge → counter"},
		{"a label more", "x gauge a", "x gauge a b", "informational metric-labels x []: labels: a → a, b"},
		{"no label", "x gauge a", "x gauge", "informational metric-labels x []: labels: a → none"},
		{"other bounds", "x histogram a; 1, 2", "x histogram a; 1, 3", "informational metric-buckets x []: buckets: 1, 2 → 1, 3"},
		{"not read", "-", "x gauge", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			set := func(lines string) func(*protocol.Profile) {
				return func(p *protocol.Profile) {
					if lines == "-" {
						return
					}
					metrics := map[string]protocol.Metric{}
					for i, line := range strings.Split(lines, "\n") {
						head, buckets, _ := strings.Cut(line, "; ")
						words := strings.Fields(head)
						metrics[words[0]] = protocol.Metric{
							Kind: words[1], Labels: words[2:], Buckets: buckets, Place: protocol.Place{Module: "vllm/m.py", At: 1 + i},
						}
					}
					p.SetMetrics(metrics)
				}
			}
			d := edited(set(test.a), set(test.b))
			got := sayings(d)
			for i, c := range d.Changes {
				got[i] += ": " + c.What()
			}
			slices.Sort(got)
			want := strings.Split(test.want, "\n")
			slices.Sort(want)
			require.NoDiff(t, cmp.Diff(strings.Join(want, "\n"), strings.Join(got, "\n")), "-want +got")
		})
	}
}
