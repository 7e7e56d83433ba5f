package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// toy is a small frontend whose tokens are the bytes of a text. With a fault it does
// one thing wrong; without, it passes the suite.
type toy struct {
	fault string
	codec *protocol.Codec
	front *coreclient.Frontend

	mu     sync.Mutex
	next   int
	calls  map[uint64]chan *protocol.UtilityOutput
	open   map[string]chan toyOutput
	dead   bool
	loaded map[string]bool
	ready  bool
}

// toyOutput is what the engine said of one request.
type toyOutput struct {
	tokens []uint32
	finish protocol.FinishReason
	stop   json.RawMessage
	cached int
	// transfer are its kv_transfer_params.
	transfer any
}

// firstByte is the id of the byte 0.
const firstByte = 10

// startToy returns where it waits for an engine, and its HTTP side.
func startToy(t *testing.T, line, fault string) *FrontendUnderTest {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	y := &toy{
		fault: fault, codec: codec, calls: map[uint64]chan *protocol.UtilityOutput{}, open: map[string]chan toyOutput{}, loaded: map[string]bool{},
	}
	if y.front, err = coreclient.Listen(coreclient.Options{Codec: codec}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", y.health)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"toy"}]}`) })
	mux.HandleFunc("POST /v1/completions", y.generate)
	mux.HandleFunc("POST /v1/chat/completions", y.generate)
	mux.HandleFunc("POST /reset_prefix_cache", y.reset)
	mux.HandleFunc("POST /v1/load_lora_adapter", y.loadAdapter)
	mux.HandleFunc("POST /v1/unload_lora_adapter", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = y.lost(server, mux)
	server.Start()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		y.serve(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-served
		y.front.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return &FrontendUnderTest{Handshake: y.front.Handshake(), URL: server.URL}
}

// serve takes the engine and what it says.
func (y *toy) serve(ctx context.Context) {
	if _, err := y.front.Accept(ctx); err != nil {
		return
	}
	y.mu.Lock()
	y.ready = true
	y.mu.Unlock()
	var o protocol.Outputs
	for {
		if _, err := y.front.Next(ctx, 0, &o); err != nil {
			y.die()
			return
		}
		if y.fault == "dies of real statistics" && bytes.Contains(o.SchedulerStats, []byte("num_drafts")) {
			y.die()
			return
		}
		y.deliver(&o)
	}
}

func (y *toy) die() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.dead = true
	for id, c := range y.open {
		if y.fault != "waits for the dead" {
			close(c)
		}
		delete(y.open, id)
	}
}

func (y *toy) deliver(o *protocol.Outputs) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if o.Utility != nil {
		y.calls[o.Utility.CallID] <- o.Utility
	}
	for i := range o.Outputs {
		out := &o.Outputs[i]
		c := y.open[string(out.ID)]
		if c == nil || y.fault == "waits for the dead" && out.Finish == protocol.FinishAbort {
			continue
		}
		got := toyOutput{tokens: append([]uint32(nil), out.Tokens...), finish: out.Finish}
		if out.StopReason != nil {
			got.stop = json.RawMessage(pack.Format(out.StopReason))
		}
		if out.Prefill != nil {
			cur := pack.NewCursor(out.Prefill)
			if stats, err := frontendsuite.PlainMap(&cur); err == nil {
				got.cached = int(stats.(map[string]any)["num_cached_tokens"].(float64))
			}
		}
		if out.KVTransfer != nil {
			cur := pack.NewCursor(out.KVTransfer)
			got.transfer, _ = frontendsuite.PlainMap(&cur)
		}
		c <- got
	}
}

func (y *toy) health(w http.ResponseWriter, _ *http.Request) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.ready || y.dead && y.fault != "healthy for ever" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// lost does what a frontend with one of these faults does once it has got a request: it goes, or answers nobody any
// more, or says that it does not serve.
func (y *toy) lost(server *httptest.Server, serve http.Handler) http.Handler {
	var got atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			got.Store(true)
		}
		if !got.Load() {
			serve.ServeHTTP(w, r)
			return
		}
		switch y.fault {
		case "ends":
			server.Listener.Close()
			server.Config.SetKeepAlivesEnabled(false)
			panic(http.ErrAbortHandler)
		case "hangs":
			_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not noticed
			<-r.Context().Done()
		case "serves no more":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			serve.ServeHTTP(w, r)
		}
	})
}

