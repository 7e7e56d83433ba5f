package action

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// defaults is what the runner of the tests has.
var defaults = Defaults{ReportDir: "/temp/report", CacheDir: "/tools/goldens", WorkDir: "/temp/work"}

func TestPlan(t *testing.T) {
	tests := []struct {
		name   string
		inputs Inputs
		want   string // the arguments, separated by blanks
		dir    string
		err    string
	}{
		{
			name: "nothing given", inputs: Inputs{},
			want: "conform --cache-dir=/tools/goldens --report-dir=/temp/report --annotations=auto --github-output",
		},
		{
			name: "lists", inputs: Inputs{"line": "0.33,0.32", "run": "a/**\n  b/*\r\n\n", "concurrency": "1, 16"},
			want: "conform --line=0.33 --line=0.32 --concurrency=1 --concurrency=16 --run=a/** --run=b/*" +
				" --cache-dir=/tools/goldens --report-dir=/temp/report --annotations=auto --github-output",
		},
		{
			name: "a value that looks like a flag", inputs: Inputs{"engine-command": "--update-expectations {handshake}"},
			want: "conform --engine-command=--update-expectations {handshake}" +
				" --cache-dir=/tools/goldens --report-dir=/temp/report --annotations=auto --github-output",
		},
		{
			name: "own folders", inputs: Inputs{"cache-dir": "c", "report-dir": "r", "annotations": "off", "working-directory": "ci//x/"},
			want: "conform --cache-dir=c --report-dir=r --annotations=off --github-output", dir: "ci/x",
		},
		{
			name: "the store", inputs: Inputs{
				"bucket": "s3://b/p", "region": "eu-west-1", "endpoint-url": "http://127.0.0.1:9000", "path-style": "true",
				"anonymous": "false", "offline": "true", "role-to-assume": "arn:aws:iam::123456789012:role/r", "role-session-name": "s",
			},
			want: "conform --bucket=s3://b/p --offline=true --anonymous=false --region=eu-west-1 --endpoint-url=http://127.0.0.1:9000" +
				" --path-style=true --role-to-assume=arn:aws:iam::123456789012:role/r --role-session-name=s" +
				" --cache-dir=/tools/goldens --report-dir=/temp/report --annotations=auto --github-output",
		},
		{
			name: "more arguments", inputs: Inputs{"mode": "conform", "args": `--engine-grace 5s --skip '$x' -v`},
			want: "conform --cache-dir=/tools/goldens --report-dir=/temp/report --annotations=auto --github-output --engine-grace 5s --skip $x -v",
		},
		{name: "matrix", inputs: Inputs{"mode": "matrix", "matrix-kind": "docker", "line": "0.33"}, want: "compat matrix --line=0.33 --kind=docker --github-output"},
		{name: "validate", inputs: Inputs{"mode": "validate", "compat": "c.toml", "manifest": "m.toml"}, want: "compat check --compat=c.toml --manifest=m.toml"},
		{
			name: "canary", inputs: Inputs{"mode": "canary", "model": "m", "args": "0.33.0"},
			want: "drift check --model=m --report-dir=/temp/report --annotations=auto --github-output 0.33.0",
		},
		{name: "watch", inputs: Inputs{"mode": "watch"}, want: "compat watch stable --index --write --github-output"},
		{
			name: "watch candidates", inputs: Inputs{"mode": "watch", "watch": "rc", "tags-file": "tags"},
			want: "compat watch rc --tags-file=tags --write --github-output",
		},
		{name: "capture", inputs: Inputs{"mode": "capture", "line": "0.33", "golden": "edge-s1, wire-edge-s1"}, want: "capture run --local --line=0.33 --work=/temp/work edge-s1"},

		{name: "unknown mode", inputs: Inputs{"mode": "check"}, err: `input mode is "check": want conform, matrix, validate, canary, watch or capture`},
		{name: "of one other mode", inputs: Inputs{"mode": "canary", "line": "0.33"}, err: "input line is for the mode conform, matrix or capture, and the mode is canary"},
		{name: "an empty list", inputs: Inputs{"line": ", ,"}, err: `input line is ", ,": there is no value in it`},
		{name: "not a truth", inputs: Inputs{"offline": "yes"}, err: `input offline is "yes": want true or false`},
		{name: "cache", inputs: Inputs{"cache": "1"}, err: `input cache is "1"`},
		{name: "upload", inputs: Inputs{"upload-reports": "always"}, err: `input upload-reports is "always"`},
		{name: "annotations", inputs: Inputs{"annotations": "none"}, err: `input annotations is "none": want auto, on or off`},
		{name: "which releases", inputs: Inputs{"mode": "watch", "watch": "nightly"}, err: `input watch is "nightly": want stable or rc`},
		{name: "outside", inputs: Inputs{"working-directory": "a/../../b"}, err: `input working-directory is "a/../../b"`},
		{name: "absolute", inputs: Inputs{"working-directory": "/etc"}, err: `input working-directory is "/etc"`},
		{name: "no line to capture", inputs: Inputs{"mode": "capture"}, err: "needs the input line"},
		{name: "two lines to capture", inputs: Inputs{"mode": "capture", "line": "0.33,0.32"}, err: "with one line"},
		{name: "an option for a golden", inputs: Inputs{"mode": "capture", "line": "0.33", "golden": "-n"}, err: `"-n" is not a name`},
		{name: "a pull request of another mode", inputs: Inputs{"mode": "canary", "pull-request": "true"}, err: "input pull-request is for the mode watch"},
		{name: "pull request", inputs: Inputs{"mode": "watch", "pull-request": "yes"}, err: `input pull-request is "yes"`},
		{name: "args", inputs: Inputs{"args": "--line `id`"}, err: "input args: '`' has a meaning in a shell"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.inputs.Plan(defaults)
			if test.err != "" || err != nil {
				require.True(t, err != nil && test.err != "" && strings.Contains(err.Error(), test.err), "got %v, want %q", err, test.err)
				return
			}
			if args := strings.Join(got.Args, " "); args != test.want {
				t.Errorf("got  %s\nwant %s", args, test.want)
			}
			require.True(t, test.dir == "" || got.Dir == test.dir, "directory %s, want %s", got.Dir, test.dir)
		})
	}
}

