package answers

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A syntax is how the parser of a frontend reads calls of tools.
type syntax struct{ template *template.Template }

//go:embed syntax.toml
var syntaxes string

// written are the templates of syntax.toml by parser.
func written() (all map[string]string) {
	var f struct {
		Like, Calls map[string]string
	}
	if _, err := toml.Decode(syntaxes, &f); err != nil {
		panic(err) // the file is part of the program
	}
	for name, other := range f.Like {
		f.Calls[name] = f.Calls[other]
	}
	return f.Calls
}

// Parsers are the names of the parsers whose syntax is known.
func Parsers() []string { return slices.Sorted(maps.Keys(written())) }

// findSyntax finds the syntax of a parser, nil of one that is not known.
func findSyntax(parser string) (*syntax, error) {
	if parser == "" || parser == "auto" {
		parser = "hermes"
	}
	text, ok := written()[parser]
	if !ok {
		return nil, nil
	}
	t, err := template.New(parser).Funcs(template.FuncMap{"value": value, "python": python, "isText": func(raw json.RawMessage) bool { return raw[0] == '"' }, "quote": func(v string) string {
		text, _ := json.Marshal(v) // of a text
		return string(text)
	}}).Parse(text)
	return &syntax{t}, err
}

// value is a text as it is, and any other value in JSON.
func value(raw json.RawMessage) (text string) {
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// jsonCalls are calls as a schema wants them: in a list, or the arguments of one.
func jsonCalls(calls []Call, schema string) string {
	var wanted struct{ Type string }
	if json.Unmarshal([]byte(schema), &wanted) != nil || wanted.Type != "array" {
		return string(calls[0].Arguments)
	}
	type call struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	}
	list := make([]call, len(calls))
	for i, c := range calls {
		list[i] = call{c.Name, c.Arguments}
	}
	text, _ := json.Marshal(list) // of JSON
	return string(text)
}

// python is a value as a literal of Python.
func python(raw json.RawMessage) string {
	return aWord().ReplaceAllStringFunc(string(raw), func(word string) string {
		return cmp.Or(map[string]string{"true": "True", "false": "False", "null": "None"}[word], word)
	})
}

// aWord finds texts and words in JSON.
var aWord = lazyregexp.New(`"(?:[^"\\]|\\.)*"|[a-z]+`)

// A writtenCall is a call in a template.
type writtenCall struct {
	Name, JSON string
	Arguments  map[string]json.RawMessage // which a template shows in the order of their names
}

// WriteCalls writes calls of tools, a list as in OpenAI's API, as a parser reads them.
func WriteCalls(parser string, list []byte) (string, error) {
	s, err := findSyntax(parser)
	var calls []Call
	if err = cmp.Or(err, json.Unmarshal(list, &calls)); err != nil || s == nil {
		return "", cmp.Or(err, fmt.Errorf("how the parser %s reads calls of tools is not known here: want one of %s", parser, strings.Join(Parsers(), ", ")))
	}
	return s.write(calls)
}

func (s *syntax) write(calls []Call) (string, error) {
	var all []writtenCall
	for _, c := range calls {
		one := writtenCall{Name: c.Name, JSON: string(c.Arguments)}
		if err := json.Unmarshal(c.Arguments, &one.Arguments); err != nil {
			return "", fmt.Errorf("the arguments of %s: %w", c.Name, err)
		}
		all = append(all, one)
	}
	var b strings.Builder
	err := s.template.Execute(&b, all)
	return b.String(), err
}
