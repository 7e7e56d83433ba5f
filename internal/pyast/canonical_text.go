package pyast

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

func isImaginary(number string) bool { return strings.HasSuffix(strings.ToLower(number), "j") }

// number writes a number as repr does.
func (w *writer) number(n *Node) {
	text := w.tree.Text(n)
	if isImaginary(text) && !strings.HasPrefix(strings.ToLower(text), "0x") {
		value, _ := strconv.ParseFloat(strings.ReplaceAll(text[:len(text)-1], "_", ""), 64)
		w.WriteString(strings.TrimSuffix(floatText(value), ".0") + "j")
		return
	}
	value, _ := w.tree.number(n)
	switch value := value.(type) {
	case int64:
		w.WriteString(strconv.FormatInt(value, 10))
	case *big.Int:
		w.WriteString(value.String())
	case float64:
		w.WriteString(floatText(value))
	default: // of another Python: as it is written
		w.WriteString(text)
	}
}

// floatText returns what repr of Python writes, which turns to an exponent at other places than Go.
func floatText(value float64) string {
	if math.IsInf(value, 0) {
		return "1e309"
	}
	text := strconv.FormatFloat(value, 'e', -1, 64)
	_, exponent, _ := strings.Cut(text, "e")
	if e, _ := strconv.Atoi(exponent); e < -4 || e >= 16 {
		return text
	}
	text = strconv.FormatFloat(value, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// string writes a string or strings side by side.
func (w *writer) string(n *Node) {
	parts := slices.Collect(stringsOf(n))
	if slices.ContainsFunc(parts, func(part *Node) bool { return strings.Contains(w.tree.prefix(part), "f") }) {
		w.formatted(n, parts)
		return
	}
	value, _ := w.tree.stringValue(n)
	switch value := value.(type) {
	case string:
		if w.tree.prefix(parts[0]) == "u" {
			w.WriteByte('u')
		}
		if w.noBackslash {
			w.WriteString(quoteAvoiding(value))
		} else {
			w.WriteString(quote(value))
		}
	case []byte:
		w.WriteString("b" + quoteBytes(value))
	default: // its value cannot be told: as it is written
		w.tokens(n)
	}
}

// quote returns what repr writes: single quotes, or double ones if that saves escapes.
func quote(value string) string {
	return quoted(value, func(r rune) string {
		switch {
		case r == '\n':
			return `\n`
		case r == '\r':
			return `\r`
		case r == '\t':
			return `\t`
		case unicode.IsPrint(r):
			return string(r)
		}
		return codeEscape(r)
	})
}

func quoteBytes(value []byte) string {
	runes := make([]rune, len(value))
	for i, b := range value {
		runes[i] = rune(b)
	}
	return quoted(string(runes), func(r rune) string {
		switch {
		case r == '\n':
			return `\n`
		case r == '\r':
			return `\r`
		case r == '\t':
			return `\t`
		case r >= ' ' && r < 0x7f:
			return string(r)
		}
		return codeEscape(r)
	})
}

func quoted(value string, escape func(rune) string) string {
	mark := '\''
	if strings.Contains(value, "'") && !strings.Contains(value, `"`) {
		mark = '"'
	}
	var out strings.Builder
	out.WriteRune(mark)
	for _, r := range value {
		if r == mark || r == '\\' {
			out.WriteByte('\\')
			out.WriteRune(r)
		} else {
			out.WriteString(escape(r))
		}
	}
	out.WriteRune(mark)
	return out.String()
}

func codeEscape(r rune) string {
	switch {
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
	var pieces []piece
	for _, part := range parts {
		more, err := w.pieces(part)
		if err != nil {
			w.tokens(n)
			return
		}
		pieces = append(pieces, more...)
	}
	w.WriteString("f" + quotePieces(merged(pieces)))
}

// merged joins constants that follow each other: they are one value.
func merged(pieces []piece) []piece {
	var out []piece
	for _, p := range pieces {
		if last := len(out) - 1; p.constant && last >= 0 && out[last].constant {
			out[last].text += p.text
		} else if p.text != "" {
			out = append(out, p)
		}
	}
	return out
}

// pieces returns those of one string.
func (w *writer) pieces(n *Node) ([]piece, error) {
	prefix := w.tree.prefix(n)
	if strings.ContainsAny(prefix, "bt") {
		return nil, fmt.Errorf("line %d: %s beside an f-string", n.Line, prefix)
	}
	if !strings.Contains(prefix, "f") {
		value, err := w.tree.decode(n, prefix)
		return []piece{{braced(value), true}}, err
	}
	var pieces []piece
	for _, child := range n.Children {
		switch child.Kind {
		case "string_start", "string_end":
		case "interpolation":
			pieces = append(pieces, w.placeholder(child, prefix)...)
		default:
			value, err := unescape(w.tree.newlines(child.Start, child.End), prefix)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, piece{value, true}) // braces are doubled already
		}
	}
	return pieces, nil
}

var braces = strings.NewReplacer("{", "{{", "}", "}}")

func braced(text string) string { return braces.Replace(text) }

// placeholder returns what {…} of an f-string comes to. {x=} is the text "x=" and a placeholder.
func (w *writer) placeholder(n *Node, prefix string) []piece {
	inner := &writer{tree: w.tree, noBackslash: true}
	expression := n.ByField("expression")
	inner.expr(expression, test+1)
	text := inner.String()
	if strings.HasPrefix(text, "{") {
		text = " " + text
	}
	var pieces []piece
	conversion, format := "", ""
	for _, child := range n.Children {
		switch child.Kind {
		case "=":
			pieces = append(pieces, piece{braced(w.tree.newlines(n.Start+1, w.debugEnd(child))), true})
			conversion = "!r"
		case "type_conversion":
			conversion = w.tree.Text(child)
		case "format_specifier":
			format = w.format(child, prefix)
			if conversion == "!r" && len(pieces) > 0 && n.ByField("type_conversion") == nil {
				conversion = ""
			}
		}
	}
	return append(pieces, piece{"{" + text + conversion + format + "}", false})
}

// debugEnd returns where the text of {x = } ends: blanks after the sign count.
func (w *writer) debugEnd(sign *Node) int {
	end := sign.End
	for end < len(w.tree.Source) && strings.IndexByte(" \t", w.tree.Source[end]) >= 0 {
		end++
	}
	return end
}

// format returns what follows the colon, with the colon. It may have placeholders.
func (w *writer) format(n *Node, prefix string) string {
	var out strings.Builder
	at := n.Start
	plain := func(end int) {
		text := w.tree.newlines(at, end)
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
		for _, p := range w.placeholder(child, prefix) {
			out.WriteString(p.text)
		}
		at = child.End
	}
	plain(n.End)
	return out.String()
}

var quoteMarks = []string{"'", `"`, `"""`, `'''`}

// quotePieces puts the pieces of an f-string in the first quotes that need no escape in any of them.
func quotePieces(pieces []piece) string {
	marks := quoteMarks
	var out strings.Builder
	for _, p := range pieces {
		text, fitting := fit(p.text, marks, p.constant)
		if len(fitting) == 0 {
			return quotePiecesAnyhow(pieces)
		}
		marks = fitting
		out.WriteString(text)
	}
	return marks[0] + out.String() + marks[0]
}

// quotePiecesAnyhow is for text that has all quotes in it.
func quotePiecesAnyhow(pieces []piece) string {
	var out strings.Builder
	for _, p := range pieces {
		text := quote(`"` + p.text) // which so has single quotes around it
		out.WriteString(text[2 : len(text)-1])
	}
	return "'''" + out.String() + "'''"
}

// quoteAvoiding quotes a string so that it needs as few backslashes as can be.
func quoteAvoiding(value string) string {
	text, marks := fit(value, quoteMarks, false)
	if len(marks) == 0 {
		return quote(value)
	}
	return marks[0] + text + marks[0]
}

// fit escapes a text and returns which of the quotes can be around it. Line ends and tabs are escaped if breaks is set,
// and else stay.
func fit(text string, marks []string, breaks bool) (escaped string, fitting []string) {
	var out strings.Builder
	for _, r := range text {
		switch {
		case !breaks && (r == '\n' || r == '\t'), r != '\\' && unicode.IsPrint(r):
			out.WriteRune(r)
		case r == '\\':
			out.WriteString(`\\`)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\r':
			out.WriteString(`\r`)
		default:
			out.WriteString(codeEscape(r))
		}
	}
	escaped = out.String()
	for _, mark := range marks {
		if !strings.Contains(escaped, mark) && (len(mark) == 3 || !strings.Contains(escaped, "\n")) {
			fitting = append(fitting, mark)
		}
	}
	if escaped == "" || len(fitting) == 0 {
		return escaped, fitting
	}
	last := escaped[len(escaped)-1]
	slices.SortStableFunc(fitting, func(a, b string) int { return boolInt(a[0] == last) - boolInt(b[0] == last) })
	if fitting[0][0] == last {
		escaped = escaped[:len(escaped)-1] + `\` + string(last)
	}
	return escaped, fitting
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
