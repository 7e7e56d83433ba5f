package wirediff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func (c *comparison) structs() {
	eachName(uniqueFields(c.a), uniqueFields(c.b), func(name string, s protocol.Struct) {
		c.add(Change{
			Kind: StructAdded, Subject: name, Struct: name, After: shape(s), Level: Informational,
			Reason: comesWithUse, Where: c.where(c.b, s.Place, 0),
			apply: func(p *protocol.Profile) { p.Structs[name] = s },
		})
	}, func(name string, s protocol.Struct) {
		c.add(Change{
			Kind: StructRemoved, Subject: name, Struct: name, Before: shape(s), Level: Informational,
			Reason: goesWithUse, Where: c.where(c.a, s.Place, 0),
		})
	}, c.compareStruct)
}

// uniqueFields returns the structs of a profile, each without a second field of the same name: no Python class has two.
func uniqueFields(p *protocol.Profile) map[string]protocol.Struct {
	structs := make(map[string]protocol.Struct, len(p.Structs))
	for name, s := range p.Structs {
		seen := map[string]bool{}
		s.Fields = slices.DeleteFunc(slices.Clone(s.Fields), func(f protocol.Field) bool {
			twice := seen[f.Name]
			seen[f.Name] = true
			return twice
		})
		structs[name] = s
	}
	return structs
}

func shape(s protocol.Struct) string {
	return s.Encoding + " of " + safetext.Count(len(s.Fields), "field")
}

// structPair is a struct that both profiles have.
type structPair struct {
	*comparison
	sides
	name     string
	a, b     protocol.Struct
	fields   *alignment
	isArray  bool
	tagShift int // of positions in an array, which a tag begins
}

func (c *comparison) compareStruct(name string, a, b protocol.Struct) {
	p := &structPair{
		comparison: c, sides: c.sides(name), name: name, a: a, b: b, fields: align(fieldNames(a), fieldNames(b)),
		isArray: b.Encoding == "array",
	}
	if p.isArray && b.Tag != "" {
		p.tagShift = 1
	}
	p.compareHead()
	renamed := p.fields.renames(func(before, after string) bool {
		old, f := a.Fields[p.fields.inA[before]], b.Fields[p.fields.inB[after]]
		return old.Required == f.Required && sameJSON(old.Default, f.Default) &&
			readType(old.Type).String() == readType(f.Type).String()
	})
	cameBy := map[string]bool{} // new names
	for _, field := range p.fields.removed {
		if after, is := renamed[field]; is {
			cameBy[after] = true
			p.fieldRenamed(field, b.Fields[p.fields.inB[after]])
		} else {
			p.fieldRemoved(p.fields.inA[field])
		}
	}
	for _, field := range p.fields.added {
		if !cameBy[field] {
			p.fieldAdded(p.fields.inB[field])
		}
	}
	if p.isArray { // the order of a map's keys means nothing
		for _, field := range p.fields.moved {
			from, to := p.fields.inA[field], p.fields.inB[field]
			ch := p.fieldChange(FieldMoved, p.comparison.b, p.b, to)
			ch.Before, ch.After = fmt.Sprint("position ", from+p.tagShift), fmt.Sprint("position ", to+p.tagShift)
			ch.Breaks = p.parties(true, true)
			ch.Reason = fmt.Sprintf("%s read it at its old position, and %s at the new one", p.readers, p.newReader)
			p.report(ch, func(s *protocol.Struct) { s.Fields = insert(without(s.Fields, field), p.b.Fields[to], p.b.Fields[:to]) })
		}
	}
	for _, f := range b.Fields {
		if i, both := p.fields.inA[f.Name]; both {
			p.compareType(a.Fields[i], f)
			p.compareRequired(a.Fields[i], f)
			p.compareDefault(a.Fields[i], f)
		}
	}
}

func fieldNames(s protocol.Struct) []string {
	names := make([]string, len(s.Fields))
	for i, f := range s.Fields {
		names[i] = f.Name
	}
	return names
}

