package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/flate"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// bomb is a gzip file of some incompressible bytes and of so many zeros behind them. It takes no time to make, as deflated
// parts can be repeated.
func bomb(t *testing.T, before int, zeros int64) []byte {
	t.Helper()
	const part = 16 << 20
	var b bytes.Buffer
	b.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255})
	w, err := flate.NewWriter(&b, flate.BestCompression)
	require.NoError(t, err)
	add := func(data []byte) []byte {
		from := b.Len()
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		require.NoError(t, w.Flush())
		return bytes.Clone(b.Bytes()[from:])
	}
	add(noise(before))
	empty := make([]byte, part)
	add(empty)
	again := add(empty)
	for range zeros/part - 2 {
		b.Write(again)
	}
	require.NoError(t, w.Close())
	var trailer [8]byte
	b.Write(trailer[:]) // nobody gets that far
	return b.Bytes()
}

// A bomb is a bomb: what inflates says so.
func TestBombInflates(t *testing.T) {
	data := bomb(t, 1000, 256<<20)
	n, err := io.Copy(crc32.NewIEEE(), flate.NewReader(bytes.NewReader(data[10:])))
	if err != nil || n != 256<<20+1000 || len(data) > 1<<20 {
		t.Errorf("%d bytes inflate to %d, %v", len(data), n, err)
	}
}

// TestBadGoldens: goldens with the registered bytes, that inflate to more than anybody can want, from each place.
func TestBadGoldens(t *testing.T) {
	bombs := []struct {
		name   string
		before int
		zeros  int64
		says   string
	}{
		{"a small one", 10, 512 << 20, `inflate to more than .*: the limit is 64 times its size plus 1 MiB, and 1 GiB in any case`},
		{"by its ratio", 2 << 20, 512 << 20, `inflate to more than .*: the limit is 64 times its size plus 1 MiB, and 1 GiB in any case`},
		{"by its size", 21 << 20, 2 << 30, `inflate to more than 1073741824 bytes: the limit is`},
	}
	for _, test := range bombs {
		t.Run(test.name, func(t *testing.T) {
			if testing.Short() && test.name == "by its size" {
				t.Skip("inflates 1 GiB")
			}
			c := newConsumer(t)
			c.mostBytes = mostBytes + int64(6*test.before) // it is in memory as a whole, as stored
			c.replace(t, bomb(t, test.before, test.zeros))
			args := append([]string{"conform", "--assertion", "schema"}, one...)
			says := []string{`^  R002 .*edge-s1-fc27abf14a41.jsonl.gz`, test.says}
			c.run(t, append(args, "--bucket", "s3://goldens")...).wants(t, 1, says...)
			if test.before > 10 {
				return // it inflates for long, and where it comes from makes no difference, as the small one shows
			}
			c.run(t, append(args, "--goldens", filepath.Join(c.server.Dir, "goldens"))...).wants(t, 1, says...)
			file := filepath.Join(c.out, "goldens.tar")
			c.run(t, append(append([]string{"golden", "bundle", "--output", file}, one...), fromBucket...)...).wants(t, 0)
			c.run(t, append(args, "--bundle", file)...).wants(t, 1, says...)
		})
	}
}

// TestBadLocations: places that no golden has, wherever they are written.
func TestBadLocations(t *testing.T) {
	t.Parallel()
	const place = `^conformance/manifest.toml:\d+: M\d+ error: `
	tests := []struct {
		name, path string // as TOML
		says       string
	}{
		{"up", `"conformance/../../x.jsonl.gz"`, `has an empty, \. or \.\. segment`},
		{"up in a bucket", `"s3://goldens/../x.jsonl.gz"`, `has an empty, \. or \.\. segment`},
		{"NUL", `"a\u0000.jsonl.gz"`, `contains a control character`},
		{"query", `"https://127.0.0.1:1/a.jsonl.gz?X-Amz-Signature=hunter2"`, `contains one of`},
		{"fragment", `"s3://goldens/a.jsonl.gz#x"`, `contains one of`},
		{"absolute", `"/etc/x.jsonl.gz"`, `is absolute`},
		{"backslash", `'s3://goldens/a\..\b.jsonl.gz'`, `contains one of`},
		{"terminal", `"s3://goldens/a\u001b[2J.jsonl.gz"`, `contains a control character`},
		{"a command", `"s3://goldens/a\n::error::x.jsonl.gz"`, `contains a control character`},
		{"scheme", `"http://127.0.0.1:1/a.jsonl.gz"`, `has an unknown scheme`},
		{"no golden", `"file:///etc/passwd"`, `does not end in`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, key := range []string{"bucket_path", "mirrors"} {
				c := newConsumer(t)
				value := test.path
				says := test.says
				if key == "mirrors" {
					value, says = "["+value+"]", says+"|has no scheme"
				}
				c.register(t, key, value)
				c.pulls(t, 2, fromBucket, []string{place, says})
			}
		})
	}
	t.Run("up, escaped", func(t *testing.T) {
		c := newConsumer(t)
		k := newCounter(t)
		for _, path := range []string{"%2e%2e/x", "a/.%2E/x", "a%2f..%2fx", "%2e"} {
			c.register(t, "bucket_path", `"`+strings.Replace(k.URL, "http", "https", 1)+"/"+path+`/x.jsonl.gz"`)
			c.pulls(t, 3, fromBucket, []string{`golden https://.*a segment of the path is \. or \.\.`})
		}
		if k.came.Load() > 0 {
			t.Error("somebody was asked")
		}
	})
}

