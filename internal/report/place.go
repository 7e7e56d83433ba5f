package report

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// embedded begins the name of a file that is in the binary.
const embedded = "(embedded) "

// place is where a case is written down, below the root of the repository: its
// golden in the manifest, else its line in the support window. A file of the
// binary, or of another tree, has no place.
func (m Meta) place(c conformance.Case) (file string, line int) {
	file, line = splitPlace(c.Entry)
	if file == "" {
		file, line = m.Window, c.Line.Pos
	}
	if file == "" || m.Root == "" || strings.HasPrefix(file, embedded) {
		return "", 0
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(m.Dir, file)
	}
	below, err := filepath.Rel(m.Root, file)
	if err != nil || !filepath.IsLocal(below) {
		return "", 0
	}
	return filepath.ToSlash(below), line
}

// splitPlace takes "manifest.toml:14" apart.
func splitPlace(entry string) (file string, line int) {
	at := strings.LastIndexByte(entry, ':')
	if at < 0 {
		return entry, 0
	}
	line, err := strconv.Atoi(entry[at+1:])
	if err != nil || line < 0 {
		return entry, 0
	}
	return entry[:at], line
}
