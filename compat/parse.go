package compat

import "github.com/vllm-vcr/conformance/internal/base/tomlfile"

// Policy is what a project may decide about its window. The zero Policy is the
// usual one.
type Policy struct {
	// MaxStable is the number of stable lines above which the oldest is reported
	// (C017). Zero means nine, which is what this project itself keeps.
	MaxStable int
	// Strict turns C021, goldens from another patch release than the line's tag,
	// from a warning into an error.
	Strict bool
}

// Load reads a compat.toml and checks it under the usual [Policy]. The matrix is
// never nil; it is fit for use when no diagnostic is an error.
func Load(path string) (*Matrix, []Diagnostic) { return Policy{}.Load(path) }

// Parse is [Load] for text that is already in memory; name is the path that
// diagnostics mention.
func Parse(name string, data []byte) (*Matrix, []Diagnostic) { return Policy{}.Parse(name, data) }

// Load reads a compat.toml and checks it.
func (p Policy) Load(path string) (*Matrix, []Diagnostic) {
	return p.read(tomlfile.Load(path, codes()))
}

// Parse reads and checks the text of a compat.toml.
func (p Policy) Parse(name string, data []byte) (*Matrix, []Diagnostic) {
	return p.read(tomlfile.Parse(name, data, codes()))
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// entry is a line together with what the checks need to know of it.
type entry struct {
	Line
	table   *tomlfile.Table
	version Version // of the tag
	isValid bool    // a stable line whose name and tag agree, so it can be ordered
}

func (p Policy) read(doc *tomlfile.Document) (*Matrix, []Diagnostic) {
	m := &Matrix{File: doc.Name()}
	if doc.Root() == nil {
		return m, doc.Diagnostics()
	}
	var entries []entry
	for _, t := range doc.Root().Tables("vllm") {
		e := entry{Line: readLine(t), table: t}
		e.check()
		entries = append(entries, e)
		m.Lines = append(m.Lines, e.Line)
	}
	if len(entries) == 0 {
		doc.Report(codeNoEntries, Error, 1, "defines no [[vllm]] lines", "add an entry for each line of vLLM you support")
	}
	p.checkWindow(entries)
	return m, doc.Diagnostics()
}

func readLine(t *tomlfile.Table) Line {
	return Line{
		Name:              t.Required("line", codeMissingKey),
		Tag:               t.Required("tag", codeMissingKey),
		ProtocolRev:       t.Required("protocol_rev", codeMissingKey),
		PatchRepo:         t.String("patch_repo"),
		PatchRev:          t.String("patch_rev"),
		FidelityValidated: t.Bool("fidelity_validated"),
		Default:           t.Bool("default"),
		Pos:               t.Line(),
	}
}
