package wirediff_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/wirediff"
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

// sayings are changes as lines: "breaking field-added X.c@2 [engines taps]".
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
var structCases = []struct {
	name, in, a, b string
	want           []string
}{
	{name: "the same", in: engine, a: "array a:int b:int=0", b: "array a:int b:int=0"},
	{name: "appended", in: engine, a: "array a:int", b: "array a:int b:int=0", want: []string{"compatible field-added X.b@1 []"}},
	{
		name: "appended, required, to the engine", in: engine, a: "array a:int", b: "array a:int b:int",
		want: []string{"breaking field-added X.b@1 [frontends]"},
	},
	{
		name: "appended, required, to the frontend", in: outputs, a: "array a:int", b: "array a:int b:int",
		want: []string{"breaking field-added X.b@1 [engines]"},
	},
	{
		name: "appended, required, of an event", in: event, a: "array a:int", b: "array a:int b:int",
		want: []string{"breaking field-added X.b@1 [engines]"},
	},
	{
		name: "appended to a NamedTuple", in: exact, a: "tuple a:int", b: "tuple a:int b:int=0",
		want: []string{"breaking field-added X.b@1 [frontends taps]"},
	},
	{
		name: "inserted", in: outputs, a: "array a:int b:int", b: "array a:int c:int=0 b:int",
		want: []string{"breaking field-added X.c@1 [engines frontends taps]"},
	},
	{
		name: "two inserted and one appended", in: engine, a: "array a:int b:int", b: "array n:int a:int c:int=0 b:int d:int=0",
		want: []string{
			"breaking field-added X.n@0 [engines frontends taps]", "breaking field-added X.c@2 [engines frontends taps]",
			"compatible field-added X.d@4 []",
		},
	},
	{
		name: "an event's tag is at 0", in: event, a: "array#X a:int", b: "array#X a:int b:int=0",
		want: []string{"compatible field-added X.b@2 []"},
	},
	{
		name: "removed in the middle", in: engine, a: "array a:int b:int=0 c:int=0", b: "array a:int c:int=0",
		want: []string{"breaking field-removed X.b@1 [engines frontends taps]"},
	},
	{name: "removed at the end", in: engine, a: "array a:int b:int=0", b: "array a:int", want: []string{"compatible field-removed X.b@1 []"}},
	{
		name: "required removed at the end", in: engine, a: "array a:int b:int", b: "array a:int",
		want: []string{"breaking field-removed X.b@1 [engines taps]"},
	},
	{
		name: "removed at the end of a NamedTuple", in: exact, a: "tuple a:int b:int=0", b: "tuple a:int",
		want: []string{"breaking field-removed X.b@1 [engines]"},
	},
	{
		name: "moved", in: engine, a: "array a:int b:str c:bool", b: "array c:bool a:int b:str",
		want: []string{"breaking field-moved X.c@0 [engines frontends taps]"},
	},
	{
		name: "renamed in an array", in: engine, a: "array a:int b:int=0", b: "array a:int c:int=0",
		want: []string{"informational field-renamed X.c@1 []"},
	},
	{
		name: "another of the same type, with another default", in: outputs, a: "map a:int b:int=0", b: "map a:int c:int=1",
		want: []string{"compatible field-removed X.b []", "compatible field-added X.c []"},
	},
	{
		name: "another of the same type, required", in: outputs, a: "map a:int b:int|None=", b: "map a:int c:int|None",
		want: []string{"breaking field-added X.c [engines]", "compatible field-removed X.b []"},
	},
	{
		name: "renamed in a map", in: outputs, a: "map a:int b:int=0", b: "map a:int c:int=0",
		want: []string{"breaking field-renamed X.c [engines frontends taps]"},
	},
	{
		name: "two for one at the end", in: engine, a: "array a:int b:int=0", b: "array a:int c:str|None= d:int=0",
		want: []string{
			"breaking field-removed X.b@1 [engines frontends taps]", "breaking field-added X.c@1 [engines frontends taps]",
			"compatible field-added X.d@2 []",
		},
	},
	{
		name: "another in its place", in: engine, a: "array a:int b:int=0", b: "array a:int c:str|None=",
		want: []string{
			"breaking field-removed X.b@1 [engines frontends taps]", "breaking field-added X.c@1 [engines frontends taps]",
		},
	},
	{name: "a key more", in: outputs, a: "map a:int", b: "map b:int=0 a:int", want: []string{"compatible field-added X.b []"}},
	{
		name: "a required key more", in: outputs, a: "map a:int", b: "map a:int b:int",
		want: []string{"breaking field-added X.b [engines]"},
	},
	{name: "a key less", in: outputs, a: "map a:int b:int=0", b: "map a:int", want: []string{"compatible field-removed X.b []"}},
	{
		name: "a required key less", in: outputs, a: "map a:int b:int", b: "map a:int",
		want: []string{"breaking field-removed X.b [frontends taps]"},
	},
	{name: "keys in another order", in: engine, a: "map a:int b:str", b: "map b:str a:int"},
	{
		name: "nil where none was", in: engine, a: "map a:int", b: "map a:int|None",
		want: []string{"breaking field-type X.a [engines taps]"},
	},
	{
		name: "nil no more", in: engine, a: "array a:int|None", b: "array a:int",
		want: []string{"breaking field-type X.a@0 [frontends]"},
	},
	{
		name: "another type", in: outputs, a: "array a:int", b: "array a:str",
		want: []string{"breaking field-type X.a@0 [engines frontends taps]"},
	},
	{name: "the type in other words", in: engine, a: "map a:Optional[int]", b: "map a:int|None"},
	{name: "a set for a list", in: engine, a: "map a:list[int]", b: "map a:set[int]"},
	{
		name: "encoding", in: event, a: "array a:int", b: "map a:int",
		want: []string{"breaking struct-encoding X [engines taps]"},
	},
	{name: "a tag", in: event, a: "map#X a:int", b: "map a:int", want: []string{"breaking struct-tag X [taps]"}},
	{name: "a new tag", in: event, a: "map a:int", b: "map#X a:int", want: []string{"breaking struct-tag X [engines]"}},
	{name: "another tag", in: event, a: "map#Y a:int", b: "map#X a:int", want: []string{"breaking struct-tag X [engines taps]"}},
	{
		name: "a tag of an array", in: event, a: "array a:int", b: "array#X a:int",
		want: []string{"breaking struct-tag X [engines taps]"},
	},
	{
		name: "omits defaults", in: outputs, a: "map a:int b:int=0", b: "map! a:int b:int=0",
		want: []string{"breaking struct-omit-defaults X [frontends taps]"},
	},
	{
		name: "omits no defaults", in: outputs, a: "map! a:int b:int=0", b: "map a:int b:int=0",
		want: []string{"compatible struct-omit-defaults X []"},
	},
	{
		name: "an array omits nothing", in: outputs, a: "array a:int b:int=0", b: "array! a:int b:int=0",
		want: []string{"informational struct-omit-defaults X []"},
	},
	{
		name: "omits defaults, and has none", in: outputs, a: "map a:int", b: "map! a:int",
		want: []string{"informational struct-omit-defaults X []"},
	},
	{
		name: "another default, omitted", in: engine, a: "map! a:int=0", b: "map! a:int=1",
		want: []string{"breaking field-default X.a [engines frontends taps]"},
	},
	{
		name: "another default, written", in: engine, a: "map a:int=0", b: "map a:int=1",
		want: []string{"informational field-default X.a []"},
	},
	{name: "None in two spellings", in: engine, a: "map! a:int|None=", b: "map! a:int|None=null"},
	{
		name: "required from now on", in: engine, a: "map a:int=0", b: "map a:int",
		want: []string{"breaking field-required X.a [frontends]"},
	},
	{
		name: "required no more, omitted", in: outputs, a: "map! a:int", b: "map! a:int=0",
		want: []string{"breaking field-required X.a [frontends taps]"},
	},
	{
		name: "required no more, written", in: outputs, a: "map a:int", b: "map a:int=0",
		want: []string{"compatible field-required X.a []"},
	},
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
			got := sayings(wirediff.Compare(a, b))
			for i := range got {
				got[i] = strings.Replace(got[i], test.in, "X", 1)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	gap := wirediff.Gap{What: "struct X", Why: "it is declared under a condition"}
	tests := []struct {
		name, a, b string
		gaps       []wirediff.Gap
		want       wirediff.Verdict
	}{
		{name: "nothing", a: "map a:int", b: "map a:int", want: wirediff.None},
		{name: "nothing, as far as it was read", a: "map a:int", b: "map a:int", gaps: []wirediff.Gap{gap}, want: wirediff.Unknown},
		{name: "compatible", a: "map a:int", b: "map a:int b:int=0", want: wirediff.Changed},
		{name: "compatible, as far as it was read", a: "map a:int", b: "map a:int b:int=0", gaps: []wirediff.Gap{gap}, want: wirediff.Unknown},
		{name: "breaking", a: "map a:int", b: "map a:int b:int", want: wirediff.Breaks},
		{name: "breaking, and not all read", a: "map a:int", b: "map a:int b:int", gaps: []wirediff.Gap{gap}, want: wirediff.Breaks},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := wirediff.Compare(
				profile("0.1", map[string]protocol.Struct{engine: parseStruct(t, test.a)}),
				profile("0.2", map[string]protocol.Struct{engine: parseStruct(t, test.b)}))
			d.Gaps = test.gaps
			if got := d.Verdict(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if said := strings.Contains(d.Headline(), "nothing changed"); said != (test.want == wirediff.None) {
				t.Errorf("the headline is %q", d.Headline())
			}
		})
	}
}
