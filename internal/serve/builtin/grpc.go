package builtin

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/serve/grpc"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// engineService is the service of vLLM's gRPC server (vllm.entrypoints.launchers.grpc_server with smg-grpc-servicer 0.14.1). Where it
// refuses something, the texts are those of the Python server, which does the checks there.
const engineService = grpc.EngineService

// rpc is what the gRPC service knows beside the HTTP server.
type rpc struct {
	started time.Time
	last    atomic.Int64 // a request came, in nanoseconds of Unix time; 0 is never
}

func (s *Server) newRPC() grpc.Server {
	s.rpc.started = time.Now()
	server := grpc.Server{}
	server.Serve(engineService, map[string]grpc.Handler{
		"Generate":      s.rpcGenerate,
		"Embed":         grpc.Unary(s.rpcEmbed),
		"HealthCheck":   grpc.Unary(s.rpcHealth),
		"FlushCache":    grpc.Unary(s.rpcFlushCache),
		"StartProfile":  grpc.Unary(s.rpcStartProfile),
		"StopProfile":   grpc.Unary(func(ctx context.Context, _ []byte) ([]byte, error) { return s.rpcProfile(ctx, false) }),
		"Abort":         grpc.Unary(s.rpcAbort),
		"GetModelInfo":  grpc.Unary(s.rpcModelInfo),
		"GetServerInfo": grpc.Unary(s.rpcServerInfo),
		"GetLoads":      grpc.Unary(s.rpcLoads),
		"GetTokenizer":  s.rpcTokenizer,
		"SubscribeKvEvents": func(context.Context, *grpc.Call) error {
			return grpc.Errorf(grpc.Unimplemented, "KV cache events are not served over gRPC: subscribe to the ZeroMQ address of --kv-events-config")
		},
	})
	server.AddHealth(engineService, s.alive, s.ended)
	server.AddReflection()
	return server
}

func (s *Server) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// rpcError is the status for an error.
func rpcError(err *apiError) error {
	if err == nil {
		return nil
	}
	return &grpc.Error{Code: grpc.CodeOf(err.status), Message: err.message}
}

// rpcEnded is the status for a generation that did not go on: its client has left, or the engine has ended.
func rpcEnded(err error) error {
	if err == errGone {
		return grpc.Errorf(grpc.Canceled, "the client has left")
	}
	return rpcError(errInternal)
}

func invalid(format string, args ...any) error {
	return grpc.Errorf(grpc.InvalidArgument, format, args...)
}

// invalidValue is the error for a parameter, as VLLMValidationError prints it.
func invalidValue(name, value, format string, args ...any) error {
	return invalid(format+" (parameter=%s, value=%s)", append(args, name, value)...)
}

// rpcRequest is a GenerateRequest.
type rpcRequest struct {
	params
	id        string
	text      string
	ids       []uint32
	tokenized bool
	Logprobs  *int32
	pinned    *int // the data-parallel rank
}

