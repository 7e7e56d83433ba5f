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
	"io/fs"
	"os"
	"slices"
	"testing"

	diff "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// goldensDir is what the bucket paths of the shipped manifest are relative to.
const goldensDir = "../testdata/goldens"

// shippedMatrix is the shipped compat.toml.
func shippedMatrix(t *testing.T) *compat.Matrix {
	t.Helper()
	matrix, diagnostics := compat.Load("../compat.toml")
	if len(diagnostics) != 0 || len(matrix.Lines) == 0 {
		t.Fatalf("%d lines, diagnostics: %v", len(matrix.Lines), diagnostics)
	}
	return matrix
}

func loadShipped(t *testing.T) *Manifest {
	t.Helper()
	facts := Facts{ConfigHash: fingerprint, Lines: make(map[string]Line)}
	for _, l := range shippedMatrix(t).Lines {
		facts.Lines[l.Name] = Line{Tag: l.Tag, Validated: l.FidelityValidated}
	}
	m, diagnostics := Load("../conformance/manifest.toml")
	diagnostics = append(diagnostics, Policy{Strict: true}.Check(m, facts)...)
	if len(diagnostics) != 0 {
		t.Fatalf("diagnostics: %v", diagnostics)
	}
	if len(m.Goldens) == 0 {
		t.Fatal("no goldens")
	}
	return m
}

// captured are the goldens that capture/targets.toml asks for of a release.
func captured(tag string) map[string]Role {
	ids := map[string]Role{
		"multiturn-s7": Fidelity, "multiturn-s13": Fidelity, "multiturn-nocache-s7": Fidelity,
		"multiturn-ngram-k3-s7": Fidelity, "edge-s1": Fidelity, "wire-edge-s1": Wire,
	}
	if tag == "v0.30.0" {
		delete(ids, "multiturn-ngram-k3-s7") // its engine dies of it: docs/capturing.md
	}
	return ids
}

// The manifest that is shipped with the project has nothing to complain about,
// and each release of the matrix that gates has all its goldens, in a block of its
// own. One that was adopted and not captured yet has none.
func TestShippedFile(t *testing.T) {
	m := loadShipped(t)
	want, got := make(map[string]map[string]Role), make(map[string]map[string]Role)
	var wantBlocks, gotBlocks []string
	for _, l := range shippedMatrix(t).Lines {
		if l.FidelityValidated || len(m.ForLine(l.Name)) > 0 {
			want[l.Name] = captured(l.Tag)
			wantBlocks = append(wantBlocks, l.Name)
		}
	}
	for _, g := range m.Goldens {
		if got[g.Line] == nil {
			got[g.Line] = make(map[string]Role)
		}
		if g.Role != Frames { // which sessions a line has, the targets say, and a test there
			got[g.Line][g.ID] = g.Role
		}
		if g.EngineConfig == "" || g.GPU == "" {
			t.Errorf("golden %s/%s does not say what its config_hash is made of", g.Line, g.ID)
		}
	}
	if d := diff.Diff(want, got); d != "" {
		t.Errorf("goldens of each line (-want +got):\n%s", d)
	}
	for _, b := range m.Blocks {
		gotBlocks = append(gotBlocks, b.Label)
	}
	if d := diff.Diff(wantBlocks, gotBlocks); d != "" {
		t.Errorf("blocks (-want +got):\n%s", d)
	}
}

// Each file that is shipped is registered: nothing else would notice one that a
// capture left behind, and it goes into the binary.
func TestShippedGoldensAreRegistered(t *testing.T) {
	want := make(map[string]bool)
	for _, g := range loadShipped(t).Goldens {
		want[g.BucketPath] = true
	}
	err := fs.WalkDir(os.DirFS(goldensDir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !want[path] {
			t.Errorf("%s/%s is not registered", goldensDir, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// described is what the first line of a golden may say about itself.
type described struct {
	Meta struct {
		ConfigHash      string `json:"config_hash"`
		VLLMVersion     string `json:"vllm_version"`
		VLLMTag         string `json:"vllm_tag"`
		GPU             string `json:"gpu"`
		Model           string `json:"model"`
		EngineConfig    string `json:"engine_config"`
		RecorderVersion string `json:"recorder_version"`
	} `json:"meta"`
}

// describe sets what g says about its origin to what its first line says.
func (d described) describe(g *Golden) {
	g.ConfigHash, g.VLLMVersion, g.GPU = d.Meta.ConfigHash, d.Meta.VLLMVersion, d.Meta.GPU
	g.Model, g.EngineConfig, g.RecorderVersion = d.Meta.Model, d.Meta.EngineConfig, d.Meta.RecorderVersion
}

// record is what a digest of token streams needs of one line of a trace.
type record struct {
	Arrival *float64  `json:"arrival_ms"`
	IDs     *[]uint32 `json:"output_token_ids"`
	Finish  string    `json:"finish_reason"`
}

// What the manifest says about each golden is true of the file it names.
func TestShippedGoldensAreAsDescribed(t *testing.T) {
	for _, g := range loadShipped(t).Goldens {
		t.Run(g.Line+"/"+g.ID, func(t *testing.T) {
			path := g.Location("", goldensDir)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := g
			sum := sha256.Sum256(data)
			got.Size, got.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
			if g.Role.Raw() {
				describeFrames(t, &got, path)
			} else {
				describeTrace(t, &got, inflate(t, data))
			}
			if d := diff.Diff(got, g); d != "" {
				t.Errorf("golden (-file +manifest):\n%s", d)
			}
		})
	}
}

func describeTrace(t *testing.T, g *Golden, lines [][]byte) {
	t.Helper()
	var head described
	if err := json.Unmarshal(lines[0], &head); err != nil {
		t.Fatal(err)
	}
	head.describe(g)
	count(t, g, lines[1:])
}

// describeFrames sets what raw frames tell. They have no version and no
// fingerprint in their first line: the engine that registers in them tells its
// version, and the rest follows. What counts records and tokens is a trace's.
func describeFrames(t *testing.T, g *Golden, path string) {
	t.Helper()
	r, err := trace.OpenFrames(path, trace.Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var head described
	if err := json.Unmarshal(r.Meta(), &head.Meta); err != nil {
		t.Fatal(err)
	}
	var m trace.Message
	requests, outputs := 0, 0
	for err = r.Next(&m); err == nil; err = r.Next(&m) {
		switch {
		case m.Channel == "input" && m.Direction == trace.EngineToFrontend:
			head.Meta.VLLMVersion = registered(t, &m)
		case m.Channel == "input":
			requests++
		case m.Channel == "output":
			outputs++
		}
	}
	if err != io.EOF || requests == 0 || outputs == 0 {
		t.Fatalf("%d requests and %d outputs, then %v", requests, outputs, err)
	}
	head.Meta.ConfigHash = fingerprint(head.Meta.GPU, head.Meta.VLLMTag, head.Meta.EngineConfig)
	head.describe(g)
	g.Records, g.Streams, g.Tokens, g.TokensSHA256 = 0, 0, 0, ""
}

// registered is the version that an engine tells when it registers.
func registered(t *testing.T, m *trace.Message) string {
	t.Helper()
	if len(m.Frames) != 1 {
		t.Fatalf("line %d: a registration of %d frames", m.Line, len(m.Frames))
	}
	ready, err := protocol.DecodeReady(m.Frames[0])
	if err != nil {
		t.Fatalf("line %d: %v", m.Line, err)
	}
	return ready.VLLMVersion
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
