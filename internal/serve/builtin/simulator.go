package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// A Simulator makes a server do as llm-d-inference-sim, where vLLM has nothing like it or does otherwise.
// docs/simulator.md lists what that is.
type Simulator struct {
	// Plans has the answers that the server chooses itself. It has to be the source of the engines.
	Plans *Plans
	// Echo repeats the prompt, of a chat the last message.
	Echo bool
	Seed uint64
	// MaxModelLen is the context length.
	MaxModelLen int
	// Running requests run at the same time, and as many as Waiting wait. Others are refused with status 429.
	Running, Waiting int
	Tools            ToolRanges
	// AnyTool leaves out the check of the parameters of tools.
	AnyTool bool
	// CacheThreshold is the least share of a prompt in the prefix cache: with less of it, a request ends without an
	// answer. It counts if KVCache is set.
	CacheThreshold float64
	KVCache        bool
	BlockSize      int
	// Sleeps lets /sleep have an effect.
	Sleeps bool
	// Dimensions is the length of an embedding that a request does not choose.
	Dimensions int
	// EncoderOnly answers with exclamation marks.
	EncoderOnly bool
	// Omni adds an image to ImageRate of 100 answers, and to those whose request asks for one.
	Omni                       bool
	ImageRate                  int
	ImageTime, ImageTimeStdDev time.Duration
	// EngineIDs are those of all ranks.
	EngineIDs []string
	// Adapters are loaded at the start.
	Adapters []Adapter
	// Deterministic draws calls of tools from the request alone.
	Deterministic bool
}

// simulator is the state of a [Simulator]. Its methods do nothing on a nil one: the server then does as vLLM.
type simulator struct {
	Simulator
	open      atomic.Int64 // answers that are not complete
	imageRate atomic.Int64

	mu     sync.Mutex
	rng    *rand.Rand
	blocks map[uint64]bool // of prompts that were computed
	oldest []uint64
}

// Plans are answers that a server has chosen, by the id of the request. It is a [player.Source].
type Plans struct {
	mu   sync.Mutex
	byID map[string]*plan
}

// NewPlans returns an empty Plans.
func NewPlans() *Plans { return &Plans{byID: map[string]*plan{}} }

// Before returns a source that asks next about requests without a plan.
func (p *Plans) Before(next player.Source) player.Source { return plannedSource{p, next} }

func (p *Plans) put(id string, one *plan) {
	p.mu.Lock()
	p.byID[id] = one
	p.mu.Unlock()
}

// take removes a plan.
func (p *Plans) take(id string) *plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byID[id]
	delete(p.byID, id)
	return one
}

type plannedSource struct {
	plans *Plans
	next  player.Source
}

// Script implements [player.Source].
func (s plannedSource) Script(r *player.Request) (player.Script, error) {
	p := s.plans.take(r.ID)
	if p == nil {
		return s.next.Script(r)
	}
	if p.ids == nil {
		script, err := s.next.Script(r)
		script.Transferred = p.transferred
		return script, err
	}
	return player.Script{Tokens: p.ids, Finish: p.finish, CachedTokens: player.LookUp, Transferred: p.transferred}, nil
}

// A plan is an answer.
type plan struct {
	ids    []uint32
	finish protocol.FinishReason
	reason string // in the place of that of finish
	now    bool   // no engine is needed
	// transferred means that another server has computed the prompt. Without ids, the engine chooses the rest.
	transferred bool
}

// A planner chooses the answer number n to the prompt number i, nil to let the engine choose.
type planner func(i, n int) *plan

// simulate sets up a server with a [Simulator].
func (s *Server) simulate(o *Simulator) {
	sim := &simulator{Simulator: *o, rng: rand.New(rand.NewPCG(o.Seed, 1)), blocks: map[uint64]bool{}}
	sim.imageRate.Store(int64(o.ImageRate))
	s.sim, s.opt.Flags.PromptDetails = sim, true
	s.maxModelLen, s.metrics = o.MaxModelLen, newMetrics(s.opt.Names[0], len(s.balance.open), o.MaxModelLen)
	if s.opt.Tokenizer.IsWords() {
		s.model.eos = []uint32{tokenizer.WordsEnd}
	}
	s.addAdapters(o.Adapters)
	own := []route{
		{"/query", http.MethodGet, always, s.serveQuery},
		{"/v1/embeddings", http.MethodPost, always, s.serveStubEmbeddings},
		{"/is_sleeping", http.MethodGet, always, s.asks("is_sleeping", "is_sleeping")},
	}
	for _, r := range s.allRoutes() {
		if r.path == "/sleep" || r.path == "/wake_up" {
			switch serve := r.serve; {
			case !o.Sleeps:
				r.serve = s.serveHealth
			case r.path == "/sleep":
				r.serve = func(w http.ResponseWriter, r *http.Request) *apiError {
					err := serve(w, r)
					if err == nil { // requests are served all the same
						_, _ = s.call(r.Context(), "resume_scheduler") // it cannot fail
					}
					return err
				}
			}
			own = append(own, r)
		}
	}
	for _, r := range own {
		s.routes[r.path] = r
	}
	if o.EncoderOnly {
		delete(s.routes, "/v1/embeddings")
	}
}

