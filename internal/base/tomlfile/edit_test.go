package tomlfile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func fence(comment string) bool { return strings.HasPrefix(comment, "=") }

// edit makes changes to a text and returns the result, or the error instead.
func edit(src string, change func(*Editor) error) string {
	e, err := NewEditor("f.toml", []byte(src), fence)
	if err == nil {
		err = change(e)
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return string(e.Bytes())
}

func TestEditorSet(t *testing.T) {
	order := []string{"name", "size", "valid", "at", "tags"}
	set := func(index int, key string, value any) func(*Editor) error {
		return func(e *Editor) error { return e.Set("golden", index, key, value, order) }
	}
	const two = "# head\n\n[[golden]]\nname = 'a' # why\n  size=1\t# here\n\n\n[[golden]] # second\nname = 'b'\nx_mine = {a = 1}"
	tests := []struct {
		name, src string
		change    func(*Editor) error
		want      string
	}{
		{"value", two, set(0, "name", "c"), strings.Replace(two, "'a' #", `"c" #`, 1)},
		{"same value, otherwise spelt", two, set(0, "name", "a"), two},
		{"value before a comment", two, set(0, "size", int64(-2)), strings.Replace(two, "size=1\t#", "size=-2\t#", 1)},
		{"of the second entry", two, set(1, "name", "a"), strings.Replace(two, "'b'", `"a"`, 1)},
		{"new, in order", two, set(0, "valid", true), strings.Replace(two, "here\n", "here\nvalid = true\n", 1)},
		{"new, first", "[[golden]]\nsize = 1\n", set(0, "name", "a"), "[[golden]]\nname = \"a\"\nsize = 1\n"},
		{"new, before the user's", two, set(1, "size", int64(3)), strings.Replace(two, "'b'\n", "'b'\nsize = 3\n", 1)},
		{"new, at an end without line end", "[[golden]]\nname = 'a'", set(0, "size", int64(1)), "[[golden]]\nname = 'a'\nsize = 1"},
		{"header at an end without line end", "[[golden]]", set(0, "size", int64(1)), "[[golden]]\nsize = 1"},
		{"new, before a table below", "[[golden]]\n[golden.x_t]\nname = 1\n", set(0, "name", "a"), "[[golden]]\nname = \"a\"\n[golden.x_t]\nname = 1\n"},
		{"Windows line ends", "[[golden]]\r\nname = 'a'\r\n", set(0, "size", int64(1)), "[[golden]]\r\nname = 'a'\r\nsize = 1\r\n"},
		{"byte order mark", "\xef\xbb\xbf[[golden]]\n", set(0, "size", int64(1)), "\xef\xbb\xbf[[golden]]\nsize = 1\n"},
		{"quoted key", "[['golden']]\n\"name\" = 'a'\n", set(0, "name", "b"), "[['golden']]\n\"name\" = \"b\"\n"},
		{"multi-line value", "[[golden]]\nname = '''\n[[golden]]\n''' # x\nsize = 1\n", set(0, "name", "b"), "[[golden]]\nname = \"b\" # x\nsize = 1\n"},
		{
			"array over lines", "[[golden]]\ntags = [ # x\n  'a',\n] # y\n", set(0, "tags", []string{"a", "b"}),
			"[[golden]]\ntags = [\"a\", \"b\"] # y\n",
		},
		{"same array", "[[golden]]\ntags = [\n  'a',\n]\n", set(0, "tags", []string{"a"}), "[[golden]]\ntags = [\n  'a',\n]\n"},
		{"string that needs escapes", "[[golden]]\n", set(0, "name", "a\"\\\n\t\x01\u007f\ufeffé"), "[[golden]]\nname = \"a\\\"\\\\\\n\\t\\u0001\\u007F\\uFEFFé\"\n"},
		{"time", "[[golden]]\n", set(0, "at", time.Date(2026, 1, 31, 12, 0, 0, 5e8, time.UTC)), "[[golden]]\nat = 2026-01-31T12:00:00.5Z\n"},
		{"same time", "[[golden]]\nat = 2026-01-31T13:00:00+01:00\n", set(0, "at", time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)), "[[golden]]\nat = 2026-01-31T13:00:00+01:00\n"},
		{"no such entry", two, set(2, "name", "c"), "error: f.toml: no entry 2 of [[golden]], which has 2"},
		{"entries written inline", "golden = [{name = 'a'}]\n", set(0, "name", "c"), "error: f.toml: golden is not written as [[golden]] tables, so its entries cannot be edited"},
		{"no entries", "golden = 1\n", set(0, "name", "c"), "error: f.toml: golden is not written as [[golden]] tables, so its entries cannot be edited"},
		{"float", two, set(0, "size", 1.5), "error: f.toml: size: a value of type float64 cannot be written"},
		{
			"dotted key", "[[golden]]\nname.first = 'a'\n", set(0, "name", "b"),
			"error: a change at line 2 would break the file: f.toml: not valid TOML: toml: line 3 (last key \"golden.name.first\"): Key 'golden.name' has already been defined.",
		},
		{"not TOML", "[[golden]\n", set(0, "name", "a"), "error: f.toml:1:9: syntax error: not valid TOML: expected ']]' to close array table name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, edit(tt.src, tt.change)), "-want +got")
		})
	}
}

