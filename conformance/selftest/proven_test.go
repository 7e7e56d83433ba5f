package selftest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/coverage"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

var updateShares = flag.Bool("update", false, "write conformance/coverage.txt")

// renew is how the table is brought up to date.
const renew = "go test ./conformance/selftest -run TestShares -update"

// shares are the columns of the table: how much there is, and how much of it is covered.
var shares = []struct {
	name string
	of   func(coverage.Summary) (part, whole int)
}{
	{"seen", func(s coverage.Summary) (int, int) { return s.Fields.Seen, s.Fields.Declared }},
	{"varied", func(s coverage.Summary) (int, int) { return s.Fields.Varied, s.Fields.Declared }},
	{"compared", func(s coverage.Summary) (int, int) { return s.Fields.Compared, s.Fields.Declared }},
	{"proven", func(s coverage.Summary) (int, int) { return s.Fields.Proven, s.Fields.Declared }},
	{"utilities", func(s coverage.Summary) (int, int) { return s.Utilities.Seen, s.Utilities.Declared }},
	{"members", func(s coverage.Summary) (int, int) { return s.Members.Seen, s.Members.Declared }},
	{"messages", func(s coverage.Summary) (int, int) { return s.Messages.Seen, s.Messages.Declared }},
}

// share is a cell: "94/323".
type share struct{ part, whole int }

func (s share) String() string { return fmt.Sprintf("%d/%d", s.part, s.whole) }

// below reports whether a share is smaller than another was.
func (s share) below(was share) bool { return s.part*was.whole < was.part*s.whole }

