package grammar_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// constraint is one of testdata/cases.json.
type constraint struct {
	Name    string          `json:"name"`
	Kind    string          `json:"kind"`
	Schema  json.RawMessage `json:"schema"`
	Text    string          `json:"text"`
	Choices []string        `json:"choices"`
	Draft   int             `json:"draft"`
	Lark    bool            `json:"lark"`
}

var kinds = map[string]grammar.Kind{
	"json": grammar.JSON, "json_object": grammar.JSONObject, "regex": grammar.Regex, "choice": grammar.Choice,
	"grammar": grammar.Grammar, "structural_tag": grammar.StructuralTag,
}

func (c constraint) constraint() grammar.Constraint {
	text := c.Text
	if c.Schema != nil {
		text = string(c.Schema)
	}
	return grammar.Constraint{Kind: kinds[c.Kind], Text: text, Choices: c.Choices}
}

func constraints(t testing.TB) []constraint {
	t.Helper()
	data, err := os.ReadFile("testdata/cases.json")
	must(t, err)
	var all []constraint
	must(t, json.Unmarshal(data, &all))
	return all
}

// enough is more than any text of the tests is long.
const enough = 1 << 20

func text(t testing.TB, l *grammar.Language, seed uint64, size int) string {
	t.Helper()
	text, whole, err := l.Text(work(t), seed, size, enough)
	if err != nil || !whole {
		t.Fatalf("seed %d, size %d: %v, whole: %v", seed, size, err, whole)
	}
	return text
}

var sizes = []int{0, 4, 16, 64, 256, 2048}

func TestTextsConform(t *testing.T) {
	for _, c := range constraints(t) {
		t.Run(c.Name, func(t *testing.T) {
			l, err := grammar.Compile(work(t), c.constraint())
			must(t, err)
			judge := c.judge(t)
			for _, size := range sizes {
				for seed := range uint64(40) {
					if got := text(t, l, seed, size); judge(got) != nil {
						t.Fatalf("seed %d, size %d: %s: %v", seed, size, got, judge(got))
					}
				}
			}
		})
	}
}

// judge returns what tells whether a text conforms: not this package.
func (c constraint) judge(t *testing.T) func(string) error {
	t.Helper()
	switch c.Kind {
	case "json":
		return schemaJudge(t, c.Schema, c.Draft)
	case "json_object":
		return schemaJudge(t, []byte(`{"type":"object"}`), 0)
	case "regex":
		text := strings.NewReplacer(`\u0430`, `\x{0430}`, `\u044f`, `\x{044f}`, "5000", "1000").Replace(c.Text)
		return regexJudge(text)
	case "choice":
		return func(text string) error {
			if !slices.Contains(c.Choices, text) {
				return os.ErrInvalid
			}
			return nil
		}
	}
	return regexJudge(grammarsAsRegex[c.Name])
}

// grammarsAsRegex are what the grammars and tags say, as far as a regular
// expression can: real engines judge them in TestEnginesAccept.
var grammarsAsRegex = map[string]string{
	"ebnf":              `SELECT col_[12]  from table_[12]  where col_[12] = [1-9][0-9]{0,3}`,
	"ebnf recursive":    `[0-9+*()]+`,
	"ebnf over lines":   `a|b|c\n[^a-z\]]?["\\]{2}`,
	"lark":              `SELECT col_[12] from [a-z]{2,4}`,
	"lark calculator":   `[0-9()+*/-]+`,
	"lark optional":     `a(bc)?d{2,3}`,
	"structures":        `<function=get_weather>\{"city":"[a-z ]*"\}</function>`,
	"tags":              `(<tool_call>\n\{"name": "get", "arguments": \{"city":"[a-z ]*"\}\}\n</tool_call>)+`,
	"triggered":         `<f=a>\d+</f>|<f=b>[xy]+</f>`,
	"sequence":          `A: (\d\d|x|yz)<think>[a-z ]*</think>`,
	"parameters in XML": `<function=get>\n<parameter=city>[a-z ]*</parameter>(<parameter=days>\d+</parameter>)?<parameter=unit>[CF]</parameter>\n</function>`,
}

