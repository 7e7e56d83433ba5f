package load

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shape is how much a workload asks for and when, as far as the workload leaves that open. A workload uses some of the
// fields and refuses the others, see [ShapeKeys]; the zero value of a field is the workload's default.
type Shape struct {
	// Concurrency is how many requests are in flight at a time; of multiturn, how many conversations.
	Concurrency int
	// Stairs are the concurrencies of one step after another.
	Stairs []int
	// Requests is how many there are in all; of stairs, in each step; of bursts, in each burst; of arrivals, how many of
	// the trace's, from its first on.
	Requests int
	// Bursts is how many bursts there are, and Every the time between the beginnings of two.
	Bursts int
	Every  time.Duration
	// PromptTokens and OutputTokens are the length of each prompt and answer; of multiturn, PromptTokens is about that of
	// what a conversation begins with.
	PromptTokens, OutputTokens int
	// Text sends prompts as text, whose count of tokens is then the tokenizer's. Otherwise they are token ids.
	Text bool
	// Images are how many images each prompt has; of multiturn, those that a conversation is about. Prompts are then
	// messages of a chat, whose text has about PromptTokens tokens.
	Images int
	// Arrivals is a trace whose requests come again, as long and at the times that it says; Speed divides those times.
	Arrivals string
	Speed    float64
}

// A ShapeField is one field of a [Shape] by its key: "prompt_tokens" in a file, --prompt-tokens on a command line.
type ShapeField struct {
	Key string
	// Kind is what the value is, in a word: int, ints, duration, bool, path or float.
	Kind  string
	Usage string

	get func(*Shape) string // "" for the zero value
	set func(*Shape, string) error
}

// Flag is the name of the field's flag, without dashes before it.
func (f ShapeField) Flag() string {
	if f.Key == "arrivals" {
		return "arrival-trace" // flags that take a trace have the word in their name
	}
	return strings.ReplaceAll(f.Key, "_", "-")
}

// What a shape may ask for at most: above it a slip of the pen is likelier than a wish.
const (
	maxAtOnce   = 4096
	maxRequests = 1 << 20
	maxTokens   = 1 << 20
	maxImages   = 64
)

// ShapeFields are all fields, in the order of [Shape].
func ShapeFields() []ShapeField {
	return []ShapeField{
		numberField("concurrency", "number of requests that run at the same time", maxAtOnce, func(s *Shape) *int { return &s.Concurrency }),
		shapeField("stairs", "ints", "numbers of requests that run at the same time, one step after the other, such as 1,2,4,8",
			func(s *Shape) *[]int { return &s.Stairs }, parseStairs, formatStairs),
		numberField("requests", "number of requests, for stairs in each step and for bursts in each burst", maxRequests,
			func(s *Shape) *int { return &s.Requests }),
		numberField("bursts", "number of bursts", maxRequests, func(s *Shape) *int { return &s.Bursts }),
		shapeField("every", "duration", "time from the start of a burst to the start of the next, such as 500ms",
			func(s *Shape) *time.Duration { return &s.Every }, parseEvery, time.Duration.String),
		numberField("prompt_tokens", "tokens in each prompt; for multiturn about the tokens of the first prompt of a conversation", maxTokens, func(s *Shape) *int { return &s.PromptTokens }),
		numberField("output_tokens", "output tokens of each request", maxTokens, func(s *Shape) *int { return &s.OutputTokens }),
		shapeField("text", "bool", "send prompts as text with about that many tokens, not as token ids", func(s *Shape) *bool { return &s.Text }, parseText, strconv.FormatBool),
		numberField("images", "number of images in each prompt, which is then a chat with --prompt-tokens of text",
			maxImages, func(s *Shape) *int { return &s.Images }),
		shapeField("arrivals", "path", "trace whose requests are sent again, with the same lengths and arrival times", func(s *Shape) *string { return &s.Arrivals }, parsePath,
			func(path string) string { return path }),
		shapeField("speed", "float", "factor by which requests arrive faster than in the trace", func(s *Shape) *float64 { return &s.Speed }, parseSpeed,
			func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }),
	}
}

func shapeField[T any](key, kind, usage string, at func(*Shape) *T, parse func(string) (T, error), format func(T) string) ShapeField {
	return ShapeField{
		Key: key, Kind: kind, Usage: usage,
		get: func(s *Shape) string {
			value := *at(s)
			if reflect.ValueOf(value).IsZero() {
				return ""
			}
			return format(value)
		},
		set: func(s *Shape, text string) error {
			value, err := parse(text)
			if err == nil {
				*at(s) = value
			}
			return err
		},
	}
}

