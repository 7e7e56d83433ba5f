package builtin

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// constrain reads the constraint on an answer, from structured_outputs or from response_format. refused is the error for
// a response_format that is not valid.
func (p *params) constrain(refused func(format string, args ...any) *apiError) *apiError {
	if !absent(p.StructuredOutputs) {
		return p.constrainBy(p.StructuredOutputs)
	}
	if absent(p.ResponseFormat) {
		return nil
	}
	var format struct {
		Type   *string `json:"type"`
		Schema *struct {
			Name   *string         `json:"name"`
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if err := json.Unmarshal(p.ResponseFormat, &format); err != nil {
		return refused("response_format: %v", err)
	}
	switch kind := or(format.Type, ""); {
	case format.Type == nil:
		return refused("missing in the request: response_format.type")
	case kind == "text":
	case kind == "json_object":
		p.constraint = object{{"json_object", true}}
	case kind == "json_schema" && (format.Schema == nil || format.Schema.Name == nil || absent(format.Schema.Schema)):
		return refused("response_format.json_schema: want a name and a schema")
	case kind == "json_schema":
		return p.constrainBy(toJSON(object{{"json", format.Schema.Schema}}))
	case kind == "structural_tag":
		p.constraint = object{{"structural_tag", string(toJSON(p.ResponseFormat))}}
	default:
		return refused("response_format.type is %q: want text, json_object, json_schema or structural_tag", kind)
	}
	return nil
}

// constrainBy reads a StructuredOutputsParams. What is refused here would end a real engine, or the request in it.
func (p *params) constrainBy(raw json.RawMessage) *apiError {
	var given struct {
		JSON       json.RawMessage `json:"json"`
		Regex      *string         `json:"regex"`
		Choice     []string        `json:"choice"`
		Grammar    *string         `json:"grammar"`
		JSONObject *bool           `json:"json_object"`
		Tag        *string         `json:"structural_tag"`
		NoSpace    *bool           `json:"disable_any_whitespace"`
		NoMore     *bool           `json:"disable_additional_properties"`
		Space      *string         `json:"whitespace_pattern"`
	}
	refused := func(format string, args ...any) *apiError {
		return badRequest("structured_outputs", "structured_outputs"+format, args...)
	}
	if err := json.Unmarshal(raw, &given); err != nil {
		return refused(": %v", err)
	}
	var all object
	for _, text := range []struct {
		name  string
		value *string
	}{{"regex", given.Regex}, {"grammar", given.Grammar}, {"structural_tag", given.Tag}} {
		if text.value == nil {
			continue
		}
		all = append(all, member{text.name, *text.value})
		if *text.value == "" && text.name != "regex" || text.name == "structural_tag" && !json.Valid([]byte(*text.value)) {
			return refused(".%s is not valid", text.name)
		}
	}
	if !absent(given.JSON) {
		var text string
		isText := json.Unmarshal(given.JSON, &text) == nil
		if !isText && given.JSON[0] != '{' || isText && !json.Valid([]byte(text)) {
			return refused(".json: want a JSON schema, as an object or as a text")
		}
		all = append(all, member{"json", given.JSON})
	}
	if given.Choice != nil {
		all = append(all, member{"choice", given.Choice})
		if len(given.Choice) == 0 {
			return refused(".choice has no text")
		}
	}
	if given.JSONObject != nil {
		all = append(all, member{"json_object", true})
		if !*given.JSONObject {
			return refused(".json_object is false: leave it out for an answer without a constraint")
		}
	}
	switch {
	case len(all) == 0:
		return refused(" has no constraint")
	case len(all) > 1:
		return refused(" has more than one constraint: %s and %s", all[0].name, all[1].name)
	}
	for name, is := range map[string]*bool{"disable_any_whitespace": given.NoSpace, "disable_additional_properties": given.NoMore} {
		if isSet(is) {
			all = append(all, member{name, true})
		}
	}
	if given.Space != nil {
		all = append(all, member{"whitespace_pattern", *given.Space})
	}
	p.constraint = all
	return nil
}

// choice is a tool_choice.
type choice struct {
	none, required bool
	name           string // of the only tool that may be called
}

func parseChoice(raw json.RawMessage, tools []tool) (c choice, err *apiError) {
	if absent(raw) {
		return c, nil
	}
	var word string
	var named struct {
		Type     string `json:"type"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	switch {
	case json.Unmarshal(raw, &word) == nil:
		c.none, c.required = word == "none", word == "required"
		if !c.none && !c.required && word != "auto" {
			return c, badBody("tool_choice: want auto, none, required, or a function")
		}
	case json.Unmarshal(raw, &named) == nil && named.Type == "function" && named.Function.Name != "":
		c.required, c.name = true, named.Function.Name
	default:
		return c, badBody("tool_choice: want auto, none, required, or a function")
	}
	if (c.required || word == "auto") && len(tools) == 0 {
		return c, badRequest("", "tool_choice requires at least one available tool")
	}
	for i := range tools {
		if tools[i].Function.Name == c.name {
			return c, nil
		}
	}
	if c.name != "" {
		return c, badRequest("", "tool_choice function `%s` was not found in the available tools", c.name)
	}
	return c, nil
}

// How Hermes writes a call.
const (
	callBegin = "<tool_call>"
	callEnd   = "</tool_call>"
)

// constrainTools lets the engine write calls of tools as vllm-rs of the line does with the parser "hermes". level is
// --tool-strict-level.
func (p *params) constrainTools(line, level string, c choice, tools []tool, parallel bool) {
	free, joins, own := protocol.RustFreesArguments.Holds(line), protocol.RustJoinsConstraints.Holds(line), p.constraint
	strict := slices.ContainsFunc(tools, func(t tool) bool { return isSet(t.Function.Strict) })
	switch enforced := c.required || strict; {
	case enforced, own != nil && joins, own == nil && level != strictAuto:
	default:
		return
	}
	var tags []object
	for i := range tools {
		f := &tools[i].Function
		if c.name != "" && f.Name != c.name {
			continue
		}
		schema := json.RawMessage("true")
		switch pinned := isSet(f.Strict) || level == strictParameter || !free; {
		case pinned && !absent(f.Parameters):
			schema = f.Parameters
		case pinned && isSet(f.Strict):
			schema = json.RawMessage("null")
		}
		for _, end := range []string{"\n", ""} { // a call may be on lines of its own
			var tag object
			if free {
				tag = object{{"type", "tag"}}
			}
			begin := callBegin + end + `{"name": ` + string(toJSON(f.Name)) + `, "arguments": `
			tags = append(tags, append(tag, member{"begin", begin}, member{"content", schemaTag(line, schema)}, member{"end", "}" + end + callEnd}))
		}
	}
	one := member{"stop_after_first", c.name != "" || free && !parallel}
	format := object{{"type", "tags_with_separator"}, {"tags", tags}, {"separator", ""}, {"at_least_one", true}, one}
	switch {
	case c.required:
	case own != nil && joins:
		format = object{{"type", "or"}, {"elements", []any{format, formatOf(line, own)}}}
	default:
		format = object{
			{"type", "triggered_tags"}, {"triggers", []string{callBegin}}, {"tags", tags}, {"at_least_one", false}, one, {"excludes", []string{}},
		}
	}
	p.constraint, p.ofTools = object{{"structural_tag", string(toJSON(object{{"type", "structural_tag"}, {"format", format}}))}}, true
}

// schemaTag is a part of a structural tag: a value that follows a schema.
func schemaTag(line string, schema json.RawMessage) object {
	o := object{{"type", "json_schema"}, {"json_schema", schema}, {"style", "json"}}
	if protocol.RustBoundsSpace.Holds(line) {
		o = append(o, member{"any_order", false}, member{"max_whitespace_cnt", nil})
	}
	if protocol.RustExcludes.Holds(line) {
		o = append(o, member{"excludes", []string{}})
	}
	return o
}

// formatOf is a constraint as a part of a structural tag.
func formatOf(line string, constraint object) any {
	text, _ := constraint[0].value.(string)
	switch constraint[0].name {
	case "json":
		schema, _ := constraint[0].value.(json.RawMessage)
		if json.Unmarshal(schema, &text) == nil {
			schema = json.RawMessage(text)
		}
		return schemaTag(line, schema)
	case "json_object":
		return schemaTag(line, json.RawMessage(`{"type":"object"}`))
	case "regex":
		return object{{"type", "regex"}, {"pattern", text}}
	case "grammar":
		return object{{"type", "grammar"}, {"grammar", text}}
	case "choice":
		choices, _ := constraint[0].value.([]string)
		texts := make([]object, len(choices))
		for i, choice := range choices {
			texts[i] = object{{"type", "const_string"}, {"value", choice}}
		}
		return object{{"type", "or"}, {"elements", texts}}
	}
	var tag struct {
		Format json.RawMessage `json:"format"`
	}
	_ = json.Unmarshal([]byte(text), &tag) // it is valid
	return tag.Format
}

// packed is the constraint as the engine gets it.
func (p *params) packed(line string) []byte {
	if p.constraint == nil {
		return nil
	}
	backend := "guidance"
	if p.ofTools || protocol.RustChoosesGrammar.Holds(line) {
		backend = "xgrammar"
	}
	b, _ := packJSON(toJSON(append(slices.Clip(p.constraint), member{"_backend", backend}))) // it is valid
	return b
}

// Values of --tool-strict-level.
const (
	strictAuto      = "auto"      // a tool is enforced if it has to be called, or is strict
	strictFunction  = "function"  // each tool is
	strictParameter = "parameter" // with its schema
)

// chosenFunction is a tool_choice, and schemaFormat a response_format.
func chosenFunction(name string) json.RawMessage {
	return toJSON(object{{"type", "function"}, {"function", object{{"name", name}}}})
}

func schemaFormat(schema json.RawMessage) json.RawMessage {
	return toJSON(object{{"type", "json_schema"}, {"json_schema", object{{"name", "schema"}, {"schema", schema}}}})
}

// A callParser finds calls of tools in a text as it comes.
type callParser struct {
	rest  string // that was not handled
	state uint8
	depth int  // of the arguments
	quote bool // in a string of the arguments
	index int  // of the call, from 0
	calls []parsedCall
}

type parsedCall struct {
	name      string
	arguments []byte
}

const (
	inText      uint8 = iota
	inHead            // before the arguments
	inArguments       // of a call
	inTail            // behind them
	inRest            // behind arguments that are no object: vllm-rs shows all of it as text
)

// A callEvent is a part of an answer: reasoning, text, the begin of a call (name), or a part of its arguments.
type callEvent struct {
	reasoning, text, name, arguments string
	index                            int
}

// add handles a part of the text. last handles all of it.
func (c *callParser) add(text string, last bool, each func(callEvent)) {
	c.rest += text
	for {
		before, state := len(c.rest), c.state
		c.step(last, each)
		if len(c.rest) == 0 || len(c.rest) == before && c.state == state {
			return
		}
	}
}

func (c *callParser) step(last bool, each func(callEvent)) {
	switch c.state {
	case inText:
		at := strings.Index(c.rest, callBegin)
		end := at
		if at < 0 {
			if end = len(c.rest); !last {
				end -= overlap(c.rest, callBegin)
			}
		}
		if shown := c.rest[:end]; shown != "" && (c.index == 0 || strings.TrimSpace(shown) != "") {
			each(callEvent{text: shown})
		}
		if c.rest = c.rest[end:]; at >= 0 {
			c.rest, c.state = c.rest[len(callBegin):], inHead
		}
	case inHead:
		const arguments = `"arguments":`
		at := strings.Index(c.rest, arguments)
		if at < 0 {
			return
		}
		var head struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal([]byte(strings.TrimRight(c.rest[:at], " \n,")+"}"), &head)
		c.calls = append(c.calls, parsedCall{name: head.Name})
		each(callEvent{name: head.Name, index: c.index})
		c.rest, c.state, c.depth, c.quote = strings.TrimLeft(c.rest[at+len(arguments):], " "), inArguments, 0, false
	case inArguments:
		if len(c.calls[c.index].arguments) == 0 {
			if c.rest = strings.TrimLeft(c.rest, " \n"); c.rest == "" {
				return
			} else if c.rest[0] != '{' {
				c.state = inRest
				return
			}
		}
		c.arguments(last, each)
	case inRest:
		each(callEvent{text: c.rest})
		c.rest = ""
	case inTail:
		at := strings.Index(c.rest, callEnd)
		if at < 0 {
			return
		}
		c.rest, c.state = c.rest[at+len(callEnd):], inText
		c.index++
	}
}

// arguments hands on the JSON value of the arguments, up to its end.
func (c *callParser) arguments(last bool, each func(callEvent)) {
	end, over := 0, false
	for end < len(c.rest) && !over {
		ch := c.rest[end]
		switch {
		case c.quote && ch == '\\':
			if end+1 >= len(c.rest) && !last {
				c.emit(end, each)
				return
			}
			end++
		case ch == '"':
			c.quote = !c.quote
		case c.quote:
		case ch == '{' || ch == '[':
			c.depth++
		case ch == '}' || ch == ']':
			c.depth--
			over = c.depth == 0
		}
		end++
	}
	c.emit(min(end, len(c.rest)), each)
	if over {
		c.state = inTail
	}
}

func (c *callParser) emit(end int, each func(callEvent)) {
	if part := c.rest[:end]; part != "" {
		call := &c.calls[c.index]
		call.arguments = append(call.arguments, part...)
		each(callEvent{arguments: part, index: c.index})
	}
	c.rest = c.rest[end:]
}

// overlap is how many bytes at the end of text may be the beginning of tag.
func overlap(text, tag string) int {
	for n := min(len(tag)-1, len(text)); n > 0; n-- {
		if strings.HasSuffix(text, tag[:n]) {
			return n
		}
	}
	return 0
}
