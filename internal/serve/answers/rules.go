package answers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/player"
)

// A Rule answers the requests that it matches.
type Rule struct {
	Match  Match  `json:"match,omitzero"`
	Answer Answer `json:"answer"`
}

// Match says which requests a rule concerns: those that fulfil all that is given.
type Match struct {
	// LastUser is a regular expression for a part of the last message of the user, of /v1/completions and /v1/embeddings
	// of the prompt.
	LastUser *pattern `json:"last_user,omitempty"`
	// Model and the values of Header, by the names of headers, are regular expressions for all of a value.
	Model  *whole            `json:"model,omitempty"`
	Header map[string]*whole `json:"header,omitempty"`
	// Nth is the number, from 1, of the request among those that fulfil the rest; 0 is any.
	Nth int `json:"nth,omitempty"`
}

// An Answer is what a request gets.
type Answer struct {
	Text      *string `json:"text,omitempty"`
	Reasoning string  `json:"reasoning,omitempty"`
	ToolCalls []Call  `json:"tool_calls,omitempty"`
	// Refusal is the text of a refusal, and Embedding that of /v1/embeddings. Only the builtin frontend has them.
	Refusal   string    `json:"refusal,omitempty"`
	Embedding []float32 `json:"embedding,omitempty"`
	// FinishReason is stop (default; a frontend makes tool_calls of it), length, error, abort or repetition.
	FinishReason string `json:"finish_reason,omitempty"`
	// Logprobs are the log-probabilities of the tokens, if a request wants them. The last one counts for the others.
	Logprobs []float32 `json:"logprobs,omitempty"`
	// Chunk is how many tokens come together, and Delay the time before each such chunk. Of several, the last one
	// counts for the others.
	Chunk oneOrMore[int]      `json:"chunk,omitempty"`
	Delay oneOrMore[duration] `json:"delay,omitempty"`
}

// A Call is a call of a tool. Arguments is an object.
type Call struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// UnmarshalJSON reads also the form of OpenAI, with the object function and a text of arguments.
func (c *Call) UnmarshalJSON(data []byte) error {
	type call Call
	var q struct {
		call
		Function call `json:"function"`
	}
	if err := json.Unmarshal(data, &q); err != nil {
		return err
	}
	*c = Call(q.call)
	if q.Function.Name != "" {
		*c = Call(q.Function)
	}
	var text string
	if json.Unmarshal(c.Arguments, &text) == nil {
		c.Arguments = json.RawMessage(text)
	}
	var object map[string]json.RawMessage
	if c.Arguments == nil {
		c.Arguments = json.RawMessage("{}")
	}
	if err := json.Unmarshal(c.Arguments, &object); err != nil || c.Name == "" {
		return fmt.Errorf("want a call of a tool with a name and an object of arguments, not %.200s", data)
	}
	var b bytes.Buffer
	_ = json.Compact(&b, c.Arguments) // it is valid
	c.Arguments = b.Bytes()
	return nil
}

// A pattern is a regular expression.
type pattern struct{ *regexp.Regexp }

// A whole is a pattern for all of a value.
type whole struct{ pattern }

// UnmarshalText compiles the expression.
func (p *whole) UnmarshalText(text []byte) error {
	return p.pattern.UnmarshalText([]byte("^(?:" + string(text) + ")$"))
}

// UnmarshalText compiles the expression.
func (p *pattern) UnmarshalText(text []byte) (err error) {
	p.Regexp, err = regexp.Compile(string(text))
	return err
}

// oneOrMore is a list that may be written as its only value.
type oneOrMore[T any] []T

func (l *oneOrMore[T]) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		return json.Unmarshal(data, (*[]T)(l))
	}
	*l = make([]T, 1)
	return json.Unmarshal(data, &(*l)[0])
}

// at is the value at a place, the last one behind the end.
func (l oneOrMore[T]) at(i int) (value T) {
	if len(l) > 0 {
		value = l[min(i, len(l)-1)]
	}
	return value
}

// duration is a time such as "50ms".
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	if *d = duration(value); err == nil && value < 0 {
		err = fmt.Errorf("the time %s is below 0", text)
	}
	return err
}

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// maxFile is the maximum size of rules, in bytes.
const maxFile = 64 << 20