// NewUUID makes an id.
func NewUUID() string {
	id := randomHex()
	return id[:8] + "-" + id[8:12] + "-4" + id[13:16] + "-a" + id[17:20] + "-" + id[20:]
}

// serveQuery is what the bootstrap server of Mooncake's connector answers.
func (s *Server) serveQuery(w http.ResponseWriter, _ *http.Request) *apiError {
	answer := object{}
	for rank, id := range s.sim.EngineIDs {
		answer = append(answer, member{strconv.Itoa(rank), object{{"engine_id", id}}})
	}
	return succeed(w, answer)
}

// serveStubEmbeddings answers with numbers that follow from the ids of a text.
func (s *Server) serveStubEmbeddings(w http.ResponseWriter, r *http.Request) *apiError {
	var q embeddingRequest
	err := readJSON(r, &q)
	var prompts [][]uint32
	switch {
	case err != nil:
	case absent(q.Input):
		err = missing("input")
	case q.Dimensions != nil && *q.Dimensions < 1:
		err = badRequest("dimensions", "dimensions must be at least 1")
	case q.Dimensions != nil && *q.Dimensions > maxDimensions:
		err = badRequest("dimensions", "dimensions must be at most %d", maxDimensions)
	default:
		c := completionRequest{Prompt: q.Input, params: params{TruncatePrompt: q.Truncate, answers: 1}}
		var inputs []prompt
		if inputs, err = c.read(s); err == nil {
			prompts, err = s.tokenize(r.Context(), &c.params, inputs, "embeddings")
		}
	}
	dimensions := or(intOf(q.Dimensions), s.sim.Dimensions)
	if err == nil && len(prompts) > maxNumbers/max(dimensions, 1) {
		err = badRequest("input", "%d inputs: the answer would have more than %d numbers", len(prompts), maxNumbers)
	}
	if err != nil {
		return err
	}
	g := &generation{server: s, params: &params{answers: 1}}
	for i, ids := range prompts {
		one := &sequence{index: i, prompt: ids, pooled: make([]float32, dimensions)}
		for at := range one.pooled {
			one.pooled[at] = 2*float32((ids[at%len(ids)]+uint32(at))%1024)/1024 - 1
		}
		g.all = append(g.all, one)
	}
	return s.writeEmbeddings(w, r, g, "embd-"+requestID(r, q.RequestID), &q)
}

// Bounds of an answer with embeddings.
const (
	maxDimensions = 1 << 16
	maxNumbers    = 1 << 22
)

// chance draws whether something with a probability of so many percent happens.
func (m *simulator) chance(percent int) bool { return m.between(0, 99) < percent }

func (m *simulator) between(lo, hi int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return lo + m.rng.IntN(max(hi-lo, 0)+1)
}

func (m *simulator) float(lo, hi float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return lo + (hi-lo)*m.rng.Float64()
}

// admit counts answers that begin. It refuses them where too many wait.
func (m *simulator) admit(answers int) *apiError {
	if m == nil {
		return nil
	}
	if open := m.open.Add(int64(answers)); open > int64(m.Running+m.Waiting) {
		m.open.Add(-int64(answers))
		return &apiError{status: http.StatusTooManyRequests, kind: "RateLimitError", message: "Failed to enqueue request, waiting requests queue is full"}
	}
	return nil
}

// left counts answers that have ended, and forgets the plan of one.
func (m *simulator) left(answers int, id string) {
	if m != nil {
		m.open.Add(-int64(answers))
		m.Plans.take(id)
	}
}

