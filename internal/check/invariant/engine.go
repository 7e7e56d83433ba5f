package invariant

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// What is wrong with an engine's messages, whatever it was recorded to say.
const (
	CodePrefill      check.Code = "V001" // the counts of a prompt do not add up
	CodeCache        check.Code = "V002" // the statistics of the prefix cache do not add up
	CodeGauges       check.Code = "V003" // the gauges are not those of the requests that are open
	CodeRest         check.Code = "V004" // a gauge is not 0 after the last request has ended
	CodeLogprobs     check.Code = "V005" // a table of log-probabilities is impossible
	CodeMask         check.Code = "V006" // a sampling mask is impossible
	CodeEvents       check.Code = "V007" // the events of a request are impossible
	CodeSpeculation  check.Code = "V008" // the counts of speculation do not add up
	CodeAnswer       check.Code = "V009" // an output is not what its request asks for
	CodeEnvelope     check.Code = "V010" // a message is impossible at its time
	CodeStep         check.Code = "V011" // the statistics of a step are impossible
	CodeRegistration check.Code = "V012" // the registration contradicts itself
	CodeCall         check.Code = "V013" // the answer to a utility call is wrong
	CodeRequest      check.Code = "V014" // what a frontend sends contradicts itself
	CodeKVEvents     check.Code = "V015" // the KV events contradict each other
	CodeKeys         check.Code = "V016" // statistics lack a key that every released engine sends
)

// Options say what is known of an engine besides its messages.
type Options struct {
	// Scripted engines answer as they were recorded: when a request ends, and for what
	// reason, follows from the recording and not from the request. Whether messages name the right index is then checked elsewhere.
	Scripted bool
	// Logits: the engine has numbers above 0 in place of log-probabilities (--logprobs-mode raw_logits, processed_logits).
	Logits bool
	// Late: the engine was asked before, so its totals are not those of what is followed.
	Late bool
}

// Engine follows one engine: what it is asked, and all that it says, in the order in which both pass one place, such as a
// frontend or a tap. An invariant that does not hold is reported once for each place of a message.
//
// Each is as narrow as a released engine permits; its comment gives the source. What an engine may be
// started with, and does not say, is not held against it: no prefix cache, no statistics, a model with several kinds of
// layers, a connector to other engines.
type Engine struct {
	codec *protocol.Codec
	opt   Options

	init     *protocol.Addresses // what the frontend has told the engine, nil if it is not known
	ready    registration
	requests map[string]*request
	active   []*request // those that the engine may have
	lately   []*request // the last that it had, of those that asked for log-probabilities
	calls    map[uint64]call
	clients  map[int]float64 // the time of the last message on each output socket
	asked    int             // messages to the engine so far
	read     int             // of these, how many it has read for certain

	cache          cacheTotals
	gauges         gaugeValues
	hasStatistics  bool // some have come
	runningChanged bool // a call may have changed what runs: pause, sleep
	cacheReset     bool // a call may have emptied the prefix cache
	hasConnector   bool // the engine has a connector to others
	fitsCache      bool // all requests so far fit into the KV cache together
	lastIteration  int64
	measures       bool  // perf_stats have come
	drafts         int64 // num_spec_tokens
	verifiesDrafts bool  // token by token, so the model is not one of diffusion
	vocabulary     int64 // as far as a table of all tokens shows, 0 if it is not known
	weights        string
	weightsChanged bool // a call may have changed the version of the weights

	adapters []adapter // of requests
	arrived  float64   // arrival_time of the last request
	blocks   blocks

	failures   []check.Failure // of the message that is judged
	reported   map[string]bool
	unreadable bool // so nothing is judged any more

	// Of the message that is judged:
	number  int
	decoded protocol.Outputs
	view    protocol.View
	now     float64
	before  float64 // the time of the message before it on its socket
	stats   protocol.Value
	sizes   []int // tokens of each output

	idle []byte // the statistics of a prefix cache in which nothing happened
}

