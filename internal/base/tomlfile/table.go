package tomlfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// freePrefix begins the keys that belong to the user.
const freePrefix = "x_"

// Table is one table of a document. Its accessors return the zero value for a key
// that is absent, and also for one whose value has the wrong type, which they
// report.
type Table struct {
	doc    *Document
	name   string // as in the file, such as "[[golden]]"; empty for the root
	values map[string]any
	place  *node
	known  []string        // the keys that were read, some of them twice
	wrong  map[string]bool // the keys whose value has the wrong type; nil while there is none
}

// table makes the table of the given values and remembers it for [Document.Diagnostics].
func (d *Document) table(name string, values map[string]any, place *node) *Table {
	t := &Table{doc: d, name: name, values: values, place: place, known: make([]string, 0, 2*len(values))}
	d.tables = append(d.tables, t)
	return t
}

// Line is the 1-based line of the table's header, or of its opening brace.
func (t *Table) Line() int { return t.place.line }

// LineOf is the 1-based line of a key, or of the table when it has no such key.
func (t *Table) LineOf(key string) int {
	if n, ok := t.place.keys[key]; ok {
		return n.line
	}
	return t.Line()
}

// Has reports whether the table has the key, with whatever value.
func (t *Table) Has(key string) bool {
	_, ok := t.values[key]
	return ok
}

// Report adds a diagnostic about a key of the table.
func (t *Table) Report(code string, severity Severity, key, message, hint string) {
	t.doc.Report(code, severity, t.LineOf(key), message, hint)
}

// String reads a string.
func (t *Table) String(key string) string {
	return get[string](t, key, "a string", key+` = "..."`)
}

// Required reads a string that must be there and not be empty; otherwise it
// reports code.
func (t *Table) Required(key, code string) string {
	value := t.String(key)
	switch {
	case t.wrong[key]:
	case !t.Has(key):
		t.Report(code, Error, key, fmt.Sprintf("%s has no %s", t.title(), key), fmt.Sprintf(`add %s = "..."`, key))
	case value == "":
		t.Report(code, Error, key, key+" is empty", "")
	}
	return value
}

// Bool reads a boolean.
func (t *Table) Bool(key string) bool {
	return get[bool](t, key, "a boolean", key+" = true")
}

// Int reads an integer.
func (t *Table) Int(key string) int64 {
	return get[int64](t, key, "an integer", key+" = 1")
}

// Time reads a date and time with an offset, either as TOML's own type or as a
// string in the form of RFC 3339.
func (t *Table) Time(key string) time.Time {
	const kind, example = "a date and time with an offset", `"2026-01-31T12:00:00Z"`
	if text, ok := t.values[key].(string); ok {
		t.declare(key)
		value, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.wrongType(key, kind, key+" = "+example)
		}
		return value
	}
	value := get[time.Time](t, key, kind, key+" = "+example)
	// The decoder marks a value without an offset by the name of its location.
	if strings.HasSuffix(value.Location().String(), "-local") {
		t.wrongType(key, kind, key+" = "+example)
		return time.Time{}
	}
	return value
}

