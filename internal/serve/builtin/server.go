package builtin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Engines generate: a [player.Group] in this process, or an engine of vLLM behind ZeroMQ (package remote). An engine is named by its
// number, from 0. The methods are described at the group.
type Engines interface {
	Line() string
	Engines() []player.EngineInfo
	RunLocal(ctx context.Context, report func(engine int, s *player.EngineStats)) error
	NewRequest(engine int) *player.EngineRequest
	Submit(engine int, r *player.EngineRequest)
	Abort(engine int, id string)
	Call(engine int, call player.UtilityCall)
	Resume(engine int)
}

// Options configures a [Server]. All but Log are needed.
type Options struct {
	Group Engines
	// Names are the names of the model in requests. The first one is in answers.
	Names []string
	// Model is how the user named the model: a name, or a folder. Clients see it as the root of the model. By default it is Dir.
	Model string
	// Dir has the files of the model. They say which tokens end an answer, and the defaults of sampling parameters.
	Dir       string
	Tokenizer *tokenizer.Tokenizer
	// Simulator makes the server do as llm-d-inference-sim; nil for one that does as vLLM.
	Simulator *Simulator
	// Release is what /version says.
	Release string
	// Tasks are those of the engines if they pool: then nothing is generated.
	Tasks []string
	// LoRA lets adapters be loaded.
	LoRA  bool
	Flags Flags
	// Env has variables as NAME=VALUE: VLLM_SERVER_DEV_MODE=1 adds the endpoints that it adds in vLLM, and
	// VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1 those of Flags.ScaleOut. Others have no effect.
	Env []string
	Log *slog.Logger
}

// A Server is the frontend of a group of engines. It serves while Run does.
type Server struct {
	opt         Options
	model       modelFiles
	models      models
	maxModelLen int
	// longestToken is how many bytes a token has at most; 0 has no limit.
	longestToken int
	metrics      *metrics
	reasoning    *reasoningFormat // nil is none
	balance      balance
	routes       map[string]route
	open         running
	images       seenImages
	sim          *simulator // nil without [Options].Simulator
	rpc          *rpc
	load         atomic.Int64  // requests that run
	calls        atomic.Int64  // of utility methods
	weights      atomic.Value  // string, their version if it was set
	ended        chan struct{} // closed when the engines have ended
}

// A route is a path with its method.
type route struct {
	method string
	serve  handler
}

// A handler answers a request, or returns the error that is the answer.
type handler func(http.ResponseWriter, *http.Request) *apiError

func (r route) allow() string {
	if r.method == http.MethodGet {
		return "GET,HEAD"
	}
	return r.method
}

// New prepares a server. It reads the files of the model.
func New(opt Options) (*Server, error) {
	opt.Model = cmp.Or(opt.Model, opt.Dir)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Simulator != nil {
		opt.Env = append(slices.Clone(opt.Env), "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1")
	}
	engines := opt.Group.Engines()
	s := &Server{
		opt: opt, ended: make(chan struct{}), balance: balance{open: make([]int, len(engines))},
		maxModelLen: engines[0].MaxModelLen, metrics: newMetrics(opt.Names[0], len(engines), engines[0].MaxModelLen),
	}
	for id := range opt.Tokenizer.VocabSize() {
		if opt.Tokenizer.IsWords() {
			break
		}
		text, _ := opt.Tokenizer.Bytes(uint32(id))
		s.longestToken = max(s.longestToken, len(text))
	}
	s.models.base, s.open.byID = opt.Names, map[string][]*sequence{}
	var err error
	if s.model, err = readModel(opt.Dir, opt.Tokenizer); err != nil {
		return nil, err
	}
	if opt.Flags.LanguageModelOnly {
		s.model.vision = nil
	}
	if s.reasoning, err = findReasoning(opt.Flags.Reasoning); err != nil {
		return nil, err
	}
	get, post := http.MethodGet, http.MethodPost
	s.routes = map[string]route{
		"/kv_event_sources": {get, func(w http.ResponseWriter, _ *http.Request) *apiError { return succeed(w, []byte("{}")) }},
		"/health":           {get, s.serveHealth},
		"/ping":             {get, s.serveHealth},
		"/load":             {get, s.serveLoad},
		"/version":          {get, s.serveVersion},
		"/metrics":          {get, s.serveMetrics},
		"/v1/models":        {get, s.serveModels},
		"/tokenize":         {post, s.serveTokenize},
		"/detokenize":       {post, s.serveDetokenize},
	}
	switch {
	case len(opt.Tasks) == 0:
		s.routes["/v1/completions"] = route{post, s.serveCompletions}
		s.routes["/v1/chat/completions"] = route{post, s.serveChat}
		maps.Copy(s.routes, s.scaleOutRoutes())
		for _, path := range onlyPython {
			s.routes[path] = route{post, unsupported}
		}
		s.routes["/v1/responses"] = route{post, s.serveResponses}
		s.routes[oneResponse] = route{get, s.serveStored}
		s.routes[oneResponse+cancelResponse] = route{post, s.serveStored}
		s.routes["/v1/messages"] = route{post, s.serveMessages}
		s.routes["/v1/messages/count_tokens"] = route{post, s.serveCountTokens}
	case slices.Contains(opt.Tasks, "embed"):
		s.routes["/v1/embeddings"] = route{post, s.serveEmbeddings}
	}
	if opt.LoRA {
		s.routes["/v1/load_lora_adapter"] = route{post, s.serveLoadLoRA}
		s.routes["/v1/unload_lora_adapter"] = route{post, s.serveUnloadLoRA}
	}
	if slices.Contains(opt.Env, "VLLM_SERVER_DEV_MODE=1") {
		maps.Copy(s.routes, s.devRoutes())
		s.open.all = true
	}
	if opt.Simulator != nil {
		s.simulate(opt.Simulator)
	}
	if profile, err := protocol.LoadProfile(opt.Group.Line()); err == nil {
		// Engines of older lines do not know these calls.
		for path, method := range map[string]string{"/release_kv_cache_memory": "release_kv_cache_memory", "/weight_info": "get_weight_version"} {
			if _, known := profile.Utilities[method]; !known {
				delete(s.routes, path)
			}
		}
	}
	s.rpc = newRPC(s)
	return s, nil
}

