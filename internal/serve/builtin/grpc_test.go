package builtin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/serve/grpc"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// A caller makes calls of gRPC through the edge.
type caller struct {
	url    string
	client http.Client
}

// calling starts an edge before a server and returns who calls it. change may set options of the edge.
func calling(t *testing.T, s *Server, change func(*edge.Options)) *caller {
	t.Helper()
	opt := edge.Options{Frontends: []http.Handler{s}, RequestFaults: true}
	if change != nil {
		change(&opt)
	}
	e, err := edge.New(opt)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- e.Serve(ctx, l) }()
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: h2c}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		<-ended
	})
	return &caller{"http://" + l.Addr().String(), http.Client{Transport: transport}}
}

// An inbound is an answer that is being read.
type inbound struct {
	*http.Response
	body io.ReadCloser
}

func (c *caller) open(ctx context.Context, method string, message []byte, headers ...string) (*inbound, error) {
	framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+method, bytes.NewReader(framed))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	return &inbound{answer, answer.Body}, nil
}

// next returns a message, and io.EOF behind the last one.
func (a *inbound) next() ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(a.body, head[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(a.body, message)
	return message, err
}

// status is that at the end of the answer.
func (a *inbound) status() string {
	h := a.Header
	if h.Get("Grpc-Status") == "" {
		h = a.Trailer
	}
	text, err := url.PathUnescape(h.Get("Grpc-Message"))
	if err != nil {
		text = err.Error()
	}
	return strings.TrimSpace(h.Get("Grpc-Status") + " " + text)
}

// call returns all messages of an answer and its status.
func (c *caller) call(t *testing.T, method string, message []byte, headers ...string) (messages [][]byte, status string) {
	t.Helper()
	a, err := c.open(t.Context(), method, message, headers...)
	require.NoError(t, err)
	defer a.body.Close()
	for {
		m, err := a.next()
		if err == io.EOF {
			return messages, a.status()
		}
		if err != nil {
			return messages, "broken: " + err.Error()
		}
		messages = append(messages, m)
	}
}

const generateMethod = engineService + "/Generate"

// rpcGenerate is a GenerateRequest for a text.
func rpcGenerate(id, text string, stream bool, sampling func(b []byte) []byte) []byte {
	b := grpc.AppendString(grpc.AppendString(nil, 1, id), 3, text)
	if sampling != nil {
		b = grpc.AppendMessage(b, 4, sampling)
	}
	return grpc.AppendBool(b, 5, stream)
}

// A generated is a GenerateResponse.
type generated struct {
	end                               bool
	ids                               []uint32
	finish                            string
	prompt, completion, cached, index uint64
	stop                              string
	logprobs, promptLogprobs          int
}

func readGenerated(t *testing.T, message []byte) (g generated) {
	t.Helper()
	numbers := []*uint64{2: &g.prompt, 3: &g.completion, 4: &g.cached, 7: &g.index}
	tables := map[int]*int{5: &g.logprobs, 6: &g.promptLogprobs}
	require.NoError(t, grpc.Fields(message, func(f grpc.Field) error {
		if g.end = f.Number == 2; g.end {
			numbers, tables = []*uint64{3: &g.prompt, 4: &g.completion, 5: &g.cached, 8: &g.index}, map[int]*int{6: &g.logprobs, 7: &g.promptLogprobs}
		}
		return grpc.Fields(f.Bytes(), func(f grpc.Field) (err error) {
			switch {
			case f.Number == 1:
				g.ids, err = f.Uint32s(g.ids)
			case g.end && f.Number == 2:
				g.finish, err = f.Text()
			case tables[f.Number] != nil:
				*tables[f.Number] = len(f.Bytes())
			case f.Number < len(numbers) && numbers[f.Number] != nil:
				*numbers[f.Number] = f.Uint()
			case f.Number == 10:
				g.stop = fmt.Sprint(f.Uint())
			case f.Number == 11:
				g.stop, err = f.Text()
			}
			return err
		})
	}))
	return g
}

func TestGRPCGenerates(t *testing.T) {
	_, s, source := serving(t, nil)
	source.set("One, two, three and four.")
	c := calling(t, s, nil)
	tok := s.opt.Tokenizer
	prompt := uint64(len(s.encode("Say.", true)))
	whole := append(tok.Encode("One, two, three and four."), 2)
	upTo := func(text string) int { // tokens until it is complete
		n := 1
		for !strings.Contains(tok.Decode(whole[:n]), text) {
			n++
		}
		return n
	}
	limit := func(n uint64) func(b []byte) []byte {
		return func(b []byte) []byte { return grpc.AppendUint(b, 8, n) }
	}
	for _, test := range []struct {
		name     string
		sampling func(b []byte) []byte
		ids      []uint32
		finish   string
		stop     string
		tables   bool
	}{
		{"to its end", nil, whole, "stop", "", false},
		{"three tokens", limit(3), whole[:3], "length", "", false},
		{"a stop string", func(b []byte) []byte { return grpc.AppendBytes(b, 10, "three") }, whole[:upTo("three")], "stop", "three", false},
		{"a stop token", func(b []byte) []byte { return grpc.AppendUint32s(b, 11, whole[2:3]) }, whole[:3], "stop", fmt.Sprint(whole[2]), false},
		{"log-probabilities", func(b []byte) []byte {
			return grpc.AppendNumber(grpc.AppendNumber(grpc.AppendUint(b, 8, 2), 22, 2), 23, 1)
		}, whole[:2], "length", "", true},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream=%t", test.name, stream), func(t *testing.T) {
				messages, status := c.call(t, generateMethod, rpcGenerate("r", "Say.", stream, test.sampling))
				if status != "0" || len(messages) == 0 {
					t.Fatalf("%d messages, status %s", len(messages), status)
				}
				var ids []uint32
				for i, message := range messages {
					g := readGenerated(t, message)
					last := i == len(messages)-1
					if g.end != last || g.prompt != prompt || int(g.completion) != len(g.ids) {
						t.Errorf("message %d of %d: %+v", i, len(messages), g)
					}
					if (g.logprobs > 0) != test.tables || (g.promptLogprobs > 0) != (test.tables && (i == 0 || len(messages) == 2)) {
						t.Errorf("message %d of %d has %d and %d bytes of log-probabilities", i, len(messages), g.logprobs, g.promptLogprobs)
					}
					if !last || !stream { // the end of a stream repeats its last message
						ids = append(ids, g.ids...)
					}
					if last && (g.finish != test.finish || g.stop != test.stop) {
						t.Errorf("finish reason %q, stopped by %q, want %q and %q", g.finish, g.stop, test.finish, test.stop)
					}
				}
				if !slices.Equal(ids, test.ids) {
					t.Errorf("tokens %v, want %v", ids, test.ids)
				}
			})
		}
	}
	t.Run("two answers to ids", func(t *testing.T) {
		b := grpc.AppendMessage(nil, 2, func(b []byte) []byte { return grpc.AppendUint32s(b, 2, []uint32{5, 6, 7}) })
		b = grpc.AppendMessage(b, 4, func(b []byte) []byte { return grpc.AppendUint(b, 15, 2) })
		messages, status := c.call(t, generateMethod, b)
		if status != "0" || len(messages) != 2 {
			t.Fatalf("%d messages, status %s", len(messages), status)
		}
		for i, message := range messages {
			if g := readGenerated(t, message); int(g.index) != i || g.prompt != 3 || !slices.Equal(g.ids, whole) {
				t.Errorf("answer %d: %+v", i, g)
			}
		}
	})
}

