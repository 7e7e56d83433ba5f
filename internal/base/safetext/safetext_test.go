package safetext_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestLine(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"plain", "std::string, ##, naïve 中文", "std::string, ##, naïve 中文"},
		{"line ends", "one\r\ntwo\u2028three\u0085four", "one  two three four"},
		{"colours", "\x1b[1;31mred\x1b[0m \u009b31mred", "red red"},
		{"title and link", "\x1b]0;title\x07a \x1b]8;;http://x\x1b\\link", "a link"},
		{"unfinished sequence", "a\x1b[", "a ["},
		{"bell, delete, zero", "a\ab\x7fc\x00d", "a b c d"},
		{"direction", "admin\u202e gpj.exe\u2066", "admin  gpj.exe "},
		{"hidden", "a\u200bb\ufeffc", "a b c"},
		{"not UTF-8", "a\xff\xfeb", "a\uFFFDb"},
		{"command of GitHub", "::error::boo", ": :error::boo"},
		{"command behind blanks", " \t\n::error::boo", ": :error::boo"},
		{"command behind a colour", "\x1b[0m::error::boo", ": :error::boo"},
		{"command anywhere", "a ##[error]b ##vso[task]c ##teamcity[x]", "a # #[error]b # #vso[task]c # #teamcity[x]"},
		{"command put together by removing", "##\x1b[0m[error]boo", "# #[error]boo"},
		{"command of three hashes", "###[error]", "## #[error]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := safetext.Line(test.text); got != test.want {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestBlock(t *testing.T) {
	long := strings.Repeat("é", 400)
	var many, last []string
	for i := range 43 {
		many = append(many, fmt.Sprintf("line %d", i))
	}
	last = append(last, "| [3 lines before these]")
	for _, line := range many[3:] {
		last = append(last, "| "+line)
	}
	tests := []struct{ name, output, want string }{
		{"nothing", "", ""},
		{"blank lines", "\n\n\n", ""},
		{"lines", "one\n\ntwo\n", "| one\n| two"},
		{"commands of GitHub", "::error::boo\n  ::set-output name=a::b\n", "| ::error::boo\n|   ::set-output name=a::b"},
		{"commands anywhere in a line", "say ##[error]boo and ##vso[task.setvariable]x\n", "| say # #[error]boo and # #vso[task.setvariable]x"},
		{"a progress bar", "10%\r20%\r::error::30%", "| 10%\n| 20%\n| ::error::30%"},
		{"other line ends", "a\u2028::error::b\v::error::c", "| a\n| ::error::b\n| ::error::c"},
		{"colours and bells", "\x1b[31mred\x1b[0m\a\tdone", "| red  done"},
		{"as long as can be", long, "| " + long},
		{"too long", long + "y", "| " + long + "…"},
		{"as many as can be", strings.Join(many[3:], "\n"), strings.Join(last[1:], "\n")},
		{"too many", strings.Join(many, "\n"), strings.Join(last, "\n")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := safetext.Block(test.output); got != test.want {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestClip(t *testing.T) {
	for most, want := range []string{"…", "a…", "aé…", "aé中…", "aé中b", "aé中b"} {
		require.Equal(t, safetext.Clip("aé中b", most), want, "%d", most)
	}
}

func TestMarkdown(t *testing.T) {
	got := safetext.Markdown("<b>|`*_[x](y)\\~@me\n::x")
	if want := "&lt;b&gt;&#124;&#96;&#42;&#95;&#91;x&#93;(y)&#92;&#126;&#64; me ::x"; got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got, want := safetext.Code("a|b"), "<code>a&#124;b</code>"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInert(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"Closes #12":                         "Closes # 12",
		"fixes o/r#12, gh-7, GH-8":           "fixes o/r# 12, gh- 7, GH- 8",
		"@dependabot merge":                  "@ dependabot merge",
		"(@a) @@b `@c`":                      "(@ a) @@ b `@ c`",
		"resolves https://x/o/r/issues/3":    "resolves https://x/o/r/issues/ 3",
		"https://x/o/r/pull/3/files":         "https://x/o/r/pull/ 3/files",
		"<!-- state --> <!<!-- -->":          "<! -- state --> <!<! -- -->",
		"image:v1@sha256:ab, a@b.c":          "image:v1@sha256:ab, a@b.c",
		"a C# program, ##, # 1, #x, right-2": "a C# program, ##, # 1, #x, right-2",
	} {
		require.Equal(t, safetext.Inert(text), want, "%q", text)
	}
}

func TestQuotation(t *testing.T) {
	got := safetext.Quotation("/merge\n```\n\n<img src=x>\r\u2028[a](b)\x1b[31m\n    @all Closes #1")
	want := "\n    | /merge\n    | ```\n    | <img src=x>\n    | [a](b)\n    |     @ all Closes # 1\n"
	require.Equal(t, got, want, "got")
}

// FuzzText holds each function to what its readers rely on.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "::error::x", "##[x", "\x1b[31m", "\x1b]8;;\x07", "a\xff", "\u202e", "##\u200b[", "\x1b[\x1b[0m31m##[", "|`"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line := safetext.Line(text)
		for _, r := range line {
			require.True(t, r == utf8.RuneError || unicode.IsPrint(r), "Line(%q) has %q", text, r)
		}
		require.True(t, !strings.HasPrefix(strings.TrimSpace(line), "::") && !strings.Contains(line, "##[") && !strings.Contains(line, "##vso["), "Line(%q) is the command %q", text, line)
		if again := safetext.Line(line); again != line {
			t.Errorf("Line(%q) is %q, and of that %q", text, line, again)
		}
		for _, quoted := range strings.Split(safetext.Block(text), "\n") {
			if quoted != "" && (!strings.HasPrefix(quoted, "| ") || strings.Contains(quoted, "##[") || strings.ContainsRune(quoted, '\x1b')) {
				t.Errorf("Block(%q) has the line %q", text, quoted)
			}
		}
		require.Equal(t, html.UnescapeString(safetext.Markdown(text)), safetext.Inert(line), "Markdown(%q) shows", text)
		if inert := safetext.Inert(text); safetext.Inert(inert) != inert || strings.ReplaceAll(inert, " ", "") != strings.ReplaceAll(text, " ", "") {
			t.Errorf("Inert(%q) is %q, and of that %q", text, inert, safetext.Inert(inert))
		}
		for quoted := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(safetext.Quotation(text), "\n"), "\n"), "\n") {
			require.True(t, quoted == "" || strings.HasPrefix(quoted, "    | "), "Quotation(%q) has the line %q", text, quoted)
		}
		if got := safetext.Clip(text, 3); utf8.ValidString(text) && !utf8.ValidString(got) || utf8.RuneCountInString(got) > 4 {
			t.Errorf("Clip(%q) is %q", text, got)
		}
		data, err := json.Marshal(map[string]string{text: text})
		require.NoError(t, err)
		var want, got any
		safe := safetext.JSON(data)
		require.NoErrorf(t, json.Unmarshal(safe, &got), "JSON(%s) is %s", data, safe)
		if err := json.Unmarshal(data, &want); err != nil || !reflect.DeepEqual(want, got) {
			t.Errorf("JSON(%s) means %v", data, got)
		}
		require.True(t, !bytes.Contains(safe, []byte("::")) && !bytes.Contains(safe, []byte("##")) && !bytes.ContainsRune(safe, '\u202e'), "JSON(%s) is %s", data, safe)
	})
}