// TestBadBuckets: places that no bucket has.
func TestBadBuckets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, bucket, says string
		code               int
	}{
		{"up", "s3://goldens/../other", `--bucket s3://goldens/../other: it has a \. or \.\. segment`, 2},
		{"query", "s3://goldens?x", `--bucket s3://goldens\?….*: it has one of`, 2},
		{"backslash", "s3://goldens\\x", `--bucket .*: it has one of`, 2},
		{"presigned", "https://127.0.0.1:1/x?X-Amz-Signature=hunter2", `--bucket https://127.0.0.1:1/x\?….*: it has one of .* a presigned URL is for one object`, 2},
		{"a password", "https://user:hunter2@127.0.0.1:1/x", `golden https://127.0.0.1:1/x/.*connection refused`, 3},
		{"without encryption", "http://127.0.0.1:1/x", `--bucket http://127.0.0.1:1/x: its scheme "http" is not one of s3, https, hf, file and bundle`, 2},
		{"no name", "s3://", `--bucket s3://: it has a scheme and no name`, 2},
		{"no name but a path", "s3:///x", `--bucket s3:///x: it has a scheme and no name`, 2},
		{"terminal", "s3://goldens\x1b[2J", `--bucket s3://goldens: it has a character that is not printable`, 2},
		{"a command", "s3://goldens\n::error::x", `--bucket s3://goldens ::error::x: it has a character|^vllm-vcr: error: --bucket s3://goldens$`, 2},
		{"up, escaped", "https://127.0.0.1:1/%2e%2e", `golden https://.*a segment of the path is`, 3},
		{"no bundle", "bundle:///none.tar", `bundle: .*none.tar`, 3},
		{"no directory", "/none", `golden /none/.*no such file or directory`, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newConsumer(t)
			c.pulls(t, test.code, []string{"--bucket", test.bucket}, []string{test.says})
			c.env["CONFORMANCE_BUCKET"] = test.bucket
			c.pulls(t, test.code, nil, []string{test.says})
			c.run(t, "golden", "pull", "--bucket", test.bucket, "--goldens", c.dir).wants(t, 2, `give only one of them`)
		})
	}
}

