package acceptance

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A reason says why a verdict of ours may contradict what the frontends do.
type reason struct {
	Verdict  string   `toml:"verdict"` // ours: "refused" or "passed"; of the player: "dead, player served"
	Places   []string `toml:"places"`  // an asterisk stands for anything
	Variants []string `toml:"variants"`
	Reason   string   `toml:"reason"`

	used bool
}

func (r *reason) covers(p Probe, verdict string) bool {
	matches := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			expr := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
			return regexp.MustCompile("^" + expr + "$").MatchString(name)
		})
	}
	return r.Verdict == verdict && matches(r.Variants, p.Variant) && matches(r.Places, p.Place)
}

// verdict is what the checks of conform say of an engine that sends what a probe does: nothing if it passes.
func verdict(m *Messages, p Probe) []string {
	f := facts{ready: m.ready, id: "live-1", callID: 77, finish: protocol.FinishLength}
	var wrong []string
	add := func(found []protocol.Mismatch) {
		for _, w := range found {
			if !w.Unknown { // both suites pass over such a key
				wrong = append(wrong, w.String())
			}
		}
	}
	if p.scenario.root != nil && p.scenario.method == "" {
		of := func(s *scenario) []byte {
			if s == p.scenario {
				return p.message(f)[0]
			}
			return s.clean(f)
		}
		for _, failure := range live.InspectHandshake(m.Codec, of(m.hello), of(m.register), of(m.end)) {
			wrong = append(wrong, string(failure.Code)+" "+failure.Message)
		}
		add(m.Codec.CheckReady(of(m.register)))
		return wrong
	}
	asked := live.Asked{CallID: f.callID, Method: p.scenario.call}
	if asked.Method == "" {
		sampling := protocol.Sampling{MaxTokens: 1, HasMaxTokens: true, EOSTokenID: -1, Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs}
		if p.scenario.body["logprobs"] != nil {
			sampling.Logprobs = 1
		}
		if p.scenario.body["prompt_logprobs"] != nil {
			sampling.PromptLogprobs = 1
		}
		asked.Request = &protocol.Request{ID: f.id, HasSampling: true, Sampling: sampling}
		for i := range promptTokens {
			asked.Request.PromptTokenIDs = append(asked.Request.PromptTokenIDs, uint32(promptID(i)))
		}
	}
	frames := p.message(f)
	for _, failure := range live.Inspect(m.Codec, asked, frames) {
		wrong = append(wrong, string(failure.Code)+" "+failure.Message)
	}
	if string(frames[0]) != protocol.EngineDead {
		add(check.OutputsLayout(m.Codec, frames))
	}
	return wrong
}

// readReasons reads a file of reasons.
func readReasons(t *testing.T, name string) []*reason {
	var file struct {
		Reasons []*reason `toml:"reason"`
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	if _, err := toml.Decode(string(text), &file); err != nil {
		t.Fatal(err)
	}
	return file.Reasons
}

// What the checks say of each message agrees with what the released frontends do with it, or there is a reason.
func TestVerdictsAgreeWithFrontends(t *testing.T) {
	reasons := readReasons(t, "reasons.toml")
	tables, err := readTables(os.DirFS("tables"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("%d tables: %v", len(tables), err)
	}
	byLine := map[string][]*Table{}
	for _, table := range tables {
		if table.Frontend != EngineCore {
			byLine[protocol.LineOf(table.Version)] = append(byLine[protocol.LineOf(table.Version)], table)
		}
	}
	shown := map[string]int{}
	for _, line := range slices.Sorted(maps.Keys(byLine)) {
		m, err := New(line)
		require.NoError(t, err)
		for _, p := range m.Probes {
			contradiction, why := contradicts(m, p, byLine[line])
			if contradiction == "" {
				continue
			}
			covered := false
			for _, r := range reasons {
				if r.covers(p, contradiction) {
					r.used, covered = true, true
				}
			}
			if key := contradiction + p.Place + p.Variant; !covered {
				if shown[key]++; shown[key] == 1 {
					t.Errorf("line %s, %s, %s: %s", line, p.Place, p.Variant, why)
				}
			}
		}
	}
	for _, r := range reasons {
		require.True(t, r.used, "reasons.toml: %s %v %v: nothing needs this reason", r.Verdict, r.Places, r.Variants)
	}
}

// contradicts returns what is wrong with our verdict on a message: that it is "refused" although every frontend serves
// as if nothing were, or "passed" although one does worse than with a message in which the place has its sample.
func contradicts(m *Messages, p Probe, tables []*Table) (verdictOfOurs, why string) {
	sample := p
	sample.Variant = "sample"
	served, fails := true, ""
	known := false
	for _, table := range tables {
		outcome, is := table.Of(p)
		if !is {
			continue
		}
		known = true
		served = served && outcome == Served
		usual, is := table.Of(sample)
		if !is {
			usual = Served
		}
		if outcome == Dead && usual != Dead || outcome == Failed && usual != Dead && usual != Failed || p.Variant == "sample" && (outcome == Dead || outcome == Failed) {
			fails = fmt.Sprintf("%s %s is %s", table.Frontend, table.Version, outcome)
		}
	}
	if !known {
		return "", ""
	}
	wrong := verdict(m, p)
	switch {
	case served && len(wrong) > 0:
		return "refused", fmt.Sprintf("refused by the checks and served by all frontends: %s", strings.Join(wrong, "; "))
	case fails != "" && len(wrong) == 0:
		return "passed", "passed by the checks, and " + fails
	}
	return "", ""
}