func (s *Server) rpcGenerate(ctx context.Context, c *grpc.Call) error {
	message, err := c.One()
	if err != nil {
		return err
	}
	// What is not in the message has the defaults of SamplingParams, and not those of the model.
	one, zero, yes, no := 1.0, 0.0, true, false
	q := &rpcRequest{params: params{
		Temperature: &one, TopP: &one, TopK: new(int32), MinP: &zero, FrequencyPenalty: &zero, PresencePenalty: &zero, RepetitionPenalty: &one,
		SkipSpecial: &no, SpacesBetween: &yes, ReturnTokenIDs: true, rpc: true, answers: 1, logprobs: protocol.NoLogprobs, promptLogprobs: protocol.NoLogprobs,
	}}
	if err := q.read(message); err != nil {
		return err
	}
	if err := q.check(s); err != nil {
		return err
	}
	ids := q.ids
	if !q.tokenized {
		if q.TruncatePrompt == nil && s.tooManyBytes(len(q.text), s.maxModelLen) {
			return rpcError(s.tooLong(len(q.text) / s.longestToken))
		}
		ids = s.encode(q.text, true)
		if n := intOf(q.TruncatePrompt); n != nil {
			most := *n
			if most < 0 {
				most = s.maxModelLen
			}
			ids = ids[max(len(ids)-most, 0):]
		}
	}
	if err := s.checkPrompt(ids); err != nil {
		return err
	}
	s.load.Add(1)
	defer s.load.Add(-1)
	s.rpc.last.Store(time.Now().UnixNano())
	g, refused := s.generate(ctx, &q.params, q.id, [][]uint32{ids}, nil)
	if refused != nil {
		return rpcError(refused)
	}
	defer g.close()
	var b []byte
	for g.open() {
		switch err := g.next(ctx, func(one *sequence, p *piece, _ string) error {
			if p.finish == protocol.FinishError {
				return rpcError(ofEngine(p.failure))
			}
			if !q.Stream || len(p.ids) == 0 && !one.ended {
				return nil
			}
			b = grpc.AppendMessage(b[:0], 1, func(b []byte) []byte { return q.appendChunk(b, one, p.ids, p.logprobs, p.prompt) })
			if err := c.Send(b); err != nil || !one.ended {
				return err
			}
			b = grpc.AppendMessage(b[:0], 2, func(b []byte) []byte { return q.appendEnd(b, one, p.ids, []*protocol.Logprobs{p.logprobs}, p.prompt) })
			return c.Send(b)
		}); err {
		case nil:
		case errGone, errEngine:
			return rpcEnded(err)
		default:
			return err
		}
	}
	if q.Stream {
		return nil
	}
	for _, one := range g.all {
		b = grpc.AppendMessage(b[:0], 2, func(b []byte) []byte { return q.appendEnd(b, one, one.tokens, one.table, one.prompts) })
		if err := c.Send(b); err != nil {
			return err
		}
	}
	return nil
}

// read takes the fields of a GenerateRequest.
func (q *rpcRequest) read(message []byte) error {
	return grpc.Fields(message, func(f grpc.Field) (err error) {
		switch f.Number {
		case 1:
			q.id, err = f.Text()
		case 2:
			q.tokenized, q.text = true, ""
			q.ids, err = readTokenized(f.Bytes())
		case 3:
			q.tokenized, q.ids = false, nil
			q.text, err = f.Text()
		case 4:
			err = q.readSampling(f.Bytes())
		case 5:
			q.Stream = f.Bool()
		case 6:
			err = q.readTransfer(f.Bytes())
		case 7, 10, 11:
			err = invalid("multimodal inputs are not supported")
		case 8:
			var text string
			if text, err = f.Text(); err == nil && !json.Valid([]byte(text)) {
				err = invalid("Invalid kv_transfer_params_json: it is no JSON")
			} else if err == nil && !strings.HasPrefix(strings.TrimSpace(text), "{") {
				err = invalid("kv_transfer_params_json must be a JSON object")
			}
			q.KVTransfer = json.RawMessage(text)
		case 9:
			rank := f.Int()
			q.pinned = &rank
		}
		return err
	})
}

// readTokenized returns the ids of a TokenizedInput.
func readTokenized(message []byte) (ids []uint32, err error) {
	err = grpc.Fields(message, func(f grpc.Field) (err error) {
		if f.Number == 2 {
			ids, err = f.Uint32s(ids)
		}
		return err
	})
	return ids, err
}

// readTransfer takes the older form of kv_transfer_params, which the newer one replaces.
func (q *rpcRequest) readTransfer(message []byte) error {
	var host string
	var port uint64
	err := grpc.Fields(message, func(f grpc.Field) (err error) {
		if f.Number == 1 {
			host, err = f.Text()
		} else if f.Number == 2 {
			port = f.Uint()
		}
		return err
	})
	switch {
	case err != nil || q.KVTransfer != nil:
		return err
	case host == "" || port < 1 || port > math.MaxUint16:
		return invalid("Invalid kv_transfer_params: remote_host must be set and remote_port must be in [1, 65535].")
	}
	q.KVTransfer, err = json.Marshal(map[string]any{"remote_host": host, "remote_port": port})
	return err
}