func TestGRPCRefuses(t *testing.T) {
	_, s, source := serving(t, nil)
	c := calling(t, s, nil)
	sampling := func(write func(b []byte) []byte) []byte { return rpcGenerate("r", "a", false, write) }
	ids := func(ids ...uint32) []byte {
		return grpc.AppendMessage(nil, 2, func(b []byte) []byte { return grpc.AppendUint32s(b, 2, ids) })
	}
	for _, test := range []struct {
		name, method string
		message      []byte
		headers      []string
		want         string
	}{
		{"no token", generateMethod, sampling(func(b []byte) []byte { return grpc.AppendNumber(b, 8, 0) }), nil, "3 max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"},
		{"too hot", generateMethod, sampling(func(b []byte) []byte { return grpc.AppendFloat(b, 1, 2.5) }), nil, "3 temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)"},
		{"top_p above 1", generateMethod, sampling(func(b []byte) []byte { return grpc.AppendFloat(b, 2, 3) }), nil, "3 top_p must be in (0, 1], got 3.0. (parameter=top_p, value=3.0)"},
		{"no prompt", generateMethod, nil, nil, "3 The decoder prompt cannot be empty"},
		{"a token that is none", generateMethod, ids(1, 1<<30), nil, "3 Token id 1073741824 is out of vocabulary"},
		{
			"too long a prompt", generateMethod, ids(make([]uint32, 5000)...), nil,
			"3 The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
		},
		{"another rank", generateMethod, grpc.AppendNumber(ids(1), 9, 1), nil, "3 data_parallel_rank 1 is out of range [0, 1)."},
		{"an image", generateMethod, grpc.AppendBytes(ids(1), 7, ""), nil, "3 multimodal inputs are not supported"},
		{"a schema that is none", generateMethod, sampling(func(b []byte) []byte { return grpc.AppendBytes(b, 16, `{"type":"strange"}`) }), nil, `3 invalid structured outputs: JSON schema: "strange" is no type`},
		{"no message", generateMethod, []byte{0xff}, nil, "13 Exception deserializing request!"},
		{"an embedding", engineService + "/Embed", ids(1), nil, "3 This model does not support pooling"},
		{"another method", engineService + "/Sing", nil, nil, "12 Method not found!"},
		{"KV events", engineService + "/SubscribeKvEvents", nil, nil, "12 KV cache events are not served over gRPC: subscribe to the ZeroMQ address of --kv-events-config"},
		{"another compression", generateMethod, ids(1), []string{"Grpc-Encoding", "br"}, `12 grpc-encoding "br" is not supported, want identity or gzip`},
		{"a timeout that is none", generateMethod, ids(1), []string{"Grpc-Timeout", "soon"}, `13 malformed grpc-timeout: "soon": want up to 8 digits and one of H, M, S, m, u, n`},
		{"another service's health", "grpc.health.v1.Health/Check", grpc.AppendString(nil, 1, "x"), nil, "5 Unknown service: x"},
		{"a fault", generateMethod, ids(1), []string{"X-Fault", "status:429"}, "8 Rate limit reached for  in organization org-xxx on requests per min (RPM): Limit 3, Used 3, Requested 1."},
		{"an unavailable server", generateMethod, ids(1), []string{"X-Fault", "server_error"}, "14 The server is overloaded or not ready yet."},
		{"a message that is cut", generateMethod, ids(1), []string{"X-Fault", "http-malformed"}, "0"},
		{"an answer that is cut", generateMethod, ids(1), []string{"X-Fault", "http-truncate"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, got := c.call(t, test.method, test.message, test.headers...)
			if got != test.want {
				t.Errorf("status %q, want %q", got, test.want)
			}
		})
	}
	t.Run("an engine's error", func(t *testing.T) {
		source.set("error")
		if _, got := c.call(t, generateMethod, ids(1)); got != "13 Internal server error" {
			t.Errorf("status %q", got)
		}
	})
	t.Run("a reset", func(t *testing.T) {
		if a, err := c.open(t.Context(), generateMethod, ids(1), "X-Fault", "http-reset"); err == nil {
			a.body.Close()
			t.Errorf("status %q", a.status())
		}
	})
	t.Run("HTTP/1.1", func(t *testing.T) {
		answer, err := http.Post(c.url+"/"+generateMethod, "application/grpc", strings.NewReader(""))
		require.NoError(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusHTTPVersionNotSupported {
			t.Errorf("status %d", answer.StatusCode)
		}
	})
}

// TestGRPCEnds: a client that leaves, an Abort and a deadline end a request of the engine.
func TestGRPCEnds(t *testing.T) {
	_, s, source := serving(t, func(o *player.Options) {
		o.Timing.Pace, o.Timing.Latency = player.PaceModelled, &player.LatencyTimes{InterTokenLatency: 1e6, LoadFactor: 1}
	})
	source.set("...")
	c := calling(t, s, nil)
	begun := func(ctx context.Context, headers ...string) *inbound {
		a, err := c.open(ctx, generateMethod, rpcGenerate("mine", "a", true, nil), headers...)
		require.NoError(t, err)
		if _, err := a.next(); err != nil {
			t.Fatal(err)
		}
		await(t, s, "vllm:num_requests_running", "1")
		return a
	}
	t.Run("leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer begun(ctx).body.Close()
		cancel()
		await(t, s, "vllm:num_requests_running", "0")
	})
	t.Run("abort", func(t *testing.T) {
		a := begun(t.Context())
		defer a.body.Close()
		if _, status := c.call(t, engineService+"/Abort", grpc.AppendString(grpc.AppendString(nil, 1, "other"), 1, "mine")); status != "0" {
			t.Fatalf("Abort: status %s", status)
		}
		var last generated
		for {
			message, err := a.next()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			last = readGenerated(t, message)
		}
		if !last.end || last.finish != "abort" || a.status() != "0" {
			t.Errorf("the answer ended with %+v, status %s", last, a.status())
		}
		await(t, s, "vllm:num_requests_running", "0")
	})
	t.Run("deadline", func(t *testing.T) {
		_, status := c.call(t, generateMethod, rpcGenerate("mine", "a", true, nil), "Grpc-Timeout", "50m")
		if status != "4 Deadline Exceeded" {
			t.Errorf("status %q", status)
		}
		await(t, s, "vllm:num_requests_running", "0")
	})
}

