package grammar_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// times writes a text for each number below n.
func times(n int, separator, format string) string {
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(format, "#", fmt.Sprint(i)))
	}
	return strings.Join(all, separator)
}

// hostile are constraints that take long, or would if some part of their work was
// forgotten when steps are counted.
var hostile = sync.OnceValue(func() map[string]grammar.Constraint {
	all := map[string]grammar.Constraint{}
	add := func(kind grammar.Kind, name, text string) { all[name] = grammar.Constraint{Kind: kind, Text: text} }
	for name, text := range map[string]string{
		"enum":                     `{"enum":[` + times(20_000, ",", `"v#"`) + `]}`,
		"enum of numbers":          `{"enum":[` + times(20_000, ",", `#e300`) + `]}`,
		"enum and const":           `{"allOf":[{"enum":[` + times(10_000, ",", `"v#"`) + `]},{"enum":[` + times(10_000, ",", `"w#"`) + `]}]}`,
		"enum of lists":            `{"enum":[` + times(200, ",", `[`+strings.Repeat(`{"a":1},`, 100)+`#]`) + `]}`,
		"required":                 `{"type":"object","required":[` + times(20_000, ",", `"r#"`) + `]}`,
		"properties and required":  `{"type":"object","properties":{` + times(10_000, ",", `"r#":{}`) + `},"required":[` + times(10_000, ",", `"r#"`) + `]}`,
		"properties by patterns":   `{"type":"object","properties":{` + times(1500, ",", `"p#":{}`) + `},"patternProperties":{` + times(1500, ",", `"^x#[a-z]{9}$":{}`) + `}}`,
		"needs":                    `{"type":"object","properties":{` + times(300, ",", `"p#":{}`) + `},"required":["p0"],"dependentRequired":{` + times(300, ",", `"p#":[`+times(299, ",", `"p1"`)+`]`) + `}}`,
		"all of":                   `{"allOf":[` + times(10_000, ",", `{"minLength":#}`) + `]}`,
		"all of any of":            `{"allOf":[` + times(500, ",", `{"anyOf":[{"minLength":#},{"maxLength":#},{"type":"null"}]}`) + `]}`,
		"any of any of":            strings.Repeat(`{"anyOf":[{"type":"null"},`, 120) + `false` + strings.Repeat(`]}`, 120),
		"if":                       `{"allOf":[` + times(60, ",", `{"if":{"minLength":#},"then":false,"else":false}`) + `]}`,
		"not":                      `{"type":"null","anyOf":[{"$ref":"#"},{"$ref":"#"}]}`,
		"one of":                   `{"oneOf":[` + times(2000, ",", `{"type":"string","pattern":"^a{#}"}`) + `]}`,
		"multiples":                `{"allOf":[` + times(3000, ",", `{"multipleOf":1#7}`) + `]}`,
		"multiples far away":       `{"type":"number","allOf":[` + times(300, ",", `{"multipleOf":1.#7e-250,"minimum":1.#e-270}`) + `]}`,
		"numbers":                  `{"enum":[` + times(400, ",", `0.`+strings.Repeat("7", 390)+`#`) + `]}`,
		"digits":                   `{"minLength":` + strings.Repeat("1", 900_000) + `}`,
		"number bounds":            `{"type":"array","minItems":9000,"items":{"type":"number","exclusiveMinimum":1e-300,"exclusiveMaximum":2e-300}}`,
		"items for ever":           `{"type":"array","minItems":2000000000,"items":{"type":"array","minItems":2000000000,"items":{}}}`,
		"empty items for ever":     `{"type":"array","minItems":12,"items":` + strings.Repeat(`{"type":"array","minItems":12,"items":`, 100) + `{}` + strings.Repeat("}", 100) + `}`,
		"unique items":             `{"type":"array","uniqueItems":true,"minItems":3000,"items":{"type":"string","pattern":"^[a-f]{0,4}$"}}`,
		"contained items":          `{"type":"array","contains":{"type":"array","contains":{"type":"array","contains":{},"minContains":1000},"minContains":1000},"minContains":1000}`,
		"members for ever":         `{"type":"object","minProperties":2000000000}`,
		"members for ever of few":  `{"type":"object","minProperties":2000,"patternProperties":{"^[a-f]{3}$":{}},"additionalProperties":false}`,
		"cheapest members":         `{"type":"object","minProperties":9000,"properties":{` + times(10_000, ",", `"r#":{"minLength":#}`) + `}}`,
		"long strings":             `{"type":"array","minItems":100,"items":{"type":"string","minLength":60000}}`,
		"long strings of a class":  `{"type":"string","pattern":"^[\\p{L}]+$","minLength":900000}`,
		"long references":          `{"allOf":[` + times(300, ",", `{"$ref":"#/allOf/#`+strings.Repeat("/a", 1000)+`"}`) + `]}`,
		"a list of lists":          strings.Repeat(`[`, 250) + strings.Repeat(`[],`, 300_000) + `[]` + strings.Repeat(`]`, 250),
		"a schema of keys":         `{` + times(60_000, ",", `"k#":0`) + `}`,
		"patterns":                 `{"allOf":[` + times(3000, ",", `{"type":"string","pattern":"^[a-z]{#}"}`) + `]}`,
		"names":                    `{"type":"object","minProperties":400,"propertyNames":{"pattern":"^[ab]{8}$","not":{"pattern":"a.*b.*a.*b"}}}`,
		"a long name of a pattern": `{"type":"object","properties":{"` + strings.Repeat("a", 100_000) + `":{}},"patternProperties":{"(a?){500}b":{},"(a|a|aa)*c":{}}}`,
	} {
		add(grammar.JSON, name, text)
	}
	add(grammar.JSON, "branches that end in nothing", deadBranches(40))
	for name, text := range map[string]string{
		"repetitions":           strings.Repeat(`a{1000}`, 4000),
		"nested repetitions":    strings.Repeat(`(((a{9}b?){9}c?){9}d?)`, 1000),
		"optional repetitions":  `(a?){1000}a{1000}`,
		"tables":                strings.Repeat(`\p{L}`, 30_000),
		"tables in a class":     `[` + strings.Repeat(`\p{L}\P{Lu}`, 30_000) + `]`,
		"folded ranges":         strings.Repeat(`(?i)[!-\x{1e942}]`, 3000),
		"some folded ranges":    strings.Repeat(`(?i)[!-\x{1e942}]`, 20),
		"folded tables":         `(?i)` + strings.Repeat(`\p{L}[^\p{Lu}]`, 200),
		"unclosed classes":      strings.Repeat(`[\a`, 300_000),
		"stars":                 strings.Repeat(`a*`, 400_000),
		"stars of stars":        strings.Repeat(`(`, 900) + strings.Repeat(`a*)*`, 900),
		"alternatives":          times(50_000, "|", `a#`),
		"prefixes":              strings.Join(strings.SplitAfter(strings.Repeat("a", 1000), "a"), "|a"),
		"no match":              `[a-f]{3,9}(\b[ab])+`,
		"no match of many":      `(a|b|c|d){1000}^`,
		"optional no match":     `(a?b?){300}\b\B`,
		"words":                 strings.Repeat(`\w\W\s\S.`, 30_000),
		"brackets":              strings.Repeat(`(`, 500_000),
		"classes of one":        strings.Repeat(`[^a]`, 100_000),
		"long literal":          strings.Repeat(`x`, 1_000_000),
		"a repetition of a lot": `(` + strings.Repeat(`[a-z0-9]|[A-Z]x|`, 100) + `q){1000}`,
	} {
		add(grammar.Regex, name, text)
	}
	var reversed []string
	for i := 20_000; i > 0; i-- {
		reversed = append(reversed, fmt.Sprintf("r%d ::= r%d", i, i-1))
	}
	for name, text := range map[string]string{
		"rules reversed":       "root ::= r20000\n" + strings.Join(reversed, "\n") + "\nr0 ::= \"a\"",
		"rules in order":       "root ::= r0\n" + times(10_000, "\n", "r# ::= \"a\" r#1 | \"b\"") + "\n" + times(1, "\n", "x ::= \"a\""),
		"rules of all":         "root ::= " + times(1500, "|", "r#") + "\n" + times(1500, "\n", "r# ::= \"a\" root | \"bbbbbbbbbbbbbbbbbbbb#\" "),
		"left recursion":       "root ::= root root | root \"a\" | \"b\" | \"\"",
		"left recursion alone": "root ::= root root",
		"shrinking":            "root ::= " + times(300, " | ", "r#") + "\n" + times(300, "\n", "r# ::= root \"a\" | \""+strings.Repeat("a", 300)+"#\""),
		"operators":            "root ::= \"a\"" + strings.Repeat("*", 900_000),
		"nested bounds":        "root ::= " + strings.Repeat("(", 200) + `""` + strings.Repeat("){12}", 200),
		"brackets of a rule":   "root ::= " + strings.Repeat("((", 100_000),
		"classes of a rule":    "root ::= " + strings.Repeat(`[^abcdefghijklmnop]`, 40_000),
		"a class of a rule":    "root ::= [^" + strings.Repeat("a", 900_000) + "]",
		"empty lines":          "root ::= \"a\"" + strings.Repeat("\n\n# c\n", 100_000),
		"lines of a rule":      "root ::= " + strings.Repeat("\"a\"\n ", 150_000),
		"lark":                 "start: " + strings.Repeat("/a{1000}/ ", 20_000),
		"lark of regular":      "start: " + times(5000, " ", "/[a-z#]+/"),
	} {
		add(grammar.Grammar, name, text)
	}
	for name, text := range map[string]string{
		"structures":      `{"structures":[` + times(3000, ",", `{"begin":"<#","schema":{"type":"object","properties":{"a":{}}},"end":">"}`) + `],"triggers":["<"]}`,
		"schemas as text": `{"structures":[{"begin":"","end":"","schema":` + fmt.Sprintf("%q", deadBranches(40)) + `}]}`,
		"tags":            `{"format":{"type":"triggered_tags","tags":[` + times(5000, ",", `{"begin":"<#","content":{"type":"any_text"},"end":">"}`) + `]}}`,
		"formats":         `{"format":` + strings.Repeat(`{"type":"repeat","min":12,"max":12,"content":`, 100) + `{"type":"const_string","value":""}` + strings.Repeat(`}`, 100) + `}`,
		"grammars":        `{"format":{"type":"sequence","elements":[` + times(1000, ",", `{"type":"regex","pattern":"[a-z]{#}x{500}"}`) + `]}}`,
		"parameters":      `{"format":{"type":"qwen_xml_parameter","json_schema":{"properties":{` + times(5000, ",", `"p#":{"enum":["a","b",#]}`) + `}}}}`,
	} {
		add(grammar.StructuralTag, name, text)
	}
	all["choices"] = grammar.Constraint{Kind: grammar.Choice, Choices: strings.Split(times(45_000, ",", "c#"), ",")}
	all["more choices"] = grammar.Constraint{Kind: grammar.Choice, Choices: strings.Split(strings.Repeat("a,", 400_000), ",")}
	all["long choices"] = grammar.Constraint{Kind: grammar.Choice, Choices: []string{strings.Repeat("a", 1<<19), strings.Repeat("b", 1<<19)}}
	return all
})