// Run runs the engines until ctx ends, or one of them does.
func (s *Server) Run(ctx context.Context) error {
	defer s.rpc.health.Shutdown()
	defer close(s.ended)
	return s.opt.Group.RunLocal(ctx, s.metrics.step)
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, known := s.routes[r.URL.Path]
	if id, of := strings.CutPrefix(r.URL.Path, responsesPath); of && !known {
		// The only paths with a variable part.
		id, cancel := strings.CutSuffix(id, cancelResponse)
		if known = id != "" && !strings.Contains(id, "/"); known {
			found, known = s.routes[oneResponse]
			if cancel {
				found = s.routes[oneResponse+cancelResponse]
			}
		}
	}
	if r.Header["Origin"] != nil {
		w.Header()["Vary"] = []string{"origin"} // no other origin is allowed
	}
	switch {
	case !known && isCall(r):
		s.rpc.server.ServeHTTP(w, r)
	case r.Method == http.MethodOptions:
		if known {
			w.Header()["Allow"] = []string{found.allow()}
		}
		if r.Header["Origin"] != nil {
			w.Header()["Access-Control-Allow-Methods"] = []string{"DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT"}
			w.Header()["Access-Control-Max-Age"] = []string{"600"}
		}
		w.WriteHeader(http.StatusOK)
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == found.method || r.Method == http.MethodHead && found.method == http.MethodGet, r.Method == http.MethodPost && r.URL.Path == "/ping":
		if found.method == http.MethodPost {
			s.load.Add(1)
			defer s.load.Add(-1)
		}
		switch err := found.serve(w, r); err {
		case nil:
		case nobody:
			panic(http.ErrAbortHandler)
		default:
			err.write(w)
		}
	default:
		w.Header()["Allow"] = []string{found.allow()}
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) *apiError {
	if s.alive() {
		w.WriteHeader(http.StatusOK)
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	return nil
}

func (s *Server) serveLoad(w http.ResponseWriter, _ *http.Request) *apiError {
	return succeed(w, append(appendInt([]byte(`{"server_load":`), int(s.load.Load())), '}'))
}

func (s *Server) serveVersion(w http.ResponseWriter, _ *http.Request) *apiError {
	b := appendString([]byte(`{"version":`), s.opt.Release)
	b = appendString(append(b, `,"rust_frontend_version":`...), s.opt.Release)
	return succeed(w, append(b, '}'))
}

// requestID is the id of a request: that of its body, else that of its header, else a new one.
func requestID(r *http.Request, own string) string {
	if id := r.Header["X-Request-Id"]; own == "" && len(id) > 0 {
		own = id[0]
	}
	if own != "" {
		return own
	}
	return randomHex()
}

// randomHex has 32 digits, as the ids of vLLM.
func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// modelFiles is what the files of a model say that concerns requests.
type modelFiles struct {
	// eos are the tokens that end an answer. The first one is that of the tokenizer.
	eos      []uint32
	defaults samplingDefaults
	template chatTemplate
	vision   *vision // nil for a model of texts
	config   tree    // config.json
	// generation is the text of generation_config.json.
	generation []byte
}

// samplingDefaults are those of generation_config.json.
type samplingDefaults struct {
	Temperature  *float64 `json:"temperature"`
	TopP         *float64 `json:"top_p"`
	TopK         *int     `json:"top_k"`
	MinP         *float64 `json:"min_p"`
	MaxNewTokens *int     `json:"max_new_tokens"`

	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

func readModel(dir string, tok *tokenizer.Tokenizer) (m modelFiles, err error) {
	read := func(file string, to any) (text []byte) {
		text, missing := os.ReadFile(filepath.Join(dir, file))
		if missing != nil || err != nil {
			return nil
		}
		if failed := json.Unmarshal(text, to); failed != nil {
			err = fmt.Errorf("model folder %s: %s: %w", dir, file, failed)
		}
		return text
	}
	var names struct {
		BOS      json.RawMessage `json:"bos_token"`
		EOS      json.RawMessage `json:"eos_token"`
		Pad      json.RawMessage `json:"pad_token"`
		Unknown  json.RawMessage `json:"unk_token"`
		Template json.RawMessage `json:"chat_template"`
	}
	var generation struct {
		samplingDefaults
		EOS any `json:"eos_token_id"`
	}
	var processor tree
	read("tokenizer_config.json", &names)
	read("config.json", &m.config)
	read("preprocessor_config.json", &processor)
	m.generation = read("generation_config.json", &generation)
	if err != nil {
		return m, err
	}
	m.defaults, m.vision = generation.samplingDefaults, readVision(m.config, processor, tok)
	special := map[string]string{}
	for key, raw := range map[string]json.RawMessage{"bos_token": names.BOS, "eos_token": names.EOS, "pad_token": names.Pad, "unk_token": names.Unknown} {
		var text string
		var token struct {
			Content string `json:"content"`
		}
		if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &token) == nil {
			text = token.Content
		}
		if text != "" {
			special[key] = text
		}
	}
	if id, ok := tok.TokenID(special["eos_token"]); ok {
		m.eos = append(m.eos, id)
	}
	if m.template, err = readTemplate(dir, names.Template, special); err != nil {
		return m, err
	}
	for _, named := range []any{generation.EOS, m.config["eos_token_id"], m.config.at("text_config", "eos_token_id")} {
		for _, id := range idsOf(named) {
			if !slices.Contains(m.eos, id) {
				m.eos = append(m.eos, id)
			}
		}
		if named != nil {
			break // config.json counts where there is no other one
		}
	}
	return m, nil
}

// models are the names that requests may give.
type models struct {
	base    []string
	adapter adapters
}

func (m *models) has(name string) bool {
	return slices.Contains(m.base, name) || m.adapter.find(name) != nil
}

func (s *Server) serveModels(w http.ResponseWriter, _ *http.Request) *apiError {
	created := int(time.Now().Unix())
	b := []byte(`{"object":"list","data":[`)
	add := func(id, root, parent string, length int) {
		if b[len(b)-1] == '}' {
			b = append(b, ',')
		}
		b = append(appendString(append(b, `{"id":`...), id), `,"object":"model","created":`...)
		b = append(appendInt(b, created), `,"owned_by":"vllm","root":`...)
		b = appendNullable(append(appendString(b, root), `,"parent":`...), parent)
		b = appendIf(append(b, `,"max_model_len":`...), length > 0, appendInt, length)
		b = append(b, '}')
	}
	for _, name := range s.models.base {
		add(name, s.opt.Model, "", s.maxModelLen)
	}
	for _, a := range s.models.adapter.list() {
		add(a.Name, a.Path, s.models.base[0], 0)
	}
	return succeed(w, append(b, "]}"...))
}

// tokenizeRequest is a text, or a chat.
type tokenizeRequest struct {
	Model      string  `json:"model"`
	Prompt     *string `json:"prompt"`
	AddSpecial *bool   `json:"add_special_tokens"`
	Strings    bool    `json:"return_token_strs"`
	chat
}

func (s *Server) serveTokenize(w http.ResponseWriter, r *http.Request) *apiError {
	var q tokenizeRequest
	_, err := readJSON(r, &q)
	if err != nil {
		return err
	}
	if q.Model != "" && !s.models.has(q.Model) {
		return modelNotFound(q.Model)
	}
	var ids []uint32
	switch {
	case q.Messages != nil:
		text, err := s.render(&q.chat)
		if err == nil {
			ids, _, err = s.ids(&q.chat, text, isSet(q.AddSpecial))
		}
		if err != nil {
			return err
		}
	case q.Prompt != nil:
		ids = s.encode(*q.Prompt, or(q.AddSpecial, true))
	default:
		return badType("data did not match any variant of untagged enum TokenizeRequest")
	}
	b := appendInt([]byte(`{"count":`), len(ids))
	b = appendInt(append(b, `,"max_model_len":`...), s.maxModelLen)
	b = appendIDs(append(b, `,"tokens":`...), ids)
	b = append(b, `,"token_strs":`...)
	if q.Strings {
		b = append(b, '[')
		for i, id := range ids {
			b = comma(b, i)
			b = appendString(b, s.opt.Tokenizer.Name(id))
		}
		b = append(b, ']')
	} else {
		b = append(b, "null"...)
	}
	return succeed(w, append(b, '}'))
}

// encode returns the ids of a prompt.
func (s *Server) encode(text string, special bool) []uint32 {
	ids := s.opt.Tokenizer.Encode(text)
	if !special {
		return ids
	}
	before, after := s.opt.Tokenizer.Template()
	return slices.Concat(before, ids, after)
}

func (s *Server) serveDetokenize(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	end, err := readJSON(r, &q)
	if err != nil {
		return err
	}
	switch {
	case q.Tokens == nil:
		return missingField(end, "tokens")
	case q.Model != "" && !s.models.has(q.Model):
		return modelNotFound(q.Model)
	}
	return succeed(w, append(appendString([]byte(`{"prompt":`), s.opt.Tokenizer.Decode(q.Tokens)), '}'))
}