// TestBadTOML: files that are none of ours.
func TestBadTOML(t *testing.T) {
	t.Parallel()
	deep := "x_deep = " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "\n"
	conflict := func(text, key, mark string) string {
		line := text[strings.Index(text, "\n"+key)+1:]
		line = line[:strings.Index(line, "\n")+1]
		half := "<<<<<<< HEAD\n" + line + "||||||| 1234567\n" + line + "=======\n" + line + ">>>>>>> other\n"
		if mark != "" {
			half = line + mark + "\n"
		}
		return strings.Replace(text, line, half, 1)
	}
	tests := []struct {
		name   string
		change func(text, key string) string
		says   string // behind the name of the file
	}{
		{"2 MB", func(text, _ string) string { return text + strings.Repeat("# more\n", 2<<20/7) }, `: [CM]001 error: is larger than \d+ bytes; is this the right file\?$`},
		{"2 MB in a line", func(text, _ string) string { return text + "x_a = \"" + strings.Repeat("a", 2<<20) + "\"" }, `: [CM]001 error: is larger than \d+ bytes; `},
		{"nested", func(text, _ string) string { return deep + text }, `:1: [CM]001 error: values are nested more than 32 deep; `},
		{"nested tables", func(text, _ string) string { return "[" + strings.Repeat("a.", 5000) + "a]\n" + text }, `:1: [CM]001 error: a key and its parents have more than 256 bytes; `},
		{"an unknown key", func(text, key string) string { return strings.Replace(text, key+" =", "x"+key+" =", 1) }, `:\d+: [CM]\d+ error: .*`},
		{"conflict", func(text, key string) string { return conflict(text, key, "") }, `:\d+: [CM]002 error: not valid TOML: <<<<<<< is of a merge that was not finished; finish it: `},
		{"the middle of a conflict", func(text, key string) string { return conflict(text, key, "=======") }, `:\d+: [CM]002 error: not valid TOML: ======= is of a merge`},
		{"the base of a conflict", func(text, key string) string { return conflict(text, key, "||||||| merged common ancestors") }, `:\d+: [CM]002 error: not valid TOML: \|\|\|\|\|\|\| is of a merge.*<<<<<<<, \|\|\|\|\|\|\|, ======= and >>>>>>>$`},
		{"the end of a conflict", func(text, key string) string { return conflict(text, key, ">>>>>>> other") + "\r\n" }, `:\d+: [CM]002 error: not valid TOML: >>>>>>> is of a merge`},
		{"conflict of other line ends", func(text, key string) string { return strings.ReplaceAll(conflict(text, key, ""), "\n", "\r\n") }, `:\d+: [CM]002 error: not valid TOML: <<<<<<< is of a merge`},
		{"a NUL", func(text, _ string) string { return text + "\nx_a = \"\x00\"" }, `:\d+: [CM]001 error: is not UTF-8 text: byte 0x00; `},
		{"a command", func(text, _ string) string { return "\"::error::x\\n::error::y\" = 1\n" + text }, `:1: [CM]\d+ error: .*::error::x`},
		{"cut off", func(text, key string) string { return text[:strings.Index(text, key+" =")+len(key)+4] }, `:\d+:\d+: [CM]002 error: not valid TOML: `},
		{"bytes of something else", func(string, string) string { return "\x1f\x8b\x08\xff\xfe" }, `:1: [CM]001 error: is not UTF-8 text`},
	}
	c := newConsumer(t)
	for _, test := range tests {
		for file, key := range map[string]string{vcr.CompatPath: "tag", vcr.ManifestPath: "workload"} {
			t.Run(test.name+" in "+file, func(t *testing.T) {
				defer c.write(t, file, embedded(file))
				c.write(t, file, []byte(test.change(string(embedded(file)), key)))
				c.pulls(t, 2, fromBucket, []string{"^" + file + test.says})
				c.run(t, "compat", "check").wants(t, 2, "^"+file+test.says)
				if entries, err := os.ReadDir(c.cache); err == nil {
					t.Errorf("something was fetched: %v", entries)
				}
			})
		}
	}
}

// TestBadManifestOfManyGoldens: what is too much is said to be, and what is not works.
func TestBadManifestOfManyGoldens(t *testing.T) {
	many := func(n int) []byte {
		var b bytes.Buffer
		for i := range n {
			fmt.Fprintf(&b, "[[golden]]\nline = \"0.33\"\nid = \"g%d\"\nbucket_path = \"g%d.jsonl.gz\"\nsha256 = \"%064x\"\n"+
				"config_hash = \"%064x\"\nworkload = \"w\"\nrole = \"schema\"\n\n", i, i, i, 1)
		}
		return b.Bytes()
	}
	c := newConsumer(t)
	c.write(t, vcr.ManifestPath, many(10_000))
	c.run(t, "golden", "list").wants(t, 2, `^conformance/manifest.toml: M001 error: is larger than 1048576 bytes; `)
	c.pulls(t, 2, fromBucket, []string{`^conformance/manifest.toml: M001 error: is larger than 1048576 bytes; `})
	var keys strings.Builder
	for i := range 80_000 {
		fmt.Fprintf(&keys, "a%d = 1\n", i)
	}
	c.write(t, vcr.ManifestPath, []byte(keys.String()))
	c.run(t, "golden", "list").wants(t, 2, `^conformance/manifest.toml: and 79900 more$`)
	c.write(t, vcr.ManifestPath, many(3_500))
	if o := c.run(t, "golden", "list"); o.code != 0 || strings.Count(o.stdout, "\n") < 3_500 {
		t.Errorf("exit code %d, %d lines: want all goldens", o.code, strings.Count(o.stdout, "\n"))
	}
}

