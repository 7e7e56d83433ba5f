package openai

import (
	"bytes"
	"encoding/json"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Response is a whole answer to a completion or a chat, or one event of a stream of them.
type Response struct {
	Choices []Choice        `json:"choices"`
	Usage   *Usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

// Choice is a part of one of the texts that were asked for.
type Choice struct {
	Index int `json:"index"`
	// Text is of a completion, Message of a chat that is answered in one piece, Delta of one that is streamed.
	Text    string   `json:"text"`
	Message *Message `json:"message"`
	Delta   *Message `json:"delta"`
	// TokenIDs is nil unless the frontend reports ids.
	TokenIDs     []uint32        `json:"token_ids"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason"`
	Logprobs     *Logprobs       `json:"logprobs"`
}

// Message is one of a chat.
type Message struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
}

// Logprobs has one entry per token: in Tokens for a completion, in Content for a chat.
type Logprobs struct {
	Tokens  []json.RawMessage `json:"tokens"`
	Content []json.RawMessage `json:"content"`
}

// Usage is the frontend's counts, in tokens.
type Usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails *struct {
		CachedTokens *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// Failed reports whether an error object takes the place of an answer.
func (r *Response) Failed() bool { return len(r.Error) > 0 && !bytes.Equal(r.Error, []byte("null")) }

// ErrorCode returns the code in the error object, an HTTP status since 0.33; it is 0 for a word, as earlier lines
// write.
func (r *Response) ErrorCode() int {
	var coded struct {
		Code int `json:"code"`
	}
	_ = json.Unmarshal(r.Error, &coded) // a word leaves 0
	return coded.Code
}

// Content returns the text of the choice, whichever field has it.
func (c *Choice) Content() string {
	text := c.Text
	for _, m := range []*Message{c.Message, c.Delta} {
		if m != nil && m.Content != nil {
			text += *m.Content
		}
	}
	return text
}

// Quote returns the head of an answer as one line for an error, at most [MaxQuote] characters.
func Quote(answer []byte) string { return safetext.Line(safetext.Clip(string(answer), MaxQuote)) }