// numberField is of a number from 1 to most.
func numberField(key, usage string, most int, at func(*Shape) *int) ShapeField {
	return shapeField(key, "int", usage, at, func(text string) (int, error) { return number(text, most) }, strconv.Itoa)
}

func number(text string, most int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%q: want a number from 1 to %d", text, most)
	}
	return n, nil
}

func parseStairs(text string) (steps []int, err error) {
	for step := range strings.SplitSeq(text, ",") {
		n, err := number(step, maxAtOnce)
		if err != nil {
			return nil, err
		}
		steps = append(steps, n)
	}
	return steps, nil
}

func formatStairs(steps []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(steps), " ", ","), "[]")
}

func parseEvery(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q: want a time above 0, such as 500ms", text)
	}
	return d, nil
}

func parseText(text string) (bool, error) {
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q: want true or false", text)
	}
	return value, nil
}

func parsePath(text string) (string, error) {
	if text == "" {
		return "", errors.New("want the path of a trace")
	}
	return text, nil
}

func parseSpeed(text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x > 0) || math.IsInf(x, 0) {
		return 0, fmt.Errorf("%q: want a number above 0", text)
	}
	return x, nil
}

// Get is the field of a key as text that Set takes, "" for its zero value and for an unknown key.
func (s Shape) Get(key string) string {
	for _, f := range ShapeFields() {
		if f.Key == key {
			return f.get(&s)
		}
	}
	return ""
}

// Set sets the field of a key from text: "8", "1,2,4,8", "500ms", "true", "2.5". The error says what is wrong with the
// value, and not of which key.
func (s *Shape) Set(key, value string) error {
	for _, f := range ShapeFields() {
		if f.Key == key {
			return f.set(s, value)
		}
	}
	return fmt.Errorf("unknown: want one of %s", strings.Join(shapeKeys(), ", "))
}

func shapeKeys() (keys []string) {
	for _, f := range ShapeFields() {
		keys = append(keys, f.Key)
	}
	return keys
}

// Flags are the arguments of capture load that say the same: "--concurrency=8", "--text=true".
func (s Shape) Flags() (args []string) {
	for _, f := range ShapeFields() {
		if value := f.get(&s); value != "" {
			args = append(args, "--"+f.Flag()+"="+value)
		}
	}
	return args
}

// ShapeKeys are the keys that a workload uses, nil if it is unknown or uses none.
func ShapeKeys(w Workload) []string { return slices.Clone(kinds[w].keys) }

// UsualShape is what a workload takes for the fields that are not given.
func UsualShape(w Workload) Shape { return kinds[w].usual }

// A ShapeError is what is wrong with one field of a shape.
type ShapeError struct {
	Key    string
	Reason string
}

func (e *ShapeError) Error() string {
	return fmt.Sprintf("--%s: %s", ShapeField{Key: e.Key}.Flag(), e.Reason)
}

// Check returns what is wrong with a shape for a known workload, as a [*ShapeError]. It does not look at the trace of
// Arrivals.
func (s Shape) Check(w Workload) error {
	used := kinds[w].keys
	for _, f := range ShapeFields() {
		value := f.get(&s)
		switch {
		case value == "" && f.Key == "arrivals" && slices.Contains(used, f.Key):
			return &ShapeError{f.Key, fmt.Sprintf("missing: workload %s wants the path of a trace", w)}
		case value == "":
		case len(used) == 0:
			return &ShapeError{f.Key, fmt.Sprintf("workload %s has one shape only", w)}
		case !slices.Contains(used, f.Key):
			return &ShapeError{f.Key, fmt.Sprintf("workload %s does not use it; it uses %s", w, strings.Join(used, ", "))}
		default:
			if err := f.set(new(Shape), value); err != nil {
				return &ShapeError{f.Key, err.Error()}
			}
		}
	}
	return nil
}

// or is s with what it leaves open taken from usual.
func (s Shape) or(usual Shape) Shape {
	for _, f := range ShapeFields() {
		if value := f.get(&usual); f.get(&s) == "" && value != "" {
			_ = f.set(&s, value) // what get says, set takes
		}
	}
	return s
}
