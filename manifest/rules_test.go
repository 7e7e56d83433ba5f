package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite the .diagnostics files in testdata")

// testFacts are the facts under which the files in testdata are checked.
func testFacts() Facts {
	return Facts{
		Lines: map[string]Line{
			"nightly": {Tag: "nightly"},
			"rc":      {Tag: "v0.34.0rc1"},
			"0.33":    {Tag: "v0.33.0", Validated: true},
			"0.32":    {Tag: "v0.32.0", Validated: true},
			"0.27":    {Tag: "v0.27.1", Validated: true},
			"0.26":    {Tag: "v0.26.0"},
		},
		ConfigHash: fingerprint,
	}
}

// fingerprint is scheme v3: four lines, hashed.
func fingerprint(gpu, tag, engineConfig string) string {
	text := "config-fingerprint-v3\ngpu=" + gpu + "\nvllm_tag=" + tag + "\nengine_config=" + engineConfig + "\n"
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// The published value for the H200 captures of 0.27 ties the fingerprint of these
// tests to the real one.
func TestFingerprintOfTests(t *testing.T) {
	const config = "block_size=16;enable_prefix_caching=true;enforce_eager=true;gpu_memory_utilization=0.9;max_model_len=16384;" +
		"max_num_seqs=256;model=Qwen/Qwen3-8B;speculative=none;tensor_parallel=1"
	if got, want := fingerprint("H200", "v0.27.1", config), "008ec925f30d74759b6c62bd5e78b16efb7b450c687554c053726dad9740a9dd"; got != want {
		t.Errorf("fingerprint = %s, want %s", got, want)
	}
}

func TestRules(t *testing.T) {
	check := func(path string) []Diagnostic {
		m, diagnostics := Load(path)
		diagnostics = append(diagnostics, Policy{}.Check(m, testFacts())...)
		tomlfile.Sort(diagnostics)
		return diagnostics
	}
	testenv.CheckRules(t, *update, testenv.RuleCodes(t, "rules.md"), check, codeUnreadable)
}

func TestStrict(t *testing.T) {
	m := &Manifest{File: "m.toml", Goldens: []Golden{{Line: "0.24", ID: "a", Pos: 3}}}
	for strict, want := range map[bool]tomlfile.Severity{false: tomlfile.Warning, true: tomlfile.Error} {
		diagnostics := Policy{Strict: strict}.Check(m, testFacts())
		if len(diagnostics) != 1 || diagnostics[0].Code != codeOrphan || diagnostics[0].Severity != want || diagnostics[0].Line != 3 {
			t.Errorf("strict %v: diagnostics %v, want one M008 %s at line 3", strict, diagnostics, want)
		}
	}
	if diagnostics := (Policy{Strict: true}).Check(m, Facts{}); len(diagnostics) != 0 {
		t.Errorf("diagnostics %v, want none without facts", diagnostics)
	}
}

// A golden of an earlier patch of its line has the fingerprint of that patch.
func TestFingerprintOfAnEarlierPatch(t *testing.T) {
	g := Golden{Line: "0.33", ID: "a", GPU: "cpu", EngineConfig: "model=tiny", VLLMVersion: "0.32.9", ConfigHash: fingerprint("cpu", "v0.32.9", "model=tiny")}
	m := &Manifest{File: "m.toml", Goldens: []Golden{g}}
	lines := map[string]Line{"0.33": {Tag: "v0.33.0"}}
	facts := Facts{Lines: lines, ConfigHash: fingerprint}
	if diagnostics := (Policy{}).Check(m, facts); len(diagnostics) != 0 {
		t.Errorf("diagnostics %v, want none", diagnostics)
	}
	m.Goldens[0].VLLMVersion = ""
	if diagnostics := (Policy{}).Check(m, facts); len(diagnostics) != 1 || diagnostics[0].Code != codeRecomputed {
		t.Errorf("diagnostics %v, want M016 when the golden does not name its version", diagnostics)
	}
	if diagnostics := (Policy{}).Check(m, Facts{Lines: lines}); len(diagnostics) != 0 {
		t.Errorf("diagnostics %v, want none when the fingerprint is not known", diagnostics)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, diagnostics := Parse("manifest.toml", data)
		diagnostics = append(diagnostics, Policy{}.Check(m, testFacts())...)
		if tomlfile.HasErrors(diagnostics) {
			return
		}
		// Without errors, a golden can be named and found.
		names := make(map[string]bool)
		for _, g := range m.Goldens {
			name := g.Line + "/" + g.ID
			require.True(t, !names[name] && g.ID != "" && len(g.SHA256) == 64, "golden %s is not usable: %+v", name, g)
			names[name] = true
			if loc := g.Location("", "/goldens"); !strings.HasPrefix(filepath.ToSlash(loc), "/goldens/") && !strings.Contains(loc, "://") {
				t.Errorf("golden %s leaves its directory: %s", name, loc)
			}
		}
		for _, b := range m.Blocks {
			require.True(t, b.Begin < b.End, "block %+v", b)
		}
	})
}
