package tables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ncruces/go-sqlite3"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// asProgram has the test binary be vllm-vcr-dataset.
const asProgram = "TABLES_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(Main("1.2.3"))
	}
	os.Exit(m.Run())
}

// readers are both ways to read a table: in this process, and by the program.
func readers(t *testing.T) map[string]dataset.TableReader {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	byProgram := dataset.ReadBy(t.Context(), self)
	return map[string]dataset.TableReader{"here": Read, "by the program": func(path string) (dataset.Table, error) {
		t.Setenv(asProgram, "1")
		defer os.Unsetenv(asProgram)
		return byProgram(path)
	}}
}

var loadTiny = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	return tokenizer.Load("../../../../testdata/model/tiny")
})

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

func TestParquet(t *testing.T) {
	flat := []dataset.Row{
		{Number: 1, Prompt: "Say hello", Completion: "Hello, wörld! 😀"},
		{Number: 2, Prompt: "Count\nto three", Completion: "1\n2\n3"},
		{Number: 3, Prompt: "x", Completion: "only an input"},
	}
	chat := []dataset.Row{
		{Number: 1, Prompt: "Hi", Completion: "Hello", Before: []string{"Be short"}},
		{Number: 1, Prompt: "Bye", Completion: "Farewell", Before: []string{"Be short", "Hi", "Hello"}},
	}
	tests := []struct {
		file    string
		want    []dataset.Row
		skipped int
	}{
		{"flat-none", flat, 1},
		{"flat-snappy", flat, 1},
		{"flat-gzip", flat, 1},
		{"flat-zstd", flat, 1},
		{"flat-brotli", flat, 1},
		{"messages", chat, 0},
	}
	for way, read := range readers(t) {
		for _, test := range tests {
			t.Run(test.file+" "+way, func(t *testing.T) {
				set, err := dataset.Load("testdata/"+test.file+".parquet", tiny(t), read)
				require.NoError(t, err)
				if diff := cmp.Diff(test.want, set.Rows); diff != "" || set.Skipped != test.skipped {
					t.Errorf("%d skipped, want %d (-want +got):\n%s", set.Skipped, test.skipped, diff)
				}
			})
		}
	}
}

func TestRefuses(t *testing.T) {
	content := func(name string) string {
		data, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		return string(data)
	}
	parquet := content("flat-snappy.parquet")
	tests := []struct{ name, file, text, want string }{
		{"empty parquet", "a.parquet", "", "a dataset without rows"},
		{"empty database", "a.db", "", "a dataset without rows"},
		{"no parquet", "a.parquet", "PAR1 is how it begins", "a.parquet: not a parquet file"},
		{"half a parquet", "a.parquet", parquet[len(parquet)/2:], "a.parquet: "},
		{"a footer longer than the file", "a.parquet", parquet[:len(parquet)-8] + "\xff\xff\xff\xffPAR1", "a footer of 4294967295 bytes in a file of 1012"},
		{"a parquet file that is encrypted", "a.parquet", parquet[:len(parquet)-4] + "PARE", "it does not end in PAR1"},
		{"parquet of lz4", "a.parquet", content("flat-lz4.parquet"), "compressed by LZ4_RAW, which is not supported"},
		{"no database", "a.sqlite", strings.Repeat("x", 5000), "a.sqlite: "},
	}
	for way, read := range readers(t) {
		for _, test := range tests {
			t.Run(test.name+" "+way, func(t *testing.T) {
				_, err := dataset.Load(write(t, test.file, test.text), tiny(t), read)
				require.ErrorContains(t, err, test.want, test.file)
			})
		}
	}
}

// A program that is none, that says something else or that writes half a table is an error, never half a dataset.
func TestBrokenProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("shell scripts stand in for the program")
	}
	for _, test := range []struct{ name, script, want string }{
		{"something else", "echo hello", "is not a table: "},
		{"half a row", `printf '\203\243Row\206\246Number'`, "is not a table: "},
		{"nothing", "", "is not a table: EOF"},
		{"an error", "echo ran out of memory >&2; exit 3", "ran out of memory"},
		{"an error without a word", "exit 3", "exit status 3"},
	} {
		program := filepath.Join(t.TempDir(), "program")
		testenv.WriteProgram(t, program, "#!/bin/sh\n"+test.script+"\n")
		if table, err := dataset.ReadBy(t.Context(), program)("a.parquet"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %d rows, %v, want %q", test.name, len(table.Rows), err, test.want)
		}
	}
	if _, err := dataset.ReadBy(t.Context(), "/nowhere/program")("a.parquet"); err == nil || !os.IsNotExist(err) {
		t.Errorf("got %v, want that there is no such file", err)
	}
}