// report takes in a change of the struct, which edit makes alone.
func (p *structPair) report(ch Change, edit func(*protocol.Struct)) {
	name := p.name
	if ch.Subject == "" {
		ch.Subject, ch.Where = name, p.where(p.comparison.b, p.b.Place, 0)
	}
	ch.Struct = name
	ch.apply = func(profile *protocol.Profile) {
		s := profile.Structs[name]
		s.Fields = slices.Clone(s.Fields)
		edit(&s)
		profile.Structs[name] = s
	}
	p.add(ch)
}

// compareHead compares what a struct is apart from its fields.
func (p *structPair) compareHead() {
	if p.a.Module != p.b.Module && p.a.Module != "" && p.b.Module != "" {
		p.report(Change{
			Kind: StructMoved, Before: p.a.Module, After: p.b.Module, Level: Informational,
			Reason: "another module declares it; its bytes are the same",
		}, func(s *protocol.Struct) { s.Module = p.b.Module })
	}
	if p.a.Encoding != p.b.Encoding {
		p.report(Change{
			Kind: StructEncoding, Before: p.a.Encoding, After: p.b.Encoding, Breaks: p.parties(true, true),
			Reason: fmt.Sprintf("it is %s and was %s: %s cannot read it, and %s cannot read what %s write",
				withArticle(p.b.Encoding), withArticle(p.a.Encoding), p.readers, p.newReader, p.writers),
		}, func(s *protocol.Struct) { s.Encoding = p.b.Encoding })
	}
	if p.a.Tag != p.b.Tag {
		ch := Change{Kind: StructTag, Before: p.a.Tag, After: p.b.Tag, Breaks: p.parties(true, true)}
		switch {
		case p.isArray:
			ch.Reason = fmt.Sprintf("the tag is at position 0 of the array: %s misread it, and %s misreads what %s write",
				p.readers, p.newReader, p.writers)
		case p.a.Tag == "":
			ch.Breaks = p.parties(false, true)
			ch.Reason = fmt.Sprintf("%s recognizes it by the key type, which %s do not write", p.newReader, p.writers)
		case p.b.Tag == "":
			ch.Breaks = p.parties(true, false)
			ch.Reason = fmt.Sprintf("%s recognize it by the key type, which is not written any more", p.readers)
		default:
			ch.Reason = fmt.Sprintf("%s recognize it by the other name, and so does %s", p.readers, p.newReader)
		}
		p.report(ch, func(s *protocol.Struct) { s.Tag = p.b.Tag })
	}
	if p.a.OmitDefaults != p.b.OmitDefaults {
		words := map[bool]string{true: "yes", false: "no"}
		ch := Change{Kind: StructOmitDefaults, Before: words[p.a.OmitDefaults], After: words[p.b.OmitDefaults]}
		hasDefault := slices.ContainsFunc(p.a.Fields, func(f protocol.Field) bool { return !f.Required })
		switch {
		case p.isArray:
			ch.Level, ch.Reason = Informational, "an array always has all its fields"
		case !hasDefault:
			ch.Level, ch.Reason = Informational, "it has no field with a default"
		case p.b.OmitDefaults:
			ch.Breaks = p.parties(true, false)
			ch.Reason = "keys with the default value are left out: readers among " + p.readers + " that require every key fail"
		default:
			ch.Reason = "every key is written, also keys with the default value"
		}
		p.report(ch, func(s *protocol.Struct) { s.OmitDefaults = p.b.OmitDefaults })
	}
}

func withArticle(noun string) string {
	if strings.IndexAny(noun, "aeiou") == 0 {
		return "an " + noun
	}
	return "a " + noun
}

// fieldChange returns a change of the i-th field of a struct, which is that of one of the profiles.
func (p *structPair) fieldChange(kind Kind, of *protocol.Profile, s protocol.Struct, i int) Change {
	f := s.Fields[i]
	place := s.Place
	if f.Module != "" { // a parent declares it
		place = protocol.Place{Module: f.Module}
	}
	ch := Change{Kind: kind, Subject: p.name + "." + f.Name, order: i, Where: p.where(of, place, f.At)}
	if p.isArray {
		position := i + p.tagShift
		ch.Position = &position
	}
	return ch
}