func regexJudge(pattern string) func(string) error {
	re := regexp.MustCompile(`\A(?:` + pattern + `)\z`)
	return func(text string) error {
		if !re.MatchString(text) {
			return os.ErrInvalid
		}
		return nil
	}
}

func schemaJudge(t testing.TB, schema []byte, draft int) func(string) error {
	t.Helper()
	c := jsonschema.NewCompiler()
	switch draft {
	case 4:
		c.DefaultDraft(jsonschema.Draft4)
	case 7:
		c.DefaultDraft(jsonschema.Draft7)
	default:
		c.DefaultDraft(jsonschema.Draft2020)
	}
	c.AssertFormat()
	c.UseRegexpEngine(goRegexp)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	must(t, err)
	must(t, c.AddResource("schema.json", doc))
	compiled, err := c.Compile("schema.json")
	must(t, err)
	return func(text string) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return compiled.Validate(v)
	}
}

// goRegexp reads what is ECMAScript's of the cases as Go does.
func goRegexp(pattern string) (jsonschema.Regexp, error) {
	re, err := regexp.Compile(strings.ReplaceAll(pattern, `\u0041`, "A"))
	return (*patternOf)(re), err
}

type patternOf regexp.Regexp

func (p *patternOf) MatchString(s string) bool { return (*regexp.Regexp)(p).MatchString(s) }
func (p *patternOf) String() string            { return (*regexp.Regexp)(p).String() }

