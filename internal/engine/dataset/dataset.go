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

// MaxRow bounds a row, in bytes.
const MaxRow = 64 << 20

// Set is a dataset in memory.
type Set struct {
	// Name is the path it was read from.
	Name string
	Table

	tok *tokenizer.Tokenizer // nil: the rows have tokens
}

// Table is what a file of a dataset holds.
type Table struct {
	Rows []Row // a prompt with a completion each
	// Skipped counts the rows of the file that have no prompt, or no completion. FirstSkipped is the number of the first one.
	Skipped, FirstSkipped int
	Keys                  []string // of the first row of the file

	taken int64 // by the rows, in bytes
}

// Taken is what the rows that [Table.Add] and [Table.Append] took in take of memory, in bytes.
func (t *Table) Taken() int64 { return t.taken }

// Row is a prompt and its completion.
type Row struct {
	Number     int      // as errors name it
	Prompt     string   // the whole, or the last message of a chat
	Before     []string // the messages before it
	Completion string
	Calls      json.RawMessage // of tools, which follow the completion: a list as in OpenAI's API
	// Rows of tokens have these in place of texts: the SHA-256 of the prompt's ids, and the completion's ids. Completion may
	// have their text.
	Hash   [32]byte
	Tokens []uint32
}

// A TableReader reads a file in a format whose library is larger than the player: Parquet and SQLite, see package tables.
// An error names the row.
type TableReader func(path string) (Table, error)

// Len is the number of prompts that have a completion.
func (s *Set) Len() int { return len(s.Rows) }

// Load reads the dataset at path, by the end of its name: .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .db, .sqlite or
// .sqlite3; tables reads the last four. tok is needed by all but SQLite. An error names the file, and the row or line.
func Load(path string, tok *tokenizer.Tokenizer, tables TableReader) (*Set, error) {
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
	var err error
	if read != nil {
		err = read(&s.Table, path)
	} else {
		s.Table, err = tables(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case len(s.Rows) == 0 && s.Skipped == 0:
		return nil, fmt.Errorf("%s: a dataset without rows", path)
	case len(s.Rows) == 0:
		return nil, fmt.Errorf("%s: none of the %d rows has a prompt and a completion%s", path, s.Skipped, s.seen())
	case tok == nil && s.Rows[0].Tokens == nil:
		return nil, fmt.Errorf("%s: a dataset of texts needs a tokenizer.json", path)
	}
	return s, nil
}

// readers are those of text files; nil means the [TableReader].
var readers = map[string]func(t *Table, path string) error{
	".jsonl": (*Table).readLines, ".ndjson": (*Table).readLines, ".json": (*Table).readJSON,
	".csv": (*Table).readCSV, ".tsv": (*Table).readCSV, ".parquet": nil, ".db": nil, ".sqlite": nil, ".sqlite3": nil,
}

func extension(path string) string { return strings.ToLower(filepath.Ext(path)) }

func gzipped(path string) string {
	if extension(path) == ".gz" {
		return "; inflate it first"
	}
	return ""
}

// seen is the keys of the first row, and the keys that were looked for, for an error.
func (s *Set) seen() string {
	if len(s.Keys) == 0 {
		return ""
	}
	return fmt.Sprintf(": the first has %.200q; want one of %q for the prompt, of %q for the completion, or of %q",
		s.Keys[:min(len(s.Keys), 20)], promptKeys, completionKeys, messageKeys)
}

// errGzip is for a file that is compressed, also without the name for it.
var errGzip = errors.New("compressed by gzip: inflate it first")

// Add takes in a row of the file, an object.
func (t *Table) Add(number int, fields map[string]any) {
	if t.Keys == nil {
		t.Keys = slices.Sorted(maps.Keys(fields))
	}
	pairs := pairsOf(fields)
	if len(pairs) == 0 {
		if t.Skipped++; t.FirstSkipped == 0 {
			t.FirstSkipped = number
		}
	}
	for _, p := range pairs {
		p.Number = number
		t.Append(p)
	}
}

// Append takes in a row.
func (t *Table) Append(r Row) {
	t.taken += r.size()
	t.Rows = append(t.Rows, r)
}

// size is what a row takes of memory, in bytes.
func (r *Row) size() int64 {
	const header = 128
	n := header + len(r.Prompt) + len(r.Completion) + len(r.Calls) + 4*len(r.Tokens)
	for _, text := range r.Before {
		n += 16 + len(text)
	}
	return int64(n)
}

var (
	promptKeys     = []string{"prompt", "instruction", "question", "query", "input_text", "context"}
	inputKeys      = []string{"input", "inputs"}
	completionKeys = []string{"output", "response", "completion", "answer", "target", "label"}
	messageKeys    = []string{"messages", "conversations"}
)

// pairsOf returns the prompts of a row that have a completion.
func pairsOf(fields map[string]any) []Row {
	prompt, completion := firstText(fields, promptKeys), firstText(fields, completionKeys)
	if input := firstText(fields, inputKeys); input != "" {
		prompt = strings.TrimPrefix(prompt+"\n"+input, "\n")
	}
	if prompt != "" && completion != "" {
		return []Row{{Prompt: prompt, Completion: completion}}
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
		_ = json.Unmarshal([]byte(text), &elements) // a text that is not a list has no elements
		return elements
	}
	elements, _ = value.([]any)
	return elements
}

// turns makes a pair of each answer of the assistant and the message before it.
func turns(messages []any) (pairs []Row) {
	var before []string
	for _, m := range messages {
		fields, _ := m.(map[string]any)
		role, text := firstText(fields, []string{"role", "from"}), firstText(fields, []string{"content", "value"})
		var calls json.RawMessage
		if all := list(fields["tool_calls"]); len(all) > 0 {
			calls, _ = json.Marshal(all) // it was JSON
		}
		if n := len(before); n > 0 && (text != "" || calls != nil) && (role == "assistant" || role == "gpt") {
			pairs = append(pairs, Row{Prompt: before[n-1], Before: before[: n-1 : n-1], Completion: text, Calls: calls})
		}
		if text != "" {
			before = append(before, text)
		}
	}
	return pairs
}
