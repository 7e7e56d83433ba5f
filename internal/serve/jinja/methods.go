package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// method is a method of a text, a list or a dict; nil if there is none of this name.
func method(of any, name string) any {
	switch of := of.(type) {
	case string:
		return bound(textMethods, name, of)
	case *List:
		return bound(listMethods, name, of)
	case *Dict:
		return bound(dictMethods, name, of)
	}
	return nil
}

func bound[T any](methods map[string]func(*runner, T, call) any, name string, of T) any {
	f := methods[name]
	if f == nil {
		return nil
	}
	return function(func(r *runner, c call) any { return f(r, of, c) })
}

var listMethods = map[string]func(r *runner, of *List, c call) any{
	"append": func(r *runner, of *List, c call) any {
		r.charge(len(c.plain))
		of.Items = append(of.Items, c.plain...)
		return nil
	},
	"extend": func(r *runner, of *List, c call) any {
		for _, a := range c.plain {
			more := r.items(a)
			r.chargeItems(len(more))
			of.Items = append(of.Items, more...)
		}
		return nil
	},
	"pop": func(r *runner, of *List, c call) any {
		last := int64(len(of.Items) - 1)
		at, _ := c.arg(0, "", last).(int64)
		if at < 0 || at > last {
			fail("pop index out of range")
		}
		v := of.Items[at]
		r.chargeItems(len(of.Items))
		of.Items = slices.Delete(slices.Clone(of.Items), int(at), int(at)+1) // a loop may go over them
		return v
	},
	"index": func(r *runner, of *List, c call) any {
		at := slices.IndexFunc(of.Items, func(v any) bool { return len(c.plain) > 0 && r.equal(v, c.plain[0]) })
		if at < 0 {
			fail("the value is not in the list")
		}
		return int64(at)
	},
}

var dictMethods = map[string]func(r *runner, of *Dict, c call) any{
	"items": func(r *runner, of *Dict, _ call) any { return r.pairs(of) },
	"keys":  func(r *runner, of *Dict, _ call) any { return r.list(of.keys) },
	"values": func(r *runner, of *Dict, _ call) any {
		r.charge(len(of.keys))
		l := &List{}
		for _, k := range of.keys {
			l.Items = append(l.Items, of.values[k])
		}
		return l
	},
	"get": func(_ *runner, of *Dict, c call) any {
		if key := c.arg(0, "", nil); hashable(key) {
			if v, ok := of.Get(key); ok {
				return v
			}
		}
		return c.arg(1, "", nil)
	},
	"update": func(r *runner, of *Dict, c call) any {
		more := newDict(r, c).(*Dict)
		for _, k := range more.keys {
			of.Set(k, more.values[k])
		}
		return nil
	},
}

var textMethods = map[string]func(r *runner, s string, c call) any{
	"strip": strip, "upper": upper, "lower": lower, "title": title, "capitalize": capitalize, "replace": replace,
	"lstrip":       func(r *runner, s string, c call) any { return strings.TrimLeftFunc(s, r.stripped(s, c)) },
	"rstrip":       func(r *runner, s string, c call) any { return strings.TrimRightFunc(s, r.stripped(s, c)) },
	"startswith":   func(r *runner, s string, c call) any { return r.affix(s, c, strings.HasPrefix) },
	"endswith":     func(r *runner, s string, c call) any { return r.affix(s, c, strings.HasSuffix) },
	"removeprefix": func(r *runner, s string, c call) any { return strings.TrimPrefix(s, r.textArg(c, 0)) },
	"removesuffix": func(r *runner, s string, c call) any { return strings.TrimSuffix(s, r.textArg(c, 0)) },
	"count": func(r *runner, s string, c call) any {
		r.chargeText(len(s))
		return int64(strings.Count(s, r.textArg(c, 0)))
	},
	"find": func(r *runner, s string, c call) any {
		r.chargeText(len(s))
		before, _, found := strings.Cut(s, r.textArg(c, 0))
		if !found {
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(before))
	},
	"isdigit": func(r *runner, s string, _ call) any {
		r.chargeText(len(s))
		return s != "" && strings.IndexFunc(s, func(c rune) bool { return !unicode.IsDigit(c) }) < 0
	},
	"join": func(r *runner, s string, c call) any { return r.join(r.items(c.arg(0, "", undefined{})), s) },
	"splitlines": func(r *runner, s string, _ call) any {
		r.chargeText(len(s))
		l := &List{}
		for line := range strings.Lines(s) {
			r.charge(1)
			l.Items = append(l.Items, strings.TrimRight(line, "\r\n"))
		}
		return l
	},
	"split":  func(r *runner, s string, c call) any { return r.split(s, c, false) },
	"rsplit": func(r *runner, s string, c call) any { return r.split(s, c, true) },
}