// check refuses what the simulator refuses, in its words.
func (m *simulator) check(p *params) *apiError {
	if m == nil {
		return nil
	}
	if !p.Stream {
		p.StreamOptions = nil // it ignores them
	}
	switch {
	case p.max != nil && *p.max < 1:
		return badRequest("", "Max completion tokens and max tokens should be positive")
	case p.N != nil && *p.N == 0:
		return badRequest("", "n must be at least 1")
	case p.IgnoreEOS && p.max == nil:
		return badRequest("", "Ignore_eos is true but max_completion_tokens (or max_tokens) is not set")
	case p.Stream && remoteDecode(p.KVTransfer):
		return badRequest("", "Prefill does not support streaming")
	}
	return nil
}

// checkPrompt refuses a list of prompts that has none, or an empty one.
func (m *simulator) checkPrompt(raw json.RawMessage) *apiError {
	var list []json.RawMessage
	if m == nil || json.Unmarshal(raw, &list) != nil || list == nil {
		return nil
	}
	if len(list) == 0 {
		return badRequest("", "prompt array must contain at least one prompt")
	}
	for _, one := range list {
		switch string(bytes.Join(bytes.Fields(one), nil)) {
		case `""`:
			return badRequest("", "prompt must not contain an empty string")
		case "[]":
			return badRequest("", "prompt must not contain an empty token-id array")
		}
	}
	return nil
}

// fits refuses a prompt that leaves no room for what is asked for.
func (m *simulator) fits(p *params, prompt int) *apiError {
	completion := or(p.max, 1)
	if m == nil || prompt+completion <= m.MaxModelLen {
		return nil
	}
	return badRequest("", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion). "+
		"Please reduce the length of the messages or completion", m.MaxModelLen, prompt+completion, prompt, completion)
}

func remoteDecode(raw json.RawMessage) bool { return remoteFlag(raw, "do_remote_decode") }

// remoteFlag is a member of kv_transfer_params.
func remoteFlag(raw json.RawMessage, name string) bool {
	var all map[string]any
	if len(raw) == 0 || json.Unmarshal(raw, &all) != nil {
		return false
	}
	is, _ := all[name].(bool)
	return is
}

// remoteTransfer is what a prefill server answers: kv_transfer_params for the decode server, as msgpack.
var remoteTransfer, _ = packJSON([]byte(`{"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "DUMMY_ID",
	"remote_block_ids": ["DUMMY_ID"], "remote_host": "DUMMY", "remote_port": 1234, "tp_size": 1}`)) // it is valid

// plan is the answer to a prompt, nil to let the engine choose.
func (s *Server) plan(p *params, i, n int, prompt []uint32) (one *plan) {
	m := s.sim
	switch threshold := or(p.CacheThreshold, m.CacheThreshold); {
	case p.cacheThreshold:
		return &plan{now: true, finish: protocol.FinishStop, reason: "cache_threshold"}
	case m.KVCache && threshold <= 1 && m.cached(prompt, p.Model, threshold) < threshold:
		return &plan{now: true, finish: protocol.FinishStop, reason: "cache_threshold"}
	case m.EncoderOnly:
		one = s.spell(strings.Repeat("!", min(or(p.max, 1), 1<<12)))
		one.finish = protocol.FinishLength
		return one
	case p.planner != nil:
		one = p.planner(i, n)
	case m.Echo && p.onlyIDs && p.pooling == nil:
		if one = (&plan{ids: slices.Clone(prompt), finish: protocol.FinishStop}); p.max != nil && len(prompt) >= *p.max {
			one.finish = protocol.FinishLength
		}
	}
	return one
}

// reasonRemote is the finish_reason of a prompt that was computed for another server.
const reasonRemote = "remote_decode"

// choose makes the plan of an answer.
func (s *Server) choose(q *sequence, r *player.EngineRequest, number, n int) {
	if s.sim == nil {
		return
	}
	p := q.gen.params
	if remoteDecode(p.KVTransfer) {
		q.reason = reasonRemote
	}
	q.plan = s.plan(p, number, n, q.prompt)
	remote := remoteFlag(p.KVTransfer, "do_remote_prefill")
	if q.plan == nil {
		if remote {
			s.sim.Plans.put(q.id, &plan{transferred: true})
		}
		return
	}
	q.plan.transferred = remote
	if q.plan.reason != "" {
		q.reason = q.plan.reason
	}
	if !q.plan.now {
		r.Sampling.MaxTokens = max(r.Sampling.MaxTokens, len(q.plan.ids))
		s.sim.Plans.put(q.id, q.plan)
	}
}

