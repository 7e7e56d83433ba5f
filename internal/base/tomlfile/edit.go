package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// byteOrderMark may stand before a text.
const byteOrderMark = "\xef\xbb\xbf"

// Editor changes single places of a TOML text. Every byte that a change is not
// about stays as it is: comments, blank lines, order, spelling and line ends. After
// each change the text is read anew and compared, as data, with what was wanted; a
// change that would mean anything else is an error and leaves the text as it was.
//
// Entries are those of an array of tables written with [[name]] headers, counted
// from 0. The comments directly above a header, and directly below the last pair,
// belong to the entry.
type Editor struct {
	name    string
	isFence func(comment string) bool
	mark    string // a byte order mark, or nothing
	src     string
	newline string
	values  map[string]any // of src
	items   []item         // of src
}

// NewEditor reads the text of a file. Name is the path that errors mention. A
// comment that is a fence, given as in [Comment], belongs to no entry, so that it
// stays where it is; isFence may be nil.
func NewEditor(name string, data []byte, isFence func(comment string) bool) (*Editor, error) {
	// Parse words what is wrong with a text, and has its bounds.
	d := Parse(name, data, Codes{Unreadable: "unreadable", Syntax: "syntax"})
	if d.root == nil {
		return nil, errors.New(d.Diagnostics()[0].String())
	}
	if isFence == nil {
		isFence = func(string) bool { return false }
	}
	e := &Editor{name: name, isFence: isFence, newline: "\n"}
	if bytes.HasPrefix(data, []byte(byteOrderMark)) {
		e.mark, data = byteOrderMark, data[len(byteOrderMark):]
	}
	if first, _, found := strings.Cut(string(data), "\n"); found && strings.HasSuffix(first, "\r") {
		e.newline = "\r\n"
	}
	return e, e.take(string(data))
}

// take makes src the text.
func (e *Editor) take(src string) error {
	values, err := decode(src)
	if err != nil {
		return fmt.Errorf("%s: not valid TOML: %w", e.name, err)
	}
	places, err := layoutOf(src)
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	if values == nil {
		values = map[string]any{}
	}
	e.src, e.values, e.items = src, values, places.items
	return nil
}

// Bytes returns the text.
func (e *Editor) Bytes() []byte { return []byte(e.mark + e.src) }

// Lines returns the 1-based lines of the headers of an array's entries.
func (e *Editor) Lines(array string) []int {
	var lines []int
	for _, x := range extents(e.items, array, e.isFence) {
		lines = append(lines, e.items[x.header].first)
	}
	return lines
}

// Place is where an entry is, with the comments that belong to it: its first and
// its last line, 1-based.
type Place struct{ First, Last int }

// Places returns the places of an array's entries.
func (e *Editor) Places(array string) []Place {
	var places []Place
	for _, x := range extents(e.items, array, e.isFence) {
		places = append(places, Place{e.items[x.lead].first, e.items[x.end-1].last})
	}
	return places
}

// HasRemark reports whether a comment follows the value of an entry's key.
func (e *Editor) HasRemark(array string, index int, key string) bool {
	_, place, err := e.entry(array, index)
	if err != nil {
		return false
	}
	at, ok := e.pair(place, key)
	return ok && strings.Contains(e.src[e.items[at].valueTo:e.items[at].to], "#")
}

// Comments returns the comments that have a line for themselves, in order.
func (e *Editor) Comments() []Comment {
	return (&layout{items: e.items}).comments()
}

// entry returns the values and the place of an entry.
func (e *Editor) entry(array string, index int) (map[string]any, extent, error) {
	tables, ok := e.values[array].([]map[string]any)
	if !ok && e.values[array] != nil {
		return nil, extent{}, fmt.Errorf("%s: %s is not written as [[%s]] tables, so its entries cannot be edited", e.name, array, array)
	}
	all := extents(e.items, array, e.isFence)
	if index < 0 || index >= len(all) || len(all) != len(tables) {
		return nil, extent{}, fmt.Errorf("%s: no entry %d of [[%s]], which has %d", e.name, index, array, len(all))
	}
	return tables[index], all[index], nil
}

// wholeEntry returns the place of an entry that can be taken out.
func (e *Editor) wholeEntry(array string, index int) (extent, error) {
	_, place, err := e.entry(array, index)
	if err != nil {
		return place, err
	}
	for _, it := range e.items[place.lead:place.end] {
		if it.kind == unstable.Comment && e.isFence(it.comment) {
			return place, fmt.Errorf("%s: line %d, %q, stands within an entry, so that cannot be moved: put the line before or behind the entry",
				e.name, it.first, it.comment)
		}
	}
	return place, nil
}

