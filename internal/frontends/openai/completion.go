package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Request is a completion of a prompt given as token ids, at temperature 0.
type Request struct {
	// ID names the request: the client sees "cmpl-" + ID, the engine "cmpl-" + ID + "-" and 8 hex digits. Empty lets
	// the frontend draw one.
	ID string
	// Prompt has at least one token id.
	Prompt []uint32
	// MaxTokens is the length that the engine is asked for; 0 leaves it to the frontend, which takes 16 or more.
	MaxTokens int
	// Stream asks for the tokens as they come, else for one answer at the end.
	Stream bool
	// IgnoreEOS asks the engine not to stop at the end-of-sequence token.
	IgnoreEOS bool
}

// Completion is the answer to a [Request].
type Completion struct {
	// Tokens are the generated ids, the one that ended the stream included.
	Tokens []uint32
	// FinishReason is "stop", "length", "abort" or "repetition".
	FinishReason string
	// Chunks are the token counts of the events that had tokens, in order; nil unless streamed.
	Chunks []int
	// PromptTokens and CompletionTokens are the counts in the frontend's usage.
	PromptTokens, CompletionTokens int
	// Terminal counts the events with a finish reason. A sound answer has 1.
	Terminal int
}

const completions = "/v1/completions"

// Complete sends a request and reads the whole answer. Its end is bounded by ctx alone. On an error the completion
// holds what had come by then; an answer that the frontend refused or broke off is a [*StatusError].
func (c *Client) Complete(ctx context.Context, r Request) (Completion, error) {
	completion, err := c.complete(ctx, r)
	if err != nil {
		return completion, fmt.Errorf("completion %q: %w", r.ID, withCause(ctx, err))
	}
	return completion, nil
}

func (c *Client) complete(ctx context.Context, r Request) (Completion, error) {
	if len(r.Prompt) == 0 {
		return Completion{}, errors.New("the prompt has no token ids, want at least one")
	}
	type streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	content := struct {
		Model          string         `json:"model"`
		Prompt         []uint32       `json:"prompt"`
		RequestID      string         `json:"request_id,omitempty"`
		MaxTokens      int            `json:"max_tokens,omitempty"`
		Temperature    float64        `json:"temperature"`
		ReturnTokenIDs bool           `json:"return_token_ids"`
		IgnoreEOS      bool           `json:"ignore_eos,omitempty"`
		Stream         bool           `json:"stream"`
		StreamOptions  *streamOptions `json:"stream_options,omitempty"`
	}{
		Model: c.model, Prompt: r.Prompt, RequestID: r.ID, MaxTokens: r.MaxTokens,
		ReturnTokenIDs: true, IgnoreEOS: r.IgnoreEOS, Stream: r.Stream,
	}
	read := readAnswer
	if r.Stream {
		read, content.StreamOptions = readStream, &streamOptions{IncludeUsage: true}
	}
	body, err := c.open(ctx, http.MethodPost, completions, content)
	if err != nil {
		return Completion{}, err
	}
	defer body.Close()
	completion, err := read(body)
	var status *StatusError
	if errors.As(err, &status) {
		status.Method, status.URL = http.MethodPost, c.url+completions
	}
	return completion, err
}

// readAnswer reads an answer that comes as one JSON object.
func readAnswer(r io.Reader) (Completion, error) {
	text, err := ReadAll(r)
	if err != nil {
		return Completion{}, fmt.Errorf("read the answer: %w", err)
	}
	var a assembly
	err = a.add(text)
	a.Chunks = nil // how the engine cut it does not show
	if err == nil {
		err = a.check()
	}
	return a.Completion, err
}

// readStream reads an answer that comes as server-sent events, up to [DONE].
func readStream(r io.Reader) (Completion, error) {
	var a assembly
	for events := NewEvents(r); ; {
		data, err := events.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return a.Completion, fmt.Errorf("the stream ended before [DONE], after %d events and %d tokens: %w",
				a.parts, len(a.Tokens), io.ErrUnexpectedEOF)
		case err != nil:
			return a.Completion, fmt.Errorf("read the stream after %d events and %d tokens: %w", a.parts, len(a.Tokens), err)
		case string(data) == Done:
			events.Drain()
			return a.Completion, a.check()
		}
		if err := a.add(data); err != nil {
			return a.Completion, err
		}
	}
}

// assembly puts a completion together from its parts: one of a whole answer, many of a stream.
type assembly struct {
	Completion
	parts int
	usage bool // seen
}

// add takes the JSON text of one part.
func (a *assembly) add(text []byte) error {
	a.parts++
	var r Response
	err := json.Unmarshal(text, &r)
	if err == nil && r.Failed() {
		return &StatusError{Status: r.ErrorCode(), Body: Quote(r.Error), Streaming: true}
	}
	for i := 0; i < len(r.Choices) && err == nil; i++ {
		err = a.choose(&r.Choices[i])
	}
	if err != nil {
		return fmt.Errorf("part %d of the answer, after %d tokens: %w: %s", a.parts, len(a.Tokens), err, Quote(text))
	}
	if r.Usage != nil {
		a.PromptTokens, a.CompletionTokens, a.usage = r.Usage.PromptTokens, r.Usage.CompletionTokens, true
	}
	return nil
}

func (a *assembly) choose(c *Choice) error {
	switch {
	case c.Index != 0:
		return fmt.Errorf("choice %d of a request for one", c.Index)
	case c.Text != "" && c.TokenIDs == nil:
		return errors.New("text without token_ids: this frontend does not know return_token_ids")
	case a.Terminal > 0 && len(c.TokenIDs) > 0:
		return errors.New("token_ids after the finish_reason")
	}
	if len(c.TokenIDs) > 0 {
		a.Tokens = append(a.Tokens, c.TokenIDs...)
		a.Chunks = append(a.Chunks, len(c.TokenIDs))
	}
	if c.FinishReason != nil {
		a.Terminal++
		a.FinishReason = *c.FinishReason
	}
	return nil
}

// check returns an error if something is missing at the end.
func (a *assembly) check() error {
	if !a.usage {
		return fmt.Errorf("no usage in an answer of %d tokens", len(a.Tokens))
	}
	return nil
}