func (q *rpcRequest) readSampling(message []byte) error {
	whole := func(f grpc.Field) *int32 { n := int32(f.Int()); return &n }
	float := func(f grpc.Field, otherwise float64) *float64 {
		v := f.Float()
		if v == 0 {
			v = otherwise
		}
		return &v
	}
	return grpc.Fields(message, func(f grpc.Field) (err error) {
		var text string
		switch f.Number {
		case 1:
			q.Temperature = float(f, 0)
		case 2:
			q.TopP = float(f, 1)
		case 3:
			n := int32(f.Uint())
			q.TopK = &n
		case 4:
			q.MinP = float(f, 0)
		case 5:
			q.FrequencyPenalty = float(f, 0)
		case 6:
			q.PresencePenalty = float(f, 0)
		case 7:
			q.RepetitionPenalty = float(f, 1)
		case 8:
			n := int(uint32(f.Uint()))
			q.max = &n
		case 9:
			q.MinTokens = uint32(f.Uint())
		case 10:
			text, err = f.Text()
			q.Stop = append(q.Stop, text)
		case 11:
			q.StopTokenIDs, err = f.Uint32s(q.StopTokenIDs)
		case 12:
			skip := f.Bool()
			q.SkipSpecial = &skip
		case 14:
			q.IgnoreEOS = f.Bool()
		case 15:
			q.answers = max(int(uint32(f.Uint())), 1)
		case 22:
			q.Logprobs = whole(f)
		case 23:
			q.PromptLogprobs = whole(f)
		case 24:
			if seed := int64(f.Int()); seed != -1 {
				q.Seed = &seed
			}
		case 25:
			q.IncludeStop = f.Bool()
		case 26:
			err = q.readBias(f.Bytes())
		case 27:
			q.TruncatePrompt = whole(f)
		case 16, 17, 18, 19:
			if text, err = f.Text(); err == nil {
				q.constraint = constraint([]string{"json", "regex", "grammar", "structural_tag"}[f.Number-16], text)
			}
		case 20:
			if !f.Bool() {
				return invalid("structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs")
			}
			q.constraint = anyObject()
		case 21:
			var all []string
			err = grpc.Fields(f.Bytes(), func(f grpc.Field) error {
				text, err := f.Text()
				all = append(all, text)
				return err
			})
			q.constraint = oneOf(all)
		}
		return err
	})
}

func (q *rpcRequest) readBias(message []byte) error {
	token, bias := 0, 0.0
	if err := grpc.Fields(message, func(f grpc.Field) error {
		if f.Number == 1 {
			token = f.Int()
		} else {
			bias = f.Float()
		}
		return nil
	}); err != nil {
		return err
	}
	if q.LogitBias == nil {
		q.LogitBias = map[string]float64{}
	}
	q.LogitBias[strconv.Itoa(token)] = bias
	return nil
}

