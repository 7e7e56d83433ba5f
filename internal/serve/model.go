package serve

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
)

// A Model is what the frontend is started with.
type Model struct {
	// Name is the name in requests if nothing else is given.
	Name string
	// Dir has config.json and tokenizer.json.
	Dir string
	// MaxModelLen is the context length of its configuration in tokens, 0 if that has none.
	MaxModelLen int
	// Vocab is the size of its vocabulary, 0 if that has none.
	Vocab int
	// StandIn reports whether the folder has the embedded tokenizer, whatever the name is.
	StandIn bool
	// Remove deletes the folder if it is a temporary one.
	Remove func()
}

// DefaultName is the name of the embedded model, and VisionName that of the one that takes images.
const (
	DefaultName = "tiny"
	VisionName  = "tiny-vl"
)

// hubName is a name of the Hugging Face hub: one or two words.
var hubName = lazyregexp.New(`^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$`)

// FindModel finds the files for a MODEL argument: the embedded ones for "" and [VisionName], a folder as it is, and for a name of the
// Hugging Face hub those of the local hub cache, else the embedded ones. Nothing is downloaded.
func FindModel(name string, getenv func(string) string) (Model, error) {
	if name == "" {
		return standIn(DefaultName)
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return folder(name, name)
	case err == nil:
		return Model{}, fmt.Errorf("model %s is a file: want a folder with config.json and tokenizer.json, or a name", name)
	case !hubName().MatchString(name):
		return Model{}, fmt.Errorf("model %s: there is no such folder, and this is not a name of the Hugging Face hub, such as Qwen/Qwen3-8B", name)
	}
	if dir, ok := cached(name, getenv); ok {
		return folder(name, dir)
	}
	return standIn(name)
}

// folder is a model directory of the user.
func folder(name, dir string) (Model, error) {
	for _, file := range []string{"config.json", "tokenizer.json"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			return Model{}, fmt.Errorf("model folder %s has no %s: %w; give a folder with config.json and tokenizer.json, or leave out MODEL", dir, file, errors.Unwrap(err))
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Model{}, err
	}
	m := Model{Name: name, Dir: abs, Remove: func() {}}
	m.MaxModelLen, m.Vocab, err = sizes(dir)
	return m, err
}

// sizes reads the context length and the vocabulary of a model, 0 where its files name none.
func sizes(dir string) (length, vocab int, err error) {
	type lengths struct {
		Positions int `json:"max_position_embeddings"`
		Trained   int `json:"n_positions"`
		Vocab     int `json:"vocab_size"`
	}
	var config struct {
		lengths
		Text lengths `json:"text_config"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("model folder %s: config.json: %w", dir, err)
	}
	vocab = cmp.Or(config.Vocab, config.Text.Vocab)
	if n := cmp.Or(config.Positions, config.Text.Positions, config.Trained, config.Text.Trained); n > 0 {
		return n, vocab, nil
	}
	var tokens struct {
		Most float64 `json:"model_max_length"` // 1e30 where it has no bound
	}
	if text, err = os.ReadFile(filepath.Join(dir, "tokenizer_config.json")); err == nil && json.Unmarshal(text, &tokens) == nil && tokens.Most < 1<<31 {
		return int(tokens.Most), vocab, nil
	}
	return 0, vocab, nil
}

// cached finds a model in the local hub cache, laid out as huggingface_hub does.
func cached(name string, getenv func(string) string) (dir string, ok bool) {
	hub := cmp.Or(getenv("HF_HUB_CACHE"), getenv("HUGGINGFACE_HUB_CACHE"))
	if home := getenv("HF_HOME"); hub == "" && home != "" {
		hub = filepath.Join(home, "hub")
	}
	if hub == "" {
		cache := getenv("XDG_CACHE_HOME")
		if home, err := os.UserHomeDir(); cache == "" && err == nil {
			cache = filepath.Join(home, ".cache")
		}
		hub = filepath.Join(cache, "huggingface", "hub")
	}
	repository := filepath.Join(hub, "models--"+strings.ReplaceAll(name, "/", "--"))
	revision, err := os.ReadFile(filepath.Join(repository, "refs", "main"))
	if err != nil || !regexp.MustCompile(`^[0-9a-f]{6,64}\s*$`).Match(revision) {
		return "", false
	}
	dir = filepath.Join(repository, "snapshots", string(bytes.TrimSpace(revision)))
	for _, file := range []string{"config.json", "tokenizer.json"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			return "", false
		}
	}
	return dir, true
}

// standInLength is the context length of the embedded model in tokens, as common models have it.
const standInLength = 32768

// standInFiles are the files of an embedded model, with a longer context and a chat template that knows tools.
func standInFiles(name string) (map[string][]byte, error) {
	files := map[string][]byte{}
	entries, err := fs.ReadDir(vcr.Files, vcr.ModelPath)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if files[entry.Name()], err = vcr.Files.ReadFile(vcr.ModelPath + "/" + entry.Name()); err != nil {
			return nil, err
		}
	}
	if name == VisionName {
		vision, err := load.Vision(files["tokenizer.json"])
		if err != nil {
			return nil, err
		}
		maps.Copy(files, vision)
	}
	for file, change := range map[string]map[string]any{
		"config.json":           {"max_position_embeddings": standInLength},
		"tokenizer_config.json": {"model_max_length": standInLength, "chat_template": builtin.DefaultTemplate},
	} {
		var values map[string]any
		if err := json.Unmarshal(files[file], &values); err != nil {
			return nil, fmt.Errorf("embedded %s: %w", file, err)
		}
		for key, value := range change {
			values[key] = value
		}
		if files[file], err = json.Marshal(values); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// standIn writes the embedded model into a folder of the cache that is named by its content, or where that cannot be
// written, into a temporary one.
func standIn(name string) (Model, error) {
	m := Model{Name: name, MaxModelLen: standInLength, StandIn: true, Remove: func() {}}
	files, err := standInFiles(name)
	if err != nil {
		return m, err
	}
	if cache, failed := os.UserCacheDir(); failed == nil {
		sum := sha256.New()
		for _, file := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(sum, "%s %d\n%s", file, len(files[file]), files[file])
		}
		m.Dir = filepath.Join(cache, "vllm-vcr", "models", hex.EncodeToString(sum.Sum(nil))[:16])
		if os.MkdirAll(m.Dir, 0o755) == nil && writeFiles(m.Dir, files) == nil {
			return m, nil
		}
	}
	if m.Dir, m.Remove, err = process.MkdirTemp("vllm-vcr-model-"); err == nil {
		err = writeFiles(m.Dir, files)
	}
	if err != nil {
		return m, fmt.Errorf("write the files of the embedded model: %w: name a writable folder in XDG_CACHE_HOME or TMPDIR", err)
	}
	return m, nil
}

// writeFiles writes those files that are not there as they should be.
func writeFiles(dir string, files map[string][]byte) error {
	for file, text := range files {
		path := filepath.Join(dir, file)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := atomicfile.Write(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
