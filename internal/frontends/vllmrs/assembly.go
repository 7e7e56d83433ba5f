package vllmrs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// assembly puts a completion together from its parts: one of a whole answer, many of a stream.
type assembly struct {
	Completion
	parts int
	usage bool // seen
}

// add takes the JSON text of one part.
func (a *assembly) add(text []byte) error {
	a.parts++
	var p part
	if err := json.Unmarshal(text, &p); err != nil {
		return a.wrong("%w: %s", err, quote(text))
	}
	if len(p.Error) > 0 && !bytes.Equal(p.Error, []byte("null")) {
		return streamFailure(p.Error)
	}
	for _, c := range p.Choices {
		if err := a.choose(c); err != nil {
			return a.wrong("%w: %s", err, quote(text))
		}
	}
	if p.Usage != nil {
		a.PromptTokens, a.CompletionTokens, a.usage = p.Usage.PromptTokens, p.Usage.CompletionTokens, true
	}
	return nil
}

func (a *assembly) choose(c choice) error {
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

// finish checks that nothing is missing.
func (a *assembly) finish() (Completion, error) {
	if !a.usage {
		return a.Completion, fmt.Errorf("no usage in an answer of %d tokens", len(a.Tokens))
	}
	return a.Completion, nil
}

func (a *assembly) wrong(format string, args ...any) error {
	return fmt.Errorf("part %d of the answer, after %d tokens: %w", a.parts, len(a.Tokens), fmt.Errorf(format, args...))
}

// streamFailure is the error object that ends a stream. Its code is a number since 0.33 and a word before.
func streamFailure(object []byte) error {
	var coded struct {
		Code int `json:"code"`
	}
	_ = json.Unmarshal(object, &coded) // a word leaves 0
	return &StatusError{Status: coded.Code, Body: quote(object), Streaming: true}
}

// quote is the head of a text for an error.
func quote(text []byte) string {
	if len(text) > maxQuote {
		return string(text[:maxQuote]) + "…"
	}
	return string(text)
}