func TestTheShortestText(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    grammar.Constraint
		want string
	}{
		{"nothing is required", grammar.Constraint{Kind: grammar.JSON, Text: `{"type":"object","properties":{"a":{"type":"string"}}}`}, `{}`},
		{"what is required", grammar.Constraint{Kind: grammar.JSON, Text: `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`}, `{"a":0}`},
		{"the shorter branch", grammar.Constraint{Kind: grammar.JSON, Text: `{"anyOf":[{"const":"abcdef"},{"const":12}]}`}, `12`},
		{"the end of a recursion", grammar.Constraint{Kind: grammar.JSON, Text: `{"anyOf":[{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]},{"type":"null"}]}`}, `null`},
		{"a number within bounds", grammar.Constraint{Kind: grammar.JSON, Text: `{"type":"number","minimum":0.5,"exclusiveMaximum":1}`}, `0.5`},
		{"a tuple is whole", grammar.Constraint{Kind: grammar.JSON, Text: `{"type":"array","prefixItems":[{"const":1},{"type":"boolean"}]}`}, `[1,true]`},
		{"a tuple of itself is not", grammar.Constraint{Kind: grammar.JSON, Text: `{"type":"array","prefixItems":[{"$ref":"#"}]}`}, `[]`},
		{"no repetition", grammar.Constraint{Kind: grammar.Regex, Text: `a(b|cc)*d{2,}`}, `add`},
		{"the shorter choice", grammar.Constraint{Kind: grammar.Choice, Choices: []string{"positive", "no", "maybe"}}, `no`},
		{"the shorter rule", grammar.Constraint{Kind: grammar.Grammar, Text: "root ::= a root | a\na ::= \"xy\" | \"z\""}, `z`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := grammar.Compile(work(t), tt.c)
			must(t, err)
			if diff := cmp.Diff(tt.want, text(t, l, 7, 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTextsAreCutOff(t *testing.T) {
	for _, schema := range []string{
		`{"type":"string","minLength":1000000000}`,
		`{"type":"array","items":{"type":"integer"},"minItems":1000000000}`,
		`{"type":"string","pattern":"^[a-z]{1000}$","minLength":1000}`,
	} {
		l, err := grammar.Compile(work(t), grammar.Constraint{Kind: grammar.JSON, Text: schema})
		require.NoErrorf(t, err, "%s", schema)
		if text, whole, err := l.Text(work(t), 1, 0, 100); err != nil || whole || len(text) != 100 {
			t.Errorf("%s: %d bytes, whole: %v, %v", schema, len(text), whole, err)
		}
	}
}

func TestWhatCannotBeHonoured(t *testing.T) {
	schema := func(text string) grammar.Constraint { return grammar.Constraint{Kind: grammar.JSON, Text: text} }
	ebnf := func(text string) grammar.Constraint { return grammar.Constraint{Kind: grammar.Grammar, Text: text} }
	tag := func(text string) grammar.Constraint {
		return grammar.Constraint{Kind: grammar.StructuralTag, Text: text}
	}
	for _, tt := range []struct {
		name string
		c    grammar.Constraint
		want string
	}{
		{"no kind", grammar.Constraint{}, "unknown kind"},
		{"no JSON", schema(`{"type":`), "unexpected EOF"},
		{"two values", schema(`{} {}`), "follows the value"},
		{"no UTF-8", schema("\"\xff\""), "not UTF-8"},
		{"no schema", schema(`"string"`), "a JSON schema is an object"},
		{"false", schema(`false`), "no text conforms"},
		{"unknown type", schema(`{"type":"float"}`), `"float" is not a type`},
		{"bounds that cross", schema(`{"type":"integer","minimum":4,"maximum":2}`), "no text conforms"},
		{"bounds without an integer", schema(`{"type":"integer","minimum":0.1,"maximum":0.9}`), "no text conforms"},
		{"lengths that cross", schema(`{"type":"string","minLength":3,"maxLength":2}`), "no text conforms"},
		{"types that differ", schema(`{"allOf":[{"type":"string"},{"type":"null"}]}`), "no text conforms"},
		{"an empty enum", schema(`{"enum":[]}`), "no text conforms"},
		{"a required member that is forbidden", schema(`{"type":"object","required":["a"],"additionalProperties":false}`), "no text conforms"},
		{"more members than there are", schema(`{"type":"object","properties":{"a":{}},"minProperties":2,"additionalProperties":false}`), "no text conforms"},
		{"endless recursion", schema(`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`), "no text conforms"},
		{"too few items for a set", schema(`{"type":"array","items":{"type":"boolean"},"minItems":3,"uniqueItems":true}`), "different items"},
		{"contradiction", schema(`{"type":"integer","not":{"type":"integer"}}`), "no value was found"},
		{"a reference to nowhere", schema(`{"$ref":"#/$defs/a"}`), "leads nowhere"},
		{"a reference elsewhere", schema(`{"$ref":"https://example.com/x"}`), "out of the document"},
		{"a pattern that is none", schema(`{"type":"string","pattern":"["}`), "missing closing ]"},
		{"a count that is none", schema(`{"type":"string","minLength":-1}`), "not a count"},
		{"a step of nothing", schema(`{"type":"number","multipleOf":0}`), "not above 0"},
		{"branches without end", schema(`{"type":"null","anyOf":[{"$ref":"#"},{"$ref":"#"}]}`), "takes too long"},
		{"too large", schema(`"` + strings.Repeat("a", 1<<20) + `"`), "bytes: at most"},
		{"nested too deep", schema(strings.Repeat(`{"not":`, 1000) + "{}" + strings.Repeat("}", 1000)), "deep"},
		{"no expression", grammar.Constraint{Kind: grammar.Regex, Text: "[a-z"}, "missing closing ]"},
		{"lookahead", grammar.Constraint{Kind: grammar.Regex, Text: "(?=a)b"}, "invalid or unsupported Perl syntax"},
		{"an expression of nothing", grammar.Constraint{Kind: grammar.Regex, Text: "a^b"}, "no text was found"},
		{"a brace that counts nothing", grammar.Constraint{Kind: grammar.Regex, Text: `[{]\p{L}\x{41}a{2}b{3`}, "the { at byte 19 begins no number"},
		{"a count without a lower bound", grammar.Constraint{Kind: grammar.Regex, Text: "a{,2}"}, "begins no number"},
		{"a rule of nothing", ebnf("root ::= "), "line 1: rule root: expected something to say, found the end"},
		{"an alternative of nothing", ebnf(`root ::= "a" |`), "expected something to say"},
		{"an alternative of nothing in brackets", ebnf(`root ::= ("a" | )`), `expected something to say, found ")"`},
		{"no choice", grammar.Constraint{Kind: grammar.Choice}, "no text conforms"},
		{"no grammar", ebnf(""), "no rule start"},
		{"no root", ebnf(`a ::= "b"`), "no rule root"},
		{"a rule that is nowhere", ebnf(`root ::= "a" | nope`), `"nope" is used and nowhere defined`},
		{"a text without end", ebnf("root ::= \"a\nb ::= \"c\""), "line 1: rule root: a text has no \""},
		{"a bracket without end", ebnf(`root ::= ("a"`), `expected ")"`},
		{"a rule twice", ebnf("root ::= \"a\"\nroot ::= \"b\""), "second time"},
		{"rules without an end", ebnf(`root ::= "a" root`), "no text conforms"},
		{"brackets without end", ebnf("root ::= " + strings.Repeat("(", 100_000)), "deep"},
		{"no directive", ebnf("start: \"a\"\n%nope"), "line 2: directive not known"},
		{"no tag", tag(`[]`), "not a JSON object"},
		{"an empty tag", tag(`{}`), "no format and no structures"},
		{"a format unknown", tag(`{"format":{"type":"what"}}`), `unknown type "what"`},
		{"no tags", tag(`{"format":{"type":"triggered_tags","tags":[]}}`), "tags is empty"},
		{"a style unknown", tag(`{"format":{"type":"json_schema","style":"cobol","json_schema":{}}}`), `unknown style "cobol"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := grammar.Compile(work(t), tt.c)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// TestRulesOfNothing: what xgrammar and llguidance take for a text of nothing.
func TestRulesOfNothing(t *testing.T) {
	for _, c := range []grammar.Constraint{
		{Kind: grammar.Grammar, Text: `root ::= ( )`},
		{Kind: grammar.Grammar, Text: `root ::= ""`},
		{Kind: grammar.Grammar, Text: "root ::= ", Empty: true},
		{Kind: grammar.Grammar, Text: "root ::= x\nx ::=", Empty: true},
	} {
		l, err := grammar.Compile(work(t), c)
		if err != nil {
			t.Errorf("%q: %v", c.Text, err)
			continue
		}
		if text, whole, err := l.Text(work(t), 1, 10, 100); text != "" || !whole || err != nil {
			t.Errorf("%q: %q, %v", c.Text, text, err)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, c := range constraints(f) {
		f.Add(uint8(c.constraint().Kind), c.constraint().Text)
	}
	for _, c := range hostile() {
		if len(c.Text) < 4096 {
			f.Add(uint8(c.Kind), c.Text)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, text string) {
		c := grammar.Constraint{Kind: grammar.Kind(kind), Text: text, Choices: []string{text}}
		done, why := hold(t, c)
		if again, other := answer(t, c); again != done || fmt.Sprint(other) != fmt.Sprint(why) {
			t.Errorf("%d steps, %v; the same again: %d steps, %v", done, why, again, other)
		}
		l, err := grammar.Compile(work(t), c)
		if err != nil {
			return
		}
		for _, size := range []int{0, 50} {
			if _, _, err := l.Text(work(t), 1, size, 4096); err != nil && size == 0 {
				t.Errorf("compiled, and has no text: %v", err)
			}
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	require.NoError(t, err)
}

var update = flag.Bool("update", false, "rewrite testdata/texts.txt")

// A seed gives the same text in every version: who has kept what a player said gets it again.
func TestTextsStayTheSame(t *testing.T) {
	var b strings.Builder
	for _, c := range constraints(t) {
		l, err := grammar.Compile(work(t), c.constraint())
		must(t, err)
		hash := sha256.New()
		for _, size := range sizes {
			for seed := range uint64(40) {
				io.WriteString(hash, text(t, l, seed, size)+"\x00")
			}
		}
		fmt.Fprintf(&b, "%x %s\n", hash.Sum(nil), c.Name)
	}
	const path = "testdata/texts.txt"
	if *update {
		must(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	require.NoDiff(t, cmp.Diff(string(want), b.String()), "(-want +got)")
}

func work(t testing.TB) *grammar.Work { return grammar.NewWork(t.Context()) }
