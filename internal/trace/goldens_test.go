package trace

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
)

const goldenRoot = "../../testdata/goldens/conformance"

// goldenDigests pins what the goldens say. The values were computed apart from
// this package, with Python's json, struct and hashlib, by the formula of
// StreamDigest.
var goldenDigests = map[string]string{
	"v0.27.1/cpu/tiny/multiturn-ngram-k3-s7.jsonl.gz": "8ffd1f25db427d90dcac23fe4ab2dab61e4ed6f302b0bb643ad0762ae21fed33",
	"v0.27.1/cpu/tiny/multiturn-nocache-s7.jsonl.gz":  "47226648a4573e80033b244ecdc99fb3c701e8e5aec9be4bc1a699491e473efb",
	"v0.27.1/cpu/tiny/multiturn-s13.jsonl.gz":         "5733f3fd8241fa41322079248f4c9645e8374d23378de6ebef6e0cf006b95eea",
	"v0.27.1/cpu/tiny/multiturn-s7.jsonl.gz":          "edb9f3a3a724388a61f7ff5dc18362381a5bb1fb58658549339eda9606573b4b",
	"v0.32.0/cpu/tiny/multiturn-nocache-s7.jsonl.gz":  "cd87fa4f37846e87ba0ac8850227f4a0c9e5771ce82a127ae8a14e8673e66232",
	"v0.32.0/cpu/tiny/multiturn-s13.jsonl.gz":         "7a12dfafa5e8164b28ac25fe64ef941163e359619a98eeb73a42dfe51b21e5c2",
	"v0.32.0/cpu/tiny/multiturn-s7.jsonl.gz":          "be45bbf4879ce20d4e7d65bdad89a33e05836f681ca0d0319fe7633583badaaf",
	"v0.33.0/cpu/tiny/multiturn-nocache-s7.jsonl.gz":  "bd516761acb635d1c5e2fb806a7d9d819b231871c569b0049a86af94ae2b38b4",
	"v0.33.0/cpu/tiny/multiturn-s13.jsonl.gz":         "b667da5655309e806eda155c32930cac74f15fad225e8931302b2f3190bf242f",
	"v0.33.0/cpu/tiny/multiturn-s7.jsonl.gz":          "78641d4c831224333647c76f1bb8e37c963dbf63ebc0a149016c60adbfe47e6a",
}

// goldenPaths lists the goldens in the repository; none is a failure.
func goldenPaths(tb testing.TB) []string {
	tb.Helper()
	var paths []string
	err := filepath.WalkDir(goldenRoot, func(path string, _ os.DirEntry, err error) error {
		if IsGzip(path) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no goldens under %s: %v", goldenRoot, err)
	}
	return paths
}

func inflate(tb testing.TB, path string) []byte {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestGoldens(t *testing.T) {
	pinned := 0
	for _, path := range goldenPaths(t) {
		name, err := filepath.Rel(goldenRoot, path)
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.ToSlash(name)
		if goldenDigests[name] != "" {
			pinned++
		}
		t.Run(name, func(t *testing.T) {
			tr, err := Read(path, Options{Strict: true, KeepExtra: true})
			if err != nil {
				t.Fatal(err)
			}
			checkGoldenMeta(t, path, tr)
			for i := range tr.Records {
				checkGoldenRecord(t, tr.Meta, &tr.Records[i])
			}
			want, got := goldenDigests[name], TokensDigest(tr.Records, ReplaySubset(tr.Records))
			if want != "" && got != want {
				t.Errorf("tokens digest: want %s, got %s", want, got)
			}
		})
	}
	if pinned != len(goldenDigests) {
		t.Errorf("%d of the %d goldens with a pinned digest are there", pinned, len(goldenDigests))
	}
}

func checkGoldenMeta(t *testing.T, path string, tr *Trace) {
	t.Helper()
	m := tr.Meta
	if len(tr.Records) == 0 || len(tr.Warnings) != 0 {
		t.Errorf("%d records, warnings %q", len(tr.Records), tr.Warnings)
	}
	if want := ConfigHash(*m.GPU, *m.VLLMTag, *m.EngineConfig); *m.ConfigHash != want {
		t.Errorf("config_hash: stamped %s, recomputed %s", *m.ConfigHash, want)
	}
	if got := m.ConfigScheme(); got != HashV3 {
		t.Errorf("config scheme: want %d, got %d", HashV3, got)
	}
	if m.Extra != nil {
		t.Errorf("unknown meta keys: %v", m.Extra)
	}
	head, err := ReadMeta(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, head); diff != "" {
		t.Errorf("ReadMeta differs from Read (-read +meta):\n%s", diff)
	}
}

func checkGoldenRecord(t *testing.T, m Meta, r *Record) {
	t.Helper()
	sum := 0
	for _, n := range r.Chunks() {
		sum += n
	}
	if sum != r.OutputTokens || len(r.Chunks()) != len(r.ITLMs)+1 {
		t.Errorf("line %d: chunks %v, want %d tokens in %d", r.Line, r.Chunks(), r.OutputTokens, len(r.ITLMs)+1)
	}
	if len(r.OutputTokenIDs) != r.OutputTokens || r.ArrivalMs == nil || r.FinishReason == FinishAbsent {
		t.Errorf("line %d: incomplete", r.Line)
	}
	if r.Extra != nil {
		t.Errorf("line %d: unknown keys %v", r.Line, r.Extra)
	}
	if strings.HasPrefix(*m.VLLMTag, "v0.27.") {
		return // captured without prompts
	}
	if len(r.PromptTokenIDs) == 0 {
		t.Errorf("line %d: no prompt_token_ids", r.Line)
	}
	if diff := cmp.Diff(r.BlockHashes, BlockHashes(r.PromptTokenIDs, *m.BlockSize)); diff != "" {
		t.Errorf("line %d: block_hashes (-recorded +recomputed):\n%s", r.Line, diff)
	}
}

// TestGoldensRoundTrip holds the writer to the recorder's form: same keys, same
// order, same digits.
func TestGoldensRoundTrip(t *testing.T) {
	for _, path := range goldenPaths(t) {
		plain := inflate(t, path)
		tr, err := Read(path, Options{Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w, err := NewWriter(&out, false, tr.Meta)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tr.Records {
			if err := w.Write(&tr.Records[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want, got := bytes.Split(plain, []byte("\n")), bytes.Split(out.Bytes(), []byte("\n"))
		for i := range min(len(want), len(got)) {
			if !bytes.Equal(want[i], got[i]) {
				t.Fatalf("%s: line %d\nread    %s\nwritten %s", path, i+1, want[i], got[i])
			}
		}
		if len(want) != len(got) {
			t.Errorf("%s: read %d lines, wrote %d", path, len(want), len(got))
		}
	}
}
