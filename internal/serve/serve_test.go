package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestFindModel(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	hub := t.TempDir()
	revision := strings.Repeat("ab", 20)
	repository := filepath.Join(hub, "hub", "models--org--known")
	write(t, filepath.Join(repository, "refs", "main"), revision+"\n")
	write(t, filepath.Join(repository, "snapshots", revision, "config.json"), `{"text_config": {"max_position_embeddings": 77, "vocab_size": 9}}`)
	write(t, filepath.Join(repository, "snapshots", revision, "tokenizer.json"), `{}`)
	write(t, filepath.Join(hub, "hub", "models--org--escape", "refs", "main"), "../../../etc")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{}`)
	write(t, filepath.Join(dir, "tokenizer.json"), `{}`)
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"model_max_length": 55}`)
	getenv := func(name string) string { return map[string]string{"HF_HOME": hub}[name] }
	tests := []struct {
		name, argument, want string
		length, vocab        int
		standIn              bool
	}{
		{name: "none", want: "tiny", length: standInLength, standIn: true},
		{name: "a name that is in the cache of the hub", argument: "org/known", want: "org/known", length: 77, vocab: 9},
		{name: "a name that is not", argument: "org/other", want: "org/other", length: standInLength, standIn: true},
		{name: "a revision that leads elsewhere", argument: "org/escape", want: "org/escape", length: standInLength, standIn: true},
		{name: "a folder", argument: dir, want: dir, length: 55},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, err := FindModel(test.argument, getenv)
			require.NoError(t, err)
			defer m.Remove()
			require.True(t, m.Name == test.want && m.MaxModelLen == test.length && m.Vocab == test.vocab && m.StandIn == test.standIn, "got %+v", m)
			if !m.StandIn {
				return
			}
			if _, err := tokenizer.Load(m.Dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where no cache can be written, the files of the embedded model are temporary.
func TestTemporaryModel(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	write(t, blocked, "")
	t.Setenv("XDG_CACHE_HOME", blocked)
	t.Setenv("TMPDIR", t.TempDir())
	m, err := FindModel("", os.Getenv)
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(m.Dir, "tokenizer.json")); err != nil {
		t.Error(err)
	}
	if m.Remove(); exists(m.Dir) {
		t.Errorf("%s is left", m.Dir)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// Defaults are given where the frontend has the flag and the user has not.
func TestDefaults(t *testing.T) {
	tests := []struct {
		name     string
		frontend Frontend
		standIn  bool
		args     []string
		transfer string
		want     string
	}{
		{name: "a new line", frontend: Frontend{Kind: Rust, flags: []string{"tool-strict-level", "tool-call-parser", "reasoning-parser"}}, standIn: true, want: "--tool-strict-level parameter --tool-call-parser hermes --reasoning-parser none"},
		{name: "an old line", frontend: Frontend{Kind: Rust, flags: []string{"tool-call-parser", "reasoning-parser"}}, standIn: true, want: "--tool-call-parser hermes --reasoning-parser none"},
		{name: "a model of the user", frontend: Frontend{Kind: Rust, flags: []string{"tool-strict-level", "tool-call-parser"}}, want: "--tool-strict-level parameter"},
		{name: "flags of the user", frontend: Frontend{Kind: Rust, flags: []string{"tool-strict-level", "tool-call-parser", "reasoning-parser"}}, standIn: true, args: []string{"--tool-strict-level", "auto", "--tool-call-parser=llama"}, want: "--reasoning-parser none"},
		{name: "Python", frontend: Frontend{Kind: Python}, want: "--enable-auto-tool-choice --tool-call-parser hermes --enable-lora --max-loras 4"},
		{
			name: "Python with transfer of KV caches", frontend: Frontend{Kind: Python}, transfer: "{}",
			want: "--enable-auto-tool-choice --tool-call-parser hermes --enable-lora --max-loras 4 --kv-transfer-config {}",
		},
		{name: "vllm-rs with it, which has no such flag", frontend: Frontend{Kind: Rust, flags: []string{"tool-strict-level"}}, transfer: "{}", want: "--tool-strict-level parameter"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, strings.Join(test.frontend.defaults(Model{StandIn: test.standIn}, 4, &Engines{Transfer: test.transfer}, test.args), " "), test.want, "arguments")
		})
	}
}