func TestEditorEntries(t *testing.T) {
	const (
		a = "# of a,\n# two lines\n[[golden]]\nname = 'a'\n\n# inside\nsize = 1\n# below a\n"
		b = "[[golden]] # b\nname = 'b'\n[golden.x_t]\nv = nan\n"
		c = "# of c\n[[golden]]\nname = 'c'"
	)
	const all = "# head\n\n# = begin\n\n" + a + "\n" + b + "\n# = end\n\n" + c
	remove := func(i int) func(*Editor) error { return func(e *Editor) error { return e.Remove("golden", i) } }
	move := func(i, line int) func(*Editor) error {
		return func(e *Editor) error { return e.Move("golden", i, line) }
	}
	insert := func(line int) func(*Editor) error {
		return func(e *Editor) error { return e.Insert("golden", line, "name", "d") }
	}
	const d = "[[golden]]\nname = \"d\"\n"
	tests := []struct {
		name, src string
		change    func(*Editor) error
		want      string
	}{
		{"remove the first", all, remove(0), "# head\n\n# = begin\n\n" + b + "\n# = end\n\n" + c},
		{"remove one before a fence", all, remove(1), "# head\n\n# = begin\n\n" + a + "\n# = end\n\n" + c},
		{"remove the last", all, remove(2), "# head\n\n# = begin\n\n" + a + "\n" + b + "\n# = end\n"},
		{"remove the only one", "x = 1\n\n[[golden]]\n", remove(0), "x = 1\n"},
		{"a comment between two is of the second", "[[golden]]\nname = 'a'\n# of b\n[[golden]]\nname = 'b'\n", remove(0), "# of b\n[[golden]]\nname = 'b'\n"},
		{"remove beside another table", "[[golden]]\nname = 'a'\n[other]\nv = 1\n", remove(0), "[other]\nv = 1\n"},
		{"a fence within an entry", "[[golden]]\n# = begin\nname = 'a'\n", remove(0), `error: f.toml: line 2, "= begin", stands within an entry, so that cannot be moved: put the line before or behind the entry`},
		{"move the last up", all, move(2, 3), "# head\n\n# = begin\n\n" + c + "\n\n" + a + "\n" + b + "\n# = end\n"},
		{"move the first down", all, move(0, 18), "# head\n\n# = begin\n\n" + b + "\n" + a + "\n# = end\n\n" + c},
		{"move behind the end", all, move(0, 23), "# head\n\n# = begin\n\n" + b + "\n# = end\n\n" + c + "\n\n" + a},
		{"move into itself", all, move(0, 6), "error: f.toml: entry 0 of [[golden]] cannot move into itself, to line 6"},
		{"move into another", all, move(2, 8), "error: f.toml: a change at line 9 would change other values too: edit the file by hand"},
		{"insert", all, insert(18), "# head\n\n# = begin\n\n" + a + "\n" + b + "\n" + d + "\n# = end\n\n" + c},
		{"insert behind what has no line end", all, insert(23), all + "\n\n" + d},
		{"insert into an empty file", "", insert(0), d},
		{"insert at the top", "[other]\nv = 1\n", insert(0), d + "\n[other]\nv = 1\n"},
		{"insert between fences without a blank line", "# = begin\n# = end\n", insert(1), "# = begin\n\n" + d + "\n# = end\n"},
		{"insert with Windows line ends", "# = begin\r\n# = end\r\n", insert(1), "# = begin\r\n\r\n[[golden]]\r\nname = \"d\"\r\n\r\n# = end\r\n"},
		{"insert into an entry", all, insert(8), "error: f.toml: a change at line 9 would change other values too: edit the file by hand"},
		{"insert into a string", "v = '''\n\n'''\n", insert(1), "error: f.toml: a change at line 2 would change other values too: edit the file by hand"},
		{"insert beyond the end", "v = 1\n", insert(5), "error: f.toml: has no line 5"},
		{"insert where there is a table of that name", "[golden]\n", insert(1), "error: f.toml: golden is not written as [[golden]] tables, so none can be added"},
		{"comments", "v = 1\n[t]\n", func(e *Editor) error { return e.InsertComments(1, "= begin", "= end") }, "v = 1\n\n# = begin\n# = end\n\n[t]\n"},
		{"a comment of two lines", "v = 1\n", func(e *Editor) error { return e.InsertComments(1, "a\nb = 1") }, `error: f.toml: a comment is one line, not "a\nb = 1"`},
		{"unset", all, func(e *Editor) error { return e.Unset("golden", 0, "size") }, strings.Replace(all, "size = 1\n", "", 1)},
		{"unset what is not there", all, func(e *Editor) error { return e.Unset("golden", 0, "none") }, all},
		{"unset a table", all, func(e *Editor) error { return e.Unset("golden", 1, "x_t") }, "error: f.toml: x_t of entry 1 of [[golden]] is not one pair, so it cannot be removed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, edit(tt.src, tt.change)), "-want +got")
		})
	}
}

