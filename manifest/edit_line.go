package manifest

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// RemoveLine takes all goldens of a line out of the registry, with the comments
// that are about them, and the block of the line with all that stands in it. A
// line that the registry does not have changes nothing.
func (e *Editor) RemoveLine(line string) error {
	ofLine := func(g Golden) bool { return g.Line == line }
	wanted := slices.DeleteFunc(slices.Clone(e.Manifest().Goldens), ofLine)
	return e.change(wanted, func() error {
		for {
			at := slices.IndexFunc(e.Manifest().Goldens, ofLine)
			if at < 0 {
				return e.removeBlock(line)
			}
			if err := e.text.Remove(array, at); err != nil {
				return err
			}
		}
	})
}

// removeBlock takes out the markers of a line, which has no goldens any more, and one of the blank lines around them.
func (e *Editor) removeBlock(line string) error {
	block, ok := e.block(line)
	if !ok {
		return nil
	}
	lines := strings.SplitAfter(string(e.text.Bytes()), "\n")
	first, last := block.Begin-1, block.End
	blank := func(i int) bool { return i >= 0 && i < len(lines) && strings.TrimSpace(lines[i]) == "" }
	if blank(first-1) && (blank(last) || last == len(lines)) {
		first--
	}
	text, err := tomlfile.NewEditor(e.name, []byte(strings.Join(slices.Delete(lines, first, last), "")), isMarker)
	if err == nil {
		e.text = text
	}
	return err
}