// A few kilobytes say that a text repeats. They are refused by what they would become, wherever the library would take the
// memory.
func TestBombs(t *testing.T) {
	type row struct {
		Prompt     string   `parquet:"prompt,zstd"`
		Completion string   `parquet:"completion,dict,zstd"`
		Others     []string `parquet:"others,dict,zstd,list"`
	}
	long := strings.Repeat("y", 100<<10)
	bombs := map[string]func(w *parquet.GenericWriter[row]) error{
		"footer says so": func(w *parquet.GenericWriter[row]) error {
			_, err := w.Write([]row{{Prompt: "p", Completion: "c"}})
			return err
		},
		"rows say so": func(w *parquet.GenericWriter[row]) error {
			rows := make([]row, 1000)
			for i := range rows {
				rows[i] = row{Prompt: "p", Completion: long}
			}
			_, err := w.Write(rows)
			return err
		},
	}
	if runtime.GOOS == "linux" {
		bombs["memory says so"] = func(w *parquet.GenericWriter[row]) error {
			_, err := w.Write([]row{{Prompt: "p", Completion: "c", Others: slices.Repeat([]string{long}, 15_000)}})
			return err
		}
	}
	ways := readers(t)
	for name, fill := range bombs {
		t.Run(name, func(t *testing.T) {
			var data bytes.Buffer
			w := parquet.NewGenericWriter[row](&data)
			require.NoError(t, errors.Join(fill(w), w.Close()))
			if name == "footer says so" {
				claim(t, &data, 65<<20)
			}
			path := write(t, "bomb.parquet", data.String())
			want := fmt.Sprintf("the rows of this file of %d bytes take more than %d", data.Len(), 64<<20)
			for way, read := range ways {
				if name == "memory says so" && way == "here" {
					continue // only a process of its own has such a bound
				}
				if _, err := dataset.Load(path, tiny(t), read); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", way, err, want)
				}
			}
		})
	}
}

// TestManyColumns refuses a file with more columns than a dataset has before they cost memory.
func TestManyColumns(t *testing.T) {
	group := parquet.Group{}
	for i := range 20_000 {
		group[fmt.Sprint("c", i)] = parquet.String()
	}
	var data bytes.Buffer
	w := parquet.NewGenericWriter[any](&data, parquet.NewSchema("rows", group))
	require.NoError(t, w.Close())
	path, err := write(t, "a.parquet", data.String()), error(nil)
	took := allocated(func() { _, err = dataset.Load(path, tiny(t), Read) })
	require.ErrorContains(t, err, "20000 columns: want at most 1000")
	if took > 64<<20 {
		t.Errorf("%d MB were allocated", took>>20)
	}
}

// claim has the footer of a file say that a column inflates to so many bytes.
func claim(t *testing.T, data *bytes.Buffer, size int64) {
	t.Helper()
	var footer format.FileMetaData
	protocol, end := new(thrift.CompactProtocol), data.Len()-8
	start := end - int(binary.LittleEndian.Uint32(data.Bytes()[end:]))
	require.NoError(t, thrift.Unmarshal(protocol, data.Bytes()[start:end], &footer))
	footer.RowGroups[0].Columns[1].MetaData.TotalUncompressedSize = size
	text, err := thrift.Marshal(protocol, &footer)
	require.NoError(t, err)
	data.Truncate(start)
	data.Write(text)
	data.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(text))))
	data.WriteString("PAR1")
}

// TestSQLiteSpellings reads tokens under the keys that the tool of llm-d-inference-sim writes, and those of its documentation.
func TestSQLiteSpellings(t *testing.T) {
	for _, tokens := range []string{`{"Tokens":[1,2],"Strings":["Hi"," you"]}`, `{"tokens":[1,2],"strings":["Hi"," you"]}`, `{"numbers":[1,2],"strings":["Hi"," you"]}`} {
		path := filepath.Join(t.TempDir(), "a.sqlite3")
		db, err := sqlite3.Open(path)
		require.NoError(t, err)
		require.NoError(t, db.Exec("CREATE TABLE llmd (id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER); INSERT INTO llmd VALUES (7, zeroblob(32), '"+tokens+"', 2)"))
		require.NoError(t, db.Close())
		words := tokenizer.Words()
		set, err := dataset.Load(path, words, Read)
		require.NoError(t, err)
		source, err := set.Source(dataset.Options{Random: true, Strict: true})
		require.NoError(t, err)
		script, err := source.Script(&player.Request{ID: "a", PromptTokenIDs: []uint32{1}, Sampling: player.Sampling{EOSTokenID: -1}})
		require.NoError(t, err)
		require.Equal(t, words.Decode(script.Tokens), "Hi you", "%s: strings of the row that a request without one gets", tokens)
	}
}

