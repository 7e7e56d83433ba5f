package builtin

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"

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
	CacheSalt     string          `json:"cache_salt"`
	Priority      int32           `json:"priority"`
	KVTransfer    json.RawMessage `json:"kv_transfer_params"`
	ECTransfer    json.RawMessage `json:"ec_transfer_params"`
	Features      json.RawMessage `json:"features"`
	ReturnIDs     bool            `json:"return_token_ids"`
}

type idSampling struct {
	params
	MaxTokens *uint32 `json:"max_tokens"`
	Logprobs  *int32  `json:"logprobs"`
}

// appendVersions says which weights made an answer: those of its end.
func (s *Server) appendVersions(b []byte, q *sequence) []byte {
	version, _ := s.weights.Load().(string)
	b = appendString(append(b, `,"weight_versions":[{"version":`...), cmp.Or(version, "default"))
	b = appendInt(append(b, `,"start":0,"end":`...), q.count)
	return append(b, "}]"...)
}

// noScaleOut refuses requests where these endpoints are not enabled.
func noScaleOut(http.ResponseWriter, *http.Request) *apiError {
	return &apiError{
		status: http.StatusForbidden, kind: "PermissionDeniedError",
		message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
	}
}

func (s *Server) serveGenerate(w http.ResponseWriter, r *http.Request) *apiError {
	var q generateRequest
	end, err := readJSON(r, &q)
	if err != nil {
		return err
	}
	id := requestID(r, q.RequestID)
	if q.Sampling != nil {
		q.Sampling.rank, q.Sampling.cacheThreshold = wantedRank(r), s.sim.wantsThreshold(r)
	}
	g, err := s.fromIDs(r.Context(), &q, id, end)
	if err != nil {
		return err
	}
	defer g.close()
	a := s.newAnswer(w, id, "", "", 0)
	defer a.release()
	if q.Stream {
		s.streamIDs(r, g, &q, a)
		return nil
	}
	if err := g.whole(r.Context()); err != nil {
		return err
	}
	one := g.all[0]
	b := appendString(append(a.b, `{"request_id":`...), id)
	b = append(b, `,"choices":[{"index":0,"logprobs":`...)
	if q.Sampling.Logprobs != nil {
		b = append(b, `{"content":[`...)
		for _, table := range one.table {
			b = appendIDLogprobs(b, table)
		}
		b = append(b, "]}"...)
	} else {
		b = append(b, "null"...)
	}
	b = appendString(append(b, `,"finish_reason":`...), one.finishReason())
	b = one.stop.append(append(b, `,"stop_reason":`...))
	b = appendIDs(append(b, `,"token_ids":`...), one.tokens)
	b = s.appendVersions(append(b, `,"routed_experts":null,"sampling_mask":null`...), one)
	b = s.appendPromptLogprobs(append(b, `}],"prompt_logprobs":`...), &q.Sampling.params, one)
	b = appendIf(append(b, `,"prompt_token_id_logprobs":null,"prompt_token_ids":`...), q.ReturnIDs, appendIDs, one.prompt)
	b = appendTransfer(append(b, `,"mm_placeholders":null,"kv_transfer_params":`...), one.transfer)
	b = appendTransfer(append(b, `,"ec_transfer_params":`...), s.sim.encoded(q.hashes()))
	a.b = append(b, `,"metrics":null}`...)
	return succeed(w, a.b)
}

// appendIDLogprobs writes an object for each row of a table. Tokens are named by their ids.
func appendIDLogprobs(b []byte, t *protocol.Logprobs) []byte {
	token := func(at int, rank int64) {
		b = strconv.AppendUint(append(b, `{"token_id":`...), uint64(t.TokenIDs[at]), 10)
		b = appendLogprob(append(b, `,"logprob":`...), t.Values[at])
		b = strconv.AppendInt(append(b, `,"rank":`...), rank, 10)
	}
	for row := range t.Rows() {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		first := row * t.Width
		token(first, t.Ranks[row])
		b = append(b, `,"top_logprobs":[`...)
		for i, at := range candidates(t, row, t.Width) {
			rank := t.Ranks[row]
			if i > 0 {
				rank = int64(i)
				b = append(b, ',')
			}
			token(at, rank)
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return b
}

func (s *Server) fromIDs(ctx context.Context, q *generateRequest, id, end string) (*generation, *apiError) {
	if s.sim != nil {
		if err := s.sim.checkIDs(q); err != nil {
			return nil, err
		}
	}
	switch {
	case q.IDs == nil:
		return nil, missingField(end, "token_ids")
	case q.Sampling == nil:
		return nil, missingField(end, "sampling_params")
	case len(q.IDs) == 0:
		return nil, badRequest("token_ids", "token_ids must contain at least one token ID.")
	case !absent(q.Features) && s.sim == nil:
		return nil, badRequest("features", "features is not supported.")
	}
	p := &q.Sampling.params
	p.Model, p.Stream, p.StreamOptions, p.CacheSalt, p.Priority = q.Model, q.Stream, q.StreamOptions, q.CacheSalt, q.Priority
	p.KVTransfer, p.ECTransfer, p.onlyIDs, p.max = q.KVTransfer, q.ECTransfer, true, intOf(q.Sampling.MaxTokens)
	p.TokensAsIDs = true
	p.logprobs = protocol.NoLogprobs
	if n := q.Sampling.Logprobs; n != nil {
		if *n < -1 {
			return nil, badRequest("", "logprobs must be non-negative or -1, got %d", *n)
		}
		p.logprobs = count(*n)
	}
	if err := p.check(s); err != nil {
		return nil, err
	}
	if p.answers > 1 {
		return nil, badRequest("n", "Only n=1 is supported.")
	}
	if err := inVocabulary("prompt", q.IDs, s.opt.Tokenizer.VocabSize()); err != nil {
		return nil, err
	}
	if err := p.constrain(); err != nil {
		return nil, err
	}
	return s.generate(ctx, p, id, [][]uint32{q.IDs}, s.models.adapter.find(p.Model))
}

func (s *Server) streamIDs(r *http.Request, g *generation, q *generateRequest, a *answer) {
	a.stream()
	a.head = appendString(append(a.head[:0], `data: {"request_id":`...), a.id)
	a.head = append(a.head, `,"choices":[`...)
	first := q.ReturnIDs
	g.streamed(r.Context(), a, func(one *sequence, p *piece, _ string) {
		if one.finish == protocol.FinishError || len(p.ids) == 0 && !one.ended {
			return
		}
		a.event(0)
		if q.Sampling.Logprobs != nil && p.logprobs != nil {
			a.b = append(a.b, `,"logprobs":{"content":[`...)
			a.b = append(appendIDLogprobs(a.b, p.logprobs), "]}"...)
		}
		if one.ended {
			a.b = appendString(append(a.b, `,"finish_reason":`...), one.finishReason())
		}
		a.b = appendIDs(append(a.b, `,"token_ids":`...), p.ids)
		if one.ended {
			a.b = s.appendVersions(a.b, one)
		}
		a.b = append(a.b, "}]"...)
		if q.Sampling.continuous {
			u := one.soFar()
			a.b = u.append(append(a.b, `,"usage":`...))
		}
		if first {
			a.b = appendIDs(append(a.b, `,"prompt_token_ids":`...), one.prompt)
			first = false
		}
		a.end(nil)
	}, func() {
		if q.Sampling.usage {
			a.lastUsage(g.usage())
		}
	})
}

// tokenName is how an id stands for a token where nothing is decoded.
func tokenName(id uint32) string { return "token_id:" + strconv.FormatUint(uint64(id), 10) }
