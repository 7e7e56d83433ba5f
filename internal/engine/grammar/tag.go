package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// compileTag reads the description of structural tags: xgrammar's formats, or the
// older list of structures (vllm/v1/structured_output/backend_xgrammar.py).
func compileTag(w *Work, text string) (*node, error) {
	v, err := parseJSON(w, text)
	if err != nil {
		return nil, fmt.Errorf("structural tag: %w", err)
	}
	o, ok := v.(*object)
	if !ok {
		return nil, errors.New("structural tag: not a JSON object")
	}
	var n *node
	if structures, ok := o.values["structures"].([]any); ok {
		n, err = compileStructures(w, structures)
	} else if format, ok := o.values["format"].(*object); ok {
		n, err = compileFormat(w, format)
	} else {
		err = errors.New("it has no format and no structures")
	}
	if err != nil {
		return nil, fmt.Errorf("structural tag: %w", err)
	}
	return n, nil
}

// compileStructures returns one of the structures: text without any conforms too,
// but shows nothing.
func compileStructures(w *Work, structures []any) (*node, error) {
	all := choice()
	for i, v := range structures {
		o, ok := v.(*object)
		if !ok {
			return nil, fmt.Errorf("structure %d is not an object", i)
		}
		begin, _ := o.values["begin"].(string)
		end, _ := o.values["end"].(string)
		schema, err := compileSchema(w, argument(w, o.values["schema"]), style{})
		if err != nil {
			return nil, fmt.Errorf("structure %d: %w", i, err)
		}
		all.kids = append(all.kids, sequence(literal(begin), schema, literal(end)))
	}
	return all, nil
}

// argument is a schema of what a tool is called with: where it may be anything, it
// is an object, which those who parse calls look for.
func argument(w *Work, schema any) any {
	o, isObject := schema.(*object)
	if schema == nil || schema == true || isObject && len(o.keys) == 0 {
		return &object{keys: []string{"type"}, values: map[string]any{"type": "object"}}
	}
	if text, ok := schema.(string); ok { // the older description holds schemas as text, too
		if v, err := parseJSON(w, text); err == nil {
			return v
		}
	}
	return schema
}

func compileFormat(w *Work, v any) (*node, error) {
	w.spend(4)
	o, ok := v.(*object)
	if !ok {
		return nil, errors.New("a format is not an object")
	}
	text := func(key string) string {
		text, _ := o.values[key].(string)
		return text
	}
	switch name := text("type"); name {
	case "const_string":
		value, ok := o.values["value"].(string)
		if !ok {
			return nil, errors.New("const_string without a value")
		}
		return literal(value), nil
	case "json_schema", "qwen_xml_parameter":
		styleName := text("style")
		if name == "qwen_xml_parameter" {
			styleName = "qwen_xml"
		}
		as, ok := styles[styleName]
		if !ok {
			return nil, fmt.Errorf("json_schema of unknown style %q", styleName)
		}
		return compileSchema(w, argument(w, o.values["json_schema"]), as)
	case "any_text", "any_tokens", "exclude_token":
		return words(0, longest), nil
	case "token":
		return compileToken(o)
	case "grammar":
		return compileGrammar(w, text("grammar"), false)
	case "regex":
		return compileRegex(w, text("pattern"))
	case "tag":
		return compileTagFormat(w, o)
	case "sequence", "or":
		var kids []*node
		for _, v := range items(o.values["elements"]) {
			kid, err := compileFormat(w, v)
			if err != nil {
				return nil, err
			}
			kids = append(kids, kid)
		}
		switch {
		case kids == nil:
			return nil, errors.New("elements is empty")
		case name == "or":
			return choice(kids...), nil
		}
		return sequence(kids...), nil
	case "triggered_tags", "token_triggered_tags", "tags_with_separator":
		return compileTags(w, o)
	case "dispatch", "token_dispatch":
		return compileDispatch(w, o)
	case "optional", "star", "plus", "repeat":
		bounds := map[string][2]int{"optional": {0, 1}, "star": {0, -1}, "plus": {1, -1}, "repeat": {wholeNumber(o.values["min"]), wholeNumber(o.values["max"])}}
		low, high := bounds[name][0], bounds[name][1]
		if low < 0 || high >= 0 && high < low {
			return nil, fmt.Errorf("repeat from %d to %d", low, high)
		}
		kid, err := compileFormat(w, o.values["content"])
		if err != nil {
			return nil, err
		}
		return repeat(kid, low, high), nil
	default:
		return nil, fmt.Errorf("format of unknown type %q", name)
	}
}

func wholeNumber(v any) int {
	number, _ := v.(json.Number)
	n, err := strconv.Atoi(string(number))
	if err != nil {
		return -1
	}
	return min(n, longest)
}

func compileToken(o *object) (*node, error) {
	text, ok := o.values["token"].(string)
	if !ok {
		return nil, errors.New("a token is given by number, and only its text can be written")
	}
	return literal(text), nil
}

// compileTags returns one tag, also where several are allowed: a client gets one call of a tool, and not one to three at random.
func compileTags(w *Work, o *object) (*node, error) {
	all := choice()
	for i, v := range items(o.values["tags"]) {
		tag, ok := v.(*object)
		if !ok {
			return nil, fmt.Errorf("tag %d is not an object", i)
		}
		kid, err := compileTagFormat(w, tag)
		if err != nil {
			return nil, fmt.Errorf("tag %d: %w", i, err)
		}
		all.kids = append(all.kids, kid)
	}
	if len(all.kids) == 0 {
		return nil, errors.New("tags is empty")
	}
	return all, nil
}

func compileTagFormat(w *Work, o *object) (*node, error) {
	begin, err := compileEdge(o.values["begin"])
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	content, err := compileFormat(w, o.values["content"])
	if err != nil {
		return nil, err
	}
	end := o.values["end"]
	if list := items(end); len(list) > 0 {
		end = list[0]
	}
	last, err := compileEdge(end)
	if err != nil {
		return nil, fmt.Errorf("end: %w", err)
	}
	return sequence(begin, content, last), nil
}

// compileEdge reads what begins or ends a tag: a text or a token.
func compileEdge(v any) (*node, error) {
	switch v := v.(type) {
	case string:
		return literal(v), nil
	case *object:
		return compileToken(v)
	}
	return nil, errors.New("it is neither a text nor a token")
}

// compileDispatch returns one of the rules' prefixes and what follows it.
func compileDispatch(w *Work, o *object) (*node, error) {
	all := choice()
	for i, v := range items(o.values["rules"]) {
		rule := items(v)
		if len(rule) != 2 {
			return nil, fmt.Errorf("rule %d is not a pair", i)
		}
		prefix, err := compileEdge(rule[0])
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
		content, err := compileFormat(w, rule[1])
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
		all.kids = append(all.kids, sequence(prefix, content))
	}
	return all, nil
}