func TestGRPCTells(t *testing.T) {
	_, s, _ := serving(t, nil)
	c := calling(t, s, func(o *edge.Options) { o.APIKeys = []string{"secret"} })
	const key = "Bearer secret"
	text := func(method string, message []byte) string {
		messages, status := c.call(t, method, message, "Authorization", key)
		if status != "0" || len(messages) != 1 {
			t.Fatalf("%s: %d messages, status %s", method, len(messages), status)
		}
		return string(messages[0])
	}
	if _, status := c.call(t, generateMethod, nil); status != "16 Unauthorized" {
		t.Errorf("without a key: status %q", status)
	}
	if messages, status := c.call(t, "grpc.health.v1.Health/Check", nil); status != "0" || string(messages[0]) != "\x08\x01" {
		t.Errorf("health: %q, status %s", messages, status)
	}
	if got := text(engineService+"/HealthCheck", nil); got != "\x08\x01\x12\x06Health" {
		t.Errorf("HealthCheck: %q", got)
	}
	info := text(engineService+"/GetModelInfo", nil)
	for _, part := range []string{"\x10\x01\x18\x80\x20\x20\x80\x10", "\x32\x01m", "\x42\x05qwen3", "\x4a\x10Qwen3ForCausalLM", "\x52\x01\x02"} {
		if !strings.Contains(info, part) {
			t.Errorf("GetModelInfo has no %q: %q", part, info)
		}
	}
	if got := text(engineService+"/GetServerInfo", nil); !strings.Contains(got, "\x2a\x09vllm-grpc\x48\x01") || !strings.Contains(got, "torch.bfloat16") {
		t.Errorf("GetServerInfo: %q", got)
	}
	if got := text(engineService+"/GetLoads", nil); !strings.Contains(got, "\x12\x060.33.0\x18\x01") {
		t.Errorf("GetLoads: %q", got)
	}
	if got := text(engineService+"/FlushCache", nil); got != "\x08\x01\x12\x2aLocal KV prefix cache flushed successfully" {
		t.Errorf("FlushCache: %q", got)
	}
	if got := text(engineService+"/StartProfile", nil); got != "\x08\x01\x12\x19Start profiling succeeded" {
		t.Errorf("StartProfile: %q", got)
	}
	messages, status := c.call(t, engineService+"/GetTokenizer", nil, "Authorization", key)
	var archive []byte
	digest := ""
	for _, message := range messages {
		require.NoError(t, grpc.Fields(message, func(f grpc.Field) (err error) {
			if f.Number == 1 {
				archive = append(archive, f.Bytes()...)
			} else {
				digest, err = f.Text()
			}
			return err
		}))
	}
	if sum := sha256.Sum256(archive); status != "0" || hex.EncodeToString(sum[:]) != digest || !bytes.HasPrefix(archive, []byte("PK")) {
		t.Errorf("GetTokenizer: %d bytes with the digest %s, status %s", len(archive), digest, status)
	}
}

