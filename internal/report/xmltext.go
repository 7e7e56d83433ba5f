package report

import (
	"strings"
	"unicode/utf8"
)

// xmlText leaves out what no XML document may hold, escaped or not: control
// characters, surrogates, and bytes that are not UTF-8.
func xmlText(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n', r == '\r':
			return r
		case r < 0x20, r == 0xFFFE, r == 0xFFFF:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
}