// TestBadBundleOfManyGoldens: its manifest is written in a time that does not grow with its square.
func TestBadBundleOfManyGoldens(t *testing.T) {
	c := newConsumer(t)
	var mf strings.Builder
	const n = 1_500
	for i := range n {
		data := fmt.Append(nil, i)
		c.store(t, filepath.Join(c.out, "goldens", fmt.Sprintf("g%d.jsonl.gz", i)), data)
		fmt.Fprintf(&mf, "[[golden]]\nline = \"0.31\"\nid = \"g%d\"\nbucket_path = \"g%d.jsonl.gz\"\nsha256 = \"%x\"\n"+
			"config_hash = \"%064x\"\nworkload = \"w\"\nrole = \"schema\"\n\n", i, i, sha256.Sum256(data), 1)
	}
	c.write(t, vcr.ManifestPath, []byte(mf.String()))
	c.write(t, vcr.CompatPath, []byte("[[vllm]]\nline = \"0.31\"\ntag = \"v0.31.0\"\nprotocol_rev = \"db9527a46\"\ndefault = true\n"))
	file := filepath.Join(c.out, "goldens.tar")
	c.run(t, "golden", "bundle", "--goldens", filepath.Join(c.out, "goldens"), "--output", file).wants(t, 0, fmt.Sprintf(`: %d goldens, `, n))
	c.run(t, "golden", "verify", "--bundle", file).wants(t, 0, fmt.Sprintf(`^%d goldens have the registered bytes$`, n))
}

// TestBadAction: the same through the action, once each.
func TestBadAction(t *testing.T) {
	tests := []struct {
		name          string
		before        func(*testing.T, *consumer)
		code          int
		verdict, says string
	}{
		{
			name: "fork", code: 3, verdict: "error", says: `GitHub gives none to pull requests from forks`,
			before: func(t *testing.T, c *consumer) { c.inFork(t); c.env["INPUT_ROLE_TO_ASSUME"] = badRole },
		},
		{
			name: "overwritten", code: 1, verdict: "fail", says: `it was overwritten since`,
			before: func(t *testing.T, c *consumer) {
				c.register(t, "captured_at", "2025-01-02T03:04:05Z")
				c.store(t, c.object, []byte("other bytes"))
			},
		},
		{
			name: "no such region", code: 2, verdict: "error", says: `the S3 region "Frankfurt" is not one`,
			before: func(_ *testing.T, c *consumer) { c.env["INPUT_REGION"] = "Frankfurt" },
		},
		{
			name: "conflict", code: 2, verdict: "error", says: `<<<<<<< is of a merge that was not finished`,
			before: func(t *testing.T, c *consumer) { c.write(t, vcr.ManifestPath, []byte("<<<<<<< HEAD\n")) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConsumer(t)
			c.env["GITHUB_ACTIONS"], c.env["GITHUB_WORKSPACE"], c.env["RUNNER_TEMP"] = "true", c.dir, c.out
			c.env["GITHUB_OUTPUT"], c.env["GITHUB_STEP_SUMMARY"] = filepath.Join(c.out, "output"), filepath.Join(c.out, "summary")
			c.env["INPUT_BUCKET"], c.env["INPUT_LINE"], c.env["INPUT_GOLDEN"] = "s3://goldens", "0.33", "edge-s1"
			c.env["INPUT_CACHE_DIR"] = c.cache
			c.env["INPUT_ASSERTION"] = "integrity"
			test.before(t, c)
			o := c.run(t, "action", "run")
			o.wants(t, test.code, test.says)
			if found := regexp.MustCompile(`(?m)^::error .*`+test.says).FindAllString(o.stdout+"\n"+o.stderr, -1); len(found) != 1 {
				t.Errorf("annotations %q, want one", found)
			}
			outputs, err := os.ReadFile(c.env["GITHUB_OUTPUT"])
			require.NoError(t, err)
			if got := lastOutput(string(outputs), "verdict"); got != test.verdict {
				t.Errorf("verdict %q, want %q", got, test.verdict)
			}
			if got := lastOutput(string(outputs), "exit-code"); got != fmt.Sprint(test.code) {
				t.Errorf("exit-code %q, want %d", got, test.code)
			}
		})
	}
}

// lastOutput is the value that counts of an output of a step.
func lastOutput(file, name string) string {
	lines := strings.Split(file, "\n")
	value := ""
	for i, line := range lines {
		if strings.HasPrefix(line, name+"<<") && i+1 < len(lines) {
			value = lines[i+1]
		}
	}
	return value
}
