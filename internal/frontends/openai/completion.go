package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
		return completion, fmt.Errorf("completion %q: %w", r.ID, err)
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
	if r.Stream {
		content.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	a, err := c.Send(ctx, http.MethodPost, completions, content)
	if err == nil && a.Status != http.StatusOK {
		return Completion{}, c.statusError(http.MethodPost, completions, a.Status, a.Body)
	}
	reply := ReadReply(a, r.Stream)
	completion := Completion{Tokens: reply.Tokens, FinishReason: reply.Finish, Terminal: reply.Ends}
	if r.Stream {
		completion.Chunks = reply.Chunks
	}
	if reply.Usage != nil {
		completion.PromptTokens, completion.CompletionTokens = reply.Usage.PromptTokens, reply.Usage.CompletionTokens
	}
	if err == nil {
		err = reply.asCompletion(c.url + completions)
	}
	return completion, err
}

// asCompletion returns an error if something of a completion by token ids is missing.
func (r *Reply) asCompletion(url string) error {
	after := fmt.Sprintf("after %d parts and %d tokens", r.Parts, len(r.Tokens))
	switch {
	case r.Failed:
		return &StatusError{Method: http.MethodPost, URL: url, Status: r.Code, Body: r.Failure, Streaming: true}
	case len(r.Wrong) > 0:
		return fmt.Errorf("%s: %s", after, strings.Join(r.Wrong, "; "))
	case r.Failure != "":
		return fmt.Errorf("the answer has no choices: %s", r.Failure)
	case r.Text != "" && !r.HasIDs:
		return errors.New("text without token_ids: this frontend does not know return_token_ids")
	case r.Late:
		return errors.New("text or token_ids after the finish_reason")
	case r.Usage == nil:
		return fmt.Errorf("no usage %s", after)
	}
	return nil
}