// ReadFile reads the rules of a file, JSON or TOML by the end of its name.
func ReadFile(path string) ([]Rule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("larger than %d MB", maxFile>>20)
	}
	if err == nil && strings.EqualFold(filepath.Ext(path), ".toml") {
		var values map[string]any
		if err = toml.Unmarshal(text, &values); err == nil {
			text, err = json.Marshal(values)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	rules, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rules, nil
}

// Parse reads rules in JSON. An error names the rule, counted from 1.
func Parse(text []byte) ([]Rule, error) {
	var raw struct {
		Rules []json.RawMessage `json:"rules"`
	}
	err := strict(text, &raw)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("not JSON at byte %d: %w; TOML is in files named .toml", syntax.Offset, err)
	case err != nil && !errors.As(err, &kind):
		return nil, err
	case raw.Rules == nil:
		return nil, errors.New(`want {"rules": [{"match": {…}, "answer": {…}}]}`)
	}
	rules := make([]Rule, len(raw.Rules))
	for i, one := range raw.Rules {
		err := strict(one, &rules[i])
		if err = cmp.Or(err, rules[i].check()); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return rules, nil
}

// strict decodes one JSON text, without members that are not known.
func strict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON text")
	}
	return nil
}

// finishReasons are how an answer may end.
var finishReasons = map[string]player.FinishReason{
	"": player.FinishStop, "stop": player.FinishStop, "tool_calls": player.FinishStop, "length": player.FinishLength,
	"error": player.FinishError, "abort": player.FinishAbort, "repetition": player.FinishRepetition,
}

func (r *Rule) check() error {
	a := &r.Answer
	_, known := finishReasons[a.FinishReason]
	switch {
	case reflect.ValueOf(*a).IsZero():
		return errors.New("the answer is empty: want text, tool_calls, reasoning, refusal or embedding")
	case r.Match.Nth < 0:
		return fmt.Errorf("nth is %d: want the number of a request, from 1", r.Match.Nth)
	case !known:
		return fmt.Errorf("finish_reason %q: want stop, tool_calls, length, error, abort or repetition, which engines of vLLM have", a.FinishReason)
	case a.FinishReason == "tool_calls" && a.ToolCalls == nil:
		return errors.New("finish_reason is tool_calls, and there are no tool_calls")
	case a.Refusal != "" && (a.Text != nil || a.ToolCalls != nil || a.Reasoning != ""):
		return errors.New("a refusal has no text, reasoning and tool_calls next to it")
	case slices.ContainsFunc(a.Chunk, func(n int) bool { return n < 1 }):
		return errors.New("chunk: want numbers of tokens, from 1")
	case slices.ContainsFunc(a.Logprobs, func(p float32) bool { return p > 0 }):
		return errors.New("logprobs are logarithms of probabilities: want numbers up to 0")
	}
	return nil
}

// A question is what rules look at in a request.
type question struct {
	path, model, last string
	header            http.Header
	requires          bool // calls of tools, by tool_choice
}

// readQuestion reads what a request asks. What cannot be read is empty: the frontend refuses such a request.
func readQuestion(r *http.Request, body []byte) question {
	q := question{path: r.URL.Path, header: r.Header}
	var b struct {
		Model    json.RawMessage `json:"model"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
		Input    json.RawMessage `json:"input"`
		Choice   any             `json:"tool_choice"`
	}
	_ = json.Unmarshal(body, &b)
	_ = json.Unmarshal(b.Model, &q.model)
	q.requires = b.Choice != nil && b.Choice != "auto" && b.Choice != "none"
	q.last = lastUser(cmp.Or(string(b.Messages), string(b.Input), string(b.Prompt)))
	return q
}

// lastUser is the text of the last message of the user: of a list of texts all of them, each on a line.
func lastUser(raw string) string {
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal([]byte(raw), &messages) != nil {
		return textOf(json.RawMessage(raw))
	}
	for _, m := range slices.Backward(messages) {
		if m.Role == "user" {
			return textOf(m.Content)
		}
	}
	return ""
}

// textOf is that of a text, or of a list of texts or of parts with a text, each on a line.
func textOf(raw json.RawMessage) (text string) {
	var parts []json.RawMessage
	if json.Unmarshal(raw, &text) == nil || json.Unmarshal(raw, &parts) != nil {
		return text
	}
	var lines []string
	for _, raw := range parts {
		var part struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(raw, &text) == nil {
			lines = append(lines, text)
		} else if json.Unmarshal(raw, &part) == nil && part.Text != "" {
			lines = append(lines, part.Text)
		}
	}
	return strings.Join(lines, "\n")
}

// fits reports whether a request fulfils all but the number.
func (m *Match) fits(q *question) bool {
	if m.Model != nil && !m.Model.MatchString(q.model) || m.LastUser != nil && !m.LastUser.MatchString(q.last) {
		return false
	}
	for name, value := range m.Header {
		if !slices.ContainsFunc(q.header.Values(name), value.MatchString) {
			return false
		}
	}
	return true
}
