package builtin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/serve/enginepb"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// dialed serves HTTP/2 without TLS, and returns a client of gRPC.
func dialed(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	conn, err := grpc.NewClient(strings.TrimPrefix(server.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return conn
}

// The server in front of the frontend knows calls of gRPC: keys, faults and errors are those of gRPC.
func TestGRPCBehindTheEdge(t *testing.T) {
	_, s, _ := serving(t, nil)
	e, err := edge.New(edge.Options{Frontends: []http.Handler{s}, RequestFaults: true, APIKeys: []string{"secret"}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Serve(ctx, l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		cancel()
		<-ended
	})
	c := enginepb.NewVllmEngineClient(conn)
	for _, test := range []struct {
		name    string
		headers []string
		want    codes.Code
		text    string
	}{
		{"no key", nil, codes.Unauthenticated, "Unauthorized"},
		{"a key", []string{"authorization", "Bearer secret"}, codes.OK, ""},
		{"a fault", []string{"authorization", "Bearer secret", "x-fault", "status:429"}, codes.ResourceExhausted, "Rate limit reached"},
		{"an unavailable server", []string{"authorization", "Bearer secret", "x-fault", "server_error"}, codes.Unavailable, "overloaded or not ready"},
		{"an answer that is cut", []string{"authorization", "Bearer secret", "x-fault", "http-truncate"}, codes.Internal, ""},
		{"a reset", []string{"authorization", "Bearer secret", "x-fault", "http-reset"}, codes.Internal, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := all(c.Generate(metadata.AppendToOutgoingContext(t.Context(), test.headers...), ofIDs(1)))
			if got := status.Convert(err); got.Code() != test.want || !strings.Contains(got.Message(), test.text) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health without a key: %v", err)
	}
}

// all returns the messages of a call.
func all(stream grpc.ServerStreamingClient[enginepb.GenerateResponse], err error) (messages []*enginepb.GenerateResponse, _ error) {
	for err == nil {
		var m *enginepb.GenerateResponse
		if m, err = stream.Recv(); err == nil {
			messages = append(messages, m)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return messages, err
}

func ofText(text string, stream bool, q *enginepb.SamplingParams) *enginepb.GenerateRequest {
	return &enginepb.GenerateRequest{RequestId: "mine", Input: &enginepb.GenerateRequest_Text{Text: text}, SamplingParams: q, Stream: stream}
}

func ofIDs(ids ...uint32) *enginepb.GenerateRequest {
	return &enginepb.GenerateRequest{Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}}}
}

func TestGRPCGenerates(t *testing.T) {
	_, s, source := serving(t, nil)
	source.set("One, two, three and four.")
	c := enginepb.NewVllmEngineClient(dialed(t, s))
	tok := s.opt.Tokenizer
	asked, wrong := s.encode(t.Context(), "Say.", true, 100)
	if wrong != nil {
		t.Fatal(wrong)
	}
	prompt := uint32(len(asked))
	whole := append(tok.Encode("One, two, three and four."), 2)
	upTo := func(text string) int { // tokens until it is complete
		n := 1
		for !strings.Contains(tok.Decode(whole[:n]), text) {
			n++
		}
		return n
	}
	for _, test := range []struct {
		name     string
		sampling *enginepb.SamplingParams
		ids      []uint32
		finish   string
		stop     string
		tables   bool
	}{
		{"to its end", nil, whole, "stop", "", false},
		{"three tokens", &enginepb.SamplingParams{MaxTokens: proto.Uint32(3)}, whole[:3], "length", "", false},
		{"a stop string", &enginepb.SamplingParams{Stop: []string{"three"}}, whole[:upTo("three")], "stop", "three", false},
		{"a stop token", &enginepb.SamplingParams{StopTokenIds: whole[2:3]}, whole[:3], "stop", fmt.Sprint(whole[2]), false},
		{"log-probabilities", &enginepb.SamplingParams{MaxTokens: proto.Uint32(2), Logprobs: proto.Int32(2), PromptLogprobs: proto.Int32(1)}, whole[:2], "length", "", true},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream=%t", test.name, stream), func(t *testing.T) {
				messages, err := all(c.Generate(t.Context(), ofText("Say.", stream, test.sampling)))
				if err != nil || len(messages) == 0 {
					t.Fatalf("%d messages, %v", len(messages), err)
				}
				end := messages[len(messages)-1].GetComplete()
				stop := end.GetMatchedStopStr()
				if end.GetMatchedTokenId() != 0 {
					stop = fmt.Sprint(end.GetMatchedTokenId())
				}
				if end == nil || end.PromptTokens != prompt || end.FinishReason != test.finish || stop != test.stop || int(end.CompletionTokens) != len(end.OutputIds) {
					t.Fatalf("the end is %v", end)
				}
				ids := end.OutputIds
				tables := []bool{end.OutputLogprobs != nil}
				prompts := 0
				if end.InputLogprobs != nil {
					prompts++
				}
				if stream { // the end repeats the last chunk
					ids = nil
				}
				for _, m := range messages[:len(messages)-1] {
					chunk := m.GetChunk()
					require.True(t, chunk != nil && chunk.PromptTokens == prompt && int(chunk.CompletionTokens) == len(chunk.TokenIds), "a chunk is %v", chunk)
					ids, tables = append(ids, chunk.GetTokenIds()...), append(tables, chunk.GetOutputLogprobs() != nil)
					if chunk.GetInputLogprobs() != nil {
						prompts++
					}
				}
				require.True(t, slices.Equal(ids, test.ids), "tokens %v, want %v", ids, test.ids)
				require.True(t, !slices.Contains(tables, !test.tables) && (prompts > 0) == test.tables, "log-probabilities of answers %v, of prompts %d", tables, prompts)
			})
		}
	}
	t.Run("two answers to ids", func(t *testing.T) {
		q := ofIDs(5, 6, 7)
		q.SamplingParams = &enginepb.SamplingParams{N: 2}
		messages, err := all(c.Generate(t.Context(), q))
		if err != nil || len(messages) != 2 {
			t.Fatalf("%d messages, %v", len(messages), err)
		}
		for i, m := range messages {
			if g := m.GetComplete(); int(g.GetIndex()) != i || g.GetPromptTokens() != 3 || !slices.Equal(g.GetOutputIds(), whole) {
				t.Errorf("answer %d: %v", i, g)
			}
		}
	})
}

// The limits of parameters and prompts are those of HTTP: what is only of gRPC is here.
func TestGRPCRefuses(t *testing.T) {
	_, s, source := serving(t, nil)
	conn := dialed(t, s)
	c := enginepb.NewVllmEngineClient(conn)
	sampling := func(q *enginepb.SamplingParams) *enginepb.GenerateRequest { return ofText("a", false, q) }
	with := func(change func(*enginepb.GenerateRequest)) *enginepb.GenerateRequest {
		q := ofIDs(1)
		change(q)
		return q
	}
	for _, test := range []struct {
		name    string
		request *enginepb.GenerateRequest
		want    string
	}{
		{"no token", sampling(&enginepb.SamplingParams{MaxTokens: proto.Uint32(0)}), "max_tokens must be at least 1, got 0"},
		{"log-probabilities below 0", sampling(&enginepb.SamplingParams{Logprobs: proto.Int32(-2)}), "logprobs must be at least 0"},
		{"log-probabilities of a prompt below 0", sampling(&enginepb.SamplingParams{PromptLogprobs: proto.Int32(-2)}), "prompt_logprobs must be at least 0"},
		{"too hot", sampling(&enginepb.SamplingParams{Temperature: proto.Float32(2.5)}), "temperature must be in [0, 2], got 2.5"},
		{"too many answers", sampling(&enginepb.SamplingParams{N: 4294967295}), "n is 4294967295: at most 1024 answers are allowed"},
		{"a bias of no token", sampling(&enginepb.SamplingParams{LogitBias: map[int32]float32{1 << 30: 1}}), "token_id(s) [1073741824] in logit_bias are out of vocabulary"},
		{"a bias below 0", sampling(&enginepb.SamplingParams{LogitBias: map[int32]float32{-1: 1}}), "logit_bias has a token id below 0"},
		{"no prompt", &enginepb.GenerateRequest{}, "empty prompt_token_ids"},
		{"a token that is none", ofIDs(1, 1<<30), "token_id(s) [1073741824] in prompt are out of vocabulary"},
		{"too long a prompt", ofIDs(make([]uint32, 5000)...), "maximum context length is 4096 tokens. However, your prompt contains 5000"},
		{"another rank", with(func(q *enginepb.GenerateRequest) { q.DataParallelRank = proto.Int32(1) }), "data_parallel_rank 1 is out of range [0, 1)."},
		{"an image", with(func(q *enginepb.GenerateRequest) { q.MmInputs = &enginepb.MultimodalInputs{} }), "multimodal inputs are not supported"},
		{"transfer to no port", with(func(q *enginepb.GenerateRequest) { q.KvTransferParams = &enginepb.KvTransferParams{RemoteHost: "a"} }), "a remote_port from 1"},
		{"transfer that is not JSON", with(func(q *enginepb.GenerateRequest) { q.KvTransferParamsJson = proto.String("[") }), "kv_transfer_params"},
		{"json_object false", sampling(&enginepb.SamplingParams{Constraint: &enginepb.SamplingParams_JsonObject{}}), "json_object is false"},
		{"a schema that is none", sampling(&enginepb.SamplingParams{Constraint: &enginepb.SamplingParams_JsonSchema{JsonSchema: `{"type":"strange"}`}}), `"strange" is not a type`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := all(c.Generate(t.Context(), test.request))
			if got := status.Convert(err); got.Code() != codes.InvalidArgument || !strings.Contains(got.Message(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if _, err := c.Embed(t.Context(), &enginepb.EmbedRequest{Tokenized: &enginepb.TokenizedInput{InputIds: []uint32{1}}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an embedding: %v", err)
	}
	if _, err := all(c.Generate(t.Context(), ofIDs(1), grpc.CallContentSubtype("json"))); err == nil {
		t.Error("a message of JSON is taken")
	}
	kv, err := c.SubscribeKvEvents(t.Context(), &enginepb.SubscribeKvEventsRequest{})
	if err == nil {
		_, err = kv.Recv()
	}
	require.True(t, status.Code(err) == codes.Unimplemented, "KV events: %v", err)
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "x"})
	require.True(t, status.Code(err) == codes.NotFound, "health of another service: %v", err)
	source.set("error")
	if _, err := all(c.Generate(t.Context(), ofIDs(1))); status.Code(err) != codes.Internal || status.Convert(err).Message() != "Internal server error" {
		t.Errorf("an engine's error: %v", err)
	}
}

// TestGRPCEnds: a client that leaves, an Abort and a deadline end a request of the engine.
func TestGRPCEnds(t *testing.T) {
	_, s, source := serving(t, func(o *player.Options) {
		o.Timing.Pace, o.Timing.Latency = player.PaceModelled, &player.LatencyTimes{InterTokenLatency: 1e6, LoadFactor: 1}
	})
	source.set("...")
	c := enginepb.NewVllmEngineClient(dialed(t, s))
	for _, test := range []struct {
		name string
		end  func(cancel func())
		want codes.Code
	}{
		{"leaves", func(cancel func()) { cancel() }, codes.Canceled},
		{"abort", func(func()) {
			if _, err := c.Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{"other", "mine"}}); err != nil {
				t.Error(err)
			}
		}, codes.OK},
		{"deadline", func(func()) {}, codes.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.want == codes.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
			}
			stream, err := c.Generate(ctx, ofText("a", true, nil))
			require.NoError(t, err)
			if test.want != codes.DeadlineExceeded {
				await(t, s, "vllm:num_requests_running", "1")
			}
			test.end(cancel)
			messages, err := all(stream, nil)
			require.True(t, status.Code(err) == test.want && (err != nil || messages[len(messages)-1].GetComplete().GetFinishReason() == "abort"), "%d messages, %v", len(messages), err)
			await(t, s, "vllm:num_requests_running", "0")
		})
	}
}

