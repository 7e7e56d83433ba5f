package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// Codes names the rules that this package checks on behalf of a file format.
type Codes struct {
	Unreadable string // the file is missing, too large, or not text
	Syntax     string // the text is not TOML
	UnknownKey string // a key that the format does not have
	WrongType  string // a value that is not of its key's type
}

// Document is one file: its values, the place of each, and the diagnostics about
// it. It is not safe for concurrent use.
type Document struct {
	name        string
	codes       Codes
	root        *Table // nil when the file could not be read as TOML
	tables      []*Table
	comments    []Comment
	diagnostics []Diagnostic
}

// Load reads and parses a file. It never fails: what is wrong with the file is
// among the diagnostics.
func Load(path string, codes Codes) *Document {
	data, err := read(path)
	if err != nil {
		d := &Document{name: path, codes: codes}
		d.unreadable(0, "cannot be read: "+err.Error(), "check the path and its permissions")
		return d
	}
	return Parse(path, data, codes)
}

// read returns the bytes of a regular file, at most one more than allowed.
func read(path string) ([]byte, error) {
	// A pipe is refused before it is opened: opening one waits for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	return data, cause(err)
}

// cause drops the path from an error of package os: diagnostics begin with it.
func cause(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// Parse reads the text of a file. Name is the path that diagnostics mention.
func Parse(name string, data []byte, codes Codes) *Document {
	d := &Document{name: name, codes: codes}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !d.isText(data) {
		return d
	}
	src := string(data)
	places, err := layoutOf(src)
	var limit *limitError
	if errors.As(err, &limit) {
		d.unreadable(limit.line, limit.message, "split or shorten it")
		return d
	}
	var values map[string]any
	if err == nil {
		values, err = decode(src)
	}
	if err != nil {
		d.syntax(src, err)
		return d
	}
	d.comments = places.comments()
	d.root = d.table("", values, places.root)
	return d
}

func (d *Document) isText(data []byte) bool {
	if len(data) > maxBytes {
		d.unreadable(0, fmt.Sprintf("is larger than %d bytes", maxBytes), "is this the right file?")
		return false
	}
	bad := bytes.IndexByte(data, 0)
	if bad < 0 {
		bad = invalidUTF8(data)
	}
	if bad < 0 {
		return true
	}
	line, _ := position(string(data), bad)
	d.unreadable(line, fmt.Sprintf("is not UTF-8 text: byte 0x%02x", data[bad]), "is this the right file?")
	return false
}

// invalidUTF8 returns the offset of the first byte that is not part of a UTF-8
// character, or -1.
func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// decode returns the values of a document. The decoder answers some malformed
// texts with a panic of its own; to a reader that is one more syntax error.
func decode(src string) (values map[string]any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not understood: %v", r)
		}
	}()
	_, err = toml.Decode(src, &values)
	return values, err
}

func (d *Document) unreadable(line int, message, hint string) {
	d.Report(d.codes.Unreadable, Error, line, message, hint)
}

func (d *Document) syntax(src string, err error) {
	f := Diagnostic{Code: d.codes.Syntax, Severity: Error, File: d.name, Line: 1, Message: err.Error()}
	var (
		syntaxErr *syntaxError
		parseErr  toml.ParseError
	)
	switch {
	case errors.As(err, &syntaxErr):
		f.Line, f.Column = position(src, syntaxErr.offset)
	case errors.As(err, &parseErr):
		f.Line, f.Column = position(src, parseErr.Position.Start)
		f.Message = strings.TrimSpace(parseErr.Message)
	}
	f.Message = "not valid TOML: " + f.Message
	if line, mark := conflict(src, f.Line); line > 0 {
		f.Line, f.Column = line, 0
		f.Message = "not valid TOML: " + mark + " is of a merge that was not finished"
		f.Hint = "finish it: keep one side of each conflict, or both, and delete the lines with <<<<<<<, |||||||, ======= and >>>>>>>"
	}
	d.diagnostics = append(d.diagnostics, f)
}

// position turns a byte offset into a line and a column, both 1-based.
func position(src string, offset int) (line, column int) {
	before := src[:min(max(offset, 0), len(src))]
	start := strings.LastIndexByte(before, '\n') + 1
	return 1 + strings.Count(before, "\n"), 1 + utf8.RuneCountInString(before[start:])
}

// Name is the path that diagnostics mention.
func (d *Document) Name() string { return d.name }

// Root is the table of top-level keys, or nil when the file is not readable
// TOML; then the diagnostics say why, and there is nothing else to check.
func (d *Document) Root() *Table { return d.root }

// Comments are the comments that have a line for themselves, in order.
func (d *Document) Comments() []Comment { return d.comments }

// Report adds a diagnostic about a line of the file; line 0 means the whole file.
func (d *Document) Report(code string, severity Severity, line int, message, hint string) {
	d.diagnostics = append(d.diagnostics, Diagnostic{
		Code: code, Severity: severity, File: d.name, Line: line, Message: message, Hint: hint,
	})
}

// Diagnostics returns everything reported so far, sorted, together with every key
// of the visited tables that was not read. Call it last.
func (d *Document) Diagnostics() []Diagnostic {
	all := slices.Clone(d.diagnostics)
	for _, t := range d.tables {
		all = append(all, t.unknown()...)
	}
	Sort(all)
	return all
}

// conflictMarks begin the lines that git leaves around what a merge could not
// decide, seven characters each.
var conflictMarks = []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"}

// conflictMark returns the mark that a line is, or "".
func conflictMark(line string) string {
	line = strings.TrimSuffix(line, "\r")
	for _, mark := range conflictMarks {
		if rest, ok := strings.CutPrefix(line, mark); ok && (rest == "" || rest[0] == ' ') {
			return mark
		}
	}
	return ""
}

// conflict finds the mark of an unfinished merge in a text that is not TOML at
// the given line. A string of several lines may hold such a mark too, so it counts
// when it is what is wrong, or when it is the first of a whole conflict.
func conflict(src string, wrong int) (line int, mark string) {
	at, first := 0, 0
	for text := range strings.SplitSeq(src, "\n") {
		at++
		mark := conflictMark(text)
		switch {
		case mark == "":
		case at == wrong:
			return at, mark
		case mark == conflictMarks[0] && first == 0:
			first = at
		case mark == conflictMarks[3] && first != 0:
			return first, conflictMarks[0]
		}
	}
	return 0, ""
}

// unknown reports the keys of the table that was not read, with all below
// them counted as one.
func (t *Table) unknown() []Diagnostic {
	var keys []string
	for key := range t.values {
		if !slices.Contains(t.known, key) && !strings.HasPrefix(key, freePrefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var diagnostics []Diagnostic
	for _, key := range keys {
		diagnostics = append(diagnostics, Diagnostic{
			Code: t.doc.codes.UnknownKey, Severity: Error, File: t.doc.name, Line: t.LineOf(key),
			Message: fmt.Sprintf("unknown key %q in %s", key, t.title()),
			Hint:    t.suggestion(key),
		})
	}
	return diagnostics
}

func (t *Table) suggestion(key string) string {
	advice := "keys of your own start with " + freePrefix
	if near, ok := Nearest(key, t.known); ok {
		return fmt.Sprintf("did you mean %q? %s", near, advice)
	}
	return fmt.Sprintf("known are %s; %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(t.known))), ", "), advice)
}
