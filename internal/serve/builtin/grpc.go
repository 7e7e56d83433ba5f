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
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // messages may be compressed
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/vllm-vcr/conformance/internal/serve/enginepb"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// maxMessage is how many bytes a message of a client may have, also after it is decompressed.
const maxMessage = 64 << 20

// rpc is the service of vLLM's gRPC server (vllm.entrypoints.launchers.grpc_server with smg-grpc-servicer 0.14.1).
type rpc struct {
	enginepb.UnimplementedVllmEngineServer
	*Server
	server  *grpc.Server
	health  *health.Server
	started time.Time
	last    atomic.Int64 // when a request came, in nanoseconds of Unix time; 0 is never
}

func newRPC(s *Server) *rpc {
	r := &rpc{Server: s, server: grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage)), health: health.NewServer(), started: time.Now()}
	enginepb.RegisterVllmEngineServer(r.server, r)
	grpc_health_v1.RegisterHealthServer(r.server, r.health)
	r.health.SetServingStatus(enginepb.VllmEngine_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING)
	reflection.Register(r.server)
	return r
}

// isCall reports whether a request is a call of gRPC.
func isCall(r *http.Request) bool {
	kind, is := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return is && r.Method == http.MethodPost && (kind == "" || kind[0] == '+' || kind[0] == ';')
}

func (s *Server) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// rpcError is the status for an error; nil is success.
func rpcError(err *apiError) error {
	code := codes.Internal
	switch {
	case err == nil:
		return nil
	case err == errLeft:
		return status.Error(codes.Canceled, "the client has left")
	case err.status == http.StatusBadRequest:
		code = codes.InvalidArgument
	case err.status == http.StatusNotFound:
		code = codes.NotFound
	case err.status == http.StatusTooManyRequests:
		code = codes.ResourceExhausted
	case err.status == http.StatusServiceUnavailable:
		code = codes.Unavailable
	}
	return status.Error(code, err.message)
}

// endedWith is the status for a generation that did not go on: its client has left, its deadline has passed, or the
// engine has ended.
func (r *rpc) endedWith(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return rpcError(errInternal)
}

func invalid(text string) error { return status.Error(codes.InvalidArgument, text) }

// generateParams are the parameters of a GenerateRequest. What is not in it has the defaults of SamplingParams, and not
// those of the model.
func generateParams(in *enginepb.GenerateRequest) (*params, error) {
	q := in.SamplingParams
	either := func(v float32, otherwise float64) *float64 { // 0 is a number that is not there
		if v != 0 {
			otherwise = float64(v)
		}
		return &otherwise
	}
	skip, topK := q.GetSkipSpecialTokens(), int64(q.GetTopK())
	p := &params{
		rpc: true, ReturnTokenIDs: true, Stream: in.GetStream(), RequestID: in.GetRequestId(), SkipSpecial: &skip, TopK: &topK,
		Temperature: either(0, 1), TopP: either(q.GetTopP(), 1), MinP: either(q.GetMinP(), 0), FrequencyPenalty: either(q.GetFrequencyPenalty(), 0),
		PresencePenalty: either(q.GetPresencePenalty(), 0), RepetitionPenalty: either(q.GetRepetitionPenalty(), 1), MinTokens: q.GetMinTokens(),
		Stop: q.GetStop(), StopTokenIDs: q.GetStopTokenIds(), IgnoreEOS: q.GetIgnoreEos(), IncludeStop: q.GetIncludeStopStrInOutput(),
		logprobs: protocol.NoLogprobs, onlyIDs: len(q.GetStop()) == 0,
	}
	n, most := max(q.N, 1), math.MaxInt // as much as there is room for, and not what the model limits
	p.N, p.PromptLogprobs, p.TruncatePrompt, p.max = &n, q.PromptLogprobs, q.TruncatePromptTokens, &most
	if q.Temperature != nil {
		*p.Temperature = float64(*q.Temperature)
	}
	if q.MaxTokens != nil {
		p.max = intOf(q.MaxTokens)
	}
	if q.Seed != nil && *q.Seed != -1 {
		seed := int64(*q.Seed)
		p.Seed = &seed
	}
	for token, logit := range q.GetLogitBias() {
		if token < 0 {
			return nil, invalid("logit_bias has a token id below 0")
		}
		p.biases = append(p.biases, protocol.Bias{Token: uint32(token), Logit: float64(logit)})
	}
	var given object
	switch c := q.GetConstraint().(type) {
	case *enginepb.SamplingParams_JsonSchema:
		given = object{{"json", c.JsonSchema}}
	case *enginepb.SamplingParams_Regex:
		given = object{{"regex", c.Regex}}
	case *enginepb.SamplingParams_Grammar:
		given = object{{"grammar", c.Grammar}}
	case *enginepb.SamplingParams_StructuralTag:
		given = object{{"structural_tag", c.StructuralTag}}
	case *enginepb.SamplingParams_JsonObject:
		given = object{{"json_object", c.JsonObject}}
	case *enginepb.SamplingParams_Choice:
		given = object{{"choice", append([]string{}, c.Choice.GetChoices()...)}}
	}
	if given != nil {
		p.StructuredOutputs = toJSON(given)
	}
	if in.MmInputs != nil || in.ExtraMmInputs != nil || in.MediaRefs != nil {
		return nil, invalid("multimodal inputs are not supported")
	}
	if text := in.KvTransferParamsJson; text != nil {
		p.KVTransfer = json.RawMessage(*text)
	} else if t := in.KvTransferParams; t != nil { // the older form
		if t.RemoteHost == "" || t.RemotePort < 1 || t.RemotePort > math.MaxUint16 {
			return nil, invalid("kv_transfer_params: want a remote_host, and a remote_port from 1 to 65535")
		}
		p.KVTransfer, _ = json.Marshal(map[string]any{"remote_host": t.RemoteHost, "remote_port": t.RemotePort})
	}
	return p, nil
}