// check refuses what SamplingParams refuses, in its words (vllm/sampling_params.py).
func (q *rpcRequest) check(s *Server) error {
	if len(s.opt.Tasks) > 0 {
		return invalid("This model does not support generation")
	}
	for _, bound := range []struct {
		name   string
		value  float64
		lo, hi float64
		text   string
	}{
		{"presence_penalty", *q.PresencePenalty, -2, 2, "in [-2, 2]"},
		{"frequency_penalty", *q.FrequencyPenalty, -2, 2, "in [-2, 2]"},
		{"repetition_penalty", *q.RepetitionPenalty, -math.MaxFloat64, math.MaxFloat64, "a finite number"},
		{"repetition_penalty", *q.RepetitionPenalty, math.SmallestNonzeroFloat64, math.MaxFloat64, "greater than zero"},
		{"temperature", *q.Temperature, -math.MaxFloat64, math.MaxFloat64, "a finite number"},
		{"temperature", *q.Temperature, 0, math.MaxFloat64, "non-negative"},
		{"temperature", *q.Temperature, 0, 2, "in [0, 2]"},
		{"top_p", *q.TopP, math.SmallestNonzeroFloat64, 1, "in (0, 1]"},
		{"min_p", *q.MinP, 0, 1, "in [0, 1]"},
	} {
		if v := bound.value; !(v >= bound.lo && v <= bound.hi) {
			if bound.name == "temperature" || bound.name == "top_p" {
				return invalidValue(bound.name, pythonFloat(v), "%s must be %s, got %s.", bound.name, bound.text, pythonFloat(v))
			}
			return invalid("%s must be %s, got %s.", bound.name, bound.text, pythonFloat(v))
		}
	}
	vocabulary := s.opt.Tokenizer.VocabSize()
	if q.max != nil {
		switch {
		case *q.max < 1:
			return invalidValue("max_tokens", strconv.Itoa(*q.max), "max_tokens must be at least 1, got %d.", *q.max)
		case int(q.MinTokens) > *q.max:
			return invalid("min_tokens must be less than or equal to max_tokens=%d, got %d.", *q.max, q.MinTokens)
		}
	}
	for _, wanted := range []struct {
		name, kind string
		given      *int32
		to         *int
	}{{"logprobs", "sample", q.Logprobs, &q.logprobs}, {"prompt_logprobs", "prompt", q.PromptLogprobs, &q.promptLogprobs}} {
		if wanted.given == nil {
			continue
		}
		n := int(*wanted.given)
		if n < -1 {
			return invalidValue(wanted.name, strconv.Itoa(n), "%s must be non-negative or -1, got %d.", wanted.name, n)
		}
		*wanted.to = count(*wanted.given)
		if n == -1 {
			n = vocabulary
		}
		if n > mostLogprobs {
			return invalidValue(wanted.name, strconv.Itoa(n), "Requested %s logprobs of %d, which is greater than max allowed: %d", wanted.kind, n, mostLogprobs)
		}
	}
	var biased []string
	for token := range q.LogitBias {
		if n, _ := strconv.Atoi(token); n < 0 || n >= vocabulary {
			biased = append(biased, token)
		}
	}
	var stops []string
	for _, id := range q.StopTokenIDs {
		if int64(id) >= int64(vocabulary) {
			stops = append(stops, strconv.FormatUint(uint64(id), 10))
		}
	}
	slices.Sort(biased)
	engines := len(s.balance.open)
	switch {
	case slices.Contains(q.Stop, ""):
		return invalid("stop cannot contain an empty string.")
	case biased != nil:
		return outOfVocabulary("logit_bias", biased, vocabulary)
	case stops != nil:
		return outOfVocabulary("stop_token_ids", stops, vocabulary)
	case q.answers > maxAnswers:
		return invalid("n must be at most %d, got %d.", maxAnswers, q.answers)
	case q.pinned != nil && (*q.pinned < 0 || *q.pinned >= engines):
		return invalid("data_parallel_rank %d is out of range [0, %d).", *q.pinned, engines)
	case q.pinned != nil:
		q.rank = *q.pinned + 1
	}
	if err := q.checkLists(s); err != nil {
		return rpcError(err)
	}
	if q.max == nil {
		most := math.MaxInt // as much as there is room for, and not what the model says
		q.max = &most
	}
	q.onlyIDs = len(q.Stop) == 0
	return nil
}

func outOfVocabulary(name string, ids []string, vocabulary int) error {
	list := "[" + strings.Join(ids, ", ") + "]"
	return invalidValue(name, list, "token_id(s) %s in %s contain out-of-vocab token ids. Vocabulary size: %d", list, name, vocabulary)
}

// checkPrompt refuses prompts that no request can have (vllm/v1/engine/input_processor.py).
func (s *Server) checkPrompt(ids []uint32) error {
	vocabulary := s.opt.Tokenizer.VocabSize()
	switch n, most := len(ids), s.maxModelLen; {
	case n == 0:
		return invalid("The decoder prompt cannot be empty")
	case n > most:
		return invalid("The decoder prompt (length %d) is longer than the maximum model length of %d. "+
			"Make sure that `max_model_len` is no smaller than the number of text tokens.", n, most)
	case n == most && len(s.opt.Tasks) == 0:
		return invalid("The decoder prompt (length %d) plus the number of requested output tokens (at least 1) is longer than the maximum model length of %d. "+
			"Make sure that `max_model_len` is no smaller than the number of text tokens (prompt + requested output tokens).", n, most)
	}
	if largest := slices.Max(ids); int64(largest) >= int64(vocabulary) {
		return invalid("Token id %d is out of vocabulary", largest)
	}
	return nil
}

