package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// readBlocks returns the blocks of the file and reports markers that do not pair.
func readBlocks(doc *tomlfile.Document) []Block {
	var blocks []Block
	open := Block{}
	report := func(line int, message, hint string) {
		doc.Report(codeBlock, Error, line, message, hint)
	}
	for _, c := range doc.Comments() {
		word, label := marker(c.Text)
		switch {
		case word == "BEGIN" && open.Label != "":
			report(c.Line, "a block begins inside the block of "+open.Label, "add \"# END "+open.Label+" GOLDENS\" before it")
			open = Block{Label: label, Begin: c.Line}
		case word == "BEGIN":
			open = Block{Label: label, Begin: c.Line}
		case word == "END" && open.Label == "":
			report(c.Line, "a block ends that has not begun", "add \"# BEGIN "+label+" GOLDENS\", or remove this line")
		case word == "END" && open.Label != label:
			report(c.Line, "the block of "+open.Label+" ends as "+label, "both markers name the same line")
			open = Block{}
		case word == "END":
			open.End = c.Line
			blocks = append(blocks, open)
			open = Block{}
		}
	}
	if open.Label != "" {
		report(open.Begin, "the block of "+open.Label+" does not end", "add \"# END "+open.Label+" GOLDENS\" after its last entry")
	}
	return unique(blocks, report)
}

// unique reports the second block of a label: an editor could not know which of
// the two to rewrite.
func unique(blocks []Block, report func(line int, message, hint string)) []Block {
	seen := make(map[string]bool)
	var kept []Block
	for _, b := range blocks {
		if seen[b.Label] {
			report(b.Begin, "a second block of "+b.Label, "move its entries to the first")
			continue
		}
		seen[b.Label] = true
		kept = append(kept, b)
	}
	return kept
}

// marker reads "BEGIN x GOLDENS" or "END x GOLDENS"; other comments give nothing.
func marker(comment string) (word, label string) {
	fields := strings.Fields(comment)
	if len(fields) != 3 || fields[2] != "GOLDENS" || fields[0] != "BEGIN" && fields[0] != "END" {
		return "", ""
	}
	return fields[0], fields[1]
}

// checkBlocks warns of goldens that stand where the next capture of their line
// would not see them, or where that of another line would remove them.
func checkBlocks(blocks []Block, entries []entry) {
	for _, e := range entries {
		label := strings.ToUpper(e.Line)
		own := slices.IndexFunc(blocks, func(b Block) bool { return b.Label == label })
		around := slices.IndexFunc(blocks, func(b Block) bool { return b.holds(e.Pos) })
		switch {
		case own == around || e.Line == "":
		case around < 0:
			e.warn(codeOutside, "line", fmt.Sprintf("a golden of line %s stands outside of the block of %s, at lines %d to %d",
				e.Line, label, blocks[own].Begin, blocks[own].End), "move it there")
		default:
			e.warn(codeOutside, "line", fmt.Sprintf("a golden of line %s stands in the block of %s", e.Line, blocks[around].Label),
				"move it to the block of its line")
		}
	}
}