func TestEditorPlaces(t *testing.T) {
	e, err := NewEditor("f.toml", []byte("# = one\n[[golden]]\nname = '''\n# no\n'''\n\n[[golden]]\n  ## two\n"), nil)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff([]int{2, 7}, e.Lines("golden")), "lines, -want +got")
	require.NoDiff(t, cmp.Diff([]Comment{{1, "= one"}, {8, "two"}}, e.Comments()), "comments, -want +got")
}

// written lists the lines of a text that are not blank.
func written(text []byte) []string {
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, " \t\r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// Whatever a text is, a change either fails and leaves it as it was, or does what
// it says and nothing else; and making it again changes nothing.
func FuzzEditor(f *testing.F) {
	for _, src := range []string{
		"[[golden]]\nname = 'a'\n\n# x\n[[golden]]\nname = 'b'\n", "# = begin\n[[golden]]\r\n[golden.t]\r\na = 1\r\n# = end", "a = 1",
		"golden = [{name = 'a'}]", "[[golden]]\nname.a = 1\n[[golden]]\nname = \"\"\"\n[[golden]]\n\"\"\"", "\xef\xbb\xbf[[golden]]\nv = [\n# x\n nan,\n]\n",
	} {
		f.Add(src, 0, 1)
	}
	f.Fuzz(func(t *testing.T, src string, index, line int) {
		e, err := NewEditor("f.toml", []byte(src), fence)
		if err != nil {
			return
		}
		if got := string(e.Bytes()); got != src {
			t.Fatalf("%q was read as %q", src, got)
		}
		line = line & 0xff
		attempt := func(what string, change func() error) bool {
			before := e.Bytes()
			err := change()
			if err != nil && string(e.Bytes()) != string(before) {
				t.Fatalf("%s failed (%v) and changed %q to %q", what, err, before, e.Bytes())
			}
			if _, again := NewEditor("f.toml", e.Bytes(), fence); again != nil && len(src) < maxBytes/2 {
				t.Fatalf("%s made of %q what is no TOML: %q: %v", what, before, e.Bytes(), again)
			}
			return err == nil
		}
		before := written(e.Bytes())
		if attempt("move", func() error { return e.Move("golden", index, line) }) {
			if diff := cmp.Diff(before, written(e.Bytes())); diff != "" && !strings.Contains(src, "\"\"\"") && !strings.Contains(src, "'''") {
				t.Fatalf("moving changed more than places in %q (-want +got):\n%s", src, diff)
			}
		}
		set := func() error { return e.Set("golden", index, "k", "v", []string{"name", "k"}) }
		if attempt("set", set) {
			text := string(e.Bytes())
			if err := set(); err != nil || string(e.Bytes()) != text {
				t.Fatalf("setting again changed %q to %q, %v", text, e.Bytes(), err)
			}
			attempt("unset", func() error { return e.Unset("golden", index, "k") })
		}
		attempt("insert", func() error { return e.Insert("golden", line, "k", "v") })
		attempt("comment", func() error { return e.InsertComments(line, "= begin") })
		attempt("remove", func() error { return e.Remove("golden", index) })
	})
}
