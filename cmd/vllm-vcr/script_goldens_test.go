package main

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Scripts say what a run must report with the goldens that are registered, so that
// goldens can be captured anew. The figures come from the manifest, and from the
// goldens what the manifest does not have: which prompts are too short to be found by.

func setGolden(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: golden VAR LINE ID")
	}
	name, selected := args[0], selectGoldens(ts, args[1]+"/"+args[2])
	ts.Setenv(name, vcr.GoldensPath+"/"+selected[0].BucketPath)
	ts.Setenv(name+"_KEY", selected[0].BucketPath)
	ts.Setenv(name+"_SHA256", selected[0].SHA256)
	ts.Setenv(name+"_SIZE", strconv.FormatInt(selected[0].Size, 10))
	setTotals(ts, name, selected)
}

func setGoldens(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: goldens VAR [-]LINE[/ID]...")
	}
	setTotals(ts, args[0], selectGoldens(ts, args[1:]...))
}

// selectGoldens returns the goldens that are wanted, in the order of the manifest.
// Everything that is asked for must be there.
func selectGoldens(ts *testscript.TestScript, wanted ...string) []manifest.Golden {
	data, err := vcr.Files.ReadFile(vcr.ManifestPath)
	ts.Check(err)
	mf, diagnostics := manifest.Parse(vcr.ManifestPath, data)
	if len(diagnostics) > 0 {
		ts.Fatalf("findings: %v", diagnostics)
	}
	used := make(map[string]bool)
	var selected []manifest.Golden
	for _, g := range mf.Goldens {
		take := len(wanted) == 0
		for _, want := range wanted {
			name, without := strings.CutPrefix(want, "-")
			if name == g.Line || name == g.Line+"/"+g.ID {
				take, used[want] = !without, true
			}
		}
		if take {
			selected = append(selected, g)
		}
	}
	if len(selected) == 0 || len(used) != len(wanted) {
		ts.Fatalf("%d goldens: the manifest has not all of %q", len(selected), wanted)
	}
	return selected
}

func setTotals(ts *testscript.TestScript, name string, selected []manifest.Golden) {
	passed, index, prefix := 0, 0, 0
	for _, g := range selected {
		if g.Role.Raw() {
			passed += 4 // integrity, line, provenance, and wire or frames
			if g.Role == manifest.NIXL {
				passed++
			}
			continue
		}
		passed += 8 // the first three, schema, and four replays
		index += g.Tokens
		prefix += g.Tokens - shortPrompts(ts, g)
	}
	for suffix, n := range map[string]int{"COUNT": len(selected), "PASSED": passed, "TOKENS": 2*index + 2*prefix, "PREFIX": prefix} {
		ts.Setenv(name+"_"+suffix, strconv.Itoa(n))
	}
}

// shortPrompts counts the tokens of answers to prompts of less than a block.
func shortPrompts(ts *testscript.TestScript, g manifest.Golden) (tokens int) {
	path := vcr.GoldensPath + "/" + g.BucketPath
	data, err := vcr.Files.ReadFile(path)
	ts.Check(err)
	r, err := trace.NewReader(bytes.NewReader(data), path, trace.IsGzip(path), trace.Options{Strict: true})
	ts.Check(err)
	recorded, err := r.ReadAll()
	ts.Check(err)
	for i := range recorded.Records {
		if r := &recorded.Records[i]; r.PromptTokens < *recorded.Meta.BlockSize {
			tokens += r.OutputTokens
		}
	}
	return tokens
}
