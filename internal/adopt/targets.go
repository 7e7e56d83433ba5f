package adopt

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/target"
	"github.com/vllm-vcr/conformance/internal/tomlfile"
)

// Keys of a file of targets.
const (
	targetArray = "target"
	linesKey    = "lines"
)

// targets plans the edit of the file of targets: a list of lines that has the line before the new one gets the new one too,
// and loses those that leave the window. An exception stays as it is: what was wrong with an engine is not of the next.
func (p *Plan) targets(opt Options) error {
	path := opt.Tree.Targets
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, findings := target.Parse(path, text, p.before); tomlfile.HasErrors(findings) {
		return fmt.Errorf("%s cannot be used as it is: %s", path, findings[0])
	}
	after, err := p.withoutDropped(path, text)
	if err != nil {
		return err
	}
	if _, isOld := p.before.ByName(p.Line); !isOld {
		after = p.extended(path, after)
	}
	if _, findings := target.Parse(path, after, p.Window); tomlfile.HasErrors(findings) {
		return fmt.Errorf("the change would break a rule: %s", findings[0])
	}
	p.edit(path, text, after)
	return nil
}

// listsOf are the lists of lines of a file of targets, in its order.
func listsOf(path string, text []byte) (lists [][]string) {
	for _, t := range tomlfile.Parse(path, text, tomlfile.Codes{}).Root().Tables(targetArray) {
		lists = append(lists, t.Strings(linesKey))
	}
	return lists
}

// withList gives an entry another list of lines, or takes it out if that is empty.
func withList(path string, text []byte, index int, list []string) ([]byte, error) {
	editor, err := tomlfile.NewEditor(path, text, func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		err = editor.Remove(targetArray, index)
	} else {
		err = editor.Set(targetArray, index, linesKey, list, nil)
	}
	return editor.Bytes(), err
}

func (p *Plan) withoutDropped(path string, text []byte) (after []byte, err error) {
	after = text
	for i, list := range slices.Backward(listsOf(path, text)) {
		left := slices.DeleteFunc(slices.Clone(list), func(line string) bool { return slices.Contains(p.Dropped, line) })
		if len(left) == len(list) {
			continue
		}
		if after, err = withList(path, after, i, left); err != nil {
			return nil, err
		}
		p.note("%s: [[target]] %d asks for %s no more", path, i+1, strings.Join(p.Dropped, ", "))
	}
	return after, nil
}

// extended adds the line where the one before it is. What the rules are against, such as a GPU without an image of the
// release, is left to a person.
func (p *Plan) extended(path string, text []byte) []byte {
	previous := lineBelow(p.lines, p.Line)
	for i, list := range listsOf(path, text) {
		at := slices.Index(list, previous)
		if at < 0 || previous == "" || slices.Contains(list, p.Line) || slices.Contains(list, "*") {
			continue
		}
		after, err := withList(path, text, i, slices.Insert(slices.Clone(list), at, p.Line))
		if err == nil {
			if _, findings := target.Parse(path, after, p.Window); tomlfile.HasErrors(findings) {
				err = fmt.Errorf("%s", findings[0])
			}
		}
		if err != nil {
			p.do("%s: [[target]] %d asks for line %s, and could not be made to ask for %s too: %v", path, i+1, previous, p.Line, err)
			continue
		}
		text = after
		p.note("%s: [[target]] %d, which asks for line %s, asks for %s too", path, i+1, previous, p.Line)
	}
	return text
}

// lineBelow is the newest stable line before another, or "".
func lineBelow(lines []compat.Line, name string) string {
	at := slices.IndexFunc(lines, func(l compat.Line) bool { return l.Name == name })
	if at < 0 || at+1 == len(lines) {
		return ""
	}
	return lines[at+1].Name
}