func (p *structPair) fieldAdded(i int) {
	f := p.b.Fields[i]
	ch := p.fieldChange(FieldAdded, p.comparison.b, p.b, i)
	ch.After = describe(f)
	beyond := i - p.fields.endB // the last field that both have; A may have another there
	switch {
	case p.isArray && beyond < 0:
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("it is inserted, so %s: %s misread the message, and %s misreads what %s write",
			p.shifted(i), p.readers, p.newReader, p.writers)
	case p.isArray && p.fields.endA+beyond < len(p.a.Fields):
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("it is in the place of %s: %s mistake it for that field, and %s makes the opposite mistake with what %s write",
			p.a.Fields[p.fields.endA+beyond].Name, p.readers, p.newReader, p.writers)
	case p.isArray:
		var how []string
		if p.b.Exact {
			how = append(how, fmt.Sprintf("a NamedTuple must have its exact length: %s refuse one of %s",
				p.readers, safetext.Count(len(p.b.Fields), "value")))
		}
		if f.Required {
			how = append(how, fmt.Sprintf("%s refuses the shorter array that %s write", p.newReader, p.writers))
		}
		if len(how) == 0 {
			how = append(how, fmt.Sprintf("it is the last field: %s ignore fields after those they know, and messages of %s may end before it",
				p.readers, p.writers))
		}
		ch.Breaks, ch.Reason = p.parties(p.b.Exact, f.Required), strings.Join(how, "; ")
	case f.Required:
		ch.Breaks = p.parties(false, true)
		ch.Reason = fmt.Sprintf("%s refuses a map without this key, and %s do not write it", p.newReader, p.writers)
	default:
		ch.Reason = fmt.Sprintf("it is one more key: %s skip it, and %s uses the default if it is missing", p.readers, p.newReader)
	}
	p.report(ch, func(s *protocol.Struct) { s.Fields = insert(s.Fields, f, p.b.Fields[:i]) })
}

// shifted names the fields of A that are elsewhere because of one at index i of B.
func (p *structPair) shifted(i int) string {
	var later []string
	for _, f := range p.b.Fields[i+1:] {
		if p.fields.kept[f.Name] {
			later = append(later, f.Name)
		}
	}
	switch len(later) {
	case 0:
		return "the order changes"
	case 1:
		return later[0] + " moves on"
	}
	return fmt.Sprintf("%s and %s after it move on", later[0], safetext.Count(len(later)-1, "field"))
}

// insert puts a field behind the nearest of those before it.
func insert(fields []protocol.Field, f protocol.Field, before []protocol.Field) []protocol.Field {
	at := 0
	for i, known := range fields {
		if slices.ContainsFunc(before, func(b protocol.Field) bool { return b.Name == known.Name }) {
			at = i + 1
		}
	}
	return slices.Insert(slices.Clone(fields), at, f)
}

func without(fields []protocol.Field, name string) []protocol.Field {
	return slices.DeleteFunc(fields, func(f protocol.Field) bool { return f.Name == name })
}

func (p *structPair) fieldRemoved(i int) {
	f := p.a.Fields[i]
	ch := p.fieldChange(FieldRemoved, p.comparison.a, p.a, i)
	ch.Before = describe(f)
	beyond := i - p.fields.endA // the last field that both have; B may have another there
	switch {
	case p.isArray && beyond < 0:
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("each field after it moves up by one: %s misread the message, and %s misreads what %s write",
			p.readers, p.newReader, p.writers)
	case p.isArray && p.fields.endB+beyond < len(p.b.Fields):
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("%s is now in its place, and %s mistake it for the old field", p.b.Fields[p.fields.endB+beyond].Name, p.readers)
	case p.isArray:
		var how []string
		if f.Required {
			how = append(how, fmt.Sprintf("%s require it, and the array ends before it", p.readers))
		}
		if p.b.Exact {
			how = append(how, fmt.Sprintf("a NamedTuple must have its exact length: %s refuses what %s write", p.newReader, p.writers))
		}
		if len(how) == 0 {
			how = append(how, fmt.Sprintf("it was the last field: %s use the default, and %s ignores what %s write there",
				p.readers, p.newReader, p.writers))
		}
		ch.Breaks, ch.Reason = p.parties(f.Required, p.b.Exact), strings.Join(how, "; ")
	case f.Required:
		ch.Breaks = p.parties(true, false)
		ch.Reason = fmt.Sprintf("%s require the key, and it is not written any more", p.readers)
	default:
		ch.Reason = fmt.Sprintf("the key is not written any more, so %s use the default; %s skips it", p.readers, p.newReader)
	}
	p.report(ch, func(s *protocol.Struct) { s.Fields = without(s.Fields, f.Name) })
}