// request is one that the engine was asked, and what it said of it.
type request struct {
	id       string
	asked    int // the number of the message that asked
	prompt   []uint32
	length   int // of the prompt, -1 if it is not known
	sampling protocol.Sampling
	plain    bool // nothing but the model decides which token is the most likely
	pooling  bool
	session  bool // more prompts may follow
	skips    bool // the prefix cache is not looked at
	images   bool
	headers  []byte
	after    float64 // the time of the last message that came before it was asked

	tokens   int
	last     []uint32 // the last token
	outputs  int
	finish   protocol.FinishReason
	aborted  int     // the number of the message that aborted it, 0 without
	gone     float64 // the time of the message that showed that the engine has it no more
	happened float64 // the time of its last event
	state    int64   // the type of its last event
	blocks   int

	answeredIn int // the number of the message that answered it last, and did not end it
}

// call is one of a method.
type call struct {
	asked    int
	method   string
	answered bool
	idle     bool // no request was open
}

// New begins to follow an engine of a line.
func New(codec *protocol.Codec, opt Options) *Engine {
	e := &Engine{
		codec: codec, opt: opt, requests: map[string]*request{}, calls: map[uint64]call{}, clients: map[int]float64{},
		reported: map[string]bool{}, fitsCache: true, lastIteration: -1,
	}
	e.cache.unknown = opt.Late
	return e
}

// Init takes in the addresses that the frontend has told the engine, in answer to HELLO.
func (e *Engine) Init(a protocol.Addresses) { e.init = &a }

// Ask takes in a request that is sent to the engine.
func (e *Engine) Ask(r *protocol.Request) {
	e.asked++
	q := &request{
		id: r.ID, asked: e.asked, prompt: slices.Clone(r.PromptTokenIDs), length: len(r.PromptTokenIDs), sampling: r.Sampling,
		plain: isPlain(r), pooling: r.Pooling != nil, session: r.Resumable, skips: r.Sampling.SkipsCache() || r.Pooling != nil,
		images: r.MMFeatures != nil, headers: slices.Clone(r.TraceHeaders), after: e.latest(),
	}
	q.sampling.StopTokenIDs = slices.Clone(r.Sampling.StopTokenIDs)
	if r.PromptEmbeds != nil || r.PromptTokenIDs == nil {
		q.length, q.prompt = -1, nil
	}
	if known := e.requests[r.ID]; known != nil && known.finish == protocol.Unfinished && known.aborted == 0 {
		q.session, known.session = true, true // the prompt goes on
	}
	e.requests[r.ID] = q
	e.active = append(e.active, q)
	e.measure(q)
	if q.length < 0 || q.session || q.pooling { // some models look up what they pool, others do not
		e.cache.unknown = true
	} else if q.skips {
		e.cache.uncounted++
	} else {
		e.cache.askedRequests++
		e.cache.askedTokens += int64(q.length)
	}
}

// isPlain reports whether nothing in a request changes how likely a token is, or which may come: then the sampled token of a
// greedy request is the most likely one.
func isPlain(r *protocol.Request) bool {
	if r.Sampling.Raw == nil {
		return r.Sampling.Temperature == 0 && r.HasSampling && r.Sampling.StructuredOutputs == nil && r.Sampling.MinTokens == 0
	}
	p := protocol.ViewOf(r.Sampling.Raw)
	for _, name := range []string{"logit_bias", "allowed_token_ids", "bad_words", "_bad_words_token_ids", "structured_outputs", "extra_args", "thinking_token_budget"} {
		if p.Field(name).Given() {
			return false
		}
	}
	for name, neutral := range map[string]float64{
		"temperature": 0, "min_tokens": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
	} {
		if v, ok := p.Field(name).Float(); ok && v != neutral || !ok && name == "temperature" {
			return false
		}
	}
	return true
}

// Abort takes in that requests are aborted.
func (e *Engine) Abort(ids ...string) {
	e.asked++
	for _, id := range ids {
		if r := e.requests[id]; r != nil && r.finish == protocol.Unfinished && r.aborted == 0 {
			r.aborted = e.asked
		}
	}
}

