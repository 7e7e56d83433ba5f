package manifest

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Policy is what a project may decide about its registry. The zero Policy is the
// usual one.
type Policy struct {
	// Strict turns M008, a golden of a line that is not supported any more, from a
	// warning into an error.
	Strict bool
}

// Load reads a manifest.toml and checks it. The manifest is never nil; it is fit
// for use when no diagnostic is an error.
func Load(path string) (*Manifest, []Diagnostic) {
	return read(tomlfile.Load(path, codes()))
}

// Parse is [Load] for text that is already in memory; name is the path that
// diagnostics mention.
func Parse(name string, data []byte) (*Manifest, []Diagnostic) {
	return read(tomlfile.Parse(name, data, codes()))
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// entry is a golden together with its table, which knows the places of its keys.
type entry struct {
	Golden
	table *tomlfile.Table
}

func read(doc *tomlfile.Document) (*Manifest, []Diagnostic) {
	m := &Manifest{File: doc.Name()}
	if doc.Root() == nil {
		return m, doc.Diagnostics()
	}
	tables := doc.Root().Tables(array)
	entries := slices.Grow([]entry(nil), len(tables))
	m.Goldens = slices.Grow(m.Goldens, len(tables))
	for _, t := range tables {
		e := entry{Golden: readGolden(t), table: t}
		e.check()
		entries = append(entries, e)
		m.Goldens = append(m.Goldens, e.Golden)
	}
	m.Blocks = readBlocks(doc)
	checkBlocks(m.Blocks, entries)
	checkDuplicates(entries)
	checkSharedHash(entries)
	checkRC(entries)
	return m, doc.Diagnostics()
}

func readGolden(t *tomlfile.Table) Golden {
	g := Golden{
		Line:            t.Required("line", codeMissingKey),
		ID:              t.String("id"),
		BucketPath:      t.Required("bucket_path", codeMissingKey),
		SHA256:          t.Required("sha256", codeMissingKey),
		ConfigHash:      t.Required("config_hash", codeMissingKey),
		Workload:        t.Required("workload", codeMissingKey),
		Role:            Role(t.Required("role", codeMissingKey)),
		Size:            t.Int("size"),
		Records:         int(t.Int("records")),
		Streams:         int(t.Int("streams")),
		Tokens:          int(t.Int("tokens")),
		TokensSHA256:    t.String("tokens_sha256"),
		VLLMVersion:     t.String("vllm_version"),
		EngineImage:     t.String("engine_image"),
		GPU:             t.String("gpu"),
		Model:           t.String("model"),
		Scenario:        t.String("scenario"),
		Seed:            readSeed(t),
		EngineConfig:    t.String("engine_config"),
		CapturedAt:      t.Time("captured_at"),
		CaptureRun:      t.String("capture_run"),
		RecorderVersion: t.String("recorder_version"),
		VersionID:       t.String("version_id"),
		Mirrors:         t.Strings("mirrors"),
		Visibility:      Visibility(t.String("visibility")),
		License:         t.String("license"),
		Notes:           t.String("notes"),
		Pos:             t.Line(),
	}
	if g.ID == "" {
		g.ID = g.Workload
	}
	return g
}

// readSeed tells a seed of 0 from none.
func readSeed(t *tomlfile.Table) *int64 {
	seed := t.Int("seed")
	if !t.Has("seed") {
		return nil
	}
	return &seed
}
