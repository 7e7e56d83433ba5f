package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/serve/jinja"
)

// chat is what a prompt of a chat is made of.
type chat struct {
	Messages            []message       `json:"messages"`
	Tools               []tool          `json:"tools"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
	ContinueFinal       bool            `json:"continue_final_message"`
	Template            *string         `json:"chat_template"`
	TemplateArgs        json.RawMessage `json:"chat_template_kwargs"`
	Effort              *string         `json:"reasoning_effort"`

	args  object      // of the template; the last of two with one name counts
	media []imagePart // in the order of the prompt
	// textOnly is the error of a model that takes no images, if it is another one than that of /v1/chat/completions.
	textOnly *apiError
}

// efforts are the values of reasoning_effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Name      string          `json:"name"`
	Reasoning string          `json:"reasoning"`
	ToolCalls []toolCall      `json:"tool_calls"`
	ToolCall  *string         `json:"tool_call_id"`
}

type toolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string  `json:"name"`
		Arguments *string `json:"arguments"`
	} `json:"function"`
}

type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict,omitempty"`
}

// chatTemplate is that of a model.
type chatTemplate struct {
	*jinja.Template
	// vars are the special tokens, as bos_token.
	vars map[string]string
	// parts reports whether the content of a message is a list of parts to the template, and not a text.
	parts bool
}

// DefaultTemplate is the chat template of models without one: ChatML, with tools as the models have them whose calls
// the parser "hermes" reads.
const DefaultTemplate = "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools><|im_end|>\n{% endif %}" +
	"{% for m in messages %}<|im_start|>{{ m['role'] }}\n" +
	"{% if m['role'] == 'tool' %}<tool_response>\n{{ m['content'] }}\n</tool_response>{% elif m['content'] %}{{ m['content'] }}{% endif %}" +
	"{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}\n<tool_call>\n{\"name\": \"{{ c['function']['name'] }}\", \"arguments\": {{ c['function']['arguments'] | tojson }}}\n</tool_call>{% endfor %}{% endif %}" +
	"<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

// loopsOverParts finds a loop over the parts of a content.
var loopsOverParts = lazyregexp.New(`for\s+\w+\s+in\s+\w+(\.content|\[\s*['"]content['"]\s*\])`)

// readTemplate reads the chat template of a model: chat_template.jinja, or chat_template of tokenizer_config.json,
// which is a text or a list of named ones.
func readTemplate(dir string, config json.RawMessage, special map[string]string) (t chatTemplate, err error) {
	source := ""
	if text, missing := os.ReadFile(filepath.Join(dir, "chat_template.jinja")); missing == nil {
		source = string(text)
	} else if json.Unmarshal(config, &source) != nil {
		var named []struct{ Name, Template string }
		_ = json.Unmarshal(config, &named)
		for _, one := range named {
			if one.Name == "default" || source == "" {
				source = one.Template
			}
		}
	}
	source = cmp.Or(source, DefaultTemplate)
	t = chatTemplate{vars: special, parts: loopsOverParts().MatchString(source)}
	if t.Template, err = jinja.Parse(source); err != nil {
		return t, fmt.Errorf("chat template of %s: %w", dir, err)
	}
	return t, nil
}

