package tomlfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestConflictMarks(t *testing.T) {
	const whole = "[[golden]]\n<<<<<<< HEAD\nname = 'a'\n=======\nname = 'b'\n>>>>>>> theirs\n"
	diagnostic := func(place, mark string) []string {
		return []string{"f.toml:" + place + ": T002 error: not valid TOML: " + mark + " is of a merge that was not finished; " +
			"finish it: keep one side of each conflict, or both, and delete the lines with <<<<<<<, |||||||, ======= and >>>>>>>"}
	}
	tests := []struct {
		name, src string
		want      []string
	}{
		{name: "whole", src: whole, want: diagnostic("2", "<<<<<<<")},
		{name: "Windows line ends", src: strings.ReplaceAll(whole, "\n", "\r\n"), want: diagnostic("2", "<<<<<<<")},
		{name: "byte order mark", src: "\xef\xbb\xbf" + whole, want: diagnostic("2", "<<<<<<<")},
		{name: "half removed", src: "[[golden]]\nname = 'a'\n=======\nname = 'b'\n>>>>>>> theirs\n", want: diagnostic("3", "=======")},
		{name: "the last mark alone, without a name", src: "[[golden]]\nname = 'a'\n>>>>>>>", want: diagnostic("3", ">>>>>>>")},
		{name: "three-way", src: "[[golden]]\nname = 'a'\n||||||| base\n", want: diagnostic("3", "|||||||")},
		{name: "within an array", src: "[[golden]]\nname = 'a'\ntags = [\n<<<<<<< HEAD\n 'a',\n=======\n 'b',\n>>>>>>> theirs\n]\n", want: diagnostic("4", "<<<<<<<")},
		{name: "in a value that has no end", src: "[[golden]]\nname = 'a\n<<<<<<< HEAD\n'\n>>>>>>> theirs\n", want: diagnostic("3", "<<<<<<<")},
		{name: "in a string that is whole", src: "[[golden]]\nname = '''\n<<<<<<< HEAD\n=======\n>>>>>>> x\n'''\n"},
		{
			name: "a rule in a string is no conflict", src: "[[golden]]\nname = '''\n=======\n'''\nsize =\n",
			want: []string{`f.toml:5:7: T002 error: not valid TOML: unexpected character U+000A at start of value`},
		},
		{
			name: "eight characters", src: "[[golden]]\n========\n",
			want: []string{"f.toml:2:1: T002 error: not valid TOML: invalid character at start of key: U+003D '='"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, diagnosticsOf(tt.src)), "diagnostics (-want +got)")
		})
	}
}

func TestPlacesAndRemarks(t *testing.T) {
	const src = "# = fence\n# of a\n[[golden]]\nname = 'a' # why\nsize = 1\nat = '#'\n# below\n\n[[golden]]\nname = '''\n#\n'''\n\n# alone\n"
	e, err := NewEditor("f.toml", []byte(src), fence)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff([]Place{{2, 7}, {9, 12}}, e.Places("golden")), "places (-want +got)")
	tests := []struct {
		name  string
		index int
		key   string
		want  bool
	}{
		{name: "behind the value", key: "name", want: true},
		{name: "none", key: "size"},
		{name: "in the value", key: "at"},
		{name: "in a value of several lines", index: 1, key: "name"},
		{name: "no such key", key: "tags"},
		{name: "no such entry", index: 2, key: "name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, e.HasRemark("golden", tt.index, tt.key), tt.want, "HasRemark")
		})
	}
}
