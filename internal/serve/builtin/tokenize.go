package builtin

import (
	"math"
	"net/http"
)

// tokenizeRequest is a text, or a chat.
type tokenizeRequest struct {
	Model      string  `json:"model"`
	Prompt     *string `json:"prompt"`
	AddSpecial *bool   `json:"add_special_tokens"`
	Strings    bool    `json:"return_token_strs"`
	chat
}

type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	Strings     []string `json:"token_strs"`
}

func (s *Server) serveTokenize(w http.ResponseWriter, r *http.Request) *apiError {
	var q tokenizeRequest
	if err := readJSON(r, &q); err != nil {
		return err
	}
	if q.Model != "" && !s.models.has(q.Model) {
		return modelNotFound(q.Model)
	}
	var ids []uint32
	var err *apiError
	switch {
	case q.Messages != nil:
		var text string
		if text, err = s.render(r.Context(), &q.chat); err == nil {
			ids, _, err = s.ids(r.Context(), &q.chat, text, isSet(q.AddSpecial))
		}
	case q.Prompt != nil:
		ids, err = s.encode(r.Context(), *q.Prompt, or(q.AddSpecial, true), math.MaxInt)
	default:
		err = missing("prompt or messages")
	}
	if err != nil {
		return err
	}
	answer := tokenized{Count: len(ids), MaxModelLen: s.maxModelLen, Tokens: idsIf(true, ids)}
	if q.Strings {
		answer.Strings = make([]string, len(ids))
		for i, id := range ids {
			answer.Strings[i] = s.opt.Tokenizer.Name(id)
		}
	}
	return succeed(w, &answer)
}

func (s *Server) serveDetokenize(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	switch {
	case q.Tokens == nil:
		return missing("tokens")
	case q.Model != "" && !s.models.has(q.Model):
		return modelNotFound(q.Model)
	}
	return succeed(w, object{{"prompt", s.opt.Tokenizer.Decode(q.Tokens)}})
}