// spell is an answer with a text.
func (s *Server) spell(text string) *plan {
	ids, _ := s.opt.Tokenizer.EncodeOutput(text)
	return &plan{ids: ids, finish: protocol.FinishStop}
}

// planChat makes the planner of a chat.
func (s *Server) planChat(q *chatRequest) (err *apiError) {
	if s.sim == nil {
		return nil
	}
	if s.sim.Echo {
		var text strings.Builder
		if _, err := q.Messages[len(q.Messages)-1].writeSimple(&text, q.oneCall); err != nil {
			return err
		}
		q.planner = s.echoes(&q.params, []string{text.String()})
	}
	if q.calls {
		q.planner, err = s.callTools(q)
	}
	return err
}

// planCompletion makes the planner of a completion.
func (s *Server) planCompletion(q *completionRequest, prompts []prompt) {
	if s.sim == nil || !s.sim.Echo {
		return
	}
	texts := make([]string, len(prompts))
	for i, one := range prompts {
		if texts[i] = one.text; one.tokenized {
			texts[i] = strings.Trim(string(toJSON(one.ids)), "[]")
		}
	}
	q.planner = s.echoes(&q.params, texts)
}

// echoes is the planner of answers that repeat texts, by the number of the prompt.
func (s *Server) echoes(p *params, texts []string) planner {
	return func(i, _ int) *plan {
		if i >= len(texts) {
			return nil
		}
		one := s.spell(texts[i])
		if p.max != nil && len(one.ids) >= *p.max {
			one.finish = protocol.FinishLength
		}
		return one
	}
}

// cached is the share of a prompt that was computed before. If it is enough, all of it counts as computed then.
func (m *simulator) cached(prompt []uint32, model string, enough float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := fnv.New64a()
	_, _ = h.Write([]byte(model))
	hits := 0
	var news []uint64
	for at := 0; at+m.BlockSize <= len(prompt); at += m.BlockSize {
		for _, id := range prompt[at : at+m.BlockSize] {
			_, _ = h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
		}
		if key := h.Sum64(); m.blocks[key] && news == nil {
			hits += m.BlockSize
		} else if !m.blocks[key] {
			news = append(news, key)
		}
	}
	share := float64(hits) / math.Max(float64(len(prompt)), 1)
	if share < enough {
		return share
	}
	for _, key := range news {
		m.blocks[key] = true
		if m.oldest = append(m.oldest, key); len(m.oldest) > maxBlocks {
			delete(m.blocks, m.oldest[0])
			m.oldest = m.oldest[1:]
		}
	}
	return share
}

// maxBlocks is how many blocks of prompts are known for [Simulator].CacheThreshold.
const maxBlocks = 1 << 16

// An imageURL is a text, or an object with the member url.
type imageURL string

func (u *imageURL) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, (*string)(u))
	}
	var object struct {
		URL string `json:"url"`
	}
	err := json.Unmarshal(data, &object)
	*u = imageURL(object.URL)
	return err
}

// writeSimple writes the content of a message as the simulator puts it into prompts, and returns its images. If it is
// strict, it refuses parts of other types.
func (m *message) writeSimple(b *strings.Builder, strict bool) (images []imagePart, err *apiError) {
	var parts []struct {
		Type  string   `json:"type"`
		Text  string   `json:"text"`
		Image imageURL `json:"image_url"`
		Audio struct {
			Format string `json:"format"`
		} `json:"input_audio"`
	}
	if len(m.Content) == 0 || m.Content[0] != '[' {
		text, err := contentText(m.Content, 0)
		b.WriteString(text)
		return nil, err
	}
	if json.Unmarshal(m.Content, &parts) != nil {
		return nil, noContent(0)
	}
	line := ""
	for _, part := range parts {
		text := part.Text
		isImage := part.Type == "image_url" || part.Type == "input_image"
		switch {
		case isImage:
			text = "image: " + string(part.Image)
		case part.Type == "input_audio":
			text = "audio: " + part.Audio.Format
		case text != "":
		case strict && part.Type != "" && !strings.HasSuffix(part.Type, "_text"):
			return nil, badRequest("", "unsupported input content type: %s", part.Type)
		default:
			continue
		}
		b.WriteString(line + text)
		line = "\n"
		if isImage {
			images = append(images, imagePart{url: string(part.Image), begin: b.Len() - len(text), end: b.Len()})
		}
	}
	return images, nil
}