// deadBranches is a chain of schemas with two ways each, of which none leads anywhere.
func deadBranches(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/s0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"s%d":{"anyOf":[{"$ref":"#/$defs/s%d"},{"$ref":"#/$defs/s%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"s%d":false}}`, n)
	return b.String()
}

// answer does what a request has done for it. It reports how far it got.
func answer(t testing.TB, c grammar.Constraint) (done int, err error) {
	w := work(t)
	l, err := grammar.Compile(w, c)
	for seed := uint64(0); err == nil && seed < 8; seed++ {
		_, _, err = l.Text(w, seed, 192, 1<<18)
	}
	return w.Done(), err
}

// maxBytes is what a step allocates at most: work that is not counted shows there.
const maxBytes = 400

// hold checks that a constraint costs no more than a request may, nor more than is
// counted.
func hold(t *testing.T, c grammar.Constraint) (done int, err error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done, err = answer(t, c)
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; done > grammar.MaxWork || bytes > uint64(maxBytes*done+4<<20) {
		t.Errorf("%d steps and %d bytes: %v", done, bytes, err)
	}
	return done, err
}

func TestHostileConstraints(t *testing.T) {
	ran, tooLong := 0, 0
	for name, c := range hostile() {
		t.Run(name, func(t *testing.T) {
			ran++
			if _, err := hold(t, c); err != nil && strings.Contains(err.Error(), "takes too long") {
				tooLong++
			}
		})
	}
	require.True(t, ran != len(hostile()) || tooLong >= 40, "only %d of them take too long", tooLong)
}

func TestWorkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	cancel(gone)
	w := grammar.NewWork(ctx)
	_, err := grammar.Compile(w, grammar.Constraint{Kind: grammar.JSON, Text: deadBranches(40)})
	if !errors.Is(err, gone) || w.Done() > 2000 {
		t.Errorf("%v after %d steps, want %v", err, w.Done(), gone)
	}
}

// A language that was kept leaves a request no more steps than one that was compiled for it.
func TestChargeIsWhatCompilingCosts(t *testing.T) {
	c := hostile()["tags"]
	first, second := work(t), work(t)
	l, err := grammar.Compile(first, c)
	must(t, err)
	must(t, l.Charge(second))
	if first.Done() == 0 || first.Done() != second.Done() {
		t.Errorf("%d steps, and %d", first.Done(), second.Done())
	}
	for err == nil {
		err = l.Charge(second)
	}
	if !strings.Contains(err.Error(), "takes too long") {
		t.Error(err)
	}
}

// BenchmarkHostile tells what the steps of hostile constraints take.
func BenchmarkHostile(b *testing.B) {
	for name, c := range hostile() {
		b.Run(name, func(b *testing.B) {
			steps := 0
			for b.Loop() {
				done, _ := answer(b, c)
				steps += done
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(steps), "ns/step")
			b.ReportMetric(float64(steps)/float64(b.N), "steps")
		})
	}
}