// TestGRPCReflection asks for what grpcurl asks for.
func TestGRPCReflection(t *testing.T) {
	_, s, _ := serving(t, nil)
	c := calling(t, s, nil)
	for _, version := range []string{"v1", "v1alpha"} {
		method := "grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo"
		for _, test := range []struct {
			field int
			name  string
			want  []string
		}{
			{7, "", []string{engineService, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}},
			{4, engineService, []string{"vllm_engine.proto", "common.proto", "GetServerInfoResponse"}},
			{4, engineService + ".Generate", []string{"vllm_engine.proto"}},
			{4, "vllm.grpc.engine.SamplingParams.top_k", []string{"vllm_engine.proto"}},
			{4, "smg.grpc.common.Modality", []string{"common.proto"}},
			{3, "grpc/health/v1/health.proto", []string{"ServingStatus"}},
			{4, "none", []string{"none not found"}},
			{6, "vllm.grpc.engine.SamplingParams", []string{"\x2a"}},
			{5, "", []string{"there are no extensions"}},
		} {
			messages, status := c.call(t, method, grpc.AppendBytes(nil, test.field, test.name))
			if status != "0" || len(messages) != 1 {
				t.Fatalf("%s %d %s: %d messages, status %s", version, test.field, test.name, len(messages), status)
			}
			for _, want := range test.want {
				if !bytes.Contains(messages[0], []byte(want)) {
					t.Errorf("%s %d %s: no %q in %q", version, test.field, test.name, want, messages[0])
				}
			}
		}
	}
}