// Call takes in that a method is called.
func (e *Engine) Call(c protocol.UtilityCall) {
	e.asked++
	idle := !slices.ContainsFunc(e.active, func(r *request) bool { return e.open(r) && r.aborted == 0 || r.session })
	e.calls[c.CallID] = call{asked: e.asked, method: c.Method, idle: idle}
	switch c.Method {
	case "reset_prefix_cache":
		e.cacheReset = true
		if len(c.Args) > 0 {
			if running, _ := protocol.ViewOf(c.Args[0]).Bool(); running {
				e.runningChanged = true // they are preempted
			}
		}
	case "pause_scheduler", "pause_generation", "sleep", "wake_up", "release_kv_cache_memory", "reinitialize_distributed", "collective_rpc":
		e.runningChanged, e.cacheReset, e.weightsChanged = true, true, true
	case "set_weight_version", "finish_weight_update", "start_weight_update", "update_weights":
		e.weightsChanged = true
	}
}

// Sent takes in whatever is sent to the engine: the type, the payload and auxiliary frames.
func (e *Engine) Sent(frames [][]byte) {
	if len(frames) < 2 || len(frames[0]) != 1 {
		return
	}
	switch frames[0][0] {
	case protocol.TypeAdd:
		var r protocol.Request
		if e.codec.DecodeRequest(frames[1], &r) == nil {
			e.Ask(&r)
		}
	case protocol.TypeAbort:
		if ids, err := protocol.DecodeAbort(frames[1]); err == nil {
			e.Abort(ids...)
		}
	case protocol.TypeUtility:
		if c, err := protocol.DecodeUtilityCall(frames[1]); err == nil {
			e.Call(c)
		}
	}
}

// Again lets what has been reported be reported once more, by the next case of a run.
func (e *Engine) Again() { clear(e.reported) }

// Lose ends the judgement: a message could not be read, so what the engine has done is not known any more.
func (e *Engine) Lose() { e.unreadable = true }

// latest is the time of the last message of the engine, by its clock.
func (e *Engine) latest() (t float64) {
	for _, timestamp := range e.clients {
		t = max(t, timestamp)
	}
	return t
}

// Said judges a message on the output socket of a client, -1 for a coordinator: its number is for the failures. A message that
// does not decode, or has another layout than the line's, is for others to judge: what cannot be read here is passed over.
func (e *Engine) Said(number, client int, frames [][]byte) []check.Failure {
	if e.unreadable || len(frames) == 0 {
		return nil
	}
	if e.codec.DecodeOutputs(frames[0], &e.decoded) != nil {
		return nil
	}
	message := e.codec.Read(&e.view, protocol.KindOutputs, frames[0], frames[1:]...)
	e.failures, e.number, e.sizes, e.stats = nil, number, e.sizes[:0], message.Field("scheduler_stats")
	e.judgeEnvelope(message, client)
	if cache := e.stats.Field("prefix_cache_stats"); !bytes.Equal(cache.Bytes(), e.idle) && cache.Field("requests").Count() > 0 {
		e.cache.looked = true
	}
	outputs := message.Field("outputs")
	for i := range e.decoded.Outputs {
		e.judgeOutput(&e.decoded.Outputs[i], outputs.At(i))
	}
	if e.stats.Kind() == pack.Map && client >= 0 {
		e.judgeStats()
	}
	e.judgeFinished(message.Field("finished_requests"))
	if u := message.Field("utility_output"); u.Kind() == pack.Array {
		e.judgeUtility(u)
	}
	return e.failures
}

// fail reports what is wrong with a value of the message, once for each kind of it.
func (e *Engine) fail(code check.Code, at protocol.Value, expected, actual any, format string, args ...any) {
	path := at.Path()
	key := string(code) + check.Place(path)
	if e.reported[key] {
		return
	}
	e.reported[key] = true
	text := fmt.Sprintf(format, args...)
	expected, actual = check.Shown(expected), check.Shown(actual)
	e.failures = append(e.failures, check.Failed(code, "message %d: %s: expected %v, found %v: %s", e.number, path, expected, actual, text).
		Within(e.number, path).Compared(expected, actual))
}

// Session follows the engines of recorded frames, each by itself.
type Session struct {
	codec   *protocol.Codec
	opt     Options
	engines map[int]*Engine
}

// NewSession begins to follow recorded frames.
func NewSession(codec *protocol.Codec, opt Options) *Session {
	return &Session{codec, opt, map[int]*Engine{}}
}