// Date reads a date without a time, either as TOML's own type or as a string, and
// returns its midnight in UTC.
func (t *Table) Date(key string) time.Time {
	const kind, example = "a date", "2026-01-31"
	if text, ok := t.values[key].(string); ok {
		t.declare(key)
		value, err := time.Parse(time.DateOnly, text)
		if err != nil {
			t.wrongType(key, kind, key+" = "+example)
		}
		return value
	}
	value := get[time.Time](t, key, kind, key+" = "+example)
	if !t.Has(key) {
		return time.Time{}
	}
	// The decoder marks a value without a time by the name of its location.
	if value.Location().String() != "date-local" {
		t.wrongType(key, kind, key+" = "+example)
		return time.Time{}
	}
	year, month, day := value.Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// Strings reads an array of strings.
func (t *Table) Strings(key string) []string {
	return arrayOf[string](t, key, "an array of strings", key+` = ["...", "..."]`)
}

// Tables reads an array of tables, whether written as [[key]] headers or inline.
func (t *Table) Tables(key string) []*Table {
	t.declare(key)
	var elements []map[string]any
	switch value := t.values[key].(type) {
	case nil:
		return nil
	case []map[string]any:
		elements = value
	case []any:
		elements = make([]map[string]any, len(value))
		for i, element := range value {
			elements[i], _ = element.(map[string]any)
		}
	}
	if elements == nil || slices.ContainsFunc(elements, func(m map[string]any) bool { return m == nil }) {
		t.wrongType(key, "an array of tables", fmt.Sprintf("[[%s]]", key))
		return nil
	}
	return t.elements(key, elements)
}

func (t *Table) elements(key string, elements []map[string]any) []*Table {
	name := fmt.Sprintf("[[%s]]", key)
	tables := make([]*Table, len(elements))
	array := t.place.keys[key]
	for i, values := range elements {
		place := &node{line: t.LineOf(key)}
		if array != nil && i < len(array.elems) {
			place = array.elems[i]
		}
		tables[i] = t.doc.table(name, values, place)
	}
	return tables
}

// get reads the value of a key as a T, and declares the key.
func get[T any](t *Table, key, kind, example string) T {
	t.declare(key)
	value, ok := t.values[key].(T)
	if !ok && t.Has(key) {
		t.wrongType(key, kind, example)
	}
	return value
}

func (t *Table) declare(key string) { t.known = append(t.known, key) }

// wrongType reports a value of the wrong type, once.
func (t *Table) wrongType(key, kind, example string) {
	if t.wrong[key] {
		return
	}
	if t.wrong == nil {
		t.wrong = make(map[string]bool)
	}
	t.wrong[key] = true
	message := fmt.Sprintf("%s must be %s, but is %s", key, kind, kindOf(t.values[key]))
	t.Report(t.doc.codes.WrongType, Error, key, message, "write "+example)
}

// kindOf names the type of a decoded value in the words of TOML.
func kindOf(value any) string {
	switch value.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case []any:
		return "an array"
	case []map[string]any:
		return "an array of tables"
	}
	return "a table"
}

// title names the table in a message.
func (t *Table) title() string {
	if t.name == "" {
		return "the top level"
	}
	return t.name
}

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
	t.declare(key)
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
		t.wrongType(key, "a string, a number or a boolean", key+` = "..."`)
	}
	return ""
}

// Ints reads an array of integers.
func (t *Table) Ints(key string) []int64 {
	return arrayOf[int64](t, key, "an array of integers", key+" = [1, 2]")
}

func arrayOf[T any](t *Table, key, kind, example string) (values []T) {
	for _, element := range get[[]any](t, key, kind, example) {
		value, ok := element.(T)
		if !ok {
			t.wrongType(key, kind, example)
			return nil
		}
		values = append(values, value)
	}
	return values
}

// Nearest returns the known word that a reader most likely meant by word, and
// false when none is near enough to be worth suggesting. Case is ignored; about a
// third of the letters may differ: one of up to four, two of five to seven. "33" means 0.33.
func Nearest(word string, known []string) (string, bool) {
	if i := slices.IndexFunc(known, func(k string) bool { return word != "" && strings.HasSuffix(k, "."+word) }); i >= 0 {
		return known[i], true
	}
	limit := max(1, (len(word)+1)/3)
	best, bestDistance := "", limit+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k), limit); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	// A suggestion that shares no letter with a very short word is noise.
	if bestDistance > limit || bestDistance >= max(len(word), len(best)) {
		return "", false
	}
	return best, true
}

// DidYouMean is the end of a message about an unknown word: "; did you mean X? More",
// or ": more" when no known word is near enough. Without more it may be empty.
func DidYouMean(word string, known []string, more string) string {
	near, ok := Nearest(word, known)
	switch {
	case ok && more != "":
		return "; did you mean " + near + "? " + strings.ToUpper(more[:1]) + more[1:]
	case ok:
		return "; did you mean " + near + "?"
	case more != "":
		return ": " + more
	}
	return ""
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b, in bytes. It gives up with limit+1 when the
// lengths alone are further apart than limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
