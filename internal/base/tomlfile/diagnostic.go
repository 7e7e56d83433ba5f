package tomlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says how much a diagnostic weighs.
type Severity string

const (
	// Error means that the file cannot be used as it is.
	Error Severity = "error"
	// Warning means that the file can be used, but somebody should look.
	Warning Severity = "warning"
)

// Diagnostic is one defect at one place of a file.
type Diagnostic struct {
	Code     string   `json:"code"`             // the rule that was broken, such as "C005"
	Severity Severity `json:"severity"`         // Error or Warning
	File     string   `json:"file"`             // path as the caller gave it
	Line     int      `json:"line,omitempty"`   // 1-based; 0 when the whole file is meant
	Column   int      `json:"column,omitempty"` // 1-based, in characters; 0 when the whole line is meant
	Message  string   `json:"message"`          // what is wrong, lower case, without a final stop
	Hint     string   `json:"hint,omitempty"`   // what to do about it; may be empty
}

// String renders the diagnostic on one line, in the form that editors and problem
// matchers know: "file:line:column: CODE severity: message; hint". Line and
// column are left out when they are not known.
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(d.File)
	if d.Line > 0 {
		fmt.Fprintf(&b, ":%d", d.Line)
		if d.Column > 0 {
			fmt.Fprintf(&b, ":%d", d.Column)
		}
	}
	fmt.Fprintf(&b, ": %s %s: %s", d.Code, d.Severity, d.Message)
	if d.Hint != "" {
		b.WriteString("; " + d.Hint)
	}
	return b.String()
}

// Sort puts diagnostics in the order of a reader: by file, line, column, code and
// message.
func Sort(diagnostics []Diagnostic) {
	slices.SortStableFunc(diagnostics, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message),
		)
	})
}

// HasErrors reports whether any diagnostic is an [Error].
func HasErrors(diagnostics []Diagnostic) bool {
	return slices.ContainsFunc(diagnostics, func(d Diagnostic) bool { return d.Severity == Error })
}