// pythonFloat is a number as Python prints it.
func pythonFloat(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 0):
		return strings.ToLower(strings.TrimPrefix(text, "+"))
	case !strings.ContainsAny(text, ".e"):
		text += ".0"
	}
	return text
}

// appendChunk writes a GenerateStreamChunk: what has come since the last one.
func (q *rpcRequest) appendChunk(b []byte, one *sequence, ids []uint32, table, prompt *protocol.Logprobs) []byte {
	b = grpc.AppendUint32s(b, 1, ids)
	b = grpc.AppendUint(b, 2, uint64(len(one.prompt)))
	b = grpc.AppendUint(b, 3, uint64(len(ids)))
	b = grpc.AppendUint(b, 4, uint64(one.cached))
	b = q.appendLogprobs(b, 5, []*protocol.Logprobs{table})
	b = q.appendPromptLogprobs(b, 6, one, prompt)
	return grpc.AppendUint(b, 7, uint64(one.index))
}

// appendEnd writes a GenerateComplete. In a stream it has what the last chunk has.
func (q *rpcRequest) appendEnd(b []byte, one *sequence, ids []uint32, tables []*protocol.Logprobs, prompt *protocol.Logprobs) []byte {
	b = grpc.AppendUint32s(b, 1, ids)
	b = grpc.AppendString(b, 2, finishReason(one.finish))
	b = grpc.AppendUint(b, 3, uint64(len(one.prompt)))
	b = grpc.AppendUint(b, 4, uint64(len(ids)))
	b = grpc.AppendUint(b, 5, uint64(one.cached))
	b = q.appendLogprobs(b, 6, tables)
	b = q.appendPromptLogprobs(b, 7, one, prompt)
	b = grpc.AppendUint(b, 8, uint64(one.index))
	switch one.stop.kind {
	case 1:
		b = grpc.AppendBytes(b, 11, one.stop.text)
	case 2:
		b = grpc.AppendNumber(b, 10, uint64(one.stop.token))
	}
	if one.transfer != nil {
		b = grpc.AppendBytes(b, 12, appendTransfer(nil, one.transfer))
	}
	return b
}

// appendLogprobs writes OutputLogProbs: of each token, and of as many candidates as were asked for, in the order of the engine.
func (q *rpcRequest) appendLogprobs(b []byte, field int, tables []*protocol.Logprobs) []byte {
	if q.Logprobs == nil || len(tables) == 0 || tables[0] == nil {
		return b
	}
	var values []float32
	var ids []uint32
	for _, t := range tables {
		for row := range t.Rows() {
			values, ids = append(values, t.Values[row*t.Width]), append(ids, t.TokenIDs[row*t.Width])
		}
	}
	return grpc.AppendMessage(b, field, func(b []byte) []byte {
		b = grpc.AppendUint32s(grpc.AppendFloats(b, 1, values), 2, ids)
		if *q.Logprobs == 0 {
			return b
		}
		for _, t := range tables {
			for row := range t.Rows() {
				b = appendTop(b, t, row, int(*q.Logprobs))
			}
		}
		return b
	})
}

// appendPromptLogprobs writes InputLogProbs. The first token of a prompt has none.
func (q *rpcRequest) appendPromptLogprobs(b []byte, field int, one *sequence, t *protocol.Logprobs) []byte {
	if q.PromptLogprobs == nil || t == nil {
		return b
	}
	known := one.prompt[:min(len(one.prompt), t.Rows()+1)]
	return grpc.AppendMessage(b, field, func(b []byte) []byte {
		for i := range known {
			b = grpc.AppendMessage(b, 1, func(b []byte) []byte {
				if i == 0 {
					return b
				}
				return grpc.AppendFloat(b, 1, t.Values[(i-1)*t.Width])
			})
		}
		b = grpc.AppendUint32s(b, 2, known)
		if *q.PromptLogprobs == 0 {
			return b
		}
		for i := range known {
			if i == 0 {
				b = grpc.AppendBytes(b, 3, "")
			} else {
				b = appendTop(b, t, i-1, int(*q.PromptLogprobs))
			}
		}
		return b
	})
}