func (r *rpc) Generate(in *enginepb.GenerateRequest, out grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	ctx, engines := out.Context(), len(r.balance.open)
	if in.SamplingParams == nil {
		in.SamplingParams = &enginepb.SamplingParams{}
	}
	p, err := generateParams(in)
	if err != nil {
		return err
	}
	var wrong *apiError
	p.logprobs, wrong = candidateCount("logprobs", in.SamplingParams.Logprobs)
	rank := in.GetDataParallelRank()
	switch {
	case !r.generates():
		return invalid("the model does not generate")
	case *p.max < 1:
		return invalid("max_tokens must be at least 1, got 0")
	case wrong != nil:
		return rpcError(wrong)
	case rank < 0 || int(rank) >= engines:
		return status.Errorf(codes.InvalidArgument, "data_parallel_rank %d is out of range [0, %d).", rank, engines)
	case in.DataParallelRank != nil:
		p.rank = int(rank) + 1
	}
	wrong = p.check(r.Server)
	if wrong == nil {
		wrong = p.constrain(badBody)
	}
	if wrong != nil {
		return rpcError(wrong)
	}
	one := prompt{text: in.GetText()}
	if ids := in.GetTokenized(); ids != nil {
		one = prompt{ids: ids.GetInputIds(), tokenized: true}
	}
	prompts, wrong := r.tokenize(ctx, p, []prompt{one}, p.RequestID)
	if wrong != nil {
		return rpcError(wrong)
	}
	r.load.Add(1)
	defer r.load.Add(-1)
	r.last.Store(time.Now().UnixNano())
	g, wrong := r.generate(ctx, p, p.RequestID, prompts, nil)
	if wrong != nil {
		return rpcError(wrong)
	}
	defer g.close()
	shown := candidatesOf{in.SamplingParams.Logprobs, in.SamplingParams.PromptLogprobs}
	for g.open() {
		switch err := g.next(ctx, func(one *sequence, piece *piece, _ string) error {
			if piece.finish == protocol.FinishError {
				return rpcError(ofEngine(piece.failure))
			}
			if !p.Stream || len(piece.ids) == 0 && !one.ended {
				return nil
			}
			if err := out.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Chunk{Chunk: &enginepb.GenerateStreamChunk{
				TokenIds: piece.ids, PromptTokens: uint32(len(one.prompt)), CompletionTokens: uint32(len(piece.ids)), CachedTokens: uint32(one.cached),
				OutputLogprobs: shown.output([]*protocol.Logprobs{piece.logprobs}), InputLogprobs: shown.input(one, piece.prompt), Index: uint32(one.index),
			}}}); err != nil || !one.ended {
				return err
			}
			return out.Send(shown.complete(one, piece.ids, []*protocol.Logprobs{piece.logprobs}, piece.prompt))
		}); err {
		case nil:
		case errGone, errEngine:
			return r.endedWith(ctx)
		default:
			return err
		}
	}
	if p.Stream {
		return nil
	}
	for _, one := range g.all {
		if err := out.Send(shown.complete(one, one.tokens, one.table, one.prompts)); err != nil {
			return err
		}
	}
	return nil
}

// candidatesOf is how many candidates for each token were asked for, nil for no log-probabilities.
type candidatesOf struct{ answer, prompt *int32 }