// renderSimple is the prompt of a chat for a model without a chat template.
func renderSimple(c *chat) (string, *apiError) {
	var b strings.Builder
	for i := range c.Messages {
		m := &c.Messages[i]
		b.WriteString("### " + m.Role)
		if m.ToolCall != nil {
			b.WriteString("(" + *m.ToolCall + ")")
		}
		b.WriteString(": ")
		images, err := m.writeSimple(&b, c.textOnly != nil)
		if err != nil {
			return "", err
		}
		c.media = append(c.media, images...)
		for _, call := range m.ToolCalls {
			b.WriteString("[" + call.Function.Name + "(" + or(call.Function.Arguments, "") + ")]")
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// images are the URLs of images in a chat.
func (c *chat) images() (urls []string) {
	for i := range c.Messages {
		images, _ := c.Messages[i].writeSimple(new(strings.Builder), false)
		for _, image := range images {
			urls = append(urls, image.url)
		}
	}
	return urls
}

// encoded are ec_transfer_params for multimodal items; nil unless only the encoder runs.
func (m *simulator) encoded(items func() []string) any {
	if m == nil || !m.EncoderOnly {
		return nil
	}
	var o object
	for _, item := range items() {
		o = append(o, member{item, object{{"peer_host", "DUMMY"}, {"peer_port", 1234}, {"size_bytes", 2359296}, {"nixl_agent_metadata_b64", "TklYTA=="}}})
	}
	if o == nil {
		return nil
	}
	return o
}

// wantsImage reports whether an image follows the answer to a request.
func (m *simulator) wantsImage(r *http.Request) bool {
	return m != nil && m.Omni && (r.Header.Get("X-Send-Image") == "true" || m.chance(int(m.imageRate.Load())))
}

// makeImage waits for as long as it takes to make an image.
func (m *simulator) makeImage(ctx context.Context) {
	m.mu.Lock()
	mean := float64(m.ImageTime)
	drawn := mean + m.rng.NormFloat64()*float64(m.ImageTimeStdDev)
	m.mu.Unlock()
	if wait := time.Duration(min(max(drawn, .3*mean), 1.7*mean)); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// onePixel is a picture, as the part of a content.
var onePixel = json.RawMessage(`{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}`)

// callID is the id of a new call of a tool: otherwise that of vLLM.
func (m *simulator) callID(prefix, otherwise string) string {
	if m == nil {
		return otherwise
	}
	return fmt.Sprintf("%s%010d", prefix, m.between(0, 9_999_999_999))
}

const (
	chatCallPrefix    = "chatcmpl-tool-"
	messageCallPrefix = "toolu_"
)

// SetImages changes how often images come and how long they take, while the server runs.
func (s *Server) SetImages(percent int, mean, deviation time.Duration) {
	s.sim.imageRate.Store(int64(percent))
	s.sim.mu.Lock()
	defer s.sim.mu.Unlock()
	s.sim.ImageTime, s.sim.ImageTimeStdDev = mean, deviation
}

// checkIDs refuses a request of ids as the simulator does, and finds the parameters of a transfer where it looks for
// them.
func (m *simulator) checkIDs(q *generateRequest) *apiError {
	if m == nil {
		return nil
	}
	switch {
	case q.IDs == nil:
		return badRequest("", "Missing input token_ids")
	case q.Sampling == nil:
		return badRequest("", "Missing sampling_params field")
	}
	var extra struct {
		KVTransfer json.RawMessage `json:"kv_transfer_params"`
	}
	if len(q.KVTransfer) == 0 && json.Unmarshal(q.Sampling.ExtraArgs, &extra) == nil {
		q.KVTransfer = extra.KVTransfer
	}
	p := params{max: intOf(q.Sampling.MaxTokens), N: q.Sampling.N, IgnoreEOS: q.Sampling.IgnoreEOS, Stream: q.Stream, KVTransfer: q.KVTransfer}
	if !q.Stream {
		q.StreamOptions = nil
	}
	return m.check(&p)
}

// hashes are those of the multimodal items of a request of ids.
func (q *generateRequest) hashes() (all []string) {
	var features struct {
		Hashes map[string][]string `json:"mm_hashes"`
	}
	if json.Unmarshal(q.Features, &features) == nil {
		for _, list := range features.Hashes {
			all = append(all, list...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
