package tomlfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// wanted returns the values of the text after a change of one entry.
func (e *Editor) wanted(array string, index int, change func(map[string]any)) map[string]any {
	tables := slices.Clone(e.values[array].([]map[string]any))
	tables[index] = maps.Clone(tables[index])
	change(tables[index])
	values := maps.Clone(e.values)
	values[array] = tables
	return values
}

// replace puts text in the place of some bytes, if the result is what is wanted.
func (e *Editor) replace(from, to int, text string, wanted map[string]any) error {
	before := *e
	line, _ := position(e.src, from)
	if err := e.take(e.src[:from] + text + e.src[to:]); err != nil {
		*e = before
		return fmt.Errorf("a change at line %d would break the file: %w", line, err)
	}
	if !same(wanted, e.values) {
		*e = before
		return fmt.Errorf("%s: a change at line %d would change other values too: edit the file by hand", e.name, line)
	}
	return nil
}

// insert puts lines, given without the last line end, at the start of a line, or
// at the end of the text.
func (e *Editor) insert(at int, lines string, wanted map[string]any) error {
	if at > 0 && e.src[at-1] != '\n' { // the text has no line end at its end
		lines = e.newline + lines
	} else {
		lines += e.newline
	}
	return e.replace(at, at, lines, wanted)
}

// insertEntry puts the lines of a whole entry behind a line.
func (e *Editor) insertEntry(array string, line int, lines string, table map[string]any) error {
	tables, ok := e.values[array].([]map[string]any)
	if !ok && e.values[array] != nil {
		return fmt.Errorf("%s: %s is not written as [[%s]] tables, so none can be added", e.name, array, array)
	}
	at, err := e.behindLine(line)
	if err != nil {
		return err
	}
	index := 0
	for _, header := range e.Lines(array) {
		if header <= line {
			index++
		}
	}
	wanted := maps.Clone(e.values)
	wanted[array] = slices.Insert(slices.Clone(tables), min(index, len(tables)), table)
	return e.replace(at, at, e.spaced(at, lines), wanted)
}

// behindLine is the offset of the line after the given one.
func (e *Editor) behindLine(line int) (int, error) {
	at := 0
	for range line {
		i := strings.IndexByte(e.src[at:], '\n')
		if i < 0 && at == len(e.src) {
			return 0, fmt.Errorf("%s: has no line %d", e.name, line)
		}
		if i < 0 {
			return len(e.src), nil
		}
		at += i + 1
	}
	return at, nil
}

// spaced gives lines that are to be inserted their line ends, and blank lines to
// what is around them, where there are none.
func (e *Editor) spaced(at int, lines string) string {
	before, after := e.src[:at], e.src[at:]
	switch {
	case before == "" || endsBlank(before):
	case strings.HasSuffix(before, "\n"):
		lines = e.newline + lines
	default:
		lines = e.newline + e.newline + lines
	}
	lines += e.newline
	if first, _, _ := strings.Cut(after, "\n"); after != "" && strings.TrimSpace(first) != "" {
		lines += e.newline
	}
	return lines
}

// endsBlank reports whether the last line of a text is blank.
func endsBlank(text string) bool {
	last, found := strings.CutSuffix(text, "\n")
	return found && strings.TrimSpace(last[strings.LastIndexByte(last, '\n')+1:]) == ""
}

// pair finds the pair of a key of an entry itself, not of a table below it.
func (e *Editor) pair(place extent, key string) (int, bool) {
	for i := place.header + 1; i < place.end && e.items[i].kind != headerItem; i++ {
		if it := e.items[i]; it.kind == pairItem && len(it.key) == 1 && it.key[0] == key {
			return i, true
		}
	}
	return 0, false
}

// behind is the item of an entry that a new key follows: the last of the pairs
// that come before it in order, or the header.
func (e *Editor) behind(place extent, key string, order []string) int {
	after := place.header
	for i := place.header + 1; i < place.end && e.items[i].kind != headerItem; i++ {
		it := e.items[i]
		if it.kind != pairItem {
			continue
		}
		if rank := slices.Index(order, it.key[0]); rank >= 0 && rank < slices.Index(order, key) {
			after = i
		}
	}
	return after
}

// quotedKey writes a key.
func quotedKey(key string) string {
	if key != "" && strings.IndexFunc(key, func(r rune) bool { return r > 127 || !isBare(byte(r)) }) < 0 {
		return key
	}
	return quote(key)
}
