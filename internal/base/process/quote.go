package process

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What is quoted of an output is bounded, as it ends up in reports.
const (
	quotedLines = 40
	quotedWidth = 400 // runes of a line
)

// Quote shows what a process wrote in a message of ours: its last lines, each behind "| ". What it wrote stays what it
// wrote: a CI service that looks for commands in our output ("::error::" at the beginning of a line, "##[" anywhere in
// it) finds none, and neither does a terminal.
func Quote(output string) string {
	lines := strings.FieldsFunc(strings.ToValidUTF8(output, string(utf8.RuneError)), isLineEnd)
	left := len(lines) - quotedLines
	if left > 0 {
		lines = lines[left:]
	}
	for i, line := range lines {
		lines[i] = "| " + harmless(line)
	}
	if left > 0 {
		lines = append([]string{fmt.Sprintf("| [%d lines before these]", left)}, lines...)
	}
	return strings.Join(lines, "\n")
}

// isLineEnd: some viewers begin a line at each of these.
func isLineEnd(r rune) bool {
	return r == '\n' || r == '\r' || r == '\v' || r == '\f' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// commands are what a CI service takes for one wherever in a line it is.
var commands = strings.NewReplacer("##[", "## [", "##vso[", "## vso[")

// harmless makes a line fit for a report.
func harmless(line string) string {
	line = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.In(r, unicode.Cf): // Cf: what turns the direction of text, or hides it
			return -1
		}
		return r
	}, line)
	if runes := []rune(line); len(runes) > quotedWidth {
		line = string(runes[:quotedWidth]) + "…"
	}
	return commands.Replace(line)
}
