package wirediff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// structPair is a struct that both profiles have.
type structPair struct {
	*comparison
	name     string
	a, b     protocol.Struct
	route    route
	fields   *alignment
	renamed  map[string]string // old name to new
	renames  map[string]string // new name to old
	readers  string
	writers  string
	newOne   string // a reader of B
	exact    bool
	isArray  bool
	tagShift int
}

func (c *comparison) structs() {
	eachName(uniqueFields(c.a), uniqueFields(c.b), c.structAdded, c.structRemoved, c.structBoth)
}

// uniqueFields are the structs of a profile, each without a second field of the
// same name: no Python class has two.
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

func (c *comparison) structAdded(name string, s protocol.Struct) {
	c.add(Change{
		Kind: StructAdded, Subject: name, Struct: name, After: shape(s), Level: Informational,
		Reason: "it travels in what refers to it, which is a change of its own",
		Where:  c.where(false, s.Place), group: groupStructs,
		apply: func(p *protocol.Profile) { p.Structs[name] = s },
	})
}

func (c *comparison) structRemoved(name string, s protocol.Struct) {
	c.add(Change{
		Kind: StructRemoved, Subject: name, Struct: name, Before: shape(s), Level: Informational,
		Reason: "nothing refers to it any more, or what does is a change of its own",
		Where:  c.where(true, s.Place), group: groupStructs,
	})
}

// shape is a struct in a few words.
func shape(s protocol.Struct) string {
	return fmt.Sprintf("%s of %s", s.Encoding, plural(len(s.Fields), "field"))
}

