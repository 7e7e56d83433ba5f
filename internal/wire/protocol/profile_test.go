package protocol

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// written lists the structs that this package writes, and where each stands in
// what it writes; nil for those of which it writes a fixed choice of map keys.
var written = map[string]func(testing.TB, *Codec) []byte{
	"EngineCoreRequest":       request,
	"LoRARequest":             func(t testing.TB, c *Codec) []byte { return elements(t, request(t, c))[6] },
	"EngineCoreOutputs":       func(t testing.TB, c *Codec) []byte { return everything(t, c)[0] },
	"EngineCoreOutput":        output,
	"LogprobsLists":           partOfOutput("new_logprobs"),
	"LogprobsTensors":         partOfOutput("new_prompt_logprobs_tensors"),
	"EngineCoreEvent":         func(t testing.TB, c *Codec) []byte { return elements(t, partOfOutput("events")(t, c))[0] },
	"PrefillStats":            partOfOutput("prefill_stats"),
	"RequestError":            partOfOutput("error"),
	"SchedulerStats":          func(t testing.TB, c *Codec) []byte { return elements(t, everything(t, c)[0])[2] },
	"PrefixCacheStats":        partOfStats("prefix_cache_stats"),
	"SpecDecodingStats":       partOfStats("spec_decoding_stats"),
	"UtilityOutput":           answer,
	"EngineCoreReadyResponse": ready,
	"SamplingParams":          nil,
	"KVEventsConfig":          nil,
	"EngineHandshakeMetadata": nil,
	"EngineZmqAddresses":      nil,
}

func request(_ testing.TB, c *Codec) []byte {
	r := plainRequest("a")
	r.LoRA = &LoRA{Name: "l", ID: 1, Path: "/p"}
	return c.AppendRequest(nil, r)
}

func output(t testing.TB, c *Codec) []byte {
	return elements(t, elements(t, everything(t, c)[0])[1])[0]
}

func partOfOutput(field string) func(testing.TB, *Codec) []byte {
	return func(t testing.TB, c *Codec) []byte {
		return elements(t, output(t, c))[c.Profile().Structs["EngineCoreOutput"].Index(field)]
	}
}

func partOfStats(key string) func(testing.TB, *Codec) []byte {
	return func(t testing.TB, c *Codec) []byte { return member(t, elements(t, everything(t, c)[0])[2], key) }
}

func answer(t testing.TB, c *Codec) []byte {
	m, err := c.UtilityResult(0, UtilityCall{CallID: 7, Method: "is_sleeping"}, true, 0)
	require.NoError(t, err)
	return elements(t, m[0])[4]
}

func ready(_ testing.TB, c *Codec) []byte {
	r := DefaultReady("0")
	return c.AppendReady(nil, &r)
}

// changed loads a profile and changes one of its structs.
func changed(t *testing.T, line, name string, change func(*Struct)) *Profile {
	t.Helper()
	p, err := LoadProfile(line)
	require.NoError(t, err)
	s, ok := p.Structs[name]
	if !ok {
		t.Fatalf("line %s has no %s", line, name)
	}
	change(&s)
	p.Structs[name] = s
	return p
}

// TestNewCodecRefuses: a change of the wire that this package cannot follow
// stops it, struct by struct, before a byte is sent.
func TestNewCodecRefuses(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*Struct)
		message string
		arrays  bool // only of array-encoded structs
	}{
		{"new required field", func(s *Struct) {
			s.Fields = append(s.Fields, Field{Name: "brand_new", Type: "int", Required: true})
		}, ".brand_new is required", false},
		{"other encoding", func(s *Struct) {
			s.Encoding = map[string]string{"array": "map", "map": "array"}[s.Encoding]
		}, " is encoded as ", false},
		{"new field in front", func(s *Struct) {
			s.Fields = append([]Field{{Name: "brand_new", Type: "int"}}, s.Fields...)
		}, "", true},
		{"first field gone", func(s *Struct) { s.Fields = s.Fields[1:] }, "", true},
		{"no fields", func(s *Struct) { s.Fields = nil }, "", true},
	} {
		for name := range written {
			for _, line := range []string{"0.33", "0.25"} {
				if s, ok := codecOf(t, line).Profile().Structs[name]; !ok || test.arrays && s.Encoding != "array" {
					continue // the line has no such struct, or keys, which have no order to a reader
				}
				t.Run(test.name+"/"+name+"/"+line, func(t *testing.T) {
					_, err := NewCodec(changed(t, line, name, test.change))
					if err == nil || !strings.Contains(err.Error(), "wire profile "+line) || !strings.Contains(err.Error(), name) ||
						!strings.Contains(err.Error(), test.message) {
						t.Errorf("got %v, want one that names line, %s and %q", err, name, test.message)
					}
				})
			}
		}
	}
}