// complete is the end of an answer. In a stream it has what the last chunk has.
func (n candidatesOf) complete(one *sequence, ids []uint32, tables []*protocol.Logprobs, prompt *protocol.Logprobs) *enginepb.GenerateResponse {
	m := &enginepb.GenerateComplete{
		OutputIds: ids, FinishReason: finishReason(one.finish), PromptTokens: uint32(len(one.prompt)), CompletionTokens: uint32(len(ids)),
		CachedTokens: uint32(one.cached), OutputLogprobs: n.output(tables), InputLogprobs: n.input(one, prompt), Index: uint32(one.index),
	}
	switch one.stop.kind {
	case 1:
		m.MatchedStop = &enginepb.GenerateComplete_MatchedStopStr{MatchedStopStr: one.stop.text}
	case 2:
		m.MatchedStop = &enginepb.GenerateComplete_MatchedTokenId{MatchedTokenId: uint32(one.stop.token)}
	}
	if one.transfer != nil {
		text := string(unpacked(one.transfer))
		m.KvTransferParamsJson = &text
	}
	return &enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: m}}
}

// output has the log-probability of each token, and of the candidates in the order of the engine.
func (n candidatesOf) output(tables []*protocol.Logprobs) *enginepb.OutputLogProbs {
	if n.answer == nil || len(tables) == 0 || tables[0] == nil {
		return nil
	}
	m := &enginepb.OutputLogProbs{}
	for _, t := range tables {
		for row := range t.Rows() {
			m.TokenLogprobs, m.TokenIds = append(m.TokenLogprobs, t.Values[row*t.Width]), append(m.TokenIds, t.TokenIDs[row*t.Width])
			if *n.answer != 0 {
				m.TopLogprobs = append(m.TopLogprobs, topLogprobs(t, row, int(*n.answer)))
			}
		}
	}
	return m
}

// input has the log-probabilities of a prompt. Its first token has none.
func (n candidatesOf) input(one *sequence, t *protocol.Logprobs) *enginepb.InputLogProbs {
	if n.prompt == nil || t == nil {
		return nil
	}
	known := one.prompt[:min(len(one.prompt), t.Rows()+1)]
	m := &enginepb.InputLogProbs{TokenIds: known}
	for i := range known {
		value, top := &enginepb.InputTokenLogProb{}, &enginepb.TopLogProbs{}
		if i > 0 {
			value.Value, top = &t.Values[(i-1)*t.Width], topLogprobs(t, i-1, int(*n.prompt))
		}
		m.TokenLogprobs = append(m.TokenLogprobs, value)
		if *n.prompt != 0 {
			m.TopLogprobs = append(m.TopLogprobs, top)
		}
	}
	return m
}

// topLogprobs has the token itself and the most likely others, n of them. It is empty where all of them were asked for,
// as in vLLM.
func topLogprobs(t *protocol.Logprobs, row, n int) *enginepb.TopLogProbs {
	m := &enginepb.TopLogProbs{}
	for _, at := range candidates(t, row, n) {
		m.TokenIds, m.Values = append(m.TokenIds, t.TokenIDs[at]), append(m.Values, t.Values[at])
	}
	return m
}

func (r *rpc) Embed(ctx context.Context, in *enginepb.EmbedRequest) (*enginepb.EmbedResponse, error) {
	switch {
	case in.Tokenized == nil:
		return nil, invalid("the request has no token ids: texts are not embedded")
	case !slices.Contains(r.opt.Tasks, "embed"):
		return nil, invalid("the model makes no embeddings")
	}
	p := &params{rpc: true, onlyIDs: true, logprobs: protocol.NoLogprobs, RequestID: in.RequestId}
	codec, err := protocol.CodecFor(r.opt.Group.Line())
	if err == nil {
		p.pooling, err = codec.AppendPooling(nil, "embed", 0)
	}
	if err != nil {
		return nil, rpcError(errInternal)
	}
	wrong := p.check(r.Server)
	var prompts [][]uint32
	if wrong == nil {
		prompts, wrong = r.tokenize(ctx, p, []prompt{{ids: in.Tokenized.InputIds, tokenized: true}}, p.RequestID)
	}
	if wrong != nil {
		return nil, rpcError(wrong)
	}
	r.load.Add(1)
	defer r.load.Add(-1)
	r.last.Store(time.Now().UnixNano())
	g, wrong := r.generate(ctx, p, p.RequestID, prompts, nil)
	if wrong != nil {
		return nil, rpcError(wrong)
	}
	defer g.close()
	if wrong := g.whole(ctx); wrong != nil {
		if wrong == errLeft {
			return nil, r.endedWith(ctx)
		}
		return nil, rpcError(wrong)
	}
	values := g.all[0].pooled
	if values == nil {
		return nil, status.Errorf(codes.Internal, "the request %s has no embedding", p.RequestID)
	}
	return &enginepb.EmbedResponse{Embedding: values, PromptTokens: uint32(len(prompts[0])), EmbeddingDim: uint32(len(values))}, nil
}