// appendTop writes TopLogProbs: the token itself and the best others, n of them. It is empty where all of them were asked for.
func appendTop(b []byte, t *protocol.Logprobs, row, n int) []byte {
	var ids []uint32
	var values []float32
	for _, at := range candidates(t, row, n) {
		ids, values = append(ids, t.TokenIDs[at]), append(values, t.Values[at])
	}
	return grpc.AppendMessage(b, 3, func(b []byte) []byte { return grpc.AppendUint32s(grpc.AppendFloats(b, 1, values), 2, ids) })
}

func (s *Server) rpcEmbed(ctx context.Context, message []byte) ([]byte, error) {
	var id string
	var ids []uint32
	tokenized := false
	if err := grpc.Fields(message, func(f grpc.Field) (err error) {
		switch f.Number {
		case 1:
			id, err = f.Text()
		case 2:
			tokenized = true
			ids, err = readTokenized(f.Bytes())
		}
		return err
	}); err != nil {
		return nil, err
	}
	switch {
	case !tokenized:
		return nil, invalid("EmbedRequest requires tokenized input")
	case len(s.opt.Tasks) == 0:
		return nil, invalid("This model does not support pooling")
	case !slices.Contains(s.opt.Tasks, "embed"):
		return nil, invalid("Unsupported task: 'embed' Supported tasks: ['%s']", strings.Join(s.opt.Tasks, "', '"))
	}
	if err := s.checkPrompt(ids); err != nil {
		return nil, err
	}
	p := params{rpc: true, answers: 1, onlyIDs: true, logprobs: protocol.NoLogprobs, promptLogprobs: protocol.NoLogprobs}
	codec, err := protocol.CodecFor(s.opt.Group.Line())
	if err == nil {
		p.pooling, err = codec.AppendPooling(nil, "embed", 0)
	}
	if err != nil {
		return nil, rpcError(errInternal)
	}
	s.load.Add(1)
	defer s.load.Add(-1)
	s.rpc.last.Store(time.Now().UnixNano())
	g, refused := s.generate(ctx, &p, id, [][]uint32{ids}, nil)
	if refused != nil {
		return nil, rpcError(refused)
	}
	defer g.close()
	for g.open() {
		if err := g.next(ctx, func(*sequence, *piece, string) error { return nil }); err != nil {
			return nil, rpcEnded(err)
		}
	}
	if failed := g.failure(); failed != nil {
		return nil, rpcError(failed)
	}
	values := g.all[0].pooled
	if values == nil {
		return nil, grpc.Errorf(grpc.Internal, "Embed request %s did not produce a result", id)
	}
	b := grpc.AppendUint(grpc.AppendFloats(nil, 1, values), 2, uint64(len(ids)))
	return grpc.AppendUint(b, 3, uint64(len(values))), nil
}

func (s *Server) rpcHealth(context.Context, []byte) ([]byte, error) {
	if s.alive() {
		return grpc.AppendString(grpc.AppendBool(nil, 1, true), 2, "Health"), nil
	}
	return grpc.AppendString(nil, 2, "Engine is not alive"), nil
}

// rpcAbort ends requests by the ids that their clients gave. They get what there is, with the finish reason "abort".
func (s *Server) rpcAbort(_ context.Context, message []byte) ([]byte, error) {
	var ids []string
	if err := grpc.Fields(message, func(f grpc.Field) error {
		if f.Number != 1 {
			return nil
		}
		id, err := f.Text()
		ids = append(ids, id)
		return err
	}); err != nil {
		return nil, err
	}
	if len(ids) > 0 {
		s.open.abort(ids...)
	}
	return nil, nil
}

