package builtin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// embeddingRequest is the body of /v1/embeddings.
type embeddingRequest struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Dimensions *int32          `json:"dimensions"`
	Format     string          `json:"encoding_format"`
	AddSpecial *bool           `json:"add_special_tokens"`
	Truncate   *int32          `json:"truncate_prompt_tokens"`
	Priority   int32           `json:"priority"`
	CacheSalt  salt            `json:"cache_salt"`
	RequestID  string          `json:"request_id"`
	chat                       // in the place of the input
}

func (s *Server) serveEmbeddings(w http.ResponseWriter, r *http.Request) *apiError {
	var q embeddingRequest
	if err := readPython(r, &q); err != nil {
		return err
	}
	id := "embd-" + requestID(r, q.RequestID)
	g, err := s.embed(r.Context(), &q, id)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	return s.writeEmbeddings(w, r, g, id, &q)
}

// embeddings is the answer.
type embeddings struct {
	envelope
	Data  []object `json:"data"`
	Usage object   `json:"usage"`
}

func (s *Server) writeEmbeddings(w http.ResponseWriter, r *http.Request, g *generation, id string, q *embeddingRequest) *apiError {
	answer, tokens := embeddings{envelope: s.newEnvelope(id, "list", q.Model), Data: []object{}}, 0
	for i, one := range g.all {
		if chosen := chosenOf(r.Context()); chosen.Embedding != nil {
			one.pooled = chosen.Embedding
		}
		var value any = one.pooled
		if q.Format == "base64" {
			raw := make([]byte, 0, 4*len(one.pooled))
			for _, v := range one.pooled {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			}
			value = raw // which package json writes as base64
		}
		answer.Data = append(answer.Data, object{{"index", i}, {"object", "embedding"}, {"embedding", value}})
		tokens += len(one.prompt)
	}
	answer.Usage = object{
		{"prompt_tokens", tokens}, {"total_tokens", tokens}, {"completion_tokens", 0}, {"prompt_tokens_details", nil}, {"completion_tokens_details", nil},
	}
	return succeed(w, &answer)
}

func (s *Server) embed(ctx context.Context, q *embeddingRequest, id string) (*generation, *apiError) {
	switch {
	case absent(q.Input) && q.Messages == nil:
		return nil, missing("input")
	case q.Format != "" && q.Format != "float" && q.Format != "base64":
		return nil, badRequest("encoding_format", "encoding_format must be float or base64, got %q.", q.Format)
	case q.Dimensions != nil && *q.Dimensions < 1:
		return nil, badRequest("dimensions", "dimensions must be greater than 0")
	}
	c := completionRequest{Prompt: q.Input, params: params{
		Model: q.Model, AddSpecial: q.AddSpecial, Priority: q.Priority, CacheSalt: q.CacheSalt,
		logprobs: protocol.NoLogprobs, onlyIDs: true, pythonOnly: true,
	}}
	if err := c.check(s); err != nil {
		return nil, err
	}
	codec, err := protocol.CodecFor(s.opt.Group.Line())
	if err == nil {
		c.pooling, err = codec.AppendPooling(nil, "embed", int(or(q.Dimensions, 0)))
	}
	if err != nil {
		return nil, errInternal
	}
	prompts, wrong := s.embedded(ctx, q, &c, id)
	if wrong != nil {
		return nil, wrong
	}
	return s.generate(ctx, &c.params, id, prompts, s.models.adapter.find(q.Model))
}

// embedded are the ids of what is to be embedded: texts, ids, or a conversation. The errors are those of the Python
// frontend.
func (s *Server) embedded(ctx context.Context, q *embeddingRequest, c *completionRequest, id string) (prompts [][]uint32, err *apiError) {
	switch text := string(q.Input); {
	case q.Messages != nil && (text == "" || text == "null"):
		q.AddGenerationPrompt = new(or(q.AddGenerationPrompt, false))
		text, err := s.render(ctx, &q.chat)
		if err != nil {
			return nil, err
		}
		ids, items, err := s.ids(ctx, &q.chat, text, isSet(q.AddSpecial))
		if err != nil {
			return nil, err
		}
		prompts, c.media = [][]uint32{ids}, items
	case text == "[]":
		return nil, badRequest("", "You must pass at least one prompt")
	default:
		inputs, err := c.read(s)
		if err == nil {
			prompts, err = s.tokenize(ctx, &c.params, inputs, id)
		}
		if err != nil {
			return nil, err
		}
	}
	for i, ids := range prompts {
		if n := int(or(q.Truncate, -1)); n >= 0 && len(ids) > n {
			prompts[i] = ids[:n] // its begin, unlike that of a prompt for an answer
		}
	}
	return prompts, nil
}