func TestPullRequest(t *testing.T) {
	tests := []struct {
		name   string
		inputs Inputs
		ref    string
		want   string
		err    string
	}{
		{
			name: "the defaults", inputs: Inputs{"mode": "watch"}, ref: "refs/heads/master",
			want: "github pull-request --branch=auto/vllm-stable --file=compat.toml --github-output --base=master",
		},
		{
			name: "candidates, elsewhere", inputs: Inputs{"mode": "watch", "watch": "rc", "working-directory": "ci", "compat": "window.toml"},
			ref: "refs/pull/7/merge", want: "github pull-request --branch=auto/vllm-rc --file=ci/window.toml --github-output",
		},
		{name: "outside", inputs: Inputs{"mode": "watch", "compat": "../c.toml"}, err: `input compat is "../c.toml"`},
		{name: "absolute", inputs: Inputs{"mode": "watch", "compat": "/c.toml"}, err: `input compat is "/c.toml"`},
		{name: "another mode", inputs: Inputs{"mode": "canary"}, err: "a pull request is for the mode watch"},
		{name: "unknown", inputs: Inputs{"mode": "watch", "watch": "x"}, err: "input watch is"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.inputs.PullRequest(test.ref)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.True(t, err == nil && strings.Join(got, " ") == test.want, "got  %v, %v\nwant %s", got, err, test.want)
		})
	}
}

func TestRead(t *testing.T) {
	env := map[string]string{"INPUT_MODE": "matrix\n", "INPUT_LINE": " ", "INPUT_MATRIX_KIND": "ci", "INPUT_BINARY": "/x"}
	got := Read(func(name string) (string, bool) { value, set := env[name]; return value, set })
	require.NoDiff(t, cmp.Diff(Inputs{"mode": "matrix", "matrix-kind": "ci"}, got), "(-want +got)")
}

func TestKey(t *testing.T) {
	tests := []struct {
		name   string
		inputs Inputs
		want   string
	}{
		{"nothing given", Inputs{}, "golden pull --cache-key"},
		{
			"what selects",
			Inputs{"line": "0.33,0.32", "golden": "g", "bucket": "s3://b", "manifest": "m", "compat": "c", "region": "r"},
			"golden pull --cache-key --line=0.33 --line=0.32 --golden=g --compat=c --manifest=m --bucket=s3://b",
		},
		{"no cache", Inputs{"cache": "false"}, ""},
		{"another mode", Inputs{"mode": "validate"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.inputs.Key(defaults)
			require.True(t, err == nil && strings.Join(got, " ") == test.want, "got %v, %v, want %s", got, err, test.want)
		})
	}
	if _, err := (Inputs{"mode": "x"}).Key(defaults); err == nil {
		t.Error("there is a key for inputs that make no sense")
	}
}