func (r *rpc) HealthCheck(context.Context, *enginepb.HealthCheckRequest) (*enginepb.HealthCheckResponse, error) {
	if r.alive() {
		return &enginepb.HealthCheckResponse{Healthy: true, Message: "Health"}, nil
	}
	return &enginepb.HealthCheckResponse{Message: "Engine is not alive"}, nil
}

// Abort ends requests by the ids that their clients gave. They get what there is, with the finish reason "abort".
func (r *rpc) Abort(_ context.Context, in *enginepb.AbortRequest) (*enginepb.AbortResponse, error) {
	if len(in.RequestIds) > 0 {
		r.open.abort(in.RequestIds...)
	}
	return &enginepb.AbortResponse{}, nil
}

// GetModelInfo answers with what the files of the model have.
func (r *rpc) GetModelInfo(context.Context, *enginepb.GetModelInfoRequest) (*enginepb.GetModelInfoResponse, error) {
	config := r.model.config
	var given struct {
		Temperature json.RawMessage `json:"temperature,omitempty"`
		TopP        json.RawMessage `json:"top_p,omitempty"`
		TopK        json.RawMessage `json:"top_k,omitempty"`
		MinP        json.RawMessage `json:"min_p,omitempty"`
		Repetition  json.RawMessage `json:"repetition_penalty,omitempty"`
	}
	_ = json.Unmarshal(r.model.generation, &given) // [readModel] has reported what is wrong with it
	sampling, _ := json.Marshal(given)
	m := &enginepb.GetModelInfoResponse{
		ModelPath: r.opt.Model, IsGeneration: r.generates(), MaxContextLength: uint32(r.maxModelLen),
		VocabSize:       uint32(cmp.Or(int(config.number("vocab_size")), r.opt.Tokenizer.VocabSize())),
		ServedModelName: r.opt.Names[0], TokenizerPath: r.opt.Dir, ModelType: config.text("model_type"),
		PadTokenId: int32(config.number("pad_token_id")), BosTokenId: int32(config.number("bos_token_id")), MaxReqInputLen: int32(r.maxModelLen),
	}
	if string(sampling) != "{}" {
		m.DefaultSamplingParamsJson = string(sampling)
	}
	architectures, _ := config["architectures"].([]any)
	for _, name := range architectures {
		text, _ := name.(string)
		m.Architectures = append(m.Architectures, text)
	}
	for _, id := range idsOf(config["eos_token_id"]) {
		m.EosTokenIds = append(m.EosTokenIds, int32(id))
	}
	return m, nil
}

func (r *rpc) GetServerInfo(ctx context.Context, _ *enginepb.GetServerInfoRequest) (*enginepb.GetServerInfoResponse, error) {
	last := r.last.Load()
	result, err := r.call(ctx, "is_scheduler_paused")
	paused, _ := result.(bool)
	m := &enginepb.GetServerInfoResponse{
		ActiveRequests: uint32(r.load.Load()), IsPaused: err == nil && paused, LastReceiveTimestamp: float64(last/1e3) / 1e6,
		UptimeSeconds: time.Since(r.started).Seconds(), ServerType: "vllm-grpc", DataParallelSize: int32(len(r.balance.open)), KvCacheDtype: "auto",
		BlockSize: int32(r.opt.Group.Engines()[0].BlockSize), ConstrainedDecodingStart: "first_token",
	}
	if dtype := cmp.Or(r.model.config.text("dtype"), r.model.config.text("torch_dtype")); dtype != "" {
		m.ModelDtype = "torch." + dtype
	}
	return m, nil
}

func (r *rpc) GetLoads(context.Context, *enginepb.GetLoadsRequest) (*enginepb.GetLoadsResponse, error) {
	engines := r.opt.Group.Engines()
	m := &enginepb.GetLoadsResponse{
		Timestamp: time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"), Version: r.opt.Release, DpRankCount: int32(len(engines)),
	}
	r.metrics.mu.Lock()
	defer r.metrics.mu.Unlock()
	for i, engine := range engines {
		e, size := &r.metrics.engines[i], engine.BlockSize*engine.NumGPUBlocks
		m.Loads = append(m.Loads, &enginepb.SchedulerLoad{
			DpRank: int32(engine.Index), NumRunningReqs: int32(e.running), NumWaitingReqs: int32(e.waiting), NumTotalReqs: int32(e.running + e.waiting),
			NumUsedTokens: int32(math.RoundToEven(e.usage * float64(size))), MaxTotalNumTokens: int32(size), TokenUsage: e.usage, Utilization: e.usage,
		})
	}
	return m, nil
}