func TestGRPCTells(t *testing.T) {
	_, s, _ := serving(t, nil)
	conn := dialed(t, s)
	c, ctx := enginepb.NewVllmEngineClient(conn), metadata.AppendToOutgoingContext(t.Context(), "a", "b")
	check := func(what string, got fmt.Stringer, err error, parts ...string) {
		t.Helper()
		text := strings.Join(strings.Fields(got.String()), " ")
		for _, part := range parts {
			require.True(t, err == nil && strings.Contains(text, part), "%s: no %q in %s, %v", what, part, text, err)
		}
	}
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	check("health", health, err, "status:SERVING")
	own, err := c.HealthCheck(ctx, &enginepb.HealthCheckRequest{})
	check("HealthCheck", own, err, "healthy:true", `message:"Health"`)
	info, err := c.GetModelInfo(ctx, &enginepb.GetModelInfoRequest{})
	check("GetModelInfo", info, err, "is_generation:true", "max_context_length:4096", "vocab_size:2048", `served_model_name:"m"`, `model_type:"qwen3"`, `architectures:"Qwen3ForCausalLM"`, "eos_token_ids:2")
	server, err := c.GetServerInfo(ctx, &enginepb.GetServerInfoRequest{})
	check("GetServerInfo", server, err, `server_type:"vllm-grpc"`, "data_parallel_size:1", "torch.bfloat16")
	loads, err := c.GetLoads(ctx, &enginepb.GetLoadsRequest{})
	check("GetLoads", loads, err, `version:"0.33.0"`, "dp_rank_count:1")
	flushed, err := c.FlushCache(ctx, &enginepb.FlushCacheRequest{})
	check("FlushCache", flushed, err, "success:true", "Local KV prefix cache flushed successfully")
	profile, err := c.StartProfile(ctx, &enginepb.StartProfileRequest{})
	check("StartProfile", profile, err, "success:true", "Start profiling succeeded")
	if _, err := c.StartProfile(ctx, &enginepb.StartProfileRequest{NumSteps: proto.Int32(1)}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "num_steps") {
		t.Errorf("StartProfile with options: %v", err)
	}
	stream, err := c.GetTokenizer(ctx, &enginepb.GetTokenizerRequest{})
	var archive []byte
	digest := ""
	for err == nil {
		var m *enginepb.GetTokenizerChunk
		m, err = stream.Recv()
		archive, digest = append(archive, m.GetData()...), digest+m.GetSha256()
	}
	if sum := sha256.Sum256(archive); err != io.EOF || hex.EncodeToString(sum[:]) != digest || !bytes.HasPrefix(archive, []byte("PK")) {
		t.Errorf("GetTokenizer: %d bytes with the digest %s, %v", len(archive), digest, err)
	}
	reflected, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	require.NoError(t, reflected.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "vllm.grpc.engine.SamplingParams.top_k"}}))
	answer, err := reflected.Recv()
	require.NoError(t, err)
	if files := answer.GetFileDescriptorResponse().GetFileDescriptorProto(); len(files) != 2 || !bytes.Contains(files[0], []byte("vllm_engine.proto")) {
		t.Errorf("reflection: %d files", len(files))
	}
}

