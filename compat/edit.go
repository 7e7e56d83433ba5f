package compat

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// array is the name of the tables of the matrix.
const array = "vllm"

// keys are those of an entry, in the order in which new ones are written.
func keys() []string {
	return []string{"line", "tag", "protocol_rev", "patch_repo", "patch_rev", "fidelity_validated", "default"}
}

// LoadText reads a compat.toml that is to be edited. It may break rules, which a change
// may mend, but must be TOML.
func LoadText(path string) ([]byte, *Matrix, error) {
	_, diagnostics := Load(path) // has the bounds of a file
	if err := unfit(diagnostics); err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	m, diagnostics := Parse(path, data)
	return data, m, unfit(diagnostics)
}

func unfit(diagnostics []Diagnostic) error {
	for _, f := range diagnostics {
		if f.Code == codeUnreadable || f.Code == codeSyntax {
			return errors.New(f.String())
		}
	}
	return nil
}

// Rewrite edits the text of a compat.toml so that its lines are the wanted ones, in
// that order; lines are distinguished by their names, and [Line.Pos] is ignored. Name
// is the path that errors mention.
//
// Only the values that differ are replaced, and only the entries that come or go are
// put in or taken out, the latter with the comments that stand directly at them.
// Comments at the head of the file, keys of the user's own and all other bytes stay.
// The result is read anew: when it has errors, or other lines than wanted, the error
// says so and there is no result. Lines that there are already cannot change places.
func Rewrite(name string, data []byte, wanted []Line) ([]byte, error) {
	text, err := tomlfile.NewEditor(name, data, head(name, data))
	if err != nil {
		return nil, err
	}
	e := editor{text, name}
	if err := e.become(wanted); err != nil {
		return nil, err
	}
	m, diagnostics := Parse(name, e.Bytes())
	for _, f := range diagnostics {
		if f.Severity == Error {
			return nil, fmt.Errorf("the change would break a rule: %s", f)
		}
	}
	if !slices.EqualFunc(m.Lines, wanted, sameEntry) {
		return nil, fmt.Errorf("%s: the edit would not result in the intended lines: edit the file by hand", name)
	}
	return e.Bytes(), nil
}

// sameEntry compares what two entries say.
func sameEntry(a, b Line) bool {
	a.Pos, b.Pos = 0, 0
	return a == b
}

// head recognizes the comments that the file begins with. They are about the file,
// even when the first entry follows them without a blank line.
func head(name string, data []byte) func(comment string) bool {
	var texts []string
	for i, c := range tomlfile.Parse(name, data, codes()).Comments() {
		if c.Line != i+1 {
			break
		}
		if c.Text != "" { // an empty comment may stand anywhere
			texts = append(texts, c.Text)
		}
	}
	return func(comment string) bool { return slices.Contains(texts, comment) }
}

// editor turns lines into edits of a text.
type editor struct {
	*tomlfile.Editor
	name string
}

// lines are those that the text has now.
func (e editor) lines() []Line {
	m, _ := Parse(e.name, e.Bytes())
	return m.Lines
}

// index is the place of a line among the entries, or -1.
func (e editor) index(line string) int {
	return slices.IndexFunc(e.lines(), func(l Line) bool { return l.Name == line })
}

func (e editor) become(wanted []Line) error {
	for i, l := range slices.Backward(e.lines()) {
		if !slices.ContainsFunc(wanted, func(w Line) bool { return w.Name == l.Name }) {
			if err := e.Remove(array, i); err != nil {
				return err
			}
		}
	}
	// From the last to the first, so that what a new entry goes above is there.
	for i, l := range slices.Backward(wanted) {
		isNew := e.index(l.Name) < 0
		if isNew {
			if err := e.Insert(array, e.above(wanted[i+1:]), "line", l.Name); err != nil {
				return err
			}
		}
		if err := e.set(e.index(l.Name), l, isNew && !l.IsTracker()); err != nil {
			return err
		}
	}
	return nil
}

// above is the line of the text behind which an entry goes that is above others.
func (e editor) above(others []Line) int {
	places := e.Places(array)
	if len(others) == 0 && len(places) > 0 {
		return places[len(places)-1].Last
	}
	if len(others) == 0 {
		return lineCount(e.Bytes())
	}
	return places[e.index(others[0].Name)].First - 1
}

func lineCount(data []byte) int {
	n := 0
	for _, c := range data {
		if c == '\n' {
			n++
		}
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		n++
	}
	return n
}

// set gives an entry the values of a line. That it is not validated is written down
// where it says so is wanted.
func (e editor) set(index int, l Line, saysUnvalidated bool) error {
	if index < 0 {
		return fmt.Errorf("%s: %q cannot name a line", e.name, l.Name)
	}
	old := e.lines()[index]
	for _, p := range []struct{ key, old, value string }{
		{"tag", old.Tag, l.Tag},
		{"protocol_rev", old.ProtocolRev, l.ProtocolRev},
		{"patch_repo", old.PatchRepo, l.PatchRepo},
		{"patch_rev", old.PatchRev, l.PatchRev},
	} {
		if err := e.setText(index, p.key, p.old, p.value); err != nil {
			return err
		}
	}
	if old.FidelityValidated != l.FidelityValidated || saysUnvalidated {
		if err := e.Set(array, index, "fidelity_validated", l.FidelityValidated, keys()); err != nil {
			return err
		}
	}
	switch {
	case old.Default == l.Default:
		return nil
	case !l.Default && !e.HasRemark(array, index, "default"): // nothing is left but what somebody has written behind it
		return e.Unset(array, index, "default")
	}
	return e.Set(array, index, "default", l.Default, keys())
}

// setText gives a key a text, of which none means that there is no such key.
func (e editor) setText(index int, key, old, value string) error {
	switch {
	case value == old:
		return nil
	case value == "":
		return e.Unset(array, index, key)
	}
	return e.Set(array, index, key, value, keys())
}