// FlushCache empties the prefix caches, and waits for requests to end if the client allows it.
func (r *rpc) FlushCache(ctx context.Context, in *enginepb.FlushCacheRequest) (*enginepb.FlushCacheResponse, error) {
	timeout := float64(in.TimeoutS)
	if !(timeout >= 0 && timeout < math.MaxFloat32) {
		return nil, invalid("timeout_s must be finite and non-negative")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(max(timeout, 30), 1e6)*float64(time.Second)))
	defer cancel()
	late := status.Error(codes.DeadlineExceeded, "the caches were not flushed in time; the engine may still do it")
	for end := time.Now().Add(time.Duration(min(timeout, 1e6) * float64(time.Second))); ; {
		done, err := r.call(ctx, "reset_prefix_cache", pack.AppendBool(nil, false), pack.AppendBool(nil, false))
		is, _ := done.(bool)
		switch {
		case err == errGone:
			return nil, late
		case err != nil:
			return nil, status.Errorf(codes.Internal, "flush the caches: %v", err)
		case is:
			return &enginepb.FlushCacheResponse{Success: true, Message: "Local KV prefix cache flushed successfully"}, nil
		case timeout == 0:
			return &enginepb.FlushCacheResponse{Message: "KV prefix cache reset refused; requests may be in flight"}, nil
		case time.Now().After(end):
			return nil, late
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (r *rpc) StartProfile(ctx context.Context, in *enginepb.StartProfileRequest) (*enginepb.ProfileResponse, error) {
	var set []string
	in.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		set = append(set, string(f.Name()))
		return true
	})
	if slices.Sort(set); set != nil {
		return nil, status.Errorf(codes.InvalidArgument, "StartProfile takes no options: %s cannot be set for a request", strings.Join(set, ", "))
	}
	return r.profile(ctx, true, "Start profiling")
}

func (r *rpc) StopProfile(ctx context.Context, _ *enginepb.StopProfileRequest) (*enginepb.ProfileResponse, error) {
	return r.profile(ctx, false, "Stop profiling")
}

func (r *rpc) profile(ctx context.Context, start bool, does string) (*enginepb.ProfileResponse, error) {
	if _, err := r.call(ctx, "profile", pack.AppendBool(nil, start), pack.AppendNil(nil)); err != nil {
		return nil, status.Errorf(codes.Internal, "%s failed: %v", does, err)
	}
	return &enginepb.ProfileResponse{Success: true, Message: does + " succeeded"}, nil
}

func (r *rpc) SubscribeKvEvents(*enginepb.SubscribeKvEventsRequest, grpc.ServerStreamingServer[enginepb.KvEventBatch]) error {
	return status.Error(codes.Unimplemented, "KV cache events are not served over gRPC: subscribe to the ZeroMQ address of --kv-events-config")
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
	tokenizerChunk    = 64 << 10
	maxTokenizerBytes = 256 << 20 // of all files
)

// GetTokenizer sends the files of the tokenizer as a zip archive in parts, with its sha256 in the last one.
func (r *rpc) GetTokenizer(_ *enginepb.GetTokenizerRequest, out grpc.ServerStreamingServer[enginepb.GetTokenizerChunk]) error {
	entries, err := os.ReadDir(r.opt.Dir)
	if err != nil {
		return status.Error(codes.Internal, "the folder of the model cannot be read")
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	total := int64(0)
	for _, entry := range entries {
		name := entry.Name()
		if !slices.Contains(tokenizerFiles, name) && !slices.Contains(tokenizerEndings, filepath.Ext(name)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(r.opt.Dir, name))
		if err != nil || total > maxTokenizerBytes {
			continue // a folder, or one that cannot be read
		}
		total += int64(len(text))
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err == nil {
			_, err = to.Write(text)
		}
		if err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil || total == 0 {
		return status.Errorf(codes.Internal, "%s has no files of a tokenizer", r.opt.Dir)
	}
	digest := sha256.Sum256(b.Bytes())
	for data := b.Bytes(); len(data) > 0; {
		m := &enginepb.GetTokenizerChunk{Data: data[:min(len(data), tokenizerChunk)]}
		if data = data[len(m.Data):]; len(data) == 0 {
			m.Sha256 = hex.EncodeToString(digest[:])
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
	return nil
}