func unchanged(_ *runner, s string, _ call) any { return s }

func upper(r *runner, s string, _ call) any { r.chargeText(len(s)); return strings.ToUpper(s) }

func lower(r *runner, s string, _ call) any { r.chargeText(len(s)); return strings.ToLower(s) }

// textArg is the argument at a place as a text, "" if there is none.
func (r *runner) textArg(c call, at int) string { return r.text(c.arg(at, "", "")) }

func strip(r *runner, s string, c call) any { return strings.TrimFunc(s, r.stripped(s, c)) }

// stripped reports what a method strips from s, as in Python: white space, or the characters of the first argument.
func (r *runner) stripped(s string, c call) func(rune) bool {
	set := c.arg(0, "", nil)
	if set == nil {
		r.chargeText(len(s))
		return unicode.IsSpace
	}
	cut := map[rune]bool{}
	for _, one := range r.text(set) {
		r.charge(1)
		cut[one] = true
	}
	r.chargeText(len(s))
	return func(one rune) bool { return cut[one] }
}

// affix reports whether a text has the affix that is the first argument, or one of those in a list.
func (r *runner) affix(s string, c call, has func(s, affix string) bool) bool {
	one := func(v any) bool {
		affix := r.text(v)
		r.charge(1)
		r.chargeText(min(len(affix), len(s)))
		return has(s, affix)
	}
	if l, ok := c.arg(0, "", "").(*List); ok {
		return slices.ContainsFunc(l.Items, one)
	}
	return one(c.arg(0, "", ""))
}

func replace(r *runner, s string, c call) any {
	old, by := r.text(c.arg(0, "old", "")), r.text(c.arg(1, "new", ""))
	limit := -1
	if n, ok := c.arg(2, "count", nil).(int64); ok && n >= 0 {
		limit = int(n)
	}
	r.chargeText(len(s))
	n := strings.Count(s, old)
	if limit >= 0 {
		n = min(n, limit)
	}
	r.charge(n)
	r.chargeCopies(n, len(by))
	return strings.Replace(s, old, by, n)
}

// split is that of Python, or rsplit.
func (r *runner) split(s string, c call, fromRight bool) *List {
	limit := -1
	if n, ok := c.arg(1, "maxsplit", nil).(int64); ok && n >= 0 {
		limit = int(min(n, maxSteps)) + 1
	}
	separator := c.arg(0, "sep", nil)
	mark := r.text(separator)
	r.chargeText(len(s))
	l := &List{}
	add := func(part string) {
		r.charge(1)
		l.Items = append(l.Items, part)
	}
	switch {
	case separator == nil:
		for part := range strings.FieldsSeq(s) {
			add(part)
		}
	case mark == "":
		fail("empty separator")
	case fromRight && limit > 0:
		for range limit - 1 {
			at := strings.LastIndex(s, mark)
			if at < 0 {
				break
			}
			add(s[at+len(mark):])
			s = s[:at]
		}
		add(s)
		slices.Reverse(l.Items)
	default:
		for at := 0; at >= 0 && limit != 1; limit-- {
			if at = strings.Index(s, mark); at >= 0 {
				add(s[:at])
				s = s[at+len(mark):]
			}
		}
		add(s)
	}
	return l
}

var timeLayouts = map[byte]string{
	'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'B': "January", 'b': "Jan", 'A': "Monday",
	'a': "Mon", 'p': "PM", 'j': "002", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05",
}

// strftime formats the time as Python does.
func (r *runner) strftime(format string) string {
	r.chargeCopies(16, len(format))
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		rest := format[i:]
		if rest[0] != '%' || len(rest) == 1 {
			b.WriteByte(rest[0])
			continue
		}
		layout, known := timeLayouts[rest[1]]
		switch {
		case known:
			b.WriteString(r.now.Format(layout))
			i++
		case rest[1] == '-' && len(rest) > 2:
			b.WriteString(strings.TrimLeft(r.now.Format(timeLayouts[rest[2]]), "0"))
			i += 2
		case rest[1] == '%':
			b.WriteByte('%')
			i++
		default:
			b.WriteByte('%')
		}
	}
	return b.String()
}
