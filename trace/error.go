package trace

import (
	"errors"
	"strconv"
	"strings"
)

// Error is a fault in the content of a trace or sidecar, or in a record given
// to a Writer. Name and Line are empty when there is no file behind it.
type Error struct {
	// Name of the file or stream, as given to Open or NewReader.
	Name string
	// Line is the 1-based physical line; blank lines count.
	Line int
	// Column is the 1-based byte within the line after leading white space,
	// 0 when the fault is not at one place.
	Column int
	// Field is the JSON key, dotted when nested: "itl_ctx.num_running".
	Field string
	// Reason is what is wrong and what was expected.
	Reason string
	// Err is the underlying error, if any: of the disk, of gzip.
	Err error
}

// Error renders "name: line 3, column 17: field: reason: cause".
func (e *Error) Error() string {
	var parts []string
	if e.Name != "" {
		parts = append(parts, e.Name)
	}
	if e.Line > 0 {
		at := "line " + strconv.Itoa(e.Line)
		if e.Column > 0 {
			at += ", column " + strconv.Itoa(e.Column)
		}
		parts = append(parts, at)
	}
	if e.Field != "" {
		parts = append(parts, e.Field)
	}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// within puts err inside the field key: a fault in "num_running" inside
// "itl_ctx" becomes one in "itl_ctx.num_running". No error stays none.
func within(err error, key string) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Field == "" {
		e.Field = key
	} else {
		e.Field = key + "." + e.Field
	}
	return e
}

// inKey is within for a key of a file, which may be anything.
func inKey(err error, key []byte) error {
	if err == nil {
		return nil
	}
	return within(err, clip(key))
}

// clip makes text from a file fit for an error message: short and on one line.
func clip(text []byte) string {
	const most = 40
	s := string(text[:min(len(text), most)])
	if len(text) > most {
		s = strings.ToValidUTF8(s, "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// located gives err its file and line.
func located(err error, name string, line int) error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Name: name, Line: line, Err: err}
	}
	e.Name, e.Line = name, line
	return e
}
