package builtin

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

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
	CacheSalt  string          `json:"cache_salt"`
	RequestID  string          `json:"request_id"`
	chat                       // in the place of the input
}

func (s *Server) serveEmbeddings(w http.ResponseWriter, r *http.Request) *apiError {
	var q embeddingRequest
	end, err := readBody(r, &q, pythonError)
	if err != nil {
		return err
	}
	id := "embd-" + requestID(r, q.RequestID)
	g, err := s.embed(r.Context(), &q, id, end)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	return s.writeEmbeddings(w, g, id, &q)
}

func (s *Server) writeEmbeddings(w http.ResponseWriter, g *generation, id string, q *embeddingRequest) *apiError {
	a := s.newAnswer(w, id, "list", s.answeredBy(q.Model), int(time.Now().Unix()))
	defer a.release()
	b := append(a.envelope(a.b), `,"data":[`...)
	tokens := 0
	for i, one := range g.all {
		b = comma(b, i)
		b = appendInt(append(b, `{"index":`...), i)
		b = append(b, `,"object":"embedding","embedding":`...)
		if q.Format == "base64" {
			raw := make([]byte, 0, 4*len(one.pooled))
			for _, v := range one.pooled {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			}
			b = append(base64.StdEncoding.AppendEncode(append(b, '"'), raw), '"')
		} else {
			b = append(b, '[')
			for i, v := range one.pooled {
				b = comma(b, i)
				b = strconv.AppendFloat(b, float64(v), 'g', -1, 32)
			}
			b = append(b, ']')
		}
		b = append(b, '}')
		tokens += len(one.prompt)
	}
	b = appendInt(append(b, `],"usage":{"prompt_tokens":`...), tokens)
	b = appendInt(append(b, `,"total_tokens":`...), tokens)
	a.b = append(b, `,"completion_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":null}}`...)
	return succeed(w, a.b)
}

func (s *Server) embed(ctx context.Context, q *embeddingRequest, id, end string) (*generation, *apiError) {
	switch {
	case absent(q.Input) && q.Messages == nil:
		return nil, missingField(end, "input")
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

// embedded are the ids of what is to be embedded: texts, ids, or a conversation. The errors are those of the Python frontend.
func (s *Server) embedded(ctx context.Context, q *embeddingRequest, c *completionRequest, id string) (prompts [][]uint32, err *apiError) {
	switch text := string(q.Input); {
	case q.Messages != nil && (text == "" || text == "null"):
		q.AddGenerationPrompt = new(or(q.AddGenerationPrompt, false))
		text, err := s.render(&q.chat)
		if err != nil {
			return nil, err
		}
		ids, items, err := s.ids(&q.chat, text, isSet(q.AddSpecial))
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
