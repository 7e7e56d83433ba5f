package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
)

// maxRow bounds a row, in bytes.
const maxRow = 64 << 20

// Set is a dataset in memory.
type Set struct {
	// Name is the path it was read from.
	Name string
	// Skipped counts the rows that have no prompt, or no completion.
	Skipped int

	rows []row
	keys []string             // of the first row
	tok  *tokenizer.Tokenizer // nil: the rows have tokens
}

// row is a prompt and what is answered to it.
type row struct {
	number     int    // as errors name it
	prompt     string // the whole, or the last message of a chat
	before     []string
	completion string
	// Rows of tokens have these in place of texts.
	hash   [32]byte
	tokens []uint32
}

// Len is the number of prompts that have a completion.
func (s *Set) Len() int { return len(s.rows) }

// Load reads the dataset at path, by the end of its name: .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .db, .sqlite or
// .sqlite3. tok is needed by all but SQLite. An error names the file, and the row or line.
func Load(path string, tok *tokenizer.Tokenizer) (*Set, error) {
	s := &Set{Name: path, tok: tok}
	read, ok := readers[extension(path)]
	if !ok {
		return nil, fmt.Errorf("%s: not a dataset: want a name that ends in .jsonl, .json, .csv, .parquet or .sqlite%s", path, gzipped(path))
	}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open dataset: %w", err)
	} else if info.IsDir() {
		return nil, fmt.Errorf("%s: a folder, not a dataset: name the file in it", path)
	}
	if err := read(s, path); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case len(s.rows) == 0 && s.Skipped == 0:
		return nil, fmt.Errorf("%s: a dataset without rows", path)
	case len(s.rows) == 0:
		return nil, fmt.Errorf("%s: none of the %d rows has a prompt and a completion%s", path, s.Skipped, s.seen())
	case tok == nil && s.rows[0].tokens == nil:
		return nil, fmt.Errorf("%s: a dataset of texts needs a tokenizer.json", path)
	}
	return s, nil
}

var readers = map[string]func(s *Set, path string) error{
	".jsonl": (*Set).readLines, ".ndjson": (*Set).readLines, ".json": (*Set).readJSON,
	".csv": (*Set).readCSV, ".tsv": (*Set).readCSV, ".parquet": (*Set).readParquet,
	".db": (*Set).readSQLite, ".sqlite": (*Set).readSQLite, ".sqlite3": (*Set).readSQLite,
}

func extension(path string) string { return strings.ToLower(filepath.Ext(path)) }

func gzipped(path string) string {
	if extension(path) == ".gz" {
		return "; inflate it first"
	}
	return ""
}

// seen tells which keys the first row has, in place of those that were looked for.
func (s *Set) seen() string {
	if len(s.keys) == 0 {
		return ""
	}
	return fmt.Sprintf(": the first has %.200q; want one of %q for the prompt, of %q for the completion, or of %q",
		s.keys[:min(len(s.keys), 20)], promptKeys, completionKeys, messageKeys)
}

// errGzip is for a file that is compressed whatever its name says.
var errGzip = errors.New("compressed by gzip: inflate it first")

// add takes in what a row holds.
func (s *Set) add(number int, fields map[string]any) {
	if s.keys == nil {
		s.keys = slices.Sorted(maps.Keys(fields))
	}
	pairs := pairsOf(fields)
	if len(pairs) == 0 {
		s.Skipped++
	}
	for _, p := range pairs {
		p.number = number
		s.rows = append(s.rows, p)
	}
}

var (
	promptKeys     = []string{"prompt", "instruction", "question", "query", "input_text", "context"}
	inputKeys      = []string{"input", "inputs"}
	completionKeys = []string{"output", "response", "completion", "answer", "target", "label"}
	messageKeys    = []string{"messages", "conversations"}
)

// pairsOf returns the prompts of a row that have a completion.
func pairsOf(fields map[string]any) []row {
	prompt, completion := firstText(fields, promptKeys), firstText(fields, completionKeys)
	if input := firstText(fields, inputKeys); input != "" {
		prompt = strings.TrimPrefix(prompt+"\n"+input, "\n")
	}
	if prompt != "" && completion != "" {
		return []row{{prompt: prompt, completion: completion}}
	}
	for _, key := range messageKeys {
		if messages := list(fields[key]); len(messages) > 0 {
			return turns(messages)
		}
	}
	return nil
}

func firstText(fields map[string]any, keys []string) string {
	for _, key := range keys {
		if text, ok := fields[key].(string); ok && text != "" {
			return text
		}
	}
	return ""
}

// list returns the elements of a list, be it one of JSON or the text of one in a column.
func list(value any) (elements []any) {
	if text, ok := value.(string); ok {
		_ = json.Unmarshal([]byte(text), &elements) // a text that is no list has no elements
		return elements
	}
	elements, _ = value.([]any)
	return elements
}

// turns makes a pair of each answer of the assistant and the message before it.
func turns(messages []any) (pairs []row) {
	var before []string
	for _, m := range messages {
		fields, _ := m.(map[string]any)
		role, text := firstText(fields, []string{"role", "from"}), firstText(fields, []string{"content", "value"})
		if text == "" {
			continue
		}
		if n := len(before); n > 0 && (role == "assistant" || role == "gpt") {
			pairs = append(pairs, row{prompt: before[n-1], before: before[: n-1 : n-1], completion: text})
		}
		before = append(before, text)
	}
	return pairs
}