// rpcModelInfo tells what the files of the model say.
func (s *Server) rpcModelInfo(context.Context, []byte) ([]byte, error) {
	config := s.model.config
	architectures, _ := config["architectures"].([]any)
	var given map[string]json.RawMessage
	_ = json.Unmarshal(s.model.generation, &given) // [readModel] has said what is wrong with it
	sampling := ""
	for _, name := range []string{"temperature", "top_p", "top_k", "min_p", "repetition_penalty"} {
		if raw := given[name]; !absent(raw) {
			sampling += `,"` + name + `":` + string(raw)
		}
	}
	if sampling != "" {
		sampling = "{" + sampling[1:] + "}"
	}
	b := grpc.AppendString(nil, 1, s.opt.Model)
	b = grpc.AppendBool(b, 2, len(s.opt.Tasks) == 0)
	b = grpc.AppendUint(b, 3, uint64(s.maxModelLen))
	b = grpc.AppendUint(b, 4, uint64(cmp.Or(int(config.number("vocab_size")), s.opt.Tokenizer.VocabSize())))
	b = grpc.AppendString(b, 6, s.opt.Names[0])
	b = grpc.AppendString(b, 7, s.opt.Dir)
	b = grpc.AppendString(b, 8, config.text("model_type"))
	for _, name := range architectures {
		text, _ := name.(string)
		b = grpc.AppendBytes(b, 9, text)
	}
	b = grpc.AppendUint32s(b, 10, idsOf(config["eos_token_id"]))
	b = grpc.AppendUint(b, 11, uint64(int(config.number("pad_token_id"))))
	b = grpc.AppendUint(b, 12, uint64(int(config.number("bos_token_id"))))
	b = grpc.AppendUint(b, 13, uint64(s.maxModelLen))
	return grpc.AppendString(b, 14, sampling), nil
}

func (s *Server) rpcServerInfo(ctx context.Context, _ []byte) ([]byte, error) {
	last := s.rpc.last.Load()
	paused, err := s.call(ctx, "is_scheduler_paused")
	is, _ := paused.(bool)
	engine := s.opt.Group.Engines()[0]
	b := grpc.AppendUint(nil, 1, uint64(s.load.Load()))
	b = grpc.AppendBool(b, 2, err == nil && is)
	if last != 0 {
		b = grpc.AppendDouble(b, 3, float64(last/1e3)/1e6)
	}
	b = grpc.AppendDouble(b, 4, time.Since(s.rpc.started).Seconds())
	b = grpc.AppendString(b, 5, "vllm-grpc")
	b = grpc.AppendUint(b, 9, uint64(len(s.balance.open)))
	b = grpc.AppendString(b, 11, "auto")
	b = grpc.AppendUint(b, 12, uint64(engine.BlockSize))
	if dtype := cmp.Or(s.model.config.text("dtype"), s.model.config.text("torch_dtype")); dtype != "" {
		b = grpc.AppendString(b, 14, "torch."+dtype)
	}
	return grpc.AppendString(b, 24, "first_token"), nil
}