func TestKeySuffix(t *testing.T) {
	seen := map[string]string{}
	for _, in := range []Inputs{{}, {"run": "a"}, {"skip": "a"}, {"run": "a", "skip": "a"}, {"args": "a"}, {"run": "b"}} {
		suffix := in.KeySuffix()
		if other, twice := seen[suffix]; twice {
			t.Errorf("%v has the suffix %q of %s", in, suffix, other)
		}
		seen[suffix] = strings.Join(strings.Fields(in["run"]+" "+in["skip"]), " ")
	}
	require.Equal(t, (Inputs{"line": "0.33"}).KeySuffix(), "", "suffix for what the key has already")
}

func TestSplit(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
		err        string
	}{
		{"nothing", " \n", nil, ""},
		{"words", "a  b\tc\nd", []string{"a", "b", "c", "d"}, ""},
		{"single quotes", `'a b' 'c"$d` + "`" + `' ''`, []string{"a b", `c"$d` + "`", ""}, ""},
		{"double quotes", `"a b" "c\"d\\\$" "e\f"`, []string{"a b", `c"d\$`, `e\f`}, ""},
		{"within a word", `--x='a b'"c d"e`, []string{"--x=a bc de"}, ""},
		{"backslashes", `a\ b \$x \'`, []string{"a b", "$x", "'"}, ""},
		{"a pattern", "--run 0.33/**", []string{"--run", "0.33/**"}, ""},
		{"a variable", "a $x", nil, `'$' has a meaning in a shell`},
		{"in double quotes", `"a $(id)"`, nil, `'$' has a meaning`},
		{"a command", "`id`", nil, "has a meaning"},
		{"a pipe", "a | b", nil, `'|' has a meaning`},
		{"two commands", "a; b", nil, `';' has a meaning`},
		{"an open quote", "'a", nil, "the quote ' is not closed"},
		{"a last backslash", `a \`, nil, "ends in a backslash"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Split(test.text)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// FuzzSplit: words that stand in single quotes come back as they are.
func FuzzSplit(f *testing.F) {
	for _, text := range []string{"a b", `a'b "c`, `"a\`, `'\''`, "a\\\nb", "é \xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words, err := Split(text)
		if err != nil {
			return
		}
		var quoted []string
		for _, word := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
		}
		again, err := Split(strings.Join(quoted, " "))
		if diff := cmp.Diff(words, again); diff != "" || err != nil {
			t.Errorf("%q: %v (-first +again):\n%s", text, err, diff)
		}
	})
}

func TestArtifactName(t *testing.T) {
	job := Job{Name: "conformance", OS: "Linux", Arch: "X64", Attempt: "1", Step: "k7"}
	other := job
	other.Step = "k8"
	seen := map[string]bool{}
	for _, test := range []struct {
		inputs Inputs
		job    Job
		prefix string
	}{
		{Inputs{}, job, "vllm-vcr-conformance-Linux-X64-1-k7"},
		{Inputs{}, other, "vllm-vcr-conformance-Linux-X64-1-k8"},
		{Inputs{"line": "0.33, 0.32"}, job, "vllm-vcr-conformance-0.33-0.32-Linux-X64-1-"},
		{Inputs{"line": `a:b/c"*`}, Job{Name: "ü", Attempt: "2"}, "vllm-vcr-_-a_b_c_-2-"},
		{Inputs{"line": strings.Repeat("x", 500)}, job, "vllm-vcr-conformance-xxx"},
	} {
		name, err := test.inputs.ArtifactName(test.job)
		require.True(t, err == nil && strings.HasPrefix(name, test.prefix) && !seen[name] && len(name) <= 100, "%v: %q, %v, want a new one with %s", test.inputs, name, err, test.prefix)
		seen[name] = true
	}
	if name, err := (Inputs{"artifact-name": "mine"}).ArtifactName(job); name != "mine" || err != nil {
		t.Errorf("given: %q, %v", name, err)
	}
	if _, err := (Inputs{"artifact-name": "a/b"}).ArtifactName(job); err == nil {
		t.Error("a name with a slash is taken")
	}
}

func TestSecrets(t *testing.T) {
	for role, want := range map[string][]string{
		"":                                 nil,
		"arn:aws:iam::123456789012:role/r": {"123456789012"},
		"arn:aws-us-gov:iam::210987654321:role/a/b": {"210987654321"},
		"role/123456789012":                         nil,
	} {
		require.NoDiff(t, cmp.Diff(want, (Inputs{"role-to-assume": role}).Secrets()), "%s (-want +got)", role)
	}
}
