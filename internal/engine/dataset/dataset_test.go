package dataset

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var loadTiny = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Load("../../../testdata/model/tiny") })

func tiny(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := loadTiny()
	require.NoError(t, err)
	return tok
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// pair is what a test sees of a row.
type pair struct {
	Number             int
	Prompt, Completion string
	Before             []string
}

func pairs(s *Set) (pairs []pair) {
	for _, r := range s.Rows {
		completion := r.Completion
		if r.Calls != nil {
			completion += "+" + string(r.Calls)
		}
		pairs = append(pairs, pair{r.Number, r.Prompt, completion, r.Before})
	}
	return pairs
}

func TestLoad(t *testing.T) {
	chat := []pair{{1, "Hi", "Hello", []string{"Be short"}}, {1, "Bye", "Farewell", []string{"Be short", "Hi", "Hello"}}}
	tests := []struct {
		name, file, text string
		want             []pair
		skipped          int
	}{
		{
			name: "lines", file: "a.jsonl",
			text: `{"prompt":"p","completion":"c"}` + "\n\n" + `{"question":"q","answer":"a","input":"i"}` + "\n" + `{"prompt":"x"}`,
			want: []pair{{1, "p", "c", nil}, {3, "q\ni", "a", nil}}, skipped: 1,
		},
		{name: "keys in their order", file: "a.ndjson", text: `{"target":"t","output":"o","context":"c","prompt":"p"}`, want: []pair{{1, "p", "o", nil}}},
		{name: "marked as Unicode", file: "a.jsonl", text: "\ufeff" + `{"prompt":"p","output":"o"}`, want: []pair{{1, "p", "o", nil}}},
		{name: "an array marked as Unicode", file: "a.json", text: "\ufeff" + `[{"prompt":"p","output":"o"}]`, want: []pair{{1, "p", "o", nil}}},
		{name: "only an input", file: "a.jsonl", text: `{"inputs":"i","label":"l"}`, want: []pair{{1, "i", "l", nil}}},
		{name: "what is no text is no prompt", file: "a.jsonl", text: `{"prompt":7,"query":"q","answer":"a"}` + "\n" + `{"prompt":"p","output":null}`, want: []pair{{1, "q", "a", nil}}, skipped: 1},
		{name: "an array", file: "a.json", text: `[{"prompt":"p","completion":"c"},{"prompt":"","completion":"c"}]`, want: []pair{{1, "p", "c", nil}}, skipped: 1},
		{
			name: "an object of splits", file: "a.json", text: `{"version":[1],"train":[{"prompt":"p","completion":"c"}],"test":[{"prompt":"q","completion":"d"}]}`,
			want: []pair{{1, "p", "c", nil}, {1, "q", "d", nil}},
		},
		{
			name: "messages", file: "a.jsonl",
			text: `{"messages":[{"role":"system","content":"Be short"},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},{"role":"user","content":"Bye"},{"role":"assistant","content":"Farewell"}]}` +
				"\n" + `{"messages":[{"role":"user","content":"Hi"}]}`,
			want: chat, skipped: 1,
		},
		{
			name: "calls of tools, with a text or without", file: "a.jsonl",
			text: `{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"7"},{"role":"assistant","content":"Seven"}]}`,
			want: []pair{{1, "Hi", `+[{"function":{"arguments":"{}","name":"f"}}]`, []string{}}, {1, "7", "Seven", []string{"Hi"}}},
		},
		{name: "conversations", file: "a.jsonl", text: `{"conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Hello"}]}`, want: []pair{{1, "Hi", "Hello", []string{}}}},
		{
			name: "csv", file: "a.csv", text: "\ufeffinstruction,id,response\n\"a, \"\"b\"\"\nc\",7,d\ne,8,\n",
			want: []pair{{1, "a, \"b\"\nc", "d", nil}}, skipped: 1,
		},
		{name: "messages in a column", file: "a.tsv", text: "messages\n" + `"[{""role"":""user"",""content"":""Hi""},{""role"":""assistant"",""content"":""Hello""}]"`, want: []pair{{1, "Hi", "Hello", []string{}}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := test.file
			if test.text != "" {
				path = write(t, test.file, test.text)
			}
			set, err := Load(path, tiny(t), nil)
			require.NoError(t, err)
			if diff := cmp.Diff(test.want, pairs(set)); diff != "" || set.Skipped != test.skipped || set.Len() != len(test.want) {
				t.Errorf("%d rows, %d skipped, want %d (-want +got):\n%s", set.Len(), set.Skipped, test.skipped, diff)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	var zipped strings.Builder
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write([]byte(`{"prompt":"p","completion":"c"}`))
	zw.Close()
	tests := []struct{ name, file, text, want string }{
		{"empty lines", "a.jsonl", "", "a dataset without rows"},
		{"empty json", "a.json", " ", "a dataset without rows"},
		{"empty csv", "a.csv", "", "a dataset without rows"},
		{"an empty array", "a.json", "[]", "a dataset without rows"},
		{"only a head", "a.csv", "prompt,output\n", "a dataset without rows"},
		{"no completion", "a.jsonl", "{\"prompt\":\"p\"}\n{}", "none of the 2 rows has a prompt and a completion"},
		{"gzip inside", "a.jsonl", zipped.String(), "compressed by gzip: inflate it first"},
		{"gzip", "a.jsonl.gz", zipped.String(), "inflate it first"},
		{"another kind", "a.txt", "x", "not a dataset"},
		{"broken line", "a.jsonl", "{\"prompt\":\"p\",\"output\":\"o\"}\n{\"prompt\"", "a.jsonl: line 2: unexpected end"},
		{"a line that is not an object", "a.jsonl", "[1]", "line 1: "},
		{"broken array", "a.json", `[{"prompt":"p","output":"o"},{"prompt":`, "row 2: unexpected EOF"},
		{"array without an end", "a.json", `[{"prompt":"p","output":"o"}`, "after row 1: EOF"},
		{"array of texts", "a.json", `["p"]`, "row 1: "},
		{"a number", "a.json", `7`, "want an array of rows"},
		{"an object without rows", "a.json", `{"a":1}`, "an object without an array of rows"},
		{"data is no array", "a.json", `{"data":1}`, `key "data": want an array of rows`},
		{"too few columns", "a.csv", "prompt,output\np\n", "row 1: "},
		{"an open quote", "a.csv", "prompt,output\np,\"o", "row 1: "},
		{"two texts", "a.json", `[{"prompt":"p","output":"o"}] []`, "more than one JSON text"},
		{"lines under the name of one", "a.json", `{"prompt":"p","output":"o"}` + "\n{}", "name a file with a row on each line .jsonl"},
		{"other keys", "a.csv", "ask,say\na,b\n", `none of the 1 rows has a prompt and a completion: the first has ["ask" "say"]; want one of ["prompt"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Load(write(t, test.file, test.text), tiny(t), nil)
			require.ErrorContains(t, err, test.want, test.file)
		})
	}
	t.Run("a folder", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.jsonl")
		require.NoError(t, os.Mkdir(path, 0o755))
		if _, err := Load(path, tiny(t), nil); err == nil || !strings.Contains(err.Error(), "a folder, not a dataset") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		if _, err := Load(filepath.Join(t.TempDir(), "x.db"), nil, nil); err == nil || !os.IsNotExist(unwrapAll(err)) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no tokenizer", func(t *testing.T) {
		_, err := Load(write(t, "a.jsonl", `{"prompt":"p","output":"o"}`), nil, nil)
		require.ErrorContains(t, err, "needs a tokenizer.json")
	})
}

func unwrapAll(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if _, ok := err.(*os.PathError); ok {
			return err
		}
		err = inner.Unwrap()
	}
}

// allocated is how many bytes of memory f takes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A row of a gigabyte is refused before it is in memory. The files have holes.
func TestLoadBoundsRows(t *testing.T) {
	for _, file := range []string{"a.jsonl", "a.json", "a.csv"} {
		t.Run(file, func(t *testing.T) {
			head := map[string]string{"a.jsonl": "{\"prompt\":\"p\",\"output\":\"o\"}\n{\"prompt\":\"", "a.json": `[{"prompt":"`, "a.csv": "prompt,output\n\""}[file]
			path := write(t, file, head)
			require.NoError(t, os.Truncate(path, 1<<30))
			tok := tiny(t)
			var err error
			took := allocated(func() { _, err = Load(path, tok, nil) })
			// A zero byte in a JSON text is an error of its own, that comes first.
			if err == nil || !strings.Contains(err.Error(), "larger than 64 MB") && !strings.Contains(err.Error(), "invalid character") {
				t.Errorf("got %v, want that it is larger than 64 MB", err)
			}
			if took > 512<<20 {
				t.Errorf("%d MB were allocated", took>>20)
			}
		})
	}
}

// Whatever is in a file, Load returns.
func FuzzLoad(f *testing.F) {
	names := []string{"a.jsonl", "a.json", "a.csv"}
	f.Add(uint8(0), []byte(`{"prompt":"p","completion":"c"}`))
	f.Add(uint8(1), []byte(`{"data":[{"messages":[{"role":"user","content":"p"},{"role":"assistant","content":"c"}]}]}`))
	f.Add(uint8(2), []byte("prompt,output\np,o\n"))
	tok := tiny(f)
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		set, err := Load(write(t, names[int(kind)%len(names)], string(text)), tok, nil)
		require.True(t, err != nil || set.Len() != 0, "a dataset without rows and without an error")
	})
}

// TestOutOfMemory: whatever the Go runtime needed memory for, the file is too large, and no other failure is taken for that.
func TestOutOfMemory(t *testing.T) {
	for text, want := range map[string]bool{
		"runtime: out of memory: cannot allocate 4194304-byte block (66715648 in use)\nfatal error: out of memory\n": true,
		"fatal error: out of memory allocating heap arena metadata\n\nruntime stack:\n":                              true,
		"fatal error: runtime: cannot allocate memory\n":                                                             true,
		"runtime/cgo: pthread_create failed\nfatal error: runtime: out of memory\n":                                  true,
		"data.parquet: the column out of memory is unknown\n":                                                        false,
		"fatal error: all goroutines are asleep - deadlock!\n":                                                       false,
	} {
		require.Equal(t, outOfMemory().MatchString(text), want, "%q", text)
	}
}