// Message judges the next message; number is for the failures. What passes between an engine and its coordinator
// is no concern of this package.
func (s *Session) Message(number int, m *trace.Message) []check.Failure {
	if m.Note != "" || len(m.Frames) == 0 {
		return nil
	}
	e := s.engines[m.Rank]
	if e == nil {
		e = New(s.codec, s.opt)
		s.engines[m.Rank] = e
	}
	fromEngine := m.Direction == trace.EngineToFrontend
	switch {
	case m.Channel == "handshake":
		payload := m.Frames[len(m.Frames)-1]
		if a, err := protocol.DecodeInit(payload); err == nil && !fromEngine {
			e.Init(a)
			return e.judgeInit(payload)
		}
	case m.Channel == "kv_events" && len(m.Frames) == 3:
		return e.judgeKVEvents(number, m.Frames[2])
	case m.Channel == "output" && fromEngine:
		return e.Said(number, m.Client, m.Frames)
	case m.Channel != "input":
	case !fromEngine:
		e.Sent(m.Frames)
		if len(m.Frames) > 1 && len(m.Frames[0]) == 1 && m.Frames[0][0] == protocol.TypeAdd {
			e.number = number
			return e.judgeSent(m.Frames)
		}
	case !e.ready.known: // it registers with each frontend process
		return e.Registered(m.Rank, m.Frames[0])
	}
	return nil
}

// Clone follows the same engines from here on, so that another message can be judged in the place of the next. What has been
// reported is reported again.
func (s *Session) Clone() *Session {
	other := NewSession(s.codec, s.opt)
	for rank, e := range s.engines {
		other.engines[rank] = e.clone()
	}
	return other
}

func (e *Engine) clone() *Engine {
	other := *e
	other.requests, other.active = make(map[string]*request, len(e.requests)), nil
	copies := make(map[*request]*request, len(e.requests))
	copied := func(r *request) *request {
		if copies[r] == nil {
			q := *r
			q.last = slices.Clone(r.last)
			copies[r] = &q
		}
		return copies[r]
	}
	for id, r := range e.requests {
		other.requests[id] = copied(r)
	}
	for _, r := range e.active {
		other.active = append(other.active, copied(r))
	}
	other.lately = slices.Clone(e.lately)
	other.calls, other.clients = maps.Clone(e.calls), maps.Clone(e.clients)
	other.adapters, other.blocks.stored = slices.Clone(e.adapters), maps.Clone(e.blocks.stored)
	// What is of one message has memory of its own.
	other.failures, other.reported, other.sizes, other.decoded = nil, map[string]bool{}, nil, protocol.Outputs{}
	other.view, other.stats = protocol.View{}, protocol.Value{}
	return &other
}

// Rest judges the end, see [Engine.Rest].
func (s *Session) Rest() (found []check.Failure) {
	for _, e := range s.engines {
		found = append(found, e.Rest()...)
	}
	return found
}

// Add adds a failure to those of a case, unless there is one of the same place: what a suite says of it has more to go by.
func Add(f *check.Outcome, wrong check.Failure) {
	place := check.Place(wrong.Path)
	for _, other := range f.Failures {
		path := check.Place(other.Path)
		if path != "" && (strings.HasPrefix(place, path) || strings.HasPrefix(path, place)) {
			return
		}
	}
	f.Fail(wrong)
}

// maxUptime is above every monotonic clock, which counts from the start of the machine, and below every time of day, in seconds.
const maxUptime = 1e9

