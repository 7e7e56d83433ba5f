package compat

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// commit is forty times a digit.
func commit(digit string) string { return strings.Repeat(digit, fullRev) }

func TestParseTags(t *testing.T) {
	row := func(digit, ref string) string { return commit(digit) + "\t" + ref + "\n" }
	tests := []struct{ name, dump, want string }{ // want: version=digit, or the error
		{name: "in order", dump: row("a", "refs/tags/v0.10.0") + row("b", "refs/tags/v0.9.2") + row("c", "refs/tags/v0.10.0rc1"), want: "0.9.2=b 0.10.0rc1=c 0.10.0=a"},
		{name: "the commit of an annotated tag", dump: row("a", "refs/tags/v0.33.0") + row("b", "refs/tags/v0.33.0^{}"), want: "0.33.0=b"},
		{name: "the commit comes first", dump: row("b", "refs/tags/v0.33.0^{}") + row("a", "refs/tags/v0.33.0"), want: "0.33.0=b"},
		{name: "the commit alone", dump: row("b", "refs/tags/v0.33.0^{}"), want: "0.33.0=b"},
		{name: "corrected build", dump: row("a", "refs/tags/v0.25.1.post1"), want: "0.25.1.post1=a"},
		{name: "what is not a release", dump: row("a", "HEAD") + row("b", "refs/heads/v0.34.0") + row("c", "refs/tags/nightly") + row("d", "refs/tags/v0.34.0.dev1") + row("e", "refs/tags/v0.33.0"), want: "0.33.0=e"},
		{name: "no name that a line could write", dump: row("a", "refs/tags/0.34.0") + row("b", "refs/tags/v0.034.0") + row("c", "refs/tags/v0.33.0"), want: "0.33.0=c"},
		{name: "Windows line ends", dump: strings.ReplaceAll(row("a", "refs/tags/v0.33.0"), "\n", "\r\n"), want: "0.33.0=a"},
		{name: "twice the same", dump: row("a", "refs/tags/v0.33.0") + row("a", "refs/tags/v0.33.0"), want: "0.33.0=a"},
		{name: "tags, but no release", dump: row("a", "refs/tags/x"), want: ""},
		{name: "empty", dump: "", want: `error: f: has no tags: write what "git ls-remote --tags" prints about vllm.git into it`},
		{name: "branches only", dump: row("a", "refs/heads/main"), want: `error: f: has no tags: write what "git ls-remote --tags" prints about vllm.git into it`},
		{name: "cut off", dump: row("a", "refs/tags/v0.33.0") + commit("b") + "\trefs/tags/v0.33", want: "error: f:2: the list is cut off: its last line has no end"},
		{name: "garbage", dump: row("a", "refs/tags/v0.33.0") + "fatal: unable to access\n", want: `error: f:2: "fatal: unable to access" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "a blank line", dump: "\n" + row("a", "refs/tags/v0.33.0"), want: `error: f:1: "" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "blanks for the tab", dump: commit("a") + " refs/tags/v0.33.0\n", want: `error: f:1: "` + commit("a") + ` refs/tags/v0.33.0" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "no ref", dump: commit("a") + "\t\n", want: `error: f:1: "` + commit("a") + `\t" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "a short commit", dump: "4ba787ec9\trefs/tags/v0.33.0\n", want: `error: f:1: "4ba787ec9\trefs/tags/v0.33.0" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "no hexadecimal digits", dump: commit("g") + "\tHEAD\n", want: `error: f:1: "` + commit("g") + `\tHEAD" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "a long line", dump: strings.Repeat("x", 100) + "\n", want: `error: f:1: "` + strings.Repeat("x", 80) + `…" is not a line of git ls-remote: want 40 hexadecimal digits, a tab and a ref`},
		{name: "two commits", dump: row("a", "refs/tags/v0.33.0") + row("b", "refs/tags/v0.33.0"), want: `error: f:2: "refs/tags/v0.33.0" is another commit than at line 1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			releases, err := ParseTags("f", []byte(tt.dump))
			var got []string
			for _, r := range releases {
				require.True(t, !r.Yanked && len(r.Rev) == fullRev, "%s has %+v", r.Version, r)
				got = append(got, r.String()+"="+r.Rev[:1])
			}
			if err != nil {
				got = []string{"error: " + err.Error()}
			}
			require.NoDiff(t, cmp.Diff(tt.want, strings.Join(got, " ")), "-want +got")
		})
	}
}

func FuzzParseTags(f *testing.F) {
	f.Add([]byte(commit("a") + "\trefs/tags/v0.33.0\n" + commit("b") + "\trefs/tags/v0.33.0^{}\r\n"))
	f.Add([]byte(commit("a") + "\tHEAD\n" + commit("0") + "\trefs/tags/v0.25.1.post1\n"))
	f.Add([]byte("fatal: x\n"))
	f.Fuzz(func(t *testing.T, dump []byte) {
		releases, err := ParseTags("f", dump)
		if err != nil {
			if len(releases) != 0 {
				t.Fatalf("releases %v with the error %v", releases, err)
			}
			return
		}
		for i, r := range releases {
			if i > 0 && r.Compare(releases[i-1].Version) <= 0 {
				t.Errorf("%s comes after %s", r, releases[i-1])
			}
			row := r.Rev + "\t" + tagPrefix + r.Tag()
			if !strings.Contains(string(dump), row+"\n") && !strings.Contains(string(dump), row+"\r\n") && !strings.Contains(string(dump), row+"^{}") {
				t.Errorf("%s at %s is not in %q", r, r.Rev, dump)
			}
		}
	})
}