func (s *Server) rpcLoads(context.Context, []byte) ([]byte, error) {
	b := grpc.AppendString(nil, 1, time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"))
	b = grpc.AppendString(b, 2, s.opt.Release)
	engines := s.opt.Group.Engines()
	b = grpc.AppendUint(b, 3, uint64(len(engines)))
	s.metrics.mu.Lock()
	defer s.metrics.mu.Unlock()
	for i, engine := range engines {
		m := &s.metrics.engines[i]
		size := engine.BlockSize * engine.NumGPUBlocks
		b = grpc.AppendMessage(b, 4, func(b []byte) []byte {
			b = grpc.AppendUint(b, 1, uint64(engine.Index))
			b = grpc.AppendUint(b, 2, uint64(m.running))
			b = grpc.AppendUint(b, 3, uint64(m.waiting))
			b = grpc.AppendUint(b, 4, uint64(m.running+m.waiting))
			b = grpc.AppendUint(b, 5, uint64(math.RoundToEven(m.usage*float64(size))))
			b = grpc.AppendUint(b, 6, uint64(size))
			b = grpc.AppendDouble(b, 7, m.usage)
			return grpc.AppendDouble(b, 10, m.usage)
		})
	}
	return b, nil
}

// rpcFlushCache empties the prefix caches, and waits for requests to end if the client allows it.
func (s *Server) rpcFlushCache(ctx context.Context, message []byte) ([]byte, error) {
	timeout := 0.0
	if err := grpc.Fields(message, func(f grpc.Field) error {
		if f.Number == 1 {
			timeout = f.Float()
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if !(timeout >= 0 && timeout < math.MaxFloat32) {
		return nil, invalid("timeout_s must be finite and non-negative")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(max(timeout, 30), 1e6)*float64(time.Second)))
	defer cancel()
	for end := time.Now().Add(time.Duration(min(timeout, 1e6) * float64(time.Second))); ; {
		done, err := s.call(ctx, "reset_prefix_cache", pack.AppendBool(nil, false), pack.AppendBool(nil, false))
		is, _ := done.(bool)
		switch {
		case err == errGone:
			return nil, grpc.Errorf(grpc.DeadlineExceeded, "Flush cache timed out; the engine may still complete an issued reset")
		case err != nil:
			return nil, grpc.Errorf(grpc.Internal, "Flush cache failed: %v", err)
		case is:
			return grpc.AppendString(grpc.AppendBool(nil, 1, true), 2, "Local KV prefix cache flushed successfully"), nil
		case timeout == 0:
			return grpc.AppendString(nil, 2, "KV prefix cache reset refused; requests may be in flight"), nil
		case time.Now().After(end):
			return nil, grpc.Errorf(grpc.DeadlineExceeded, "Flush cache timed out; the engine may still complete an issued reset")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (s *Server) rpcStartProfile(ctx context.Context, message []byte) ([]byte, error) {
	names := []string{1: "output_dir", 2: "start_step", 3: "num_steps", 4: "activities", 5: "with_stack", 6: "record_shapes", 7: "profile_by_stage"}
	var set []string
	if err := grpc.Fields(message, func(f grpc.Field) error {
		if f.Number < len(names) && !slices.Contains(set, names[f.Number]) {
			set = append(set, names[f.Number])
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if set != nil {
		return nil, invalid("StartProfile options %s cannot be set per request on this engine: its profiler's directory and options are its "+
			"launch configuration; send a start with no options", strings.Join(set, ", "))
	}
	return s.rpcProfile(ctx, true)
}

func (s *Server) rpcProfile(ctx context.Context, start bool) ([]byte, error) {
	does := "Stop profiling"
	if start {
		does = "Start profiling"
	}
	if _, err := s.call(ctx, "profile", pack.AppendBool(nil, start), pack.AppendNil(nil)); err != nil {
		return nil, grpc.Errorf(grpc.Internal, "%s failed: %v", does, err)
	}
	return grpc.AppendString(grpc.AppendBool(nil, 1, true), 2, does+" succeeded"), nil
}

// tokenizerFiles are what GetTokenizer sends, with all files of these endings (smg_grpc_servicer/tokenizer_bundle.py).
var (
	tokenizerFiles = []string{
		"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
		"tokenizer.model", "tiktoken.model", "chat_template.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
	}
	tokenizerEndings = []string{".tiktoken", ".jinja", ".model"}
)

const (
	tokenizerChunk = 64 << 10
	mostTokenizer  = 256 << 20 // bytes of all files
)

// rpcTokenizer sends the files of the tokenizer as a zip archive in parts, with its sha256 in the last one.
func (s *Server) rpcTokenizer(_ context.Context, c *grpc.Call) error {
	if _, err := c.One(); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.opt.Dir)
	if err != nil {
		return grpc.Errorf(grpc.Internal, "the folder of the model cannot be read")
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	total := int64(0)
	for _, entry := range entries {
		name := entry.Name()
		if !slices.Contains(tokenizerFiles, name) && !slices.Contains(tokenizerEndings, filepath.Ext(name)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.opt.Dir, name))
		if err != nil || total > mostTokenizer {
			continue // a folder, or one that nobody can read
		}
		total += int64(len(text))
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err == nil {
			_, err = to.Write(text)
		}
		if err != nil {
			return grpc.Errorf(grpc.Internal, "%v", err)
		}
	}
	if err := z.Close(); err != nil || total == 0 {
		return grpc.Errorf(grpc.Internal, "No tokenizer files found in %s", s.opt.Dir)
	}
	digest := sha256.Sum256(b.Bytes())
	for data := b.Bytes(); len(data) > 0; {
		part := data[:min(len(data), tokenizerChunk)]
		data = data[len(part):]
		message := grpc.AppendBytes(nil, 1, part)
		if len(data) == 0 {
			message = grpc.AppendString(message, 2, hex.EncodeToString(digest[:]))
		}
		if err := c.Send(message); err != nil {
			return err
		}
	}
	return nil
}