// render writes the prompt of a chat.
func (s *Server) render(ctx context.Context, c *chat) (string, *apiError) {
	if len(c.Messages) == 0 {
		return "", badRequest("", "messages cannot be empty")
	}
	if s.sim != nil && s.opt.Tokenizer.IsWords() {
		return renderSimple(c)
	}
	template := s.model.template
	switch {
	case c.Effort != nil && !slices.Contains(efforts, *c.Effort):
		return "", badBody("reasoning_effort is %q: want one of %s", *c.Effort, strings.Join(efforts, ", "))
	case c.Template != nil && !s.opt.Flags.TrustTemplates:
		return "", badRequest("", "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted chat template.")
	case c.Template != nil:
		own, err := jinja.Parse(*c.Template)
		if err != nil {
			return "", badRequest("chat_template", "chat_template: %v", err)
		}
		template.Template, template.parts = own, loopsOverParts().MatchString(*c.Template)
	}
	last := &c.Messages[len(c.Messages)-1]
	switch {
	case c.ContinueFinal && isSet(c.AddGenerationPrompt):
		return "", badRequest("", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
	case c.ContinueFinal && last.Role != "assistant":
		return "", badRequest("", "Cannot set `continue_final_message` to True when the last message is not from the assistant.")
	}
	vars := map[string]any{
		"tools": nil, "documents": nil, "add_generation_prompt": !c.ContinueFinal && or(c.AddGenerationPrompt, true),
	}
	for name, text := range template.vars {
		vars[name] = text
	}
	if c.Effort != nil {
		c.args = object{{"reasoning_effort", *c.Effort}, {"enable_thinking", *c.Effort != "none"}}
		vars["reasoning_effort"], vars["enable_thinking"] = *c.Effort, *c.Effort != "none"
	}
	if !absent(c.TemplateArgs) {
		args, err := jinja.FromJSON(c.TemplateArgs)
		d, ok := args.(*jinja.Dict)
		if err != nil || !ok {
			return "", badBody("chat_template_kwargs: want an object")
		}
		for name, value := range d.All() {
			vars[name] = value
		}
		c.args = append(c.args, membersOf(c.TemplateArgs)...)
	}
	messages := &jinja.List{}
	for i := range c.Messages {
		one, err := s.messageValue(c, i, template.parts)
		if err != nil {
			return "", err
		}
		messages.Items = append(messages.Items, one)
	}
	vars["messages"] = messages
	if len(c.Tools) > 0 {
		tools := &jinja.List{}
		for i := range c.Tools {
			value, err := c.Tools[i].value()
			if err != nil {
				return "", err
			}
			tools.Items = append(tools.Items, value)
		}
		vars["tools"] = tools
	}
	text, err := template.Run(ctx, vars, time.Now())
	if err != nil {
		return "", &apiError{status: http.StatusInternalServerError, message: "failed to submit chat request: chat template error: " + err.Error()}
	}
	if c.ContinueFinal {
		// The prompt ends with the message that is to be continued.
		final, _ := contentText(last.Content, 0)
		final = strings.TrimSpace(final)
		at := strings.LastIndex(text, final)
		if at < 0 || final == "" {
			return "", badRequest("", "continue_final_message is set but the final message does not appear in the chat after applying the chat template.")
		}
		text = text[:at+len(final)]
	}
	return text, nil
}

// messageValue is message number at as a template gets it. parts reports whether that wants a list of parts.
func (s *Server) messageValue(c *chat, at int, parts bool) (*jinja.Dict, *apiError) {
	m := &c.Messages[at]
	all, err := contentParts(m.Content, at)
	list, joined := &jinja.List{}, strings.Builder{}
	images := len(c.media)
	for _, p := range all {
		one := &jinja.Dict{}
		switch {
		case p.image == nil:
			one.Set("type", "text")
			one.Set("text", p.text)
			joined.WriteString(p.text)
		case m.Role == "assistant":
			return nil, badRequest("", "Only text content parts are supported for assistant messages.")
		case s.model.vision == nil && c.textOnly != nil:
			return nil, c.textOnly
		case s.model.vision == nil:
			return nil, unsupportedMedia("image_url")
		default:
			one.Set("type", "image")
			joined.WriteString(s.model.vision.marker)
			c.media = append(c.media, *p.image)
		}
		list.Items = append(list.Items, one)
	}
	text := joined.String()
	images = len(c.media) - images
	switch {
	case err != nil:
		return nil, err
	case m.Role == "" || m.Role == "assistant" || m.Role == "function":
	case m.Content == nil:
		return nil, missing(fmt.Sprintf("messages[%d].content", at))
	case isNull(m.Content):
		return nil, noContent(at)
	}
	switch m.Role {
	case "user":
		if text == "" && images == 0 {
			return nil, badRequest("", "messages[%d]: the content of a user cannot be empty", at)
		}
	case "assistant":
		if text == "" && m.Reasoning == "" && len(m.ToolCalls) == 0 {
			return nil, badRequest("", "Assistant messages must contain text, reasoning content, or tool_calls.")
		}
	case "function":
		return nil, badRequest("", "Function messages are not supported.")
	case "tool":
		if m.ToolCall == nil && s.sim == nil {
			return nil, missing(fmt.Sprintf("messages[%d].tool_call_id", at))
		}
	case "":
		return nil, missing(fmt.Sprintf("messages[%d].role", at))
	}
	d := &jinja.Dict{}
	d.Set("role", m.Role)
	if parts {
		d.Set("content", list)
	} else {
		d.Set("content", text)
	}
	if m.Reasoning != "" {
		d.Set("reasoning", m.Reasoning)
		d.Set("reasoning_content", m.Reasoning)
	}
	if m.ToolCall != nil {
		d.Set("tool_call_id", *m.ToolCall)
	}
	if len(m.ToolCalls) > 0 {
		calls := &jinja.List{}
		for _, call := range m.ToolCalls {
			arguments, err := jinja.FromJSON([]byte(or(call.Function.Arguments, "{}")))
			if err != nil {
				return nil, &apiError{status: http.StatusInternalServerError, message: "failed to submit chat request: chat template error: assistant tool call `" +
					call.ID + "` has invalid JSON arguments: " + err.Error()}
			}
			f, one := &jinja.Dict{}, &jinja.Dict{}
			f.Set("name", call.Function.Name)
			f.Set("arguments", arguments)
			one.Set("id", call.ID)
			one.Set("type", "function")
			one.Set("function", f)
			calls.Items = append(calls.Items, one)
		}
		d.Set("tool_calls", calls)
	}
	return d, nil
}

// value is a tool as a template gets it.
func (t *tool) value() (*jinja.Dict, *apiError) {
	f, one := &jinja.Dict{}, &jinja.Dict{}
	f.Set("name", t.Function.Name)
	f.Set("description", nil) // also where there is none
	if d := t.Function.Description; d != nil {
		f.Set("description", *d)
	}
	parameters := t.Function.Parameters
	if len(parameters) == 0 {
		parameters = json.RawMessage("{}")
	}
	value, err := jinja.FromJSON(parameters)
	if err != nil {
		return nil, badRequest("tools", "the parameters of the tool %s: %v", t.Function.Name, err)
	}
	f.Set("parameters", value)
	if t.Function.Strict != nil {
		f.Set("strict", *t.Function.Strict)
	}
	one.Set("type", "function")
	one.Set("function", f)
	return one, nil
}
