package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// generateRequest is the body of /inference/v1/generate: ids in, ids out.
type generateRequest struct {
	Model         string          `json:"model"`
	RequestID     string          `json:"request_id"`
	IDs           []uint32        `json:"token_ids"`
	Sampling      *idSampling     `json:"sampling_params"`
	Stream        bool            `json:"stream"`
	StreamOptions *streamOptions  `json:"stream_options"`
	CacheSalt     salt            `json:"cache_salt"`
	Priority      int32           `json:"priority"`
	KVTransfer    json.RawMessage `json:"kv_transfer_params"`
	ECTransfer    json.RawMessage `json:"ec_transfer_params"`
	Features      json.RawMessage `json:"features"`
	ReturnIDs     bool            `json:"return_token_ids"`
}

type idSampling struct {
	params
	MaxTokens   *uint32 `json:"max_tokens"`
	SkipReading *bool   `json:"skip_reading_prefix_cache"`
	Logprobs    *int32  `json:"logprobs"`
}

// generatedEvent is a part of a stream.
type generatedEvent struct {
	Choices   []idDelta `json:"choices"`
	Usage     *usage    `json:"usage,omitempty"`
	PromptIDs []uint32  `json:"prompt_token_ids,omitzero"`
}

type idDelta struct {
	Index        int         `json:"index"`
	Logprobs     *idLogprobs `json:"logprobs,omitempty"`
	FinishReason string      `json:"finish_reason,omitempty"`
	IDs          []uint32    `json:"token_ids"`
	Versions     []object    `json:"weight_versions,omitempty"`
}

// weightVersions are which weights made the tokens of an answer: those of its end.
func (s *Server) weightVersions(q *sequence) []object {
	version, _ := s.weights.Load().(string)
	return []object{{{"version", cmp.Or(version, "default")}, {"start", 0}, {"end", q.count}}}
}

func (s *Server) serveGenerate(w http.ResponseWriter, r *http.Request) *apiError {
	var q generateRequest
	if err := readJSON(r, &q); err != nil {
		return err
	}
	id := requestID(r, q.RequestID)
	if q.Sampling != nil {
		q.Sampling.Priority = q.Priority
		s.readHeaders(r, &q.Sampling.params)
	}
	g, err := s.fromIDs(r.Context(), &q, id)
	if err != nil {
		return err
	}
	defer g.close()
	if q.Stream {
		a := newAnswer(w)
		defer a.release()
		s.streamIDs(r, g, &q, a, id)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	one := g.all[0]
	var logprobs *idLogprobs
	if q.Sampling.Logprobs != nil {
		logprobs = newIDLogprobs(one.table...)
	}
	choice := object{
		{"index", 0},
		{"logprobs", logprobs},
		{"finish_reason", one.finishReason()},
		{"stop_reason", one.stop.value()},
		{"token_ids", idsIf(true, one.tokens)},
		{"routed_experts", nil},
		{"sampling_mask", nil},
		{"weight_versions", s.weightVersions(one)},
	}
	return succeed(w, object{
		{"request_id", id},
		{"choices", []object{choice}},
		{"prompt_logprobs", s.promptLogprobs(&q.Sampling.params, one)},
		{"prompt_token_id_logprobs", nil},
		{"prompt_token_ids", idsIf(q.ReturnIDs, one.prompt)},
		{"mm_placeholders", nil},
		{"kv_transfer_params", unpacked(one.transfer)},
		{"ec_transfer_params", s.sim.encoded(q.hashes)},
		{"metrics", nil},
	})
}

func (s *Server) fromIDs(ctx context.Context, q *generateRequest, id string) (*generation, *apiError) {
	if err := s.sim.checkIDs(q); err != nil {
		return nil, err
	}
	switch {
	case q.IDs == nil:
		return nil, missing("token_ids")
	case q.Sampling == nil:
		return nil, missing("sampling_params")
	case s.sim == nil && q.Sampling.MaxTokens != nil && *q.Sampling.MaxTokens == 0:
		return nil, badRequest("max_tokens", "max_tokens must be greater than 0.")
	case s.sim == nil && len(q.Sampling.Stop) > 0:
		return nil, badRequest("stop", "stop is not supported.")
	case len(q.IDs) == 0:
		return nil, badRequest("token_ids", "token_ids must contain at least one token ID.")
	case !empty(q.Features) && s.sim == nil:
		return nil, badRequest("features", "features is not supported.")
	}
	p := &q.Sampling.params
	p.Model, p.Stream, p.StreamOptions, p.CacheSalt = q.Model, q.Stream, q.StreamOptions, q.CacheSalt
	q.Sampling.skipReading = q.Sampling.SkipReading
	p.KVTransfer, p.ECTransfer, p.onlyIDs, p.max = q.KVTransfer, q.ECTransfer, true, intOf(q.Sampling.MaxTokens)
	p.TokensAsIDs, p.TruncatePrompt, p.LengthPenalty, p.SpacesBetween = true, nil, nil, nil
	var err *apiError
	if p.logprobs, err = candidateCount("logprobs", q.Sampling.Logprobs); err != nil {
		return nil, err
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	if p.answers > 1 || or(p.N, 1) == 0 {
		return nil, badRequest("n", "Only n=1 is supported.")
	}
	if err := inVocabulary("prompt", q.IDs, s.vocabulary); err != nil {
		return nil, err
	}
	if err := p.constrain(badBody); err != nil {
		return nil, err
	}
	return s.generate(ctx, p, id, [][]uint32{q.IDs}, s.models.adapter.find(p.Model))
}

func (s *Server) streamIDs(r *http.Request, g *generation, q *generateRequest, a *answer, id string) {
	a.stream(object{{"request_id", id}})
	event := generatedEvent{Choices: make([]idDelta, 1), PromptIDs: idsIf(q.ReturnIDs, g.all[0].prompt)}
	g.streamed(r.Context(), a, func(one *sequence, p *piece, _ string) {
		if one.finish == protocol.FinishError || len(p.ids) == 0 && !one.ended {
			return
		}
		d := idDelta{IDs: idsIf(true, p.ids)}
		if q.Sampling.Logprobs != nil && p.logprobs != nil {
			d.Logprobs = newIDLogprobs(p.logprobs)
		}
		if one.ended {
			d.FinishReason, d.Versions = one.finishReason(), s.weightVersions(one)
		}
		event.Choices[0], event.Usage = d, one.soFar()
		a.chunk(&event)
		event.PromptIDs = nil
	}, func() {
		if q.Sampling.usage {
			a.chunk(&generatedEvent{Choices: []idDelta{}, Usage: g.usage()})
		}
	})
}
