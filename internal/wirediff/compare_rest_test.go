package wirediff_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/wirediff"
)

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

func TestCompareMessages(t *testing.T) {
	tests := []struct {
		name, message, a, b string // "map a b?", "?" being optional; empty: there is none
		want                []string
	}{
		{name: "the same", message: "READY", a: "map a b?", b: "map b? a"},
		{name: "an optional key", message: "READY", a: "map a", b: "map a b?", want: []string{"compatible key-added M.b []"}},
		{name: "a key of the engine", message: "READY", a: "map a", b: "map a b", want: []string{"breaking key-added M.b [engines]"}},
		{name: "a key of the frontend", message: "INIT.x", a: "map a", b: "map a b", want: []string{"breaking key-added M.b [frontends]"}},
		{name: "a key less", message: "HELLO", a: "map a b", b: "map a", want: []string{"breaking key-removed M.b [frontends taps]"}},
		{name: "an optional key less", message: "HELLO", a: "map a b?", b: "map a", want: []string{"compatible key-removed M.b []"}},
		{name: "optional now", message: "INIT.x", a: "map a", b: "map a?", want: []string{"breaking key-optional M.a [engines taps]"}},
		{name: "always now", message: "INIT.x", a: "map a?", b: "map a", want: []string{"compatible key-optional M.a []"}},
		{name: "a frame more", message: "KV events", a: "frames a b", b: "frames n a b", want: []string{"breaking key-added M.n@0 [engines taps]"}},
		{name: "a frame less", message: "KV events", a: "frames a b", b: "frames a", want: []string{"breaking key-removed M.b@1 [engines taps]"}},
		{name: "frames turned", message: "KV events", a: "frames a b", b: "frames b a", want: []string{
			"breaking key-removed M.a@0 [engines taps]", "breaking key-added M.a@1 [engines taps]",
		}},
		{name: "an empty frame more", message: "KV x end", a: "frames id e end e", b: "frames id e e end e", want: []string{"breaking key-added M.e@2 [engines taps]"}},
		{name: "a value more", message: "coordinator counts", a: "array a b", b: "array a b c", want: []string{"breaking key-added M.c@2 [frontends]"}},
		{name: "no more first requests", message: "coordinator first request", a: "array a", want: []string{"breaking message-removed M [engines]"}},
		{
			name: "encoding", message: "READY", a: "map a", b: "frames a",
			want: []string{"breaking message-encoding M [engines frontends taps]"},
		},
		{name: "a message more", message: "READY", b: "map a", want: []string{"breaking message-added M [frontends taps]"}},
		{name: "a message less", message: "INIT.x", a: "map a", want: []string{"breaking message-removed M [engines taps]"}},
		{
			name: "on no known way", message: "Other", a: "map a", b: "map",
			want: []string{"breaking key-removed M.a [engines frontends taps]"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fill := func(text string) func(*protocol.Profile) {
				return func(p *protocol.Profile) {
					words := strings.Fields(text)
					if len(words) == 0 {
						return
					}
					m := protocol.Message{Encoding: words[0]}
					for _, word := range words[1:] {
						m.Keys = append(m.Keys, protocol.Key{Name: strings.TrimSuffix(word, "?"), Optional: strings.HasSuffix(word, "?")})
					}
					p.Messages[test.message] = m
				}
			}
			var got []string
			for _, line := range sayings(edited(fill(test.a), fill(test.b))) {
				got = append(got, strings.Replace(line, test.message, "M", 1))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestCompareEnumsAndConstants(t *testing.T) {
	tests := []struct {
		name, in, a, b string // "A=1 B=2" for an enum, else the value of a constant
		want           []string
	}{
		{name: "the same in another order", in: "FinishReason", a: "A=1 B=2", b: "B=2 A=1"},
		{name: "a member more", in: "FinishReason", a: "A=1", b: "A=1 B=2", want: []string{"breaking member-added X.B [frontends taps]"}},
		{name: "a type more", in: "EngineCoreRequestType", a: "A=1", b: "A=1 B=2", want: []string{"breaking member-added X.B [engines taps]"}},
		{name: "a member less", in: "FinishReason", a: "A=1 B=2", b: "A=1", want: []string{"breaking member-removed X.B [engines]"}},
		{
			name: "another value", in: "FinishReason", a: "A=1", b: "A=2",
			want: []string{"breaking member-value X.A [engines frontends taps]"},
		},
		{name: "another name", in: "FinishReason", a: "A=1", b: "B=1", want: []string{"informational member-renamed X.B []"}},
		{
			name: "it never leaves the engine", in: "EngineCoreRequestType", a: "A=1", b: "A=1 WAKEUP=2",
			want: []string{"informational member-added X.WAKEUP []"},
		},
		{name: "an enum more", in: "FinishReason", b: "A=1", want: []string{"informational enum-added X []"}},
		{name: "an enum less", in: "FinishReason", a: "A=1", want: []string{"informational enum-removed X []"}},

		{name: "a constant more", in: "MEDIUM_TAPE", b: "'TAPE'", want: []string{"informational constant-added X []"}},
		{name: "a constant less", in: "MEDIUM_TAPE", a: "'TAPE'", want: []string{"informational constant-removed X []"}},
		{name: "another medium", in: "MEDIUM_CPU", a: "'CPU'", b: "'cpu'", want: []string{"breaking constant-value X [engines taps]"}},
		{name: "an id more", in: "NEW_CALL_ID", b: "-3", want: []string{"breaking constant-added X [frontends]"}},
		{name: "another id", in: "NEW_CALL_ID", a: "-3", b: "-4", want: []string{"breaking constant-value X [engines frontends taps]"}},
		{name: "a code of no known use", in: "CUSTOM_TYPE_X", a: "3", b: "4", want: []string{"breaking constant-value X [engines frontends taps]"}},
		{name: "not sent", in: "HANDSHAKE_TIMEOUT_MINS", a: "5", b: "6", want: []string{"informational constant-value X []"}},
		{name: "a word more", in: "PauseMode", a: "'Literal[0]'", b: "'Literal[0, 1]'", want: []string{"breaking constant-value X [engines taps]"}},
		{name: "a word less", in: "PauseMode", a: "'Literal[0, 1]'", b: "'Literal[0]'", want: []string{"breaking constant-value X [frontends]"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fill := func(text string) func(*protocol.Profile) {
				return func(p *protocol.Profile) {
					var e protocol.Enum
					for _, word := range strings.Fields(text) {
						if name, v, isEnum := strings.Cut(word, "="); isEnum {
							e.Members = append(e.Members, protocol.Member{Name: name, Value: raw(v)})
						}
					}
					switch {
					case len(e.Members) > 0:
						p.Enums[test.in] = e
					case text != "":
						p.Constants[test.in] = protocol.Constant{Value: raw(text)}
					}
				}
			}
			var got []string
			for _, line := range sayings(edited(fill(test.a), fill(test.b))) {
				got = append(got, strings.Replace(line, test.in, "X", 1))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestCompareUtilities(t *testing.T) {
	method := func(signature, result string, calls ...string) *protocol.Utility {
		return &protocol.Utility{Signature: signature, Result: protocol.ResultKind(result), Calls: calls}
	}
	tests := []struct {
		name string
		a, b *protocol.Utility
		want []string
	}{
		{name: "the same", a: method("(self, a: int) -> None", "none", "a"), b: method("(self, a: int) -> None", "none", "a")},
		{name: "called now", b: method("(self)", "none", ""), want: []string{"breaking utility-added m [engines]"}},
		{name: "called no more", a: method("(self)", "none", ""), want: []string{"informational utility-removed m []"}},
		{
			name: "another result", a: method("(self)", "none"), b: method("(self) -> bool", "bool"),
			want: []string{"breaking utility-result m [engines frontends]"},
		},
		{
			name: "a result that may be anything", a: method("(self) -> bool", "bool"), b: method("(self) -> X", "any"),
			want: []string{"breaking utility-result m [frontends]"},
		},
		{name: "other words for a kind", a: method("(self) -> None", "none"), b: method("(self) -> None | Future", "none")},
		{
			name: "another list", a: method("(self) -> list[int]", "list"), b: method("(self) -> list[str]", "list"),
			want: []string{"breaking utility-result m [engines frontends]"},
		},
		{
			name: "an argument more is passed", a: method("(self, a)", "none", "a"), b: method("(self, a, b=1)", "none", "a, b"),
			want: []string{"breaking utility-arguments m [engines]"},
		},
		{
			name: "an argument more may be passed", a: method("(self, a)", "none", "a"), b: method("(self, a, b=1)", "none", "a"),
			want: []string{"compatible utility-arguments m []"},
		},
		{
			name: "an argument more is needed", a: method("(self, a)", "none", "a"), b: method("(self, a, b)", "none", "a, b"),
			want: []string{"breaking utility-arguments m [engines frontends]"},
		},
		{
			name: "an argument of another type", a: method("(self, a: int)", "none", "a"), b: method("(self, a: int | None)", "none", "a"),
			want: []string{"breaking utility-arguments m [engines]"},
		},
		{
			name: "another default, and all is passed", a: method("(self, a: int=1)", "none", "a"), b: method("(self, a: int=2)", "none", "a"),
			want: []string{"compatible utility-arguments m []"},
		},
		{
			name: "called from one more place", a: method("(self, a, b=1)", "none", "a, b"), b: method("(self, a, b=1)", "none", "a, b", "a"),
			want: []string{"informational utility-calls m []"},
		},
		{
			name: "called with more than is taken", a: method("(self, a)", "none", "a"), b: method("(self, a)", "none", "a, b"),
			want: []string{"breaking utility-calls m [engines]"},
		},
		{
			name: "calls that were not read before", a: method("(self, a)", "none"), b: method("(self, a)", "none", "a"),
		},
		{name: "a method without a signature", a: method("", "any", "a"), b: method("", "any", "a, b"), want: []string{"informational utility-calls m []"}},
		{
			name: "how much is passed is not declared", a: method("(self, a)", "none", "*args"), b: method("(self, a, b=1)", "none", "*args"),
			want: []string{"compatible utility-arguments m []"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fill := func(u *protocol.Utility) func(*protocol.Profile) {
				return func(p *protocol.Profile) {
					if u != nil {
						p.Utilities["m"] = *u
					}
				}
			}
			if diff := cmp.Diff(test.want, sayings(edited(fill(test.a), fill(test.b)))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