func TestSQLiteRefuses(t *testing.T) {
	const table = "CREATE TABLE llmd (id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER);"
	row := func(hash, tokens, n string) string {
		return table + "INSERT INTO llmd VALUES (7, " + hash + ", " + tokens + ", " + n + ")"
	}
	tests := []struct{ name, sql, want string }{
		{"no table", "CREATE TABLE other (id INTEGER)", "no table llmd"},
		{"a view that never ends", "CREATE VIEW llmd AS WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id+1 FROM r) SELECT id, id AS prompt_hash, id AS gen_tokens, id AS n_gen_tokens FROM r", "no table llmd"},
		{"a column is missing", "CREATE TABLE llmd (id INTEGER, gen_tokens JSON, n_gen_tokens INTEGER)", "missing expected column in llmd table: prompt_hash"},
		{"a column of another type", "CREATE TABLE llmd (id INTEGER, prompt_hash TEXT, gen_tokens JSON, n_gen_tokens INTEGER)", `column prompt_hash has incorrect type: expected BLOB, got "TEXT"`},
		{"a short hash", row("x'00'", "'{}'", "0"), "row with id 7: prompt_hash has 1 bytes"},
		{"no json", row("zeroblob(32)", "'{'", "0"), "row with id 7: gen_tokens: unexpected end"},
		{"an id that is none", row("zeroblob(32)", `'{"numbers":[-1]}'`, "1"), "row with id 7: gen_tokens: "},
		{"another number", row("zeroblob(32)", `'{"numbers":[1,2]}'`, "3"), "row with id 7: gen_tokens has 2 numbers, but n_gen_tokens is 3"},
		{"no answers", row("zeroblob(32)", `'{"numbers":[]}'`, "0"), "none of the 1 rows"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.sqlite")
			db, err := sqlite3.Open(path)
			require.NoError(t, err)
			require.NoError(t, db.Exec(test.sql))
			require.NoError(t, db.Close())
			if _, err := dataset.Load(path, nil, Read); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

// endOfText is the id that requests name as the end of sequence.
const endOfText = 2

// The ids in the table are those that the Rust library made of the same texts.
func TestSQLite(t *testing.T) {
	for way, read := range readers(t) {
		t.Run(way, func(t *testing.T) {
			set, err := dataset.Load("testdata/tokens.sqlite", nil, read)
			require.NoError(t, err)
			s, err := set.Source(dataset.Options{Strict: true})
			require.NoError(t, err)
			tok := tiny(t)
			var got []string
			for _, text := range []string{"Say hello", "Say hello", "Count", "Say hello", "hello"} {
				r := &player.Request{ID: text, PromptTokenIDs: tok.Encode(text)}
				r.Sampling.MaxTokens, r.Sampling.HasMaxTokens, r.Sampling.EOSTokenID = 100, true, endOfText
				script, err := s.Script(r)
				if (err != nil) != (text == "hello") {
					t.Error(err)
				}
				tokens := script.Tokens
				for script.Fill != nil && script.Fill(len(tokens)) != endOfText {
					tokens = append(tokens, script.Fill(len(tokens)))
				}
				got = append(got, tok.Decode(tokens))
			}
			require.NoDiff(t, cmp.Diff([]string{"Hello, wörld!", "Again", "1\n2\n3", "Hello, wörld!", ""}, got), "answers (-want +got)")
		})
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

// Whatever byte of a binary file is another, it is read or refused, in little memory.
func TestBrokenBinaries(t *testing.T) {
	tok := tiny(t)
	for name, most := range map[string]int{"flat-zstd.parquet": 1000, "messages.parquet": 500, "tokens.sqlite": 50} {
		t.Run(name, func(t *testing.T) {
			whole, err := os.ReadFile("testdata/" + name)
			require.NoError(t, err)
			path, step, read := write(t, name, ""), 1+len(whole)/most, 0
			for i := 0; i < len(whole); i += step {
				broken := append([]byte(nil), whole...)
				broken[i] ^= []byte{0xff, 0x80, 0x01}[i/step%3]
				require.NoError(t, os.WriteFile(path, broken, 0o644))
				took := allocated(func() { _, err = dataset.Load(path, tok, Read) })
				if err == nil {
					read++
				}
				if took > 128<<20 {
					t.Errorf("byte %d: %d MB were allocated", i, took>>20)
				}
			}
			if read == 0 || read == len(whole)/step {
				t.Errorf("%d of %d were read: nothing was tested", read, len(whole)/step)
			}
		})
	}
}

// Whatever is in a file, Load returns.
func FuzzLoad(f *testing.F) {
	names := []string{"messages.parquet", "tokens.sqlite"}
	for kind, name := range names {
		data, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(uint8(kind), data)
	}
	tok := tiny(f)
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		set, err := dataset.Load(write(t, names[int(kind)%len(names)], string(text)), tok, Read)
		require.True(t, err != nil || set.Len() != 0, "a dataset without rows and without an error")
	})
}
