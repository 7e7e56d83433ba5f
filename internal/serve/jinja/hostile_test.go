package jinja

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// maxStepBytes is what a step may allocate, with what the collector has not yet taken: [bytesPerStep] of text, which grew to its size by
// doubling, or a scope.
const maxStepBytes = 800

// hostileVars are variables for templates that have little else to do harm with: a list in itself, a list that doubles with each level when
// it is printed, a namespace in itself, long texts and lists.
func hostileVars() map[string]any {
	self := &List{}
	self.Items = append(self.Items, self)
	doubled := &List{Items: []any{"x"}}
	for range 100 {
		doubled = &List{Items: []any{doubled, doubled}}
	}
	ns := &Dict{}
	ns.Set("me", ns)
	many := &List{}
	for i := range 10_000 {
		many.Items = append(many.Items, int64(i))
	}
	return map[string]any{
		"self": self, "doubled": doubled, "ns": ns, "many": many, "text": strings.Repeat("a b\n", 1<<18), "messages": &List{},
	}
}

const (
	tooMany = "more than 1000000 steps"
	tooDeep = "more than 2000 deep"
)

// hostile are templates that take all that there is if nothing bounds them, and the error of each. "" is a template that runs.
var hostile = []struct{ template, want string }{
	// Small work that is repeated.
	{"{% for x in range(50000) %}{{ 0 | e | e }}{% endfor %}", tooMany},
	// Values in themselves, and values that are shared.
	{"{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", tooDeep},
	{"{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", tooDeep},
	{"{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson(indent=1) }}", tooDeep},
	{"{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) %}{% set _ = m.append(l) %}{{ l == m }}", tooDeep},
	{"{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) %}{% set _ = m.append(l) %}{{ l in [m] }}", tooDeep},
	{"{% set d = {} %}{% set _ = d.update({'d': d}) %}{{ d }}", tooDeep},
	{"{% set n = namespace(x=1) %}{% set n.x = n %}{{ n }}", tooDeep},
	{"{% set n = namespace() %}{% set n.x = [n, n] %}{{ n | tojson }}", tooDeep},
	{"{{ self }}", tooDeep},
	{"{{ self | string | length }}", tooDeep},
	{"{{ self | join }}", tooDeep},
	{"{{ '' ~ self }}", tooDeep},
	{"{{ {}[self] }}", tooDeep},
	{"{{ [self, [self]] | unique | list | length }}", tooDeep},
	{"{{ [self] | map('map', 'string') | list }}", tooDeep},
	{"{{ ns == namespace(me=ns) }}", tooDeep},
	{"{{ ns }}", tooDeep},
	{"{{ self.index([self]) }}", tooDeep},
	{"{{ raise_exception(self) }}", tooDeep},
	{"{{ doubled }}", tooMany},
	{"{{ doubled | tojson }}", tooMany},
	{"{{ doubled == [doubled[0], doubled[1][:]] }}", tooMany},
	{"{% set n = namespace(l=['x']) %}{% for i in range(64) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}", tooMany},
	{"{% set n = namespace(l=['x']) %}{% for i in range(64) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l }}", tooMany},
	{"{% set n = namespace(l=['x']) %}{% for i in range(64) %}{% set _ = n.l.extend(n.l) %}{% endfor %}", tooMany},
	{"{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}{{ l | length }}", ""},

	// Numbers.
	{"{{ range(9223372036854775807) }}", tooMany},
	{"{{ range(-9223372036854775808, 9223372036854775807) }}", "one to three numbers"},
	{"{{ range(-9223372036854775807, 9223372036854775807) }}", tooMany},
	{"{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807) | length }}", ""},
	{"{{ range(9223372036854775807, -9223372036854775807, -1) }}", tooMany},
	{"{{ range(0, 10, 0) }}", "steps of 0"},
	{"{{ range(1000000) | length }}", tooMany},
	{"{{ 'x' * 9223372036854775807 }}", tooMany},
	{"{{ ('x' * 1000) * 18446744073709552 }}", tooMany},
	{"{{ 'x' * -9223372036854775807 }}", ""},
	{"{{ [1] * 9223372036854775807 }}", "a list * a number"},
	{"{{ [[[[1]]]] * 1000 }}", "a list * a number"},
	{"{{ 2 ** 9223372036854775807 }}", "too large"},
	{"{{ 10 ** 10 ** 10 ** 10 }}", "too large"},
	{"{{ 9223372036854775807 * 9223372036854775807 }}", "too large"},
	{"{{ 9223372036854775807 + 1 }}", "too large"},
	{"{{ (-9223372036854775807 - 1) // -1 }}", "too large"},
	{"{{ (-9223372036854775807 - 1) % -1 }}", "too large"},
	{"{{ " + strings.Repeat("9", 100_000) + " }}", "number"},
	{"{{ ('9' * 100000) | int }}", ""},
	{"{{ '1e999999999' | float }}", ""},
	{"{{ 'abc'[::9223372036854775807] }}", ""},
	{"{{ [1, 2, 3][::9223372036854775807] }}", ""},
	{"{{ [1, 2, 3][1::9223372036854775807] }}", ""},
	{"{{ [1, 2, 3][::-9223372036854775807] }}", ""},
	{"{{ [1, 2, 3][-9223372036854775807:9223372036854775807] }}", ""},
	{"{{ 'abc'[9223372036854775807] }}", ""},
	{"{{ 'abc'[-9223372036854775807] }}", ""},
	{"{{ [1][9223372036854775807] }}", ""},
	{"{{ 'abc'.split('b', 9223372036854775807) }}", ""},
	{"{{ 'abc'.rsplit('b', 9223372036854775807) }}", ""},
	{"{{ 'abc'.replace('b', 'x', 9223372036854775807) }}", ""},
	{"{{ [1] | tojson(indent=9223372036854775807) }}", ""},
	{"{{ 'a\nb' | indent(9223372036854775807) | length }}", ""},
	{"{{ [1].pop(9223372036854775807) }}", "out of range"},

	// Texts that grow.
	{"{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t = n.t + n.t %}{% endfor %}", tooMany},
	{"{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t = n.t ~ n.t %}{% endfor %}", tooMany},
	{"{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t %}{{ n.t }}{{ n.t }}{% endset %}{% endfor %}", tooMany},
	{"{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t = n.t * 1000 %}{% endfor %}", tooMany},
	{"{% for i in range(64) %}{% for j in range(64) %}{{ text }}{% endfor %}{% endfor %}", tooMany},
	{"{{ text | replace('', text) }}", tooMany},
	{"{{ text.replace('a', text) }}", tooMany},
	{"{{ text | replace('a', text | replace('a', text)) }}", tooMany},
	{"{{ many | join(text) }}", tooMany},
	{"{{ text.join(many) }}", tooMany},
	{"{{ text | indent(text) }}", tooMany},
	{"{{ text | indent(text, true, true) }}", tooMany},
	{"{% for i in range(1000) %}{{ text | escape | escape | escape }}{% endfor %}", tooMany},
	{"{% for i in range(1000) %}{% set _ = text | tojson %}{% endfor %}", tooMany},
	{"{% for i in range(1000) %}{% set _ = [text] | string %}{% endfor %}", tooMany},
	{"{% for i in range(1000) %}{% set _ = text | upper | lower | title | capitalize %}{% endfor %}", tooMany},
	{"{% for i in range(1000) %}{% set _ = text is upper %}{% endfor %}", tooMany},
	{"{{ strftime_now('%B' * 10000000) }}", tooMany},
	{"{{ ('\\n' * 1000000) | tojson }}", tooMany},

	// Items.
	{"{{ text | list }}", tooMany},
	{"{{ text.split('zz') | length }}", ""},
	{"{{ (text * 4).split('a') }}", tooMany},
	{"{{ (text * 4).split() }}", tooMany},
	{"{{ (text * 4).rsplit('a', 1000000) }}", tooMany},
	{"{{ (text * 4).splitlines() }}", tooMany},
	{"{% for c in text %}{% endfor %}", tooMany},
	{"{{ text[::-1] }}", tooMany},
	{"{{ text | reverse | length }}", tooMany},
	{"{% for i in range(100000) %}{% set _ = many[1:] %}{% endfor %}", tooMany},
	{"{% for i in range(100000) %}{% set _ = many + many %}{% endfor %}", tooMany},
	{"{% for i in range(100000) %}{% set _ = many | list %}{% endfor %}", tooMany},
	{"{% for i in range(100000) %}{% set _ = many.pop() %}{% endfor %}", tooMany},
	{"{% for i in range(100000) %}{% set _ = text[-1] %}{% endfor %}", tooMany},
	{"{% for i in range(100000) %}{% set _ = text | length %}{% endfor %}", tooMany},
	{"{% set d = {} %}{% for i in range(1000000) %}{% set _ = d.update({i: i}) %}{% endfor %}", tooMany},
	{"{% set d = {} %}{% for i in many %}{% set _ = d.update({i: d.keys()}) %}{% endfor %}", tooMany},
	{"{% set d = {} %}{% for i in many %}{% set _ = d.update({i: d.items()}) %}{% endfor %}", tooMany},
	{"{% set d = {} %}{% for i in many %}{% set _ = d.update({i: dict(d)}) %}{% endfor %}", tooMany},

	// What takes the square of the time.
	{"{{ many | unique | list }}", tooMany},
	{"{% for i in many %}{{ i in many }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many.index(i) }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many | sum }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many | max }}{{ many | min }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many | sort(reverse=true) | length }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many == many }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many | select('in', many) | list | length }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ many | rejectattr('a.b.c', 'eq', 1) | list | length }}{% endfor %}", "undefined"},
	{"{% for i in many %}{{ many | selectattr('a' * 1000) | list | length }}{% endfor %}", tooMany},
	{"{{ [text, text, text] | map(attribute='x.' * 100000) | list }}", "undefined"},
	{"{% for i in many %}{{ (text ~ 'a') == (text ~ 'b') }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ (text ~ 'a') < (text ~ 'b') }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ 'zz' in text }}{{ text.count('zz') }}{{ text.find('zz') }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ text.strip('xyz' * 1000) | length }}{{ text.isdigit() }}{% endfor %}", tooMany},
	{"{% for i in many %}{{ text.startswith(text) }}{% endfor %}", tooMany},
	{"{{ (('z' * 1000000) ~ 'a').strip('ab' ~ ('c' * 1000000) ~ 'z') }}", tooMany},

	// Loops, macros and recursion.
	{"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", tooMany},
	{"{% for i in range(999999) if i < 0 %}{% endfor %}", tooMany},
	{"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", tooDeep},
	{"{% macro m() %}{{ m() ~ m() }}{% endmacro %}{{ m() }}", tooDeep},
	{"{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(64) }}", tooMany},
	{"{% macro m(a=m()) %}{% endmacro %}{{ m() }}", tooDeep},
	{"{% macro m() %}{{ '" + strings.Repeat("x'~'", 30_000) + "' ~ m() }}{% endmacro %}{{ m() }}", tooDeep},
	{"{% macro m() %}{{ m()" + strings.Repeat("~1", 100_000) + " }}{% endmacro %}{{ m() }}", tooDeep},
	{"{% set l = [] %}{% for i in range(100000) %}{% macro m() %}{% endmacro %}{% set _ = l.append(m) %}{% endfor %}", tooMany},
	{"{% set n = namespace(f=range) %}{% for i in range(1000) %}{% set n.f = n.f(1000000) %}{% endfor %}", tooMany},
	{"{{ 'a' | " + strings.Repeat("list | ", 20_000) + "list }}", tooDeep},
	{"{{ messages" + strings.Repeat(".x", 50_000) + " }}", tooDeep},
	{"{{ 1" + strings.Repeat(" if 1", 50_000) + " }}", tooDeep},
	{"{{ 1" + strings.Repeat(" or 1", 50_000) + " }}", tooDeep},
	{"{{ 1" + strings.Repeat(" is defined", 20_000) + " }}", tooDeep},
	{"{{ 'a' | map(" + strings.Repeat("'map',", 40_000) + "'list') }}", tooDeep},
}