// Set gives a key of an entry a value: a string, int64, bool, time.Time or
// []string. A key whose value is that already is not touched. A new key is put
// behind those of the entry that come before it in order.
func (e *Editor) Set(array string, index int, key string, value any, order []string) error {
	table, place, err := e.entry(array, index)
	if err != nil {
		return err
	}
	text, err := formatValue(value)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", e.name, key, err)
	}
	if old, ok := table[key]; ok && same(old, decoded(value)) {
		return nil
	}
	wanted := e.wanted(array, index, func(t map[string]any) { t[key] = decoded(value) })
	if at, ok := e.pair(place, key); ok {
		return e.replace(e.items[at].valueFrom, e.items[at].valueTo, text, wanted)
	}
	after := e.items[e.behind(place, key, order)]
	return e.insert(after.to, quotedKey(key)+" = "+text, wanted)
}

// Unset removes a key of an entry with its line, if the entry has it.
func (e *Editor) Unset(array string, index int, key string) error {
	table, place, err := e.entry(array, index)
	if err != nil {
		return err
	}
	if _, ok := table[key]; !ok {
		return nil
	}
	at, ok := e.pair(place, key)
	if !ok {
		return fmt.Errorf("%s: %s of entry %d of [[%s]] is not one pair, so it cannot be removed", e.name, key, index, array)
	}
	wanted := e.wanted(array, index, func(t map[string]any) { delete(t, key) })
	return e.replace(e.items[at].from, e.items[at].to, "", wanted)
}

// Insert puts a new entry, given with a single pair, behind the given line, which
// is 0 for the top of the file, with blank lines around it.
func (e *Editor) Insert(array string, line int, key string, value any) error {
	text, err := formatValue(value)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", e.name, key, err)
	}
	lines := "[[" + quotedKey(array) + "]]" + e.newline + quotedKey(key) + " = " + text
	return e.insertEntry(array, line, lines, map[string]any{key: decoded(value)})
}

// Remove removes an entry with its comments and the blank lines behind it.
func (e *Editor) Remove(array string, index int) error {
	place, err := e.wholeEntry(array, index)
	if err != nil {
		return err
	}
	from, to := e.items[place.lead].from, len(e.src)
	if place.end < len(e.items) {
		to = e.items[place.end].from
	} else if place.lead > 0 {
		from = e.items[place.lead-1].to
	}
	tables := e.values[array].([]map[string]any)
	wanted := maps.Clone(e.values)
	wanted[array] = slices.Delete(slices.Clone(tables), index, index+1)
	if len(tables) == 1 {
		delete(wanted, array)
	}
	return e.replace(from, to, "", wanted)
}

// Move puts an entry with its comments, as it is written, behind the given line,
// with blank lines around it.
func (e *Editor) Move(array string, index, line int) error {
	place, err := e.wholeEntry(array, index)
	if err != nil {
		return err
	}
	table := e.values[array].([]map[string]any)[index]
	first, last := e.items[place.lead], e.items[place.end-1]
	if line >= first.first && line <= last.last {
		return fmt.Errorf("%s: entry %d of [[%s]] cannot move into itself, to line %d", e.name, index, array, line)
	}
	before := *e
	text := strings.TrimRight(e.src[first.from:last.to], "\r\n")
	lines := strings.Count(e.src, "\n")
	if err := e.Remove(array, index); err != nil {
		return err
	}
	if line > last.last {
		line -= lines - strings.Count(e.src, "\n")
	}
	if err := e.insertEntry(array, line, text, table); err != nil {
		*e = before
		return err
	}
	return nil
}

// InsertComments puts lines of comment behind the given line, which is 0 for the
// top of the file, with blank lines around them. Lines are given without #.
func (e *Editor) InsertComments(line int, comments ...string) error {
	lines := make([]string, len(comments))
	for i, c := range comments {
		lines[i] = "# " + c
		if strings.ContainsAny(c, "\r\n") {
			return fmt.Errorf("%s: a comment is one line, not %q", e.name, c)
		}
	}
	at, err := e.behindLine(line)
	if err != nil {
		return err
	}
	return e.replace(at, at, e.spaced(at, strings.Join(lines, e.newline)), e.values)
}

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
	for i := place.header + 1; i < place.end && !e.items[i].isHeader(); i++ {
		if it := e.items[i]; it.kind == unstable.KeyValue && len(it.key) == 1 && it.key[0] == key {
			return i, true
		}
	}
	return 0, false
}

// behind is the item of an entry that a new key follows: the last of the pairs
// that come before it in order, or the header.
func (e *Editor) behind(place extent, key string, order []string) int {
	after := place.header
	for i := place.header + 1; i < place.end && !e.items[i].isHeader(); i++ {
		it := e.items[i]
		if it.kind != unstable.KeyValue {
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
	if key != "" && strings.Trim(key, bareKey) == "" {
		return key
	}
	return quote(key)
}