func (y *toy) reset(w http.ResponseWriter, r *http.Request) {
	if y.fault == "no call" {
		return
	}
	method, args := "reset_prefix_cache", [][]byte{pack.AppendBool(nil, false), pack.AppendBool(nil, false)}
	switch y.fault {
	case "a call with words":
		args[0] = pack.AppendString(nil, "no")
	case "another call":
		method, args = "reset_mm_cache", nil
	}
	y.call(r.Context(), method, args...)
	if y.fault == "fails after the call" {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (y *toy) loadAdapter(_ http.ResponseWriter, r *http.Request) {
	var body struct {
		Name string `json:"lora_name"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	y.call(r.Context(), "add_lora", y.adapter(body.Name))
	y.mu.Lock()
	defer y.mu.Unlock()
	y.loaded[body.Name] = true
}

func (y *toy) adapter(name string) []byte {
	if y.fault == "an adapter of 0.31" {
		return msgpackOf([]any{name, 1, "p", nil, nil, false, false})
	}
	return msgpackOf([]any{name, 1, "p", nil, false, false})
}

func (y *toy) call(ctx context.Context, method string, args ...[]byte) {
	y.mu.Lock()
	id, err := y.front.Call(0, method, args...)
	answer := make(chan *protocol.UtilityOutput, 1)
	y.calls[id] = answer
	y.mu.Unlock()
	if err != nil {
		return
	}
	select {
	case <-answer:
	case <-ctx.Done():
	}
}

// msgpackOf writes what package json reads.
func msgpackOf(v any) []byte {
	switch v := v.(type) {
	case []byte:
		return v
	case bool:
		return pack.AppendBool(nil, v)
	case int:
		return pack.AppendInt(nil, int64(v))
	case float64:
		if v == float64(int64(v)) {
			return pack.AppendInt(nil, int64(v))
		}
		return pack.AppendFloat64(nil, v)
	case string:
		return pack.AppendString(nil, v)
	case []any:
		b := pack.AppendArrayHeader(nil, len(v))
		for _, e := range v {
			b = append(b, msgpackOf(e)...)
		}
		return b
	case map[string]any:
		b := pack.AppendMapHeader(nil, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = append(append(b, pack.AppendString(nil, key)...), msgpackOf(v[key])...)
		}
		return b
	}
	return pack.AppendNil(nil)
}

// toyRequest is the body of a generation request.
type toyRequest struct {
	Model       string          `json:"model"`
	Prompt      json.RawMessage `json:"prompt"`
	Messages    json.RawMessage `json:"messages"`
	Stop        []string        `json:"stop"`
	Stream      bool            `json:"stream"`
	N           int             `json:"n"`
	LogitBias   map[string]any  `json:"logit_bias"`
	CacheSalt   string          `json:"cache_salt"`
	Priority    int             `json:"priority"`
	MaxTokens   int             `json:"max_tokens"`
	Logprobs    *int            `json:"logprobs"`
	StreamUsage struct {
		Include bool `json:"include_usage"`
	} `json:"stream_options"`
	chat   bool
	ids    []uint32
	fields map[string]any
}

// prompt reads the prompt: token ids, a text, or messages.
func (q *toyRequest) prompt() bool {
	var text string
	switch {
	case q.chat:
		text = "user: " + string(q.Messages)
	case json.Unmarshal(q.Prompt, &q.ids) == nil:
		return len(q.ids) > 0
	case json.Unmarshal(q.Prompt, &text) != nil:
		return false
	}
	for i := range len(text) {
		q.ids = append(q.ids, firstByte+uint32(text[i]))
	}
	return len(q.ids) > 0
}

// generate is both generation routes.
func (y *toy) generate(w http.ResponseWriter, r *http.Request) {
	q := toyRequest{chat: strings.Contains(r.URL.Path, "chat")}
	var text json.RawMessage
	if json.NewDecoder(r.Body).Decode(&text) != nil || json.Unmarshal(text, &q) != nil && y.fault != "takes anything" || json.Unmarshal(text, &q.fields) != nil {
		http.Error(w, `{"error":{"message":"no JSON"}}`, http.StatusBadRequest)
		return
	}
	y.mu.Lock()
	adapter := y.loaded[q.Model]
	y.mu.Unlock()
	switch {
	case q.Model != "toy" && !adapter && y.fault != "any model":
		http.Error(w, `{"error":{"message":"no such model"}}`, http.StatusNotFound)
	case q.N > 1, !q.prompt():
		http.Error(w, `{"error":{"message":"n or prompt"}}`, http.StatusBadRequest)
	default:
		y.answer(w, r, &q, adapter)
	}
}

// add sends the request to the engine.
func (y *toy) add(q *toyRequest, adapter bool) (id string, outputs chan toyOutput) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.next++
	id = fmt.Sprintf("toy-%d", y.next)
	if y.fault == "one id for all" {
		id = "toy"
	}
	outputs = make(chan toyOutput, 1000)
	y.open[id] = outputs
	if y.fault == "keeps requests" {
		return id, outputs
	}
	payload := y.request(id, q, adapter)
	_ = y.front.SubmitRaw(0, payload)
	return id, outputs
}

func (y *toy) request(id string, q *toyRequest, adapter bool) []byte {
	sampling := map[string]any{"_eos_token_id": 2}
	for key, v := range q.fields {
		if y.codec.Profile().Structs["SamplingParams"].Index(key) >= 0 && key != "stop" {
			sampling[key] = v
		}
	}
	if q.LogitBias != nil { // its keys are ints, which JSON has none of
		bias := pack.AppendMapHeader(nil, len(q.LogitBias))
		for _, key := range slices.Sorted(maps.Keys(q.LogitBias)) {
			id, _ := strconv.Atoi(key)
			bias = append(pack.AppendInt(bias, int64(id)), msgpackOf(q.LogitBias[key])...)
		}
		sampling["logit_bias"] = bias
	}
	if v := q.fields["kv_transfer_params"]; v != nil && y.fault != "drops kv_transfer_params" {
		sampling["extra_args"] = map[string]any{"kv_transfer_params": v}
	}
	var fields []any
	for _, f := range y.codec.Profile().Structs["EngineCoreRequest"].Fields {
		var v any
		switch f.Name {
		case "request_id", "external_req_id":
			v = id
		case "prompt_token_ids":
			v = frontendsuite.ListOf(q.ids)
		case "sampling_params":
			v = sampling
		case "arrival_time":
			v = float64(time.Now().UnixMicro())/1e6 + 0.5e-6
		case "priority":
			v = q.Priority
		case "client_index", "current_wave":
			v = 0
		case "resumable", "abort_immediately":
			v = false
		case "cache_salt":
			if v = nil; q.CacheSalt != "" {
				v = q.CacheSalt
			}
		case "lora_request":
			if adapter {
				v = []any{q.Model, 1, "p", nil, false, false}
			}
		}
		fields = append(fields, v)
	}
	y.spoil(fields, sampling)
	return msgpackOf(fields)
}

// spoil does what the fault says to a request.
func (y *toy) spoil(fields []any, sampling map[string]any) {
	switch y.fault {
	case "words for numbers":
		sampling["max_tokens"] = fmt.Sprint(sampling["max_tokens"])
	case "no temperature":
		sampling["temperature"] = 1.5
	case "arrival in the past":
		fields[5] = 17.5
	case "a prompt of another":
		fields[1] = append(fields[1].([]any)[1:len(fields[1].([]any)):len(fields[1].([]any))], 11.0)
	case "unknown key":
		sampling["best_of"] = 1
	}
}