// TestHostileTemplates runs the templates above within the memory that their steps pay for.
func TestHostileTemplates(t *testing.T) {
	for _, test := range hostile {
		t.Run("", func(t *testing.T) {
			_, err := runBounded(t, test.template, maxSteps/4)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("%.200s: %v", test.template, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%.200s: %v, want %q", test.template, err, test.want)
			}
		})
	}
}

// runBounded parses and runs a template, and fails the test if it allocates more than its source and its steps account for.
func runBounded(t *testing.T, source string, steps int) (text string, err error) {
	t.Helper()
	vars := hostileVars()
	var before, after runtime.MemStats
	b := &budget{ctx: t.Context(), steps: steps}
	runtime.ReadMemStats(&before)
	template, err := Parse(source)
	if err == nil {
		text, err = template.run(b, vars, time.Time{})
	}
	runtime.ReadMemStats(&after)
	steps -= b.steps
	if allocated, limit := int(after.TotalAlloc-before.TotalAlloc), 1<<20+1000*len(source)+maxStepBytes*steps; allocated > limit {
		t.Errorf("%.200s: allocated %d bytes in %d steps: want at most %d", source, allocated, steps, limit)
	}
	require.True(t, len(text) <= steps*bytesPerStep+bytesPerStep*(1+strings.Count(source, "}")), "%.200s: wrote %d bytes in %d steps", source, len(text), steps)
	if err != nil && len(err.Error()) > 5*maxError {
		t.Errorf("%.200s: the error has %d bytes", source, len(err.Error()))
	}
	return text, err
}