func (p *structPair) fieldRenamed(before string, f protocol.Field) {
	ch := p.fieldChange(FieldRenamed, p.comparison.b, p.b, p.fields.inB[f.Name])
	ch.Before, ch.After = before, f.Name
	if p.isArray {
		ch.Level = Informational
		ch.Reason = "it has the place, type and default of " + before + ", and an array has no names"
	} else {
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("it has the place, type and default of %s: %s look for the old key, and %s for the new one, which %s do not write",
			before, p.readers, p.newReader, p.writers)
	}
	p.reportEdit(ch, before, func(old *protocol.Field) { *old = f })
}

// reportEdit takes in a change of a field that both structs have, which edit makes alone.
func (p *structPair) reportEdit(ch Change, name string, edit func(*protocol.Field)) {
	p.report(ch, func(s *protocol.Struct) {
		if i := s.Index(name); i >= 0 {
			edit(&s.Fields[i])
		}
	})
}

func (p *structPair) compareType(a, b protocol.Field) {
	was, is := readType(a.Type), readType(b.Type)
	if a.Type == b.Type || was.String() == is.String() { // the same type, perhaps written otherwise
		return
	}
	reads, writes := accepts(was, is), accepts(is, was)
	ch := p.fieldChange(FieldType, p.comparison.b, p.b, p.fields.inB[b.Name])
	ch.Before, ch.After, ch.Breaks = a.Type, b.Type, p.parties(!reads, !writes)
	switch {
	case !reads && !writes:
		ch.Reason = fmt.Sprintf("%s do not expect such a value, and %s does not expect what %s write", p.readers, p.newReader, p.writers)
	case !reads:
		ch.Reason = fmt.Sprintf("it can have values that %s do not expect", p.readers)
	case !writes:
		ch.Reason = fmt.Sprintf("it can have fewer values than before: %s refuses some of what %s write", p.newReader, p.writers)
	default:
		ch.Level, ch.Reason = Informational, "the type is written differently and permits the same values"
	}
	p.reportEdit(ch, b.Name, func(f *protocol.Field) { f.Type = b.Type })
}

func (p *structPair) compareRequired(a, b protocol.Field) {
	if a.Required == b.Required {
		return
	}
	ch := p.fieldChange(FieldRequired, p.comparison.b, p.b, p.fields.inB[b.Name])
	if b.Required {
		ch.Before, ch.After = "default "+value(a.Default), "required"
		ch.Breaks = p.parties(false, true)
		ch.Reason = fmt.Sprintf("%s requires it, and %s fail if they leave it out", p.newReader, p.writers)
	} else {
		ch.Before, ch.After = "required", "default "+value(b.Default)
		ch.Reason = fmt.Sprintf("it is always written, and %s require it", p.readers)
		if !p.isArray && p.b.OmitDefaults {
			ch.Breaks = p.parties(true, false)
			ch.Reason = fmt.Sprintf("%s require it, and it is left out when it has the default value", p.readers)
		}
	}
	p.reportEdit(ch, b.Name, func(f *protocol.Field) { f.Required, f.Default = b.Required, b.Default })
}

