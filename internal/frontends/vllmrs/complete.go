package vllmrs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Request is a completion of a prompt given as token ids, at temperature 0.
type Request struct {
	// ID names the request: the client sees "cmpl-" + ID, the engine "cmpl-" + ID + "-" and 8 hex digits. Empty lets
	// the frontend draw one.
	ID string
	// Prompt has at least one token id.
	Prompt []uint32
	// MaxTokens is the length that the engine is asked for; 0 leaves it to the frontend, which says 16 or more.
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

// Complete sends a request and reads the whole answer. Its end is bounded by ctx alone. On an error the completion holds
// what had come by then; an answer that the frontend refused or broke off is a [*StatusError].
func (c *Client) Complete(ctx context.Context, r Request) (Completion, error) {
	completion, err := c.complete(ctx, r)
	if err != nil {
		return completion, fmt.Errorf("completion %q: %w", r.ID, because(ctx, err))
	}
	return completion, nil
}

// Complete sends a request and reads the whole answer, see [Client.Complete]. When the frontend ends meanwhile, the
// error has a [*process.ExitError] with the last of its output.
func (s *Server) Complete(ctx context.Context, r Request) (Completion, error) {
	completion, err := s.client.Complete(ctx, r)
	var status *StatusError
	if err == nil || errors.As(err, &status) || ctx.Err() != nil {
		return completion, err
	}
	// The connection breaks a moment before the end of the process is known.
	timer := time.NewTimer(exitDelay)
	defer timer.Stop()
	select {
	case <-s.process.Done():
		err = fmt.Errorf("%w: %w", err, s.process.Exit())
	case <-timer.C:
	}
	return completion, err
}

func (c *Client) complete(ctx context.Context, r Request) (Completion, error) {
	if len(r.Prompt) == 0 {
		return Completion{}, errors.New("the prompt has no token ids, want at least one")
	}
	body, err := c.do(ctx, http.MethodPost, completions, newWireRequest(c.model, r))
	if err != nil {
		return Completion{}, err
	}
	defer body.Close()
	var completion Completion
	if r.Stream {
		completion, err = readStream(body)
	} else {
		completion, err = readAnswer(body)
	}
	var status *StatusError
	if errors.As(err, &status) {
		status.Method, status.URL = http.MethodPost, c.url+completions
	}
	return completion, err
}

// wireRequest is the body of POST /v1/completions.
type wireRequest struct {
	Model          string         `json:"model"`
	Prompt         []uint32       `json:"prompt"`
	RequestID      string         `json:"request_id,omitempty"`
	MaxTokens      int            `json:"max_tokens,omitempty"`
	Temperature    float64        `json:"temperature"`
	ReturnTokenIDs bool           `json:"return_token_ids"`
	IgnoreEOS      bool           `json:"ignore_eos,omitempty"`
	Stream         bool           `json:"stream"`
	StreamOptions  *streamOptions `json:"stream_options,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

func newWireRequest(model string, r Request) wireRequest {
	w := wireRequest{
		Model: model, Prompt: r.Prompt, RequestID: r.ID, MaxTokens: r.MaxTokens,
		ReturnTokenIDs: true, IgnoreEOS: r.IgnoreEOS, Stream: r.Stream,
	}
	if r.Stream {
		w.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	return w
}

// readAnswer reads an answer that comes as one JSON object.
func readAnswer(r io.Reader) (Completion, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return Completion{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(text) > maxAnswer {
		return Completion{}, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	var a assembly
	err = a.add(text)
	a.Chunks = nil // how the engine cut it does not show
	if err != nil {
		return a.Completion, err
	}
	return a.finish()
}

// part is what an answer and the events of a stream have in common.
type part struct {
	Choices []choice `json:"choices"`
	Usage   *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type choice struct {
	Index        int      `json:"index"`
	Text         string   `json:"text"`
	TokenIDs     []uint32 `json:"token_ids"`
	FinishReason *string  `json:"finish_reason"`
}
