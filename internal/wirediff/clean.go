package wirediff

import (
	"fmt"
	"html"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// clean makes a text, parts of which come from the sources of a release, one line
// that is no command to a terminal or a CI, wherever in a line it ends up.
func clean(text string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return commands.Replace(b.String())
}

// commands begin one for a CI: "::error::" of GitHub, "##vso[" of Azure Pipelines.
var commands = strings.NewReplacer("::", ": :", "##", "# #")

// mostText bounds what is shown of a text, in bytes; the JSON has all of it.
const mostText = 400

func clip(text string) string {
	if len(text) <= mostText {
		return text
	}
	end := mostText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// markup are the signs of Markdown; HTML is escaped before.
var markup = strings.NewReplacer(
	"|", "&#124;", "`", "&#96;", "*", "&#42;", "_", "&#95;", "[", "&#91;", "]", "&#93;",
	"\\", "&#92;", "~", "&#126;", "@", "&#64;",
)

// plain is a text that Markdown shows as it is.
func plain(text string) string { return markup.Replace(html.EscapeString(clean(clip(text)))) }

// escapeJSON escapes in JSON what the encoder leaves although a terminal or a CI
// may act on it. It changes texts alone: no other part of JSON has such bytes.
func escapeJSON(data []byte) []byte {
	out := make([]byte, 0, len(data)+len(data)/64)
	last := rune(0)
	for _, r := range string(data) {
		switch {
		case r == last && (r == ':' || r == '#'), r >= 0x7f && !unicode.IsPrint(r):
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		default:
			out = utf8.AppendRune(out, r)
		}
		last = r
	}
	return out
}