func (p *structPair) compareDefault(a, b protocol.Field) {
	if a.Required || b.Required || sameJSON(a.Default, b.Default) {
		return
	}
	ch := p.fieldChange(FieldDefault, p.comparison.b, p.b, p.fields.inB[b.Name])
	ch.Before, ch.After = value(a.Default), value(b.Default)
	if !p.isArray && (p.a.OmitDefaults || p.b.OmitDefaults) {
		ch.Breaks = p.parties(p.b.OmitDefaults, p.a.OmitDefaults)
		ch.Reason = fmt.Sprintf("a field with the default value is left out: %s then assume %s, and %s assumes %s",
			p.readers, ch.Before, p.newReader, ch.After)
	} else {
		ch.Level = Informational
		ch.Reason = "the field is always written; the default matters only if it is left out"
	}
	p.reportEdit(ch, b.Name, func(f *protocol.Field) { f.Default = b.Default })
}

// describe returns the declaration of a field: "int, required", "str | None = None".
func describe(f protocol.Field) string {
	if f.Required {
		return f.Type + ", required"
	}
	return f.Type + " = " + value(f.Default)
}

// value returns a value of a profile as Python has it.
func value(raw json.RawMessage) string {
	switch text := strings.TrimSpace(string(raw)); text {
	case "", "null":
		return "None"
	case "true":
		return "True"
	case "false":
		return "False"
	default:
		return text
	}
}

// sameJSON compares values, not how they are written. An absent one is None.
func sameJSON(a, b json.RawMessage) bool {
	compact := func(raw json.RawMessage) []byte {
		if len(raw) == 0 {
			return []byte("null")
		}
		var text bytes.Buffer
		if json.Compact(&text, raw) != nil {
			return raw
		}
		return text.Bytes()
	}
	return bytes.Equal(compact(a), compact(b))
}

// An alignment compares two lists of names. No list has a name twice.
type alignment struct {
	inA, inB                 map[string]int      // indexes of names
	kept                     map[string]bool     // the most names that both lists have in the same order
	removed, added           []string            // names that only A has, and only B
	removedAfter, addedAfter map[string][]string // the same by the kept name before them
	endA, endB               int                 // indexes after the last name that both have
	moved                    []string            // names that both have, and that are not kept; in the order of B
}

func align(a, b []string) *alignment {
	x := &alignment{inA: positions(a), inB: positions(b)}
	x.kept = longestRun(a, x.inB)
	x.removed, x.removedAfter, x.endA = x.alone(a, x.inB)
	x.added, x.addedAfter, x.endB = x.alone(b, x.inA)
	for _, name := range b {
		if _, both := x.inA[name]; both && !x.kept[name] {
			x.moved = append(x.moved, name)
		}
	}
	return x
}

func positions(names []string) map[string]int {
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
	}
	return at
}

// alone returns the names that the other list does not have, and where in the list those end that it has.
func (x *alignment) alone(names []string, others map[string]int) (alone []string, after map[string][]string, end int) {
	after = map[string][]string{}
	before := ""
	for i, name := range names {
		if _, both := others[name]; both {
			end = i + 1
		} else {
			alone = append(alone, name)
			after[before] = append(after[before], name)
		}
		if x.kept[name] {
			before = name
		}
	}
	return alone, after, end
}

// longestRun returns the most names of a list that another has in the same order.
func longestRun(a []string, inB map[string]int) map[string]bool {
	// ends[n] is the index in a of the last name of the best run of n+1 names, and previous the index of the name
	// before it.
	var ends []int
	previous := make([]int, len(a))
	for i, name := range a {
		at, both := inB[name]
		if !both {
			continue
		}
		n := sort.Search(len(ends), func(n int) bool { return inB[a[ends[n]]] >= at })
		if previous[i] = -1; n > 0 {
			previous[i] = ends[n-1]
		}
		ends = append(ends[:n], append([]int{i}, ends[min(n+1, len(ends)):]...)...)
	}
	run := map[string]bool{}
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = previous[i] {
			run[a[i]] = true
		}
	}
	return run
}

// renames pairs each name that went with the one that came to its place, if same reports that they are alike.
func (x *alignment) renames(same func(before, after string) bool) map[string]string {
	pairs := map[string]string{}
	for before, gone := range x.removedAfter {
		came := x.addedAfter[before]
		if len(gone) != len(came) {
			continue
		}
		for i, name := range gone {
			if same(name, came[i]) {
				pairs[name] = came[i]
			}
		}
	}
	return pairs
}
