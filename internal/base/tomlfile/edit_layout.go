package tomlfile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pelletier/go-toml/v2/unstable"
)

// extent is the items of one entry of an array of tables.
type extent struct {
	// lead is the first comment directly above the header, or the
	// header, and end the item behind the last of the entry.
	lead, header, end int
}

// extents finds the entries of an array of tables. What is directly above a
// header, and what is directly below the last pair, belongs to the entry.
func extents(items []item, array string, isFence func(comment string) bool) []extent {
	var all []extent
	for i, it := range items {
		if it.kind != unstable.ArrayTable || !slices.Equal(it.key, []string{array}) {
			continue
		}
		all = append(all, extent{lead: leadOf(items, i, isFence), header: i, end: endOf(items, i, isFence)})
	}
	return all
}

func leadOf(items []item, header int, isFence func(string) bool) int {
	lead := header
	for lead > 0 && isLoose(items[lead-1], isFence) && items[lead-1].last+1 == items[lead].first {
		lead--
	}
	return lead
}

func isLoose(it item, isFence func(string) bool) bool {
	return it.kind == unstable.Comment && !isFence(it.comment)
}

// endOf finds the end of an entry: its tables below and their pairs, and the
// comments that are not those of what follows.
func endOf(items []item, header int, isFence func(string) bool) int {
	end := header + 1
	for i := end; i < len(items); i++ {
		it := items[i]
		if it.isHeader() && (len(it.key) == 1 || it.key[0] != items[header].key[0]) {
			break
		}
		if it.kind != unstable.Comment {
			end = i + 1
		}
	}
	below := end
	for below < len(items) && isLoose(items[below], isFence) && items[below-1].last+1 == items[below].first {
		below++
	}
	if below < len(items) && items[below].isHeader() {
		below = max(leadOf(items, below, isFence), end)
	}
	return below
}

// formatValue writes a value as TOML, on one line.
func formatValue(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return quote(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]", nil
	}
	return "", fmt.Errorf("a value of type %T cannot be written", value)
}

// quote writes a basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsControl(r) || r == '\ufeff':
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// decoded is how the decoder returns a value that formatValue wrote.
func decoded(value any) any {
	words, ok := value.([]string)
	if !ok {
		return value
	}
	elements := make([]any, len(words))
	for i, s := range words {
		elements[i] = s
	}
	return elements
}

// same compares two decoded values. Times are the same instant, and a number
// that is none is itself.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	case []map[string]any:
		b, ok := b.([]map[string]any)
		return ok && slices.EqualFunc(a, b, func(a, b map[string]any) bool { return same(a, b) })
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case time.Time:
		b, ok := b.(time.Time)
		return ok && a.Equal(b)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	}
	return a == b
}
