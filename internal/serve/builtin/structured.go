package builtin

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// constrain sets what the engine gets as structured_outputs, from the member of that name or from response_format.
func (p *params) constrain() *apiError {
	if !absent(p.StructuredOutputs) {
		return p.constrainBy(p.StructuredOutputs)
	}
	if absent(p.ResponseFormat) {
		return nil
	}
	var format struct {
		Type   string `json:"type"`
		Schema *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if err := json.Unmarshal(p.ResponseFormat, &format); err != nil {
		return badMember("response_format", err)
	}
	switch format.Type {
	case "text", "":
	case "json_object":
		p.constraint = anyObject()
	case "json_schema":
		if format.Schema == nil || len(format.Schema.Schema) == 0 {
			return missing("response_format.json_schema")
		}
		p.constraint = constraint("json", string(format.Schema.Schema))
	case "structural_tag":
		p.constraint = constraint("structural_tag", string(p.ResponseFormat))
	default:
		return badBody("response_format.type is %q: want text, json_object, json_schema or structural_tag", format.Type)
	}
	return nil
}

// constraint is StructuredOutputsParams with one member that is a text. A schema is one too, so that its keys keep
// their order.
func constraint(name, text string) []byte {
	return pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 1), name), text)
}

// anyObject is StructuredOutputsParams for any JSON object, and oneOf that for one of some texts.
func anyObject() []byte {
	return pack.AppendBool(pack.AppendString(pack.AppendMapHeader(nil, 1), "json_object"), true)
}

func oneOf(texts []string) []byte {
	b := pack.AppendArrayHeader(pack.AppendString(pack.AppendMapHeader(nil, 1), "choice"), len(texts))
	for _, text := range texts {
		b = pack.AppendString(b, text)
	}
	return b
}

func (p *params) constrainBy(raw json.RawMessage) *apiError {
	var given struct {
		JSON       json.RawMessage `json:"json"`
		JSONObject bool            `json:"json_object"`
		Regex      *string         `json:"regex"`
		Grammar    *string         `json:"grammar"`
		Tag        json.RawMessage `json:"structural_tag"`
		Choice     []string        `json:"choice"`
	}
	if err := json.Unmarshal(raw, &given); err != nil {
		return badMember("structured_outputs", err)
	}
	var all [][]byte
	var names []string
	add := func(name string, value []byte) { names, all = append(names, name), append(all, value) }
	for name, raw := range map[string]json.RawMessage{"json": given.JSON, "structural_tag": given.Tag} {
		if text := string(raw); text != "" && text != "null" {
			_ = json.Unmarshal(raw, &text) // it may be a text that holds the JSON
			add(name, constraint(name, text))
		}
	}
	for name, text := range map[string]*string{"regex": given.Regex, "grammar": given.Grammar} {
		if text != nil {
			add(name, constraint(name, *text))
		}
	}
	if given.JSONObject {
		add("json_object", anyObject())
	}
	if given.Choice != nil {
		add("choice", oneOf(given.Choice))
	}
	switch len(all) {
	case 0:
		return badRequest("structured_outputs", "structured_outputs has no constraint")
	case 1:
	default:
		slices.Sort(names)
		return badRequest("structured_outputs", "structured_outputs has more than one constraint: %s", strings.Join(names, ", "))
	}
	p.constraint = all[0]
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
	if c.required && len(tools) == 0 {
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

// constrainTools lets the engine write calls of tools whose arguments follow their schemas, as a frontend with the
// parser "hermes" and --tool-strict-level parameter does.
func (p *params) constrainTools(c choice, tools []tool, parallel bool) {
	var tags []object
	for i := range tools {
		f := &tools[i].Function
		if c.name != "" && f.Name != c.name {
			continue
		}
		schema := f.Parameters
		if absent(schema) {
			schema = json.RawMessage("{}")
		}
		for _, line := range []string{"\n", ""} { // a call may be on lines of its own
			begin := callBegin + line + `{"name": ` + string(toJSON(f.Name)) + `, "arguments": `
			tags = append(tags, object{
				{"type", "tag"}, {"begin", begin}, {"content", object{{"type", "json_schema"}, {"json_schema", schema}}}, {"end", "}" + line + callEnd},
			})
		}
	}
	p.constraint = constraint("structural_tag", string(toJSON(object{{"type", "structural_tag"}, {"format", object{
		{"type", "triggered_tags"},
		{"triggers", []string{callBegin}},
		{"tags", tags},
		{"at_least_one", c.required},
		{"stop_after_first", c.name != "" || !parallel},
	}}})))
}

// chosenFunction is a tool_choice, and schemaFormat a response_format.
func chosenFunction(name string) json.RawMessage {
	return toJSON(object{{"type", "function"}, {"function", object{{"name", name}}}})
}

func schemaFormat(schema json.RawMessage) json.RawMessage {
	return toJSON(object{{"type", "json_schema"}, {"json_schema", object{{"schema", schema}}}})
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
		before := len(c.rest)
		c.step(last, each)
		if len(c.rest) == 0 || len(c.rest) == before {
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
		c.arguments(last, each)
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
	if len(c.calls[c.index].arguments) == 0 {
		c.rest = strings.TrimLeft(c.rest, " \n")
	}
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
			if c.depth--; c.depth <= 0 {
				over = true
				if c.depth < 0 {
					end-- // a value that is not an object ended before
				}
			}
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