// judgeEnvelope looks at what a message says of itself (vllm/v1/engine/core.py process_output_sockets, _attach_weight_version).
func (e *Engine) judgeEnvelope(message protocol.Value, client int) {
	before := e.clients[client]
	e.clients[client], e.before = before, before
	index := message.Field("engine_index")
	if i, ok := index.Int(); ok && !e.opt.Scripted && e.ready.known && int(i) != e.ready.index {
		e.fail(CodeEnvelope, index, e.ready.index, i, "the engine registered with another index")
	}
	timestamp := message.Field("timestamp")
	if t, ok := timestamp.Float(); ok {
		// The time is that of a monotonic clock, taken when the message is made.
		if t <= 0 || t < before {
			e.fail(CodeEnvelope, timestamp, fmt.Sprintf("at least %v", before), t, "the timestamp must not go back")
		}
		if t > maxUptime {
			e.fail(CodeEnvelope, timestamp, "seconds of a monotonic clock", t, "this is a time of day: frontends subtract timestamps, and a clock that is set makes times negative")
		}
		e.now = t
		e.clients[client] = max(before, t)
	}
	if client >= 0 {
		// Waves are for a coordinator: a frontend's client has no use for them (vllm/v1/engine/core_client.py).
		for _, name := range []string{"wave_complete", "start_wave"} {
			if wave, ok := message.Field(name).Int(); ok {
				e.fail(CodeEnvelope, message.Field(name), "nil", wave, "waves are sent to a coordinator, never to a client")
			}
		}
	}
	if v := message.Field("weight_version"); v.Given() {
		version := check.Describe(v.Bytes())
		if e.weights == "" {
			e.weights = `"default"` // vllm/v1/engine/core.py _weight_version
		}
		if version != e.weights && !e.weightsChanged {
			e.fail(CodeEnvelope, v, e.weights, version, "no call has changed the weight version")
		}
		if e.weightsChanged {
			e.weights = version
		}
	}
}

// judgeFinished: the ids are of requests that have ended.
func (e *Engine) judgeFinished(ids protocol.Value) {
	for v := range ids.Parts() {
		if v.Kind() != pack.String {
			return
		}
		id := v.Text()
		if r := e.requests[id]; r == nil || r.finish == protocol.Unfinished && r.aborted == 0 && !r.session {
			e.fail(CodeEnvelope, ids, "requests that have ended", fmt.Sprintf("%.200q", id), "the list may name only requests that have ended")
		}
	}
}

// judgeUtility: each call is answered once, by a value of the kind that the method returns.
func (e *Engine) judgeUtility(answer protocol.Value) {
	called := answer.Field("call_id")
	cur := pack.NewCursor(called.Bytes())
	id, err := cur.Uint()
	if err != nil { // Python may write the upper half of the range as a negative number
		var signed int64
		signed, err = cur.Int()
		id = uint64(signed)
	}
	c, made := e.calls[id]
	switch {
	case !made && protocol.IsNotice(id):
		return
	case err != nil || !made:
		e.fail(CodeCall, called, "a call that was made", check.Describe(called.Bytes()), "no frontend waits for an answer to this call")
		return
	case c.answered:
		e.fail(CodeCall, called, "one answer to a call", id, "the call has been answered already")
		return
	}
	c.answered = true
	e.calls[id] = c
	e.read = max(e.read, c.asked)
	failure, result := answer.Field("failure_message"), answer.Field("result")
	u, declared := e.codec.Profile().Utilities[c.method]
	switch {
	case failure.Given():
		if result.Given() {
			e.fail(CodeCall, result, "nil next to a failure", check.Describe(result.Bytes()), "a call of %s that failed has no result", c.method)
		}
		return
	case !declared:
		e.fail(CodeCall, failure, "a failure", "none", "the line has no method %.200q, so the call must fail", c.method)
		return
	case result.Len() != 2:
		return
	}
	value := result.At(1)
	kinds := map[string][]pack.Kind{
		"bool": {pack.Bool}, "none": {pack.Nil}, "str": {pack.String}, "ints": {pack.Array}, "strings": {pack.Array}, "list": {pack.Array},
	}[string(u.Result)]
	if kinds != nil && !slices.Contains(kinds, value.Kind()) {
		e.fail(CodeCall, result, u.Result, value.Kind(), "the result of %s has this type or value", c.method)
		return
	}
	if is, ok := value.Bool(); ok {
		want := is
		switch {
		case e.runningChanged:
		case c.method == "is_sleeping" || c.method == "is_scheduler_paused":
			want = false // no call has asked for it
		case c.method == "reset_prefix_cache" && c.idle && !e.hasConnector:
			want = true // no request holds a block (vllm/v1/core/block_pool.py reset_prefix_cache)
		}
		if is != want {
			e.fail(CodeCall, result, want, is, "the result of %s has this type or value", c.method)
		}
	}
}
