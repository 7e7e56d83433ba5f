// Package tables has what released programs made of messages with one place changed, as "vllm-vcr drift accept" measured it.
package tables

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.txt
var files embed.FS

// The programs that tables are of: the Rust frontend of vLLM, and its engine core.
const (
	RustFrontend = "vllm-rs"
	EngineCore   = "engine"
)

// Look returns what became of the program of a line, "0.33", that got a message in which a place was changed in a way, such as
// missing or str: served, altered, failed or dead; and the release that was measured. Both are empty if none was.
func Look(line, program, place, variant string) (outcome, release string) {
	names, err := fs.Glob(files, line+".*-"+program+".txt")
	if err != nil || len(names) == 0 {
		return "", ""
	}
	text, _ := fs.ReadFile(files, names[0]) // the file is embedded
	_, rest, found := strings.Cut(string(text), "\n"+place+": ")
	if !found {
		return "", ""
	}
	groups, _, _ := strings.Cut(rest, "\n")
	for group := range strings.SplitSeq(groups, "; ") {
		words := strings.Fields(group)
		if slices.Contains(words[1:], variant) {
			return words[0], strings.TrimSuffix(names[0], "-"+program+".txt")
		}
	}
	return "", ""
}
