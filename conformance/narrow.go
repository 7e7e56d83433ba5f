package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

// Names of the files that NarrowInputs makes, in diagnostics.
const (
	narrowCompat   = "compat.toml"
	narrowManifest = "manifest.toml"
)

// NarrowInputs makes of the text of a compat.toml a compat matrix and a manifest of some goldens and their lines alone, for a
// bundle: a run with all lines would miss the goldens that the bundle does not have. Both are checked as inputs of a run.
func NarrowInputs(compatText []byte, goldens []manifest.Golden) (matrix, mf []byte, err error) {
	var lines []string
	for _, g := range goldens {
		if !slices.Contains(lines, g.Line) {
			lines = append(lines, g.Line)
		}
	}
	if matrix, err = narrowMatrix(compatText, lines); err != nil {
		return nil, nil, err
	}
	if mf, err = narrowBlocks(goldens, lines); err != nil {
		return nil, nil, err
	}
	m, _ := compat.Parse(narrowCompat, matrix)
	all, findings := manifest.Parse(narrowManifest, mf)
	if !tomlfile.HasErrors(findings) {
		findings = CheckInputs(m, all)
	}
	if at := slices.IndexFunc(findings, func(f tomlfile.Diagnostic) bool { return f.Severity == tomlfile.Error }); at >= 0 {
		return nil, nil, fmt.Errorf("a bundle of these goldens alone could not be used: %v", findings[at])
	}
	return matrix, mf, nil
}

// narrowMatrix keeps some lines. If the default line is not among them, the newest stable one becomes the default.
func narrowMatrix(text []byte, lines []string) ([]byte, error) {
	m, findings := compat.Parse(narrowCompat, text)
	if tomlfile.HasErrors(findings) {
		return nil, fmt.Errorf("%v", findings[0])
	}
	kept := slices.DeleteFunc(m.Lines, func(l compat.Line) bool { return !slices.Contains(lines, l.Name) })
	if !slices.ContainsFunc(kept, func(l compat.Line) bool { return l.Default }) {
		if newest := slices.IndexFunc(kept, func(l compat.Line) bool { return !l.IsTracker() }); newest >= 0 {
			kept[newest].Default = true
		}
	}
	return compat.Rewrite(narrowCompat, text, kept)
}

// narrowBlocks is a block for each line. Each golden is written alone: an editor reads the whole text at every
// change, which would take minutes with a thousand goldens.
func narrowBlocks(goldens []manifest.Golden, lines []string) ([]byte, error) {
	var blocks []string
	for _, name := range lines {
		var begin, entries, end string
		for _, g := range goldens {
			if g.Line != name {
				continue
			}
			editor, err := manifest.NewEditor(narrowManifest, nil, lines)
			if err == nil {
				err = editor.Put(g)
			}
			if err != nil {
				return nil, err
			}
			// A marker, an empty line, the golden, an empty line, a marker.
			written := strings.SplitAfter(string(editor.Bytes()), "\n\n")
			begin, end = written[0], written[len(written)-1]
			entries += strings.Join(written[1:len(written)-1], "")
		}
		blocks = append(blocks, begin+entries+end)
	}
	return []byte(strings.Join(blocks, "\n")), nil
}
