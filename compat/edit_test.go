package compat

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// commented is a matrix with comments in every place.
const commented = `# The matrix.
# Two lines about the file.
[[vllm]]
line = "nightly" # of main
tag = "nightly"
protocol_rev = "4ba787ec9"

# Stable lines.

# about 0.33
[[vllm]]
tag = 'v0.33.0'	# the release
line = "0.33"
protocol_rev = "4ba787ec9"
fidelity_validated = true # since October
default = true
x_owner = {name = "me"}
# below 0.33

# about 0.32
[[vllm]]
line = "0.32"
tag = "v0.32.0"
protocol_rev = "5df63a720"
fidelity_validated = true
# the end
`

// rewritten returns the text after a change of the lines, or the error instead.
func rewritten(src string, change func([]Line) []Line) string {
	m, _ := Parse("compat.toml", []byte(src))
	text, err := Rewrite("compat.toml", []byte(src), change(m.Lines))
	if err != nil {
		return "error: " + err.Error()
	}
	return string(text)
}

// on changes the line of that name.
func on(name string, change func(*Line)) func([]Line) []Line {
	return func(lines []Line) []Line {
		lines = slices.Clone(lines)
		for i := range lines {
			if lines[i].Name == name {
				change(&lines[i])
			}
		}
		return lines
	}
}

func without(name string) func([]Line) []Line {
	return func(lines []Line) []Line {
		return slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return l.Name == name })
	}
}

// with puts a line before the one at an index, and makes it the default.
func with(at int, l Line) func([]Line) []Line {
	return func(lines []Line) []Line {
		lines = slices.Insert(slices.Clone(lines), at, l)
		if l.Default {
			makeDefault(lines, l.Name)
		}
		return lines
	}
}

func replaced(src string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(src) }

func TestRewrite(t *testing.T) {
	newest := Line{Name: "0.34", Tag: "v0.34.0", ProtocolRev: "aaaaaaaaa", Default: true}
	entry := "[[vllm]]\nline = \"0.34\"\ntag = \"v0.34.0\"\nprotocol_rev = \"aaaaaaaaa\"\nfidelity_validated = false\ndefault = true\n\n"
	move := func(l *Line) { l.Tag, l.ProtocolRev, l.FidelityValidated = "v0.33.1", "bbbbbbbbb", false }
	moved := replaced(commented, "'v0.33.0'\t", "\"v0.33.1\"\t", "\"4ba787ec9\"\nfid", "\"bbbbbbbbb\"\nfid", "true # since", "false # since")
	tests := []struct {
		name, src string
		change    func([]Line) []Line
		want      string
	}{
		{"nothing", commented, func(l []Line) []Line { return l }, commented},
		{"values", commented, on("0.33", move), moved},
		{"Windows line ends", crlf(commented), on("0.33", move), crlf(moved)},
		{"byte order mark", "\xef\xbb\xbf" + commented, on("0.33", move), "\xef\xbb\xbf" + moved},
		{
			"no line end at the end", strings.TrimSuffix(commented, "# the end\n") + "default = false",
			on("0.32", func(l *Line) { l.PatchRepo, l.PatchRev = "https://example.com/f", "ccccccccc" }),
			replaced(strings.TrimSuffix(commented, "# the end\n"), "5df63a720\"\n", "5df63a720\"\npatch_repo = \"https://example.com/f\"\npatch_rev = \"ccccccccc\"\n") + "default = false",
		},
		{
			"a line on top of the stable ones", commented, with(1, newest),
			replaced(commented, "# about 0.33\n", entry+"# about 0.33\n", "October\ndefault = true\n", "October\n"),
		},
		{
			"a flag with a remark", replaced(commented, "default = true\n", "default = true # for now\n"), with(1, newest),
			replaced(commented, "# about 0.33\n", entry+"# about 0.33\n", "October\ndefault = true\n", "October\ndefault = false # for now\n"),
		},
		{
			"a tracker on top", replaced(commented, commented[:strings.Index(commented, "# Stable")], "# head\n"),
			with(0, Line{Name: "nightly", Tag: "nightly", ProtocolRev: "aaaaaaaaa"}),
			"# head\n# Stable lines.\n\n[[vllm]]\nline = \"nightly\"\ntag = \"nightly\"\nprotocol_rev = \"aaaaaaaaa\"\n\n" + commented[strings.Index(commented, "# about 0.33"):],
		},
		{
			"a line at the end", commented, with(3, Line{Name: "0.31", Tag: "v0.31.0", ProtocolRev: "aaaaaaaaa"}),
			commented + "\n[[vllm]]\nline = \"0.31\"\ntag = \"v0.31.0\"\nprotocol_rev = \"aaaaaaaaa\"\nfidelity_validated = false\n",
		},
		{"the last line goes", commented, without("0.32"), commented[:strings.Index(commented, "\n# about 0.32")]},
		{
			"the first goes, the head stays", commented, without("nightly"),
			replaced(commented, commented[strings.Index(commented, "[[vllm]]"):strings.Index(commented, "# Stable")], ""),
		},
		{
			"one goes, one comes", commented, func(l []Line) []Line { return without("0.32")(with(1, newest)(l)) },
			replaced(commented[:strings.Index(commented, "\n# about 0.32")], "# about 0.33\n", entry+"# about 0.33\n", "October\ndefault = true\n", "October\n"),
		},
		{
			"the first lines of a file", "# empty yet\n", with(0, newest),
			"# empty yet\n\n" + strings.TrimSuffix(entry, "\n"),
		},
		{"a patch goes", replaced(commented, "5df63a720\"\n", "5df63a720\"\npatch_rev = \"ccccccccc\"\npatch_repo = \"f\"\n"), on("0.32", func(l *Line) { l.PatchRepo, l.PatchRev = "", "" }), commented},
		{
			"without a default", commented, without("0.33"),
			"error: the change would break a rule: compat.toml:12: C004 error: exactly one line must be the default, none is; add default = true to the newest stable line",
		},
		{
			"in another order", commented, func(l []Line) []Line { return []Line{l[0], l[2], l[1]} },
			"error: compat.toml: the edit would not result in the intended lines: edit the file by hand",
		},
		{
			"a revision that is none", commented, on("0.33", func(l *Line) { l.ProtocolRev = "main" }),
			`error: the change would break a rule: compat.toml:14: C010 error: protocol_rev "main" is not a git commit; write 9 to 40 lowercase hexadecimal digits`,
		},
		{
			"written inline", "vllm = [{line = '0.33', tag = 'v0.33.0', protocol_rev = '4ba787ec9', default = true}]\n", on("0.33", move),
			"error: compat.toml: vllm is not written as [[vllm]] tables, so its entries cannot be edited",
		},
		{
			"half merged", "# head\n<<<<<<< HEAD\n" + commented, on("0.33", move),
			"error: compat.toml:2: syntax error: not valid TOML: <<<<<<< is of a merge that was not finished; " +
				"finish it: keep one side of each conflict, or both, and delete the lines with <<<<<<<, |||||||, ======= and >>>>>>>",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, rewritten(tt.src, tt.change)), "-want +got")
		})
	}
}

func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
