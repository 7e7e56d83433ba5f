package builtin

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/player"
)

// Engines generate: a [player.Group] in this process, or an engine of vLLM behind ZeroMQ (package remote). An engine is
// named by its number, from 0. The methods are described at the group.
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
	// Model is how the user named the model: a name, or a folder. Clients see it as the root of the model. By default
	// it is Dir.
	Model string
	// Dir has the files of the model. They say which tokens end an answer, and the defaults of sampling parameters.
	Dir       string
	Tokenizer *tokenizer.Tokenizer
	// Simulator makes the server do as llm-d-inference-sim; nil for one that does as vLLM.
	Simulator *Simulator
	// Release is what /version answers with.
	Release string
	// Tasks are what the engines do. None is "generate".
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
	vocabulary  int  // ids are below it
	local       bool // the engines are in this process
	metrics     *metrics
	reasoning   *reasoningFormat // nil is none
	balance     balance
	routes      map[string]route
	open        running
	images      seenImages
	sim         *simulator // nil of a server that does as vLLM
	rpc         *rpc
	load        atomic.Int64  // requests that run
	held        atomic.Int64  // bytes of answers that are not streamed
	maxHeld     int64         // of held
	calls       atomic.Int64  // of utility methods
	weights     atomic.Value  // string, their version if it was set
	ended       chan struct{} // closed when the engines have ended
}

// New prepares a server. It reads the files of the model.
func New(opt Options) (*Server, error) {
	opt.Model = cmp.Or(opt.Model, opt.Dir)
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	if opt.Simulator != nil {
		opt.Env = append(slices.Clone(opt.Env), "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1")
	}
	engines := opt.Group.Engines()
	s := &Server{
		opt: opt, maxHeld: maxHeld, ended: make(chan struct{}), balance: balance{open: make([]int, len(engines))},
		maxModelLen: engines[0].MaxModelLen, metrics: newMetrics(opt.Names[0], len(engines), engines[0].MaxModelLen),
	}
	s.models.base, s.open.byID = opt.Names, map[string][]*sequence{}
	var err error
	if s.model, err = readModel(opt.Dir, opt.Tokenizer); err != nil {
		return nil, err
	}
	if s.vocabulary = first(float64(opt.Tokenizer.VocabSize()), s.model.config.number("vocab_size"), s.model.config.number("text_config", "vocab_size")); opt.Tokenizer.IsWords() {
		s.vocabulary = opt.Tokenizer.VocabSize()
	}
	if _, s.local = opt.Group.(*player.Group); s.opt.Flags.ToolStrict == "" {
		// A player writes calls only if it has to.
		if s.opt.Flags.ToolStrict = strictAuto; s.local {
			s.opt.Flags.ToolStrict = strictParameter
		}
	}
	if opt.Flags.LanguageModelOnly {
		s.model.vision = nil
	}
	if s.reasoning, err = findReasoning(opt.Flags.Reasoning); err != nil {
		return nil, err
	}
	if len(opt.Flags.Adapters) > 0 && !opt.LoRA {
		return nil, errors.New("--lora-modules: the engines have no LoRA: start them with --enable-lora")
	}
	s.addAdapters(opt.Flags.Adapters)
	s.route()
	if opt.Simulator != nil {
		s.simulate(opt.Simulator)
	}
	s.rpc = newRPC(s)
	return s, nil
}

// Run runs the engines until ctx ends, or one of them does.
func (s *Server) Run(ctx context.Context) error {
	defer s.rpc.health.Shutdown()
	defer close(s.ended)
	running, stop := context.WithCancel(ctx)
	loaded := make(chan error, 1)
	go func() {
		err := s.loadAdapters(running)
		if loaded <- err; err != nil {
			stop()
		}
	}()
	err := s.opt.Group.RunLocal(running, s.metrics.step)
	stop()
	if failed := <-loaded; err == nil && ctx.Err() == nil {
		err = failed
	}
	return err
}

// generates reports whether the engines do more than pool.
func (s *Server) generates() bool {
	return len(s.opt.Tasks) == 0 || slices.Contains(s.opt.Tasks, "generate")
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
	return succeed(w, object{{"server_load", s.load.Load()}})
}

func (s *Server) serveVersion(w http.ResponseWriter, _ *http.Request) *apiError {
	return succeed(w, object{{"version", s.opt.Release}, {"rust_frontend_version", s.opt.Release}})
}

func serveEventSources(w http.ResponseWriter, _ *http.Request) *apiError { return succeed(w, object{}) }

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
	all, created := []object{}, time.Now().Unix()
	add := func(id, root string, parent *string, length *int) {
		all = append(all, object{
			{"id", id}, {"object", "model"}, {"created", created}, {"owned_by", "vllm"}, {"root", root}, {"parent", parent}, {"max_model_len", length},
		})
	}
	for _, name := range s.models.base {
		add(name, s.opt.Model, nil, &s.maxModelLen)
	}
	for _, a := range s.models.adapter.list() {
		add(a.Name, a.Path, &s.models.base[0], nil)
	}
	return succeed(w, object{{"object", "list"}, {"data", all}})
}