// TestHostileSources parses what takes a parser all that there is.
func TestHostileSources(t *testing.T) {
	n := maxSource / 10
	for _, test := range []struct{ name, template, want string }{
		{"long", strings.Repeat("x", maxSource+1), "want at most 262144"},
		{"parentheses", "{{ " + strings.Repeat("(", n) + strings.Repeat(")", n) + " }}", "deep"},
		{"lists", "{{ " + strings.Repeat("[", n) + strings.Repeat("]", n) + " }}", "deep"},
		{"dicts", "{{ " + strings.Repeat("{1:", n) + strings.Repeat("}", n) + " }}", "deep"},
		{"not", "{{ " + strings.Repeat("not ", n) + "1 }}", "deep"},
		{"minus", "{{ " + strings.Repeat("-", n) + "1 }}", "deep"},
		{"blocks", strings.Repeat("{% if 1 %}", n), "deep"},
		{"elif", "{% if 1 %}" + strings.Repeat("{% elif 1 %}", n/2) + "{% endif %}", "deep"},
		{"subscripts", "{{ a" + strings.Repeat("[a", n) + strings.Repeat("]", n) + " }}", "deep"},
		{"calls", "{{ " + strings.Repeat("a(", n) + strings.Repeat(")", n) + " }}", "deep"},
		{"tests", "{{ " + strings.Repeat("a is in(", n) + strings.Repeat(")", n) + " }}", "deep"},
		{"tags", strings.Repeat("{{ a }}", n), ""},
		{"braces", strings.Repeat("{ ", 5*n), ""},
		{"comments", strings.Repeat("{##}", 2*n), ""},
		{"strings", "{{ " + strings.Repeat("''", 4*n) + " }}", ""},
		{"numbers", "{{ [" + strings.Repeat("1,", 4*n) + "] | length }}", ""},
		{"lines", strings.Repeat("\n", 9*n) + "{{ x", "line 235927"},
		{"names", "{{ " + strings.Repeat("a", 9*n) + "() }}", "line 1: 'aaa"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := runBounded(t, test.template, maxSteps)
			require.ErrorText(t, err, test.want)
		})
	}
}

// TestRunLooksAtContext ends a run whose context ends, and does not begin one whose context has ended.
func TestRunLooksAtContext(t *testing.T) {
	template, err := Parse("{{ leave() }}{% for i in many %}{% endfor %}")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	vars := hostileVars()
	vars["leave"] = function(func(*runner, call) any { cancel(); return "" })
	for range 2 {
		if _, err = template.Run(ctx, vars, time.Time{}); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Errorf("%v, want that of the context", err)
		}
	}
}

// FuzzRun runs templates over values that refer to themselves and each other, within bounds of memory, output and errors.
func FuzzRun(f *testing.F) {
	raw, err := os.ReadFile("testdata/vectors.json")
	require.NoError(f, err)
	var vectors []struct{ Template string }
	require.NoError(f, json.Unmarshal(raw, &vectors))
	for _, v := range vectors {
		f.Add(v.Template)
	}
	for _, test := range hostile {
		if len(test.template) < 1000 {
			f.Add(test.template)
		}
	}
	f.Fuzz(func(t *testing.T, source string) { _, _ = runBounded(t, source, maxSteps/100) })
}
