// Package safetext makes text of others fit for what we print: text from files, peers, processes and the sources of a
// release. Such text must not become a command for the CI that reads our output, must not control a terminal, and must not
// hide or reorder the text around it.
//
// [Line] is for a value inside a sentence of ours, [Block] for the output of a process, [Markdown] and [Code] for documents
// that a renderer reads, [Quotation] for whole texts in them, [JSON] for encoded JSON. [Clip] limits how much is shown.
// [NewLog] makes a log of safe lines, and [Count] a number of things in a sentence.
package safetext

import (
	"fmt"
	"html"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// Line returns text as one line. Escape sequences of terminals are removed; line ends, control characters, and characters
// that hide text or turn its direction become spaces; bytes that are not UTF-8 become U+FFFD. What a CI service would take
// for a command no longer is one: "##[" and "##vso[" anywhere (GitHub, Azure Pipelines, TeamCity), "::" at the beginning
// (GitHub).
func Line(text string) string {
	text = printable(text)
	if rest, found := strings.CutPrefix(strings.TrimLeft(text, " "), "::"); found {
		text = ": :" + rest
	}
	return text
}

// Fprint writes each line of text to w, as [Line] returns it.
func Fprint(w io.Writer, text string) error {
	for line := range strings.SplitSeq(text, "\n") {
		if _, err := fmt.Fprintln(w, Line(line)); err != nil {
			return err
		}
	}
	return nil
}

// LineWriter writes what each call of Write has as one line to W, as [Line] returns it: the handlers of log/slog make one call
// for each record.
type LineWriter struct{ W io.Writer }

func (l LineWriter) Write(p []byte) (int, error) {
	_, err := fmt.Fprintln(l.W, Line(strings.TrimSuffix(string(p), "\n")))
	return len(p), err
}

// printable is Line without the rule for the beginning of a line.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		text = terminalSequence().ReplaceAllString(strings.ToValidUTF8(text, string(utf8.RuneError)), "")
		text = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) || r == utf8.RuneError {
				return r
			}
			return ' '
		}, text)
	}
	if strings.Contains(text, "##") {
		text = ciCommand().ReplaceAllString(text, "# #$1")
	}
	return text
}

var (
	// terminalSequence is a control sequence (colours, cursor), or an operating system command (title, links) with its end.
	terminalSequence = lazyregexp.New("(?:\x1b\\[|\u009b)[0-?]*[ -/]*[@-~]|\x1b[()*+#%][0-9A-Za-z]|\x1b[0-9=>A-OQ-WYZc]|\x1b\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)")
	ciCommand        = lazyregexp.New(`##(\w*\[)`)
)

// What Block shows of an output is bounded, as it ends up in reports.
const (
	blockLines = 40
	blockWidth = 400 // runes of a line
)

// Block returns the last 40 lines of output, each behind "| " and cut after 400 characters, without blank lines.
func Block(output string) string {
	lines := strings.FieldsFunc(output, isLineEnd)
	before := max(len(lines)-blockLines, 0)
	lines = lines[before:]
	for i, line := range lines {
		lines[i] = "| " + Clip(printable(line), blockWidth)
	}
	if before > 0 {
		lines = append([]string{fmt.Sprintf("| [%d lines before these]", before)}, lines...)
	}
	return strings.Join(lines, "\n")
}

// isLineEnd reports whether some viewer begins a new line at r.
func isLineEnd(r rune) bool {
	return r == '\n' || r == '\r' || r == '\v' || r == '\f' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// Clip returns text, or its first characters and "…" if there are more than most of them. It never cuts inside a character.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	count := 0
	for at := range text {
		if count == most {
			return text[:at] + "…"
		}
		count++
	}
	return text
}

// Markdown returns text as one line that a Markdown renderer, in a table or outside, shows as it is: no markup, no HTML, no
// link, no mention.
func Markdown(text string) string { return markup.Replace(html.EscapeString(Inert(Line(text)))) }

var markup = strings.NewReplacer(
	"|", "&#124;", "`", "&#96;", "*", "&#42;", "_", "&#95;", "[", "&#91;", "]", "&#93;", "\\", "&#92;", "~", "&#126;",
	"@", "&#64;",
)

// Code returns text as a span of code that a Markdown renderer, in a table or outside, shows as it is.
func Code(text string) string { return "<code>" + Markdown(text) + "</code>" }

// Quotation returns a text of others as a block of code in a Markdown document, behind a blank line. Each line of it is indented and
// follows "| ", so that it cannot end the block, and none is a command to a bot that reads the beginnings of lines; and each
// is [Inert], as a text may be used without its markup: the description of a pull request becomes the message of a squashed commit.
func Quotation(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for _, line := range strings.FieldsFunc(text, isLineEnd) {
		b.WriteString("    | " + Inert(printable(line)) + "\n")
	}
	return b.String()
}

// Inert returns text in which GitHub finds no mention, no reference to an issue or pull request, so that no "Closes" closes one,
// and no comment of HTML, whether it is rendered or a message of a commit. Spaces are put in.
func Inert(text string) string {
	if !strings.ContainsAny(text, "@#<-/") {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		b.WriteByte(text[i])
		before, after := text[:i], text[i+1:]
		switch text[i] {
		case '@': // that of an address or a digest is not a mention
			if startsWith(after, wordy) && !endsWith(before, wordy) {
				b.WriteByte(' ')
			}
		case '#':
			if startsWith(after, digits) {
				b.WriteByte(' ')
			}
		case '-', '/': // GH-1, https://github.com/o/r/issues/1
			if startsWith(after, digits) && referring().MatchString(text[max(0, i-12):i+1]) {
				b.WriteByte(' ')
			}
		case '!':
			if endsWith(before, "<") && strings.HasPrefix(after, "--") {
				b.WriteByte(' ')
			}
		}
	}
	return b.String()
}

const (
	digits = "0123456789"
	wordy  = digits + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
)

func startsWith(text, some string) bool { return text != "" && strings.IndexByte(some, text[0]) >= 0 }

func endsWith(text, some string) bool {
	return text != "" && strings.IndexByte(some, text[len(text)-1]) >= 0
}

var referring = lazyregexp.New(`(?i)(?:\bgh-|/(?:issues|pulls?|discussions)/)$`)

// JSON returns encoded JSON in which nothing is a command for a terminal or a CI service: characters that are not printable
// and the second of two colons or hashes are escaped. Its value is the same, as only strings have such characters.
func JSON(data []byte) []byte {
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

// NewLog returns the log of a program: warnings and errors, if it is verbose also what it does, as text or "json".
func NewLog(w io.Writer, verbose bool, format string) *slog.Logger {
	opt := &slog.HandlerOptions{Level: slog.LevelWarn}
	if verbose {
		opt.Level = slog.LevelDebug
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(LineWriter{W: w}, opt))
	}
	return slog.New(slog.NewTextHandler(LineWriter{W: w}, opt))
}

// Words is a list of words for a message: "a, b, c".
func Words[T ~string](words []T) string {
	var b strings.Builder
	for i, word := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(word))
	}
	return b.String()
}

// Count returns "1 case" for 1, and "2 cases" for any other number. The noun forms its plural with s.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
