package drift

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// profile is a copy of the profile of a line, which a test may change.
func profile(t *testing.T, line string) *protocol.Profile {
	t.Helper()
	p, err := protocol.LoadProfile(line)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, protocol.WriteProfile(&text, p))
	p, err = protocol.ReadProfile(&text)
	require.NoError(t, err)
	return p
}

// editFields changes the fields of a struct.
func editFields(name string, edit func([]protocol.Field) []protocol.Field) func(*protocol.Profile) {
	return func(p *protocol.Profile) {
		s := p.Structs[name]
		s.Fields = edit(slices.Clone(s.Fields))
		p.Structs[name] = s
	}
}

// TestStatic: each change is one of a release that says what line 0.33 does but for it.
func TestStatic(t *testing.T) {
	gap := extract.Gap{Place: protocol.Place{Module: "vllm/v1/engine/__init__.py", At: 7}, What: "struct EngineCoreRequest", Why: "it is declared under a condition"}
	request := func(edit func([]protocol.Field) []protocol.Field) func(*protocol.Profile) {
		return editFields("EngineCoreRequest", edit)
	}
	withoutField := editFields("EngineCoreOutput", func(f []protocol.Field) []protocol.Field { return slices.Delete(f, 1, 2) })
	tests := []struct {
		name    string
		change  func(*protocol.Profile) // may be nil
		gaps    []extract.Gap
		err     error
		want    Verdict
		code    int
		reasons []string // parts
	}{
		{name: "the same", want: None, reasons: []string{"0 changes"}},
		{name: "another release, of other places", want: None, reasons: []string{"0 changes"}, change: func(p *protocol.Profile) {
			p.Version, p.Commit = "0.33.9", "012345678"
			request(func(f []protocol.Field) []protocol.Field { f[0].At += 10; return f })(p)
		}},
		{
			name: "a field between others", want: Found, code: 1, reasons: []string{"breaking", "first EngineCoreRequest."},
			change: request(func(f []protocol.Field) []protocol.Field {
				return slices.Insert(f, 1, protocol.Field{Name: "brand_new", Type: "int", Default: json.RawMessage("0")})
			}),
		},
		{
			name: "an optional field at the end", want: None, reasons: []string{"0 breaking"},
			change: request(func(f []protocol.Field) []protocol.Field {
				return append(f, protocol.Field{Name: "brand_new", Type: "int | None"})
			}),
		},
		{name: "a field is gone", want: Found, code: 1, reasons: []string{"first EngineCoreOutput."}, change: withoutField},
		{name: "another byte", want: Found, code: 1, reasons: []string{"first EngineCoreRequestType"}, change: func(p *protocol.Profile) {
			e := p.Enums["EngineCoreRequestType"]
			e.Members = slices.Clone(e.Members)
			e.Members[0].Value = json.RawMessage(`"0x77"`)
			p.Enums["EngineCoreRequestType"] = e
		}},
		{
			name: "not all could be read", want: Unknown, code: 3, gaps: []extract.Gap{gap},
			reasons: []string{"0 changes; 1 part could not be read, first vllm/v1/engine/__init__.py:7", "struct EngineCoreRequest: it is declared under a condition"},
		},
		{
			name: "what breaks weighs more than what could not be read", want: Found, code: 1, gaps: []extract.Gap{gap, gap},
			reasons: []string{"breaking; first EngineCoreOutput.", "2 parts could not be read"}, change: withoutField,
		},
		{name: "no sources", err: errors.New("wheel: it holds no vllm/v1\n::error::"), want: Unknown, code: 3, reasons: []string{"wheel: it holds no vllm/v1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			read := profile(t, "0.33")
			if test.change != nil {
				test.change(read)
			}
			layer, got := compareSources(t.Context(), compat.Line{Name: "0.33", Tag: "v0.33.0"}, func(context.Context) (extract.Result, error) {
				if test.err != nil {
					read = nil
				}
				return extract.Result{Profile: read, Gaps: test.gaps, Downloaded: 5}, test.err
			})
			code := Judge([]Layer{layer}).ExitCode()
			if layer.Verdict != test.want || code != test.code || layer.Downloaded != 5 || got.Profile != read {
				t.Errorf("got %s, exit code %d, %d bytes: want %s, %d", layer.Verdict, code, layer.Downloaded, test.want, test.code)
			}
			for _, want := range test.reasons {
				require.Contains(t, layer.Reason, want)
			}
			require.True(t, !strings.Contains(layer.Reason, "\n"), "the reason has several lines: %q", layer.Reason)
			if test.err == nil {
				require.Equal(t, len(layer.Diff.Gaps), len(test.gaps), "gaps")
			}
		})
	}
}

// TestStaticLines: nothing that was read may look like a release that says the same, and a tracker has the profile of
// its release.
func TestStaticLines(t *testing.T) {
	for _, x := range []extract.Result{{}, {Profile: &protocol.Profile{Line: "0.33", Version: "0.33.0"}}} {
		layer, _ := compareSources(t.Context(), compat.Line{Name: "0.33"}, func(context.Context) (extract.Result, error) { return x, nil })
		require.Equal(t, layer.Verdict, Unknown, "%s", layer.Reason)
	}
	layer, _ := compareSources(t.Context(), compat.Line{Name: "0.1"}, nil)
	require.True(t, layer.Verdict == Unknown && strings.Contains(layer.Reason, `no wire profile for vLLM line "0.1"`), "got %+v", layer)
	layer, _ = compareSources(t.Context(), compat.Line{Name: compat.RC, Tag: "v0.33.0rc1"}, func(context.Context) (extract.Result, error) {
		return extract.Result{Profile: profile(t, "0.33")}, nil
	})
	require.True(t, layer.Verdict == None && layer.Diff.Verdict() == wirediff.None, "got %+v", layer)
}

func TestFingerprint(t *testing.T) {
	same := []func(*protocol.Profile){
		func(p *protocol.Profile) { p.Version, p.Line, p.Commit = "0.40.0", "0.40", "x" },
		editFields("EngineCoreRequest", func(f []protocol.Field) []protocol.Field { f[1].At, f[1].Module = 99, "vllm/x.py"; return f }),
		func(p *protocol.Profile) {
			u := p.Utilities["is_sleeping"]
			u.Module, u.At = "vllm/x.py", 3
			p.Utilities["is_sleeping"] = u
		},
	}
	other := []func(*protocol.Profile){
		editFields("EngineCoreRequest", func(f []protocol.Field) []protocol.Field { f[1].Name += "x"; return f }),
		editFields("EngineCoreRequest", func(f []protocol.Field) []protocol.Field { return f[:len(f)-1] }),
		func(p *protocol.Profile) { delete(p.Utilities, "is_sleeping") },
	}
	want := Fingerprint(profile(t, "0.33"))
	require.Equal(t, len(want), 16, "words of %q", want)
	for i, change := range same {
		p := profile(t, "0.33")
		change(p)
		var before, after bytes.Buffer
		_ = protocol.WriteProfile(&before, p)
		require.Equal(t, Fingerprint(p), want, "same %d", i)
		if _ = protocol.WriteProfile(&after, p); before.String() != after.String() {
			t.Errorf("same %d: the profile was changed", i)
		}
	}
	for i, change := range other {
		p := profile(t, "0.33")
		change(p)
		if got := Fingerprint(p); got == want {
			t.Errorf("other %d: got %q too", i, got)
		}
	}
	require.Equal(t, Fingerprint(nil), "", "nothing has")
}