// The descriptors are those of the Python package: the bytes with which vllm_engine_pb2 and common_pb2 of
// smg-grpc-proto 0.4.28 begin, by their sha256.
func TestDescriptors(t *testing.T) {
	for _, test := range []struct {
		file protoreflect.FileDescriptor
		want string
	}{
		{enginepb.File_vllm_engine_proto, "1bd11d21878d22144613282368c06866133bd8492b09b238915014e85799ea63"},
		{enginepb.File_common_proto, "df9b7e51596814866ca31c76722a647ab329fc8d21506cae6fc2299d12617263"},
	} {
		file := protodesc.ToFileDescriptorProto(test.file)
		for messages := file.MessageType; len(messages) > 0; messages = messages[1:] {
			for _, field := range messages[0].Field {
				field.JsonName = nil // which Python leaves out
			}
			messages = append(messages, messages[0].NestedType...)
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(file)
		require.NoError(t, err)
		if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != test.want {
			t.Errorf("%s: its descriptor of %d bytes has the sha256 %x, want %s", test.file.Path(), len(raw), sum, test.want)
		}
	}
}

// A discarding takes messages in the place of a client.
type discarding struct {
	grpc.ServerStreamingServer[enginepb.GenerateResponse]
	ctx context.Context
}

func (d discarding) Context() context.Context              { return d.ctx }
func (d discarding) Send(*enginepb.GenerateResponse) error { return nil }

// FuzzGenerate sends any message: what is allocated for it, and how long it takes, has a bound.
func FuzzGenerate(f *testing.F) {
	_, s, _ := serving(f, func(o *player.Options) { o.Limits.MaxModelLen = 64 })
	for _, q := range []*enginepb.GenerateRequest{
		ofIDs(1, 2, 4294967295), ofText("a", true, &enginepb.SamplingParams{N: 4294967295, Stop: []string{"b", ""}}),
		ofText("a", false, &enginepb.SamplingParams{N: 1024, StopTokenIds: []uint32{1, 2, 3}, LogitBias: map[int32]float32{-1: 1, 2: 3}}),
		ofText("a", true, &enginepb.SamplingParams{Logprobs: proto.Int32(-2147483648), PromptLogprobs: proto.Int32(20), TruncatePromptTokens: proto.Int32(1)}),
	} {
		raw, err := proto.Marshal(q)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := &enginepb.GenerateRequest{}
		if proto.Unmarshal(raw, in) != nil {
			t.Skip()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		allocated := allocating(func() { _ = s.rpc.Generate(in, discarding{ctx: ctx}) })
		if limit := uint64(96<<20 + 2000*len(raw)); ctx.Err() != nil || allocated > limit {
			t.Errorf("%d bytes were allocated for a message of %d, want at most %d: %v", allocated, len(raw), limit, ctx.Err())
		}
	})
}
