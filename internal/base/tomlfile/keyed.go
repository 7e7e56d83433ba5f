package tomlfile

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Keyed is one of several tables below a common key: [models.tiny] has the key "tiny".
type Keyed struct {
	Key string
	*Table
}

// Keyed reads the tables below a key, in the order of the file.
func (t *Table) Keyed(key string) []Keyed {
	parent := t.Nested(key)
	if parent == nil {
		return nil
	}
	var tables []Keyed
	for _, name := range parent.Keys() {
		if below := parent.Nested(name); below != nil {
			tables = append(tables, Keyed{Key: name, Table: below})
		}
	}
	return tables
}

// Nested reads a table; it returns nil where there is none.
func (t *Table) Nested(key string) *Table {
	values := get[map[string]any](t, key, "a table", "["+key+"]")
	if values == nil {
		return nil
	}
	place := t.place.keys[key]
	if place == nil {
		place = &node{line: t.LineOf(key)}
	}
	name := key
	if strings.Trim(key, bareKey) != "" {
		name = strconv.Quote(key)
	}
	if t.name != "" {
		name = strings.Trim(t.name, "[]") + "." + name
	}
	return t.doc.table("["+name+"]", values, place)
}

// bareKey are the characters of a key that needs no quotes.
const bareKey = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

// Mistyped reports whether the value of a key was read as another type than it has, which is among the diagnostics.
func (t *Table) Mistyped(key string) bool { return t.wrong[key] }

// Keys are the keys of the table in the order of the file, but for those that belong to the user.
func (t *Table) Keys() []string {
	keys := slices.Sorted(maps.Keys(t.values))
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, freePrefix) })
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(t.LineOf(a), t.LineOf(b)) })
	return keys
}

// Text reads a string, a number or a boolean as text: 0.9, 4096 and true are what a command line has.
func (t *Table) Text(key string) string {
	t.ask(key)
	switch value := t.values[key].(type) {
	case nil:
	case string:
		return value
	case int64:
		return strconv.FormatInt(value, 10)
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(value)
	default:
		t.complain(key, "a string, a number or a boolean", key+` = "..."`)
	}
	return ""
}

// Ints reads an array of integers.
func (t *Table) Ints(key string) []int64 {
	const kind = "an array of integers"
	example := key + " = [1, 2]"
	var values []int64
	for _, element := range get[[]any](t, key, kind, example) {
		value, ok := element.(int64)
		if !ok {
			t.complain(key, kind, example)
			return nil
		}
		values = append(values, value)
	}
	return values
}
