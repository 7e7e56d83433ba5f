package drift_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

func TestRead(t *testing.T) {
	tests := []struct {
		name, text string // no file when the text is empty
		want       drift.Outputs
		err        string
	}{
		{
			name: "outputs of a step",
			text: `{"drift":"found","vllm-version":"0.34.0","summary":"s","body":"b","layers":"{}","wire":"w","passed":"3"}`,
			want: drift.Outputs{Drift: "found", Version: "0.34.0", Summary: "s", Body: "b", Layers: "{}", Wire: "w"},
		},
		{name: "no file", err: "the check left no verdict: there is no verdict-0.34/verdict.json"},
		{name: "no outputs", text: "{}", err: "the check left no verdict: verdict-0.34/verdict.json has no drift"},
		{name: "cut off", text: `{"drift":"no`, err: "verdict-0.34/verdict.json: unexpected end"},
		{name: "another word", text: `{"drift":"no\u001bne"}`, err: `drift "no ne": want none, found or unknown`},
		{name: "too large", text: `{"drift":"none","body":"` + strings.Repeat("x", 4<<20) + `"}`, err: "more than 4194304 bytes"},
		{name: "another type", text: `{"drift":"none","body":[]}`, err: "verdict-0.34/verdict.json: json: cannot unmarshal"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			folder := fstest.MapFS{"verdict-0.33/verdict.json": {Data: []byte(`{"drift":"none"}`)}}
			if test.text != "" {
				folder["verdict-0.34/verdict.json"] = &fstest.MapFile{Data: []byte(test.text)}
			}
			got, err := drift.ReadOutputs(folder, drift.Row{Line: "0.34"})
			require.ErrorText(t, err, test.err)
			if strings.Contains(test.err, "no drift") {
				return
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "verdict (-want +got)")
		})
	}
}

func TestIssue(t *testing.T) {
	row := drift.Row{Line: "0.34", Version: "0.34.1", Kind: drift.Added, Check: "0.34.1"}
	nightly := drift.Row{Line: "nightly", Kind: drift.Nightly, Check: "--nightly"}
	tests := []struct {
		name    string
		row     drift.Row
		verdict drift.Outputs
		want    github.Issue
	}{
		{
			"found", row,
			drift.Outputs{Drift: "found", Version: "9.9.9", Summary: "it `differs`\n::x", Body: "text", Layers: `{"static":"found"}`, Wire: "w"},
			github.Issue{Title: "vLLM 0.34 (0.34.1): drift found", Body: "**drift: found**: <code>it &#96;differs&#96; ::x</code>\n\n    | text\n", State: "found c5aa6be6", Comment: "**drift: found**: <code>it &#96;differs&#96; ::x</code>"},
		},
		{
			"none", row,
			drift.Outputs{Drift: "none", Summary: "it speaks", Body: "text"},
			github.Issue{Body: "**drift: none**: <code>it speaks</code>", Comment: "**drift: none**: <code>it speaks</code>"},
		},
		{
			"unknown", row,
			drift.Outputs{Drift: "unknown", Summary: "index: 403", Body: "text"},
			github.Issue{Title: "vLLM 0.34 (0.34.1): drift unknown", Body: "**drift: unknown**: <code>index: 403</code>\n\n    | text\n", State: "unknown", Comment: "**drift: unknown**: <code>index: 403</code>"},
		},
		{
			"without a verdict", nightly,
			drift.Outputs{},
			github.Issue{
				Title: "vLLM nightly: drift unknown", State: "unknown", Comment: "**drift: unknown**: <code>The check ended without a verdict.</code>",
				Body: "**drift: unknown**: <code>The check ended without a verdict.</code>\n\nSee the runs of the workflow.",
			},
		},
		{
			"nightly", nightly,
			drift.Outputs{Drift: "unknown", Version: "0.34.0.dev12+gabc", Summary: "s", Body: "b"},
			github.Issue{Title: "vLLM nightly (0.34.0.dev12+gabc): drift unknown", Body: "**drift: unknown**: <code>s</code>\n\n    | b\n", State: "unknown", Comment: "**drift: unknown**: <code>s</code>"},
		},
		{
			"a version that is none", nightly,
			drift.Outputs{Drift: "unknown", Version: "<b>", Summary: "s", Body: "b"},
			github.Issue{Title: "vLLM nightly: drift unknown", Body: "**drift: unknown**: <code>s</code>\n\n    | b\n", State: "unknown", Comment: "**drift: unknown**: <code>s</code>"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.Key, test.want.Labels = "canary/"+test.row.Line, []string{"drift"}
			test.want.Open, test.want.Unclear = test.want.Title != "", test.want.State == "unknown"
			got := drift.IssueOf(test.row, test.verdict, []string{"drift"})
			require.NoDiff(t, cmp.Diff(test.want, got), "-want +got")
		})
	}
}

// TestState: the state is another one with the layers and the wire, and with nothing else.
func TestState(t *testing.T) {
	state := func(change func(*drift.Outputs)) string {
		v := drift.Outputs{Drift: "found", Version: "1.0.0", Summary: "s", Body: "b", Layers: "l", Wire: "w"}
		change(&v)
		return drift.IssueOf(drift.Row{Line: "nightly"}, v, nil).State
	}
	base := state(func(*drift.Outputs) {})
	for name, change := range map[string]func(*drift.Outputs){
		"version": func(v *drift.Outputs) { v.Version = "2.0.0" },
		"summary": func(v *drift.Outputs) { v.Summary = "t" },
		"body":    func(v *drift.Outputs) { v.Body = "c" },
	} {
		if got := state(change); got != base {
			t.Errorf("another %s makes the state %q of %q", name, got, base)
		}
	}
	for name, change := range map[string]func(*drift.Outputs){
		"drift":  func(v *drift.Outputs) { v.Drift = "unknown" },
		"layers": func(v *drift.Outputs) { v.Layers = "m" },
		"wire":   func(v *drift.Outputs) { v.Wire = "x" },
		"seam":   func(v *drift.Outputs) { v.Layers, v.Wire = "lw", "" },
	} {
		if got := state(change); got == base {
			t.Errorf("another %s leaves the state %q", name, got)
		}
	}
}