func TestNewCodecRefusesAMissingStruct(t *testing.T) {
	for name := range written {
		p, err := LoadProfile(Newest())
		require.NoError(t, err)
		delete(p.Structs, name)
		if _, err := NewCodec(p); err == nil || !strings.Contains(err.Error(), "wire profile "+Newest()+" has no struct "+name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestNewOptionalField: what a release adds with a default is written with that
// default, at its place, as the release's own engine would.
func TestNewOptionalField(t *testing.T) {
	for _, test := range []struct {
		name, annotation, def string
		want                  []byte
	}{
		{"None", "int | None", "", []byte{0xc0}},
		{"null", "str | None", "null", []byte{0xc0}},
		{"number", "int", "7", []byte{7}},
		{"number or None", "int | None", "-1", []byte{0xff}},
		{"float", "float", "1", pack.AppendFloat64(nil, 1)},
		{"float or None", "float | None", "0.5", pack.AppendFloat64(nil, 0.5)},
		{"bool", "bool", "true", []byte{0xc3}},
		{"string", "str", `"x"`, []byte{0xa1, 'x'}},
		{"list", "list[int]", "[]", []byte{0x90}},
		{"dict", "dict[str, int]", "{}", []byte{0x80}},
		// A default that the profile does not give is not guessed.
		{"struct", "PerfStats", "{}", nil},
		{"full list", "list[int]", "[1]", nil},
		{"full dict", "dict[str, int]", `{"a": 1}`, nil},
		{"enum", "RequestOutputKind", `"RequestOutputKind.DELTA"`, nil},
		{"fraction of an int", "int", "1.5", nil},
		{"beyond a float's integers", "int", "18446744073709551615", nil},
		{"not JSON", "int", "lambda: 5", nil},
	} {
		for name, locate := range written {
			if locate == nil {
				continue
			}
			t.Run(test.name+"/"+name, func(t *testing.T) {
				p := changed(t, recorded, name, func(s *Struct) {
					s.Fields = append(s.Fields, Field{Name: "brand_new", Type: test.annotation, Default: json.RawMessage(test.def)})
				})
				c, err := NewCodec(p)
				if test.want == nil {
					require.ErrorContains(t, err, name+".brand_new: ")
					return
				}
				require.NoError(t, err)
				raw := locate(t, c)
				var got []byte
				if s := p.Structs[name]; s.Encoding == "array" {
					got = elements(t, raw)[len(s.Fields)-1]
				} else {
					got = member(t, raw, "brand_new")
				}
				require.NoDiff(t, cmp.Diff(test.want, got), "in %s: -want +got", pack.Format(raw))
			})
		}
	}
}

// TestFieldsInTheMiddle: 0.26 put ec_transfer_params between two fields of an
// output; the next insertion must move what follows likewise.
func TestFieldsInTheMiddle(t *testing.T) {
	for _, name := range []string{"EngineCoreOutputs", "EngineCoreOutput", "EngineCoreRequest"} {
		t.Run(name, func(t *testing.T) {
			const at = 3
			p := changed(t, recorded, name, func(s *Struct) {
				fields := append([]Field{}, s.Fields[:at]...)
				s.Fields = append(append(fields, Field{Name: "brand_new", Type: "str", Default: json.RawMessage(`"new"`)}), s.Fields[at:]...)
			})
			c, err := NewCodec(p)
			require.NoError(t, err)
			before, after := elements(t, written[name](t, codecOf(t, recorded))), elements(t, written[name](t, c))
			want := append(append(append([][]byte{}, before[:at]...), pack.AppendString(nil, "new")), before[at:]...)
			if name == "EngineCoreOutputs" {
				want[1] = after[1]
			}
			require.NoDiff(t, cmp.Diff(want, after), "-want +got")
			if name == "EngineCoreRequest" {
				var r Request
				if err := c.DecodeRequest(c.AppendRequest(nil, plainRequest("a")), &r); err != nil || !r.HasSampling || r.ID != "a" {
					t.Errorf("%+v %v", r, err)
				}
			} else {
				mustDecode(t, c, everything(t, c))
			}
		})
	}
}

// TestRequestLacksAField: a field that this package reads and a line no longer
// has would be silently zero.
func TestRequestLacksAField(t *testing.T) {
	for name := range requestFields {
		if laterRequestFields[name] {
			continue
		}
		p := changed(t, Newest(), "EngineCoreRequest", func(s *Struct) {
			i := s.Index(name)
			s.Fields = append(append([]Field{}, s.Fields[:i]...), s.Fields[i+1:]...)
		})
		if _, err := NewCodec(p); err == nil || !strings.Contains(err.Error(), "EngineCoreRequest lacks a field") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