func (c *comparison) structBoth(name string, a, b protocol.Struct) {
	way := c.routes.of(name)
	p := &structPair{
		comparison: c, name: name, a: a, b: b, route: way,
		fields:  align(fieldNames(a), fieldNames(b)),
		readers: way.readers() + " of " + c.from(), writers: way.writers() + " of " + c.from(),
		newOne: way.newReader() + " of " + c.to(),
		exact:  b.Exact, isArray: b.Encoding == "array",
	}
	if p.isArray && b.Tag != "" {
		p.tagShift = 1
	}
	p.whole()
	p.findRenames()
	for _, field := range p.fields.removed() {
		if new, renamed := p.renamed[field]; renamed {
			p.fieldRenamed(field, new)
		} else {
			p.fieldRemoved(field)
		}
	}
	for _, field := range p.fields.added() {
		if _, renamed := p.renames[field]; !renamed {
			p.fieldAdded(field)
		}
	}
	if p.isArray { // the order of a map's keys means nothing
		for _, field := range p.fields.moved() {
			p.fieldMoved(field)
		}
	}
	for _, f := range b.Fields {
		if _, both := p.fields.inA[f.Name]; both {
			p.fieldBoth(a.Fields[p.fields.inA[f.Name]], f)
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

func (p *structPair) findRenames() {
	p.renamed = p.fields.renames(func(old, new string) bool {
		a, b := p.a.Fields[p.fields.inA[old]], p.b.Fields[p.fields.inB[new]]
		return a.Required == b.Required && sameDefault(a, b) && parseType(a.Type).String() == parseType(b.Type).String()
	})
	p.renames = map[string]string{}
	for old, new := range p.renamed {
		p.renames[new] = old
	}
}

// whole compares what a struct is apart from its fields.
func (p *structPair) whole() {
	if p.a.Module != p.b.Module && p.a.Module != "" && p.b.Module != "" {
		p.report(Change{
			Kind: StructMoved, Before: p.a.Module, After: p.b.Module, Level: Informational,
			Reason: "another module declares it, and its bytes are the same",
		}, func(s *protocol.Struct) { s.Module = p.b.Module })
	}
	if p.a.Encoding != p.b.Encoding {
		p.report(Change{
			Kind: StructEncoding, Before: p.a.Encoding, After: p.b.Encoding, Breaks: p.route.parties(true, true),
			Reason: fmt.Sprintf("it is %s and was %s: %s cannot read it, nor %s what %s write",
				article(p.b.Encoding), article(p.a.Encoding), p.readers, p.newOne, p.writers),
		}, func(s *protocol.Struct) { s.Encoding = p.b.Encoding })
	}
	if p.a.Tag != p.b.Tag {
		p.report(p.tagChange(), func(s *protocol.Struct) { s.Tag = p.b.Tag })
	}
	if p.a.OmitDefaults != p.b.OmitDefaults {
		p.report(p.omitChange(), func(s *protocol.Struct) { s.OmitDefaults = p.b.OmitDefaults })
	}
}

func (p *structPair) tagChange() Change {
	ch := Change{Kind: StructTag, Before: p.a.Tag, After: p.b.Tag, Breaks: p.route.parties(true, true)}
	switch {
	case p.isArray:
		ch.Reason = fmt.Sprintf("the tag is at position 0 of the array: %s misread it, and %s what %s write",
			p.readers, p.newOne, p.writers)
	case p.a.Tag == "":
		ch.Breaks = p.route.parties(false, true)
		ch.Reason = fmt.Sprintf("%s tells it by the key type, which %s do not write", p.newOne, p.writers)
	case p.b.Tag == "":
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = fmt.Sprintf("%s tell it by the key type, which is not written any more", p.readers)
	default:
		ch.Reason = fmt.Sprintf("%s tell it by the other name, and so does %s", p.readers, p.newOne)
	}
	return ch
}

func (p *structPair) omitChange() Change {
	ch := Change{Kind: StructOmitDefaults, Before: yes(p.a.OmitDefaults), After: yes(p.b.OmitDefaults)}
	switch optional := slices.ContainsFunc(p.a.Fields, func(f protocol.Field) bool { return !f.Required }); {
	case p.isArray:
		ch.Level, ch.Reason = Informational, "an array is written with all its fields in any case"
	case !optional:
		ch.Level, ch.Reason = Informational, "it has no field with a default"
	case p.b.OmitDefaults:
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = "keys that hold their default are left out: of " + p.readers + ", those that want every key fail"
	default:
		ch.Reason = "every key is written, those at their default too"
	}
	return ch
}

// report takes in a change of the struct itself.
func (p *structPair) report(ch Change, edit func(*protocol.Struct)) {
	if ch.Subject == "" {
		ch.Subject = p.name
	}
	ch.Struct, ch.group = p.name, groupStructs
	if ch.Where.Release == "" {
		ch.Where = p.where(false, p.b.Place)
	}
	name := p.name
	ch.apply = func(profile *protocol.Profile) {
		s := profile.Structs[name]
		s.Fields = slices.Clone(s.Fields)
		edit(&s)
		profile.Structs[name] = s
	}
	p.add(ch)
}

// placeOf is where a field is declared: a parent's field has a module of its own.
func placeOf(s protocol.Struct, f protocol.Field) protocol.Place {
	place := protocol.Place{Module: s.Module, At: f.At}
	if f.Module != "" {
		place.Module = f.Module
	}
	if place.At == 0 && f.Module == "" {
		place.At = s.At
	}
	return place
}

// wirePosition is where a field stands in an array; nil in a map.
func (p *structPair) wirePosition(i int) *int {
	if !p.isArray {
		return nil
	}
	return at(i + p.tagShift)
}

func (p *structPair) fieldAdded(name string) {
	i := p.fields.inB[name]
	f := p.b.Fields[i]
	ch := Change{
		Kind: FieldAdded, Subject: p.name + "." + name, Position: p.wirePosition(i), After: describe(f),
		Where: p.where(false, placeOf(p.b, f)), order: i,
	}
	rival, rivals := p.rival(i-p.fields.endB, p.fields.endA, p.a)
	switch inserted := i < p.fields.endB; {
	case p.isArray && rivals:
		ch.Breaks, ch.Reason = p.route.parties(true, true), p.takesPlace(rival)
	case p.isArray && inserted:
		ch.Breaks = p.route.parties(true, true)
		ch.Reason = fmt.Sprintf("it is inserted, so that %s: %s misread what comes, and %s what %s write",
			p.shifted(i), p.readers, p.newOne, p.writers)
	case p.isArray:
		ch.Breaks, ch.Reason = p.appended(f)
	case f.Required:
		ch.Breaks = p.route.parties(false, true)
		ch.Reason = fmt.Sprintf("%s refuses a map without this key, and %s do not write it", p.newOne, p.writers)
	default:
		ch.Reason = fmt.Sprintf("a key more: %s skip it, and %s takes the default when it is absent",
			p.readers, p.newOne)
	}
	p.report(ch, func(s *protocol.Struct) { s.Fields = insert(s.Fields, f, p.b.Fields[:i]) })
}

// rival is the field of the other side that has the place of the k-th after all
// that both have, if there is one.
func (p *structPair) rival(k, end int, other protocol.Struct) (name string, is bool) {
	if k < 0 || end+k >= len(other.Fields) {
		return "", false
	}
	return other.Fields[end+k].Name, true
}

func (p *structPair) takesPlace(old string) string {
	return fmt.Sprintf("it is where %s was: %s take it for that, and %s the other way round what %s write",
		old, p.readers, p.newOne, p.writers)
}

func (p *structPair) givesPlace(new string) string {
	return fmt.Sprintf("%s is in its place, which %s take for it", new, p.readers)
}

// appended is who fails when an array gets longer, and how.
func (p *structPair) appended(f protocol.Field) ([]Party, string) {
	var how []string
	if p.exact {
		how = append(how, fmt.Sprintf("a NamedTuple is read at its exact length: %s refuse one of %s",
			p.readers, plural(len(p.b.Fields), "value")))
	}
	if f.Required {
		how = append(how, fmt.Sprintf("%s refuses the shorter array that %s write", p.newOne, p.writers))
	}
	if len(how) == 0 {
		how = append(how, fmt.Sprintf("it is at the end: %s ignore what follows the fields they know, and %s may end before it",
			p.readers, p.writers))
	}
	return p.route.parties(p.exact, f.Required), strings.Join(how, "; ")
}

// shifted says which fields of A stand elsewhere because of one at position i of B.
func (p *structPair) shifted(i int) string {
	var later []string
	for _, f := range p.b.Fields[i+1:] {
		if p.fields.kept[f.Name] {
			later = append(later, f.Name)
		}
	}
	switch {
	case len(later) == 0:
		return "the order changes"
	case len(later) == 1:
		return later[0] + " moves on"
	}
	return fmt.Sprintf("%s and %s after it move on", later[0], plural(len(later)-1, "field"))
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

func (p *structPair) fieldRemoved(name string) {
	i := p.fields.inA[name]
	f := p.a.Fields[i]
	ch := Change{
		Kind: FieldRemoved, Subject: p.name + "." + name, Position: p.wirePosition(i), Before: describe(f),
		Where: p.where(true, placeOf(p.a, f)), order: i,
	}
	rival, rivals := p.rival(i-p.fields.endA, p.fields.endB, p.b)
	switch inner := i < p.fields.endA; {
	case p.isArray && rivals:
		ch.Breaks, ch.Reason = p.route.parties(true, true), p.givesPlace(rival)
	case p.isArray && inner:
		ch.Breaks = p.route.parties(true, true)
		ch.Reason = fmt.Sprintf("each field after it moves up by one: %s misread what comes, and %s what %s write",
			p.readers, p.newOne, p.writers)
	case p.isArray:
		ch.Breaks, ch.Reason = p.cutOff(f)
	case f.Required:
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = fmt.Sprintf("%s require the key, and it is not written any more", p.readers)
	default:
		ch.Reason = fmt.Sprintf("%s take the default, as the key is not written any more; %s skips it",
			p.readers, p.newOne)
	}
	p.report(ch, func(s *protocol.Struct) {
		s.Fields = slices.DeleteFunc(s.Fields, func(f protocol.Field) bool { return f.Name == name })
	})
}

// cutOff is who fails when an array loses its end, and how.
func (p *structPair) cutOff(f protocol.Field) ([]Party, string) {
	var how []string
	if f.Required {
		how = append(how, fmt.Sprintf("%s require it, and the array ends before it", p.readers))
	}
	if p.exact {
		how = append(how, fmt.Sprintf("a NamedTuple is read at its exact length: %s refuses what %s write",
			p.newOne, p.writers))
	}
	if len(how) == 0 {
		how = append(how, fmt.Sprintf("it was the end: %s take the default, and %s ignores what %s write there",
			p.readers, p.newOne, p.writers))
	}
	return p.route.parties(f.Required, p.exact), strings.Join(how, "; ")
}

func (p *structPair) fieldRenamed(old, new string) {
	i := p.fields.inB[new]
	f := p.b.Fields[i]
	ch := Change{
		Kind: FieldRenamed, Subject: p.name + "." + new, Position: p.wirePosition(i), Before: old, After: new,
		Where: p.where(false, placeOf(p.b, f)), order: i,
	}
	if p.isArray {
		ch.Level = Informational
		ch.Reason = "it has the place, type and default of " + old + ", and an array has no names"
	} else {
		ch.Breaks = p.route.parties(true, true)
		ch.Reason = fmt.Sprintf("it has the place, type and default of %s: %s look for the old key, and %s for the new one, which %s do not write",
			old, p.readers, p.newOne, p.writers)
	}
	p.report(ch, func(s *protocol.Struct) { replace(s.Fields, old, f) })
}

func (p *structPair) fieldMoved(name string) {
	from, to := p.fields.inA[name], p.fields.inB[name]
	f := p.b.Fields[to]
	p.report(Change{
		Kind: FieldMoved, Subject: p.name + "." + name, Position: p.wirePosition(to), order: to,
		Before: fmt.Sprint("position ", from+p.tagShift), After: fmt.Sprint("position ", to+p.tagShift),
		Breaks: p.route.parties(true, true), Where: p.where(false, placeOf(p.b, f)),
		Reason: fmt.Sprintf("%s read it at its old position, and %s at the new one", p.readers, p.newOne),
	}, func(s *protocol.Struct) {
		rest := slices.DeleteFunc(s.Fields, func(f protocol.Field) bool { return f.Name == name })
		s.Fields = insert(rest, f, p.b.Fields[:to])
	})
}

func (p *structPair) fieldBoth(a, b protocol.Field) {
	p.compareType(a, b)
	p.compareRequired(a, b)
	p.compareDefault(a, b)
}

func (p *structPair) fieldChange(kind Kind, f protocol.Field) Change {
	i := p.fields.inB[f.Name]
	return Change{
		Kind: kind, Subject: p.name + "." + f.Name, Position: p.wirePosition(i),
		Where: p.where(false, placeOf(p.b, f)), order: i,
	}
}

func (p *structPair) compareType(a, b protocol.Field) {
	if a.Type == b.Type {
		return
	}
	was, is := parseType(a.Type), parseType(b.Type)
	if was.String() == is.String() {
		return // the same type, written otherwise
	}
	reads, writes := was.accepts(is), is.accepts(was)
	ch := p.fieldChange(FieldType, b)
	ch.Before, ch.After, ch.Breaks = a.Type, b.Type, p.route.parties(!reads, !writes)
	switch {
	case !reads && !writes:
		ch.Reason = fmt.Sprintf("%s do not expect such a value, nor %s what %s write", p.readers, p.newOne, p.writers)
	case !reads:
		ch.Reason = fmt.Sprintf("it can be more than before, which %s do not expect", p.readers)
	case !writes:
		ch.Reason = fmt.Sprintf("it can be less than before: %s refuses some of what %s write", p.newOne, p.writers)
	default:
		ch.Level, ch.Reason = Informational, "the same values in other words"
	}
	p.report(ch, func(s *protocol.Struct) {
		replace(s.Fields, b.Name, with(a, func(f *protocol.Field) { f.Type = b.Type }))
	})
}

func (p *structPair) compareRequired(a, b protocol.Field) {
	if a.Required == b.Required {
		return
	}
	ch := p.fieldChange(FieldRequired, b)
	ch.Before, ch.After = need(a), need(b)
	switch {
	case b.Required:
		ch.Breaks = p.route.parties(false, true)
		ch.Reason = fmt.Sprintf("%s refuses to do without it, and of %s, those fail that leave it out",
			p.newOne, p.writers)
	case !p.isArray && p.b.OmitDefaults:
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = fmt.Sprintf("%s require it, and it is left out when it holds its default", p.readers)
	default:
		ch.Reason = fmt.Sprintf("it is written in any case, which is what %s require", p.readers)
	}
	p.report(ch, func(s *protocol.Struct) {
		replace(s.Fields, b.Name, with(a, func(f *protocol.Field) { f.Required, f.Default = b.Required, b.Default }))
	})
}

func (p *structPair) compareDefault(a, b protocol.Field) {
	if a.Required || b.Required || sameDefault(a, b) {
		return
	}
	ch := p.fieldChange(FieldDefault, b)
	ch.Before, ch.After = value(a.Default), value(b.Default)
	if !p.isArray && (p.a.OmitDefaults || p.b.OmitDefaults) {
		ch.Breaks = p.route.parties(p.b.OmitDefaults, p.a.OmitDefaults)
		ch.Reason = fmt.Sprintf("a field at its default is left out: %s then take it for %s, and %s for %s",
			p.readers, ch.Before, p.newOne, ch.After)
	} else {
		ch.Level = Informational
		ch.Reason = "the field is written in any case; only who leaves it out gets another default"
	}
	p.report(ch, func(s *protocol.Struct) {
		replace(s.Fields, b.Name, with(a, func(f *protocol.Field) { f.Default = b.Default }))
	})
}

func with(f protocol.Field, edit func(*protocol.Field)) protocol.Field {
	edit(&f)
	return f
}

// replace puts a field in the place of the named one.
func replace(fields []protocol.Field, name string, f protocol.Field) {
	for i := range fields {
		if fields[i].Name == name {
			fields[i] = f
		}
	}
}

// sameDefault compares the values, not how they are written. An absent one is None.
func sameDefault(a, b protocol.Field) bool { return sameJSON(a.Default, b.Default) }

func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if json.Compact(&x, orNull(a)) != nil || json.Compact(&y, orNull(b)) != nil {
		return bytes.Equal(a, b)
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
