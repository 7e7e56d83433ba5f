package manifest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"

	diff "github.com/google/go-cmp/cmp"
)

// shippedLines are the lines of the shipped compat.toml that have goldens.
func shippedFacts() Facts {
	return Facts{ConfigHash: fingerprint, Lines: map[string]Line{
		"0.33": {Tag: "v0.33.0", Validated: true},
		"0.32": {Tag: "v0.32.0", Validated: true},
		"0.27": {Tag: "v0.27.1", Validated: true},
	}}
}

func loadShipped(t *testing.T) *Manifest {
	t.Helper()
	m, findings := Load("../conformance/manifest.toml")
	findings = append(findings, Policy{Strict: true}.Check(m, shippedFacts())...)
	if len(findings) != 0 {
		t.Fatalf("findings: %v", findings)
	}
	return m
}

// The registry that is shipped with the project has nothing to complain about.
func TestShippedFile(t *testing.T) {
	m := loadShipped(t)
	got := make(map[string]int)
	for _, g := range m.Goldens {
		got[g.Line]++
		if g.EngineConfig == "" || g.GPU == "" {
			t.Errorf("golden %s/%s does not say what its config_hash is made of", g.Line, g.ID)
		}
	}
	if d := diff.Diff(map[string]int{"0.33": 3, "0.32": 3, "0.27": 4}, got); d != "" {
		t.Errorf("goldens per line (-want +got):\n%s", d)
	}
	if len(m.Blocks) != 3 {
		t.Errorf("blocks %v, want one per line", m.Blocks)
	}
}

// record is what a digest of token streams needs of one line of a trace.
type record struct {
	Arrival *float64  `json:"arrival_ms"`
	IDs     *[]uint32 `json:"output_token_ids"`
	Finish  string    `json:"finish_reason"`
}

// What the registry says about each golden is true of the file it names.
func TestShippedGoldensAreAsDescribed(t *testing.T) {
	for _, g := range loadShipped(t).Goldens {
		t.Run(g.Line+"/"+g.ID, func(t *testing.T) {
			data, err := os.ReadFile(g.Location("", "../testdata/goldens"))
			if err != nil {
				t.Fatal(err)
			}
			got := g
			sum := sha256.Sum256(data)
			got.Size, got.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
			var meta struct {
				Meta struct {
					ConfigHash   string `json:"config_hash"`
					VLLMVersion  string `json:"vllm_version"`
					GPU          string `json:"gpu"`
					Model        string `json:"model"`
					EngineConfig string `json:"engine_config"`
				} `json:"meta"`
			}
			lines := inflate(t, data)
			if err := json.Unmarshal(lines[0], &meta); err != nil {
				t.Fatal(err)
			}
			got.ConfigHash, got.VLLMVersion, got.GPU = meta.Meta.ConfigHash, meta.Meta.VLLMVersion, meta.Meta.GPU
			got.Model, got.EngineConfig = meta.Meta.Model, meta.Meta.EngineConfig
			count(t, &got, lines[1:])
			if d := diff.Diff(got, g); d != "" {
				t.Errorf("golden (-file +registry):\n%s", d)
			}
		})
	}
}

func inflate(t *testing.T, data []byte) [][]byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(text), []byte("\n"))
}

// count sets what g says about its records.
func count(t *testing.T, g *Golden, lines [][]byte) {
	t.Helper()
	var records []record
	for _, line := range lines {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	g.Records, g.Streams, g.Tokens = len(records), 0, 0
	records = slices.DeleteFunc(records, func(r record) bool { return r.Arrival == nil })
	slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(*a.Arrival, *b.Arrival) })
	finish := map[string]byte{"stop": 0, "length": 1, "": 1, "abort": 2, "error": 3, "repetition": 4}
	digest := sha256.New()
	for i, r := range records {
		if r.IDs == nil {
			continue
		}
		g.Streams++
		g.Tokens += len(*r.IDs)
		head := []uint32{uint32(i), uint32(len(*r.IDs))}
		_ = binary.Write(digest, binary.LittleEndian, append(head, *r.IDs...)) // a hash takes everything
		digest.Write([]byte{finish[r.Finish]})
	}
	g.TokensSHA256 = hex.EncodeToString(digest.Sum(nil))
}