// TestShares: of no line less of the wire is covered than before, and what is said to be out of reach is so.
func TestShares(t *testing.T) {
	path := filepath.Join("..", "coverage.txt")
	summaries := covered(t)
	if *updateShares {
		require.NoError(t, os.WriteFile(path, writeShares(summaries), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	was, err := readShares(string(text))
	require.NoErrorf(t, err, "%s: write it anew: %s", path, renew)
	for _, s := range summaries {
		for i, column := range shares {
			var now share
			now.part, now.whole = column.of(s)
			cells := was[s.Line]
			if cells == nil {
				t.Errorf("%s has no line %s: %s", path, s.Line, renew)
				break
			}
			switch before := cells[i]; {
			case now.below(before):
				t.Errorf("line %s: %s: %v, and was %v: the goldens show less of the wire, or the checks judge less. `vllm-vcr conform --line %s --coverage` names the gaps. If it must be so: %s",
					s.Line, column.name, now, before, s.Line, renew)
			case now != before:
				t.Logf("line %s: %s: %v, and was %v: note it by %s", s.Line, column.name, now, before, renew)
			}
		}
		for _, name := range outOfReachAndSeen(s.Details) {
			t.Errorf("line %s: a golden shows %s: take it out of internal/check/coverage/unreachable.txt", s.Line, name)
		}
	}
}

// outOfReachAndSeen are names that have a reason why nothing shows them, and that something shows.
func outOfReachAndSeen(d *coverage.Details) (names []string) {
	for _, f := range d.Fields {
		if f.Seen && f.Unreachable != "" {
			names = append(names, f.Name)
		}
	}
	for _, i := range slices.Concat(d.Utilities, d.Members, d.Messages) {
		if i.Seen && i.Unreachable != "" {
			names = append(names, i.Name)
		}
	}
	return names
}

// covered is what is covered of all lines of the repository, newest first.
func covered(t *testing.T) []coverage.Summary {
	cfg := repository(t)
	cases, err := conformance.NewPlan(cfg.Matrix, cfg.Manifest, conformance.Selection{Assertions: []conformance.Assertion{conformance.Integrity}})
	require.NoError(t, err)
	runner := conformance.Runner{Store: cfg.Store, Coverage: true}
	report := runner.Run(t.Context(), cases)
	if report.ExitCode != conformance.ExitOK {
		t.Fatal(report.Reason)
	}
	for _, s := range report.Coverage {
		cfg.Lines = append(cfg.Lines, s.Line)
	}
	proven, err := Proven(t.Context(), cfg)
	require.NoError(t, err)
	for i := range report.Coverage {
		report.Coverage[i].Prove(proven[report.Coverage[i].Line])
	}
	return report.Coverage
}

func writeShares(summaries []coverage.Summary) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# How much of the wire of each line its goldens show and the checks judge; docs/conforming.md says what counts.\n# It may not fall. Written by %s\n", renew)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "line")
	for _, column := range shares {
		fmt.Fprintf(w, "\t%s", column.name)
	}
	for _, s := range summaries {
		fmt.Fprintf(w, "\n%s", s.Line)
		for _, column := range shares {
			part, whole := column.of(s)
			fmt.Fprintf(w, "\t%v", share{part, whole})
		}
	}
	fmt.Fprintln(w)
	w.Flush()
	return b.Bytes()
}

func readShares(text string) (map[string][]share, error) {
	lines := map[string][]share{}
	for row := range strings.Lines(text) {
		words := strings.Fields(row)
		if len(words) == 0 || words[0] == "#" || words[0] == "line" {
			continue
		}
		var cells []share
		for _, word := range words[1:] {
			var s share
			if _, err := fmt.Sscanf(word, "%d/%d", &s.part, &s.whole); err != nil {
				return nil, fmt.Errorf("line %s: %q: %w", words[0], word, err)
			}
			cells = append(cells, s)
		}
		if len(cells) != len(shares) {
			return nil, fmt.Errorf("line %s has %d shares, want %d", words[0], len(cells), len(shares))
		}
		lines[words[0]] = cells
	}
	return lines, nil
}

// TestShareBelow: it is the share that counts: a release that declares more and shows as much has less.
func TestShareBelow(t *testing.T) {
	for _, c := range []struct {
		was, now share
		below    bool
	}{
		{share{94, 323}, share{94, 323}, false},
		{share{94, 323}, share{93, 323}, true},
		{share{94, 323}, share{95, 323}, false},
		{share{94, 323}, share{94, 324}, true},
		{share{94, 323}, share{95, 324}, false},
		{share{0, 0}, share{0, 5}, false},
	} {
		require.Equal(t, c.now.below(c.was), c.below, "%v after %v: below", c.now, c.was)
	}
}

// TestProven: a field is proven by a fault that changes it, and not by one that moves a whole row or loses a message.
func TestProven(t *testing.T) {
	cfg := repository(t)
	cfg.Lines = []string{"0.33"}
	proven, err := Proven(t.Context(), cfg)
	require.NoError(t, err)
	for name, want := range map[string]bool{
		"EngineCoreOutput.finish_reason":      true,  // wrong-finish-reason
		"EngineCoreOutput.new_token_ids":      true,  // altered-token
		"EngineCoreOutputs.engine_index":      true,  // engine-index
		"PrefillStats.num_cached_tokens":      true,  // cached-tokens
		"EngineCoreOutput.num_nans_in_logits": false, // shifted-fields moves a row
		"EngineCoreRequest.prompt_token_ids":  false, // of the frontend
		"EngineCoreReadyResponse.block_size":  true,  // the registration lacks it
	} {
		require.Equal(t, slices.Contains(proven["0.33"], name), want, "%s: proven", name)
	}
}

// TestDifferingFields: the innermost field is the one that differs, and a list of structs that is shorter differs itself.
func TestDifferingFields(t *testing.T) {
	cfg := repository(t)
	line, _ := cfg.Matrix.ByName("0.33")
	codec, err := check.CodecFor(line)
	require.NoError(t, err)
	g := cfg.ofRole(line, "wire")[0]
	data, location, err := cfg.Store.Fetch(t.Context(), g)
	require.NoError(t, err)
	_, messages, err := check.ReadFrames(data, location)
	require.NoError(t, err)
	at := slices.IndexFunc(messages, func(m trace.Message) bool { return m.Channel == "output" })
	was := messages[at].Frames[0]
	look := fieldFinder{codec: codec, names: fieldNames(codec)}
	for want, edit := range map[string]func(root *node){
		"EngineCoreOutput.request_id":     func(root *node) { root.items[1].items[0].items[0] = text("other") },
		"EngineCoreOutputs.timestamp":     func(root *node) { root.items[3] = number(7) },
		"EngineCoreOutputs.outputs":       func(root *node) { root.items[1].items = nil },
		"SchedulerStats.num_running_reqs": func(root *node) { root.items[2].value("num_running_reqs").become(number(77)) },
	} {
		root, err := parse(was)
		require.NoError(t, err)
		edit(root)
		found := map[string]bool{}
		look.differing(protocol.KindOutputs, was, root.bytes(), found)
		require.True(t, len(found) == 1 && found[want], "%s: found %v", want, found)
	}
}
