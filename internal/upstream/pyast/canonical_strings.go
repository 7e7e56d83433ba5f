package pyast

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
)

// string writes a string or strings side by side.
func (w *writer) string(n *Node) {
	parts := stringsOf(n)
	if slices.ContainsFunc(parts, func(part *Node) bool { return strings.Contains(prefixOf(part), "f") }) {
		w.formatted(n, parts)
		return
	}
	value, _ := stringValue(n)
	switch value := value.(type) {
	case string:
		if prefixOf(parts[0]) == "u" {
			w.WriteByte('u')
		}
		if text, marks := fit(value, quoteMarks, false); w.noBackslash && len(marks) > 0 {
			w.WriteString(marks[0] + text + marks[0])
		} else {
			w.WriteString(quote(value, unicode.IsPrint))
		}
	case []byte:
		runes := make([]rune, len(value))
		for i, b := range value {
			runes[i] = rune(b)
		}
		w.WriteString("b" + quote(string(runes), func(r rune) bool { return r >= ' ' && r < 0x7f }))
	default: // its value is not known: as it is written
		w.tokens(n)
	}
}

// quote returns what repr writes: single quotes, or double ones if that saves escapes.
func quote(value string, isPrint func(rune) bool) string {
	mark := '\''
	if strings.Contains(value, "'") && !strings.Contains(value, `"`) {
		mark = '"'
	}
	var out strings.Builder
	out.WriteRune(mark)
	for _, r := range value {
		switch {
		case r == mark:
			out.WriteString(`\` + string(r))
		case r != '\\' && isPrint(r):
			out.WriteRune(r)
		default:
			out.WriteString(escaped(r))
		}
	}
	out.WriteRune(mark)
	return out.String()
}

// escaped returns the escape sequence of a backslash or of a character that is not printed.
func escaped(r rune) string {
	switch {
	case r == '\\':
		return `\\`
	case r == '\n':
		return `\n`
	case r == '\r':
		return `\r`
	case r == '\t':
		return `\t`
	case r < 0x100:
		return fmt.Sprintf(`\x%02x`, r)
	case utf16.RuneLen(r) == 1:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// A piece of an f-string is text, or a placeholder as it is to be written.
type piece struct {
	text     string
	constant bool
}

// formatted writes an f-string, which strings without a prefix may stand beside.
func (w *writer) formatted(n *Node, parts []*Node) {
	var merged []piece // constants that follow each other are one value
	for _, part := range parts {
		pieces, err := piecesOf(part)
		if err != nil {
			w.tokens(n)
			return
		}
		for _, p := range pieces {
			if last := len(merged) - 1; p.constant && last >= 0 && merged[last].constant {
				merged[last].text += p.text
			} else if p.text != "" {
				merged = append(merged, p)
			}
		}
	}
	// The first quotes that need no escape in any of the pieces.
	marks := quoteMarks
	var out strings.Builder
	for _, p := range merged {
		text, fitting := fit(p.text, marks, p.constant)
		if len(fitting) == 0 {
			w.WriteString("f" + quoteAnyhow(merged))
			return
		}
		marks = fitting
		out.WriteString(text)
	}
	w.WriteString("f" + marks[0] + out.String() + marks[0])
}

// quoteAnyhow is for text that has all quotes in it.
func quoteAnyhow(pieces []piece) string {
	var out strings.Builder
	for _, p := range pieces {
		text := quote(`"`+p.text, unicode.IsPrint) // which so has single quotes around it
		out.WriteString(text[2 : len(text)-1])
	}
	return "'''" + out.String() + "'''"
}

// piecesOf returns those of one string.
func piecesOf(n *Node) ([]piece, error) {
	prefix := prefixOf(n)
	if strings.ContainsAny(prefix, "bt") {
		return nil, fmt.Errorf("line %d: %s beside an f-string", n.Line, prefix)
	}
	if !strings.Contains(prefix, "f") {
		value, err := decode(n, prefix)
		return []piece{{braces.Replace(value), true}}, err
	}
	var pieces []piece
	for _, child := range n.Children {
		switch child.Kind {
		case "string_start", "string_end":
		case "interpolation":
			pieces = append(pieces, placeholder(child, prefix)...)
		default:
			value, err := unescape(newlines.Replace(child.Text()), prefix)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, piece{value, true}) // braces are doubled already
		}
	}
	return pieces, nil
}

var braces = strings.NewReplacer("{", "{{", "}", "}}")

// placeholder returns what {…} of an f-string comes to. {x=} is the text "x=" and a placeholder.
func placeholder(n *Node, prefix string) []piece {
	inner := &writer{noBackslash: true}
	inner.expr(n.ByField("expression"), test+1)
	text := inner.String()
	if strings.HasPrefix(text, "{") {
		text = " " + text
	}
	var pieces []piece
	conversion, format := "", ""
	for _, child := range n.Children {
		switch child.Kind {
		case "=":
			end := child.End // blanks after the sign count
			for end < len(n.tree.Source) && strings.IndexByte(" \t", n.tree.Source[end]) >= 0 {
				end++
			}
			pieces = append(pieces, piece{braces.Replace(n.tree.newlines(n.Start+1, end)), true})
			conversion = "!r"
		case "type_conversion":
			conversion = child.Text()
		case "format_specifier":
			format = formatSpecifier(child, prefix)
			if conversion == "!r" && len(pieces) > 0 && n.ByField("type_conversion") == nil {
				conversion = ""
			}
		}
	}
	return append(pieces, piece{"{" + text + conversion + format + "}", false})
}

// formatSpecifier returns what follows the colon, with the colon. It may have placeholders.
func formatSpecifier(n *Node, prefix string) string {
	var out strings.Builder
	at := n.Start
	plain := func(end int) {
		text := n.tree.newlines(at, end)
		if value, err := unescape(text, prefix); err == nil {
			text = value
		}
		out.WriteString(text)
	}
	for _, child := range n.Children {
		if child.Kind != "interpolation" && child.Kind != "format_expression" {
			continue
		}
		plain(child.Start)
		for _, p := range placeholder(child, prefix) {
			out.WriteString(p.text)
		}
		at = child.End
	}
	plain(n.End)
	return out.String()
}

var quoteMarks = []string{"'", `"`, `"""`, "'''"}

// fit escapes a text and returns which of the quotes can be around it. Line ends and tabs are escaped if breaks is set,
// and else stay.
func fit(text string, marks []string, breaks bool) (fitted string, fitting []string) {
	var out strings.Builder
	for _, r := range text {
		if !breaks && (r == '\n' || r == '\t') || r != '\\' && unicode.IsPrint(r) {
			out.WriteRune(r)
		} else {
			out.WriteString(escaped(r))
		}
	}
	fitted = out.String()
	var ending []string // quotes that the text ends with
	for _, mark := range marks {
		switch {
		case strings.Contains(fitted, mark), len(mark) == 1 && strings.Contains(fitted, "\n"):
		case strings.HasSuffix(fitted, mark[:1]):
			ending = append(ending, mark)
		default:
			fitting = append(fitting, mark)
		}
	}
	if len(fitting) == 0 && len(ending) > 0 {
		fitted = fitted[:len(fitted)-1] + `\` + ending[0][:1]
	}
	return fitted, append(fitting, ending...)
}
