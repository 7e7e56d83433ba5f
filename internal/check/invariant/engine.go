package invariant

import (
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
)

// Options say what is known of an engine besides its messages.
type Options struct {
	// Scripted engines answer as they were recorded: when a request ends, and for what
	// reason, follows from the recording and not from the request. Which index messages name is checked beside.
	Scripted bool
	// Logits: the engine has numbers above 0 in place of log-probabilities (--logprobs-mode raw_logits, processed_logits).
	Logits bool
	// Late: the engine was asked before, so its totals are not those of what is followed.
	Late bool
}

// Engine follows one engine: what it is asked, and all that it says, in the order in which both pass one place, such as a
// frontend or a tap. An invariant that does not hold is reported once for each place of a message.
//
// Each is as narrow as a released engine permits, which the comment beside it gives the source of. What an engine may be
// started with, and does not tell, is not held against it: no prefix cache, no statistics, a model with several kinds of
// layers, a connector to other engines.
type Engine struct {
	codec *protocol.Codec
	opt   Options
	names map[string][]string // of the fields, by struct
	// Of the two structs that are read most.
	envelopeNames, outputNames []string

	ready    registration
	requests map[string]*request
	active   []*request // those that the engine may have
	calls    map[uint64]call
	clients  map[int]float64 // the time of the last message on each output socket
	asked    int             // messages to the engine so far
	read     int             // of these, how many it has read for certain

	cache    cacheTotals
	gauges   gaugeValues
	told     bool // statistics have come
	stale    int  // messages to the engine when they came last
	upset    bool // a call may have changed what runs: pause, sleep
	reset    bool // a call may have emptied the prefix cache
	joined   bool // the engine has a connector to others
	roomy    bool // all requests so far fit into the KV cache together
	iterated int64
	drafts   int64 // num_spec_tokens
	verifies bool  // drafts are verified token by token, so the model is not one of diffusion
	weights  string
	changed  bool // a call may have changed the version of the weights

	found []check.Failure // of the message that is judged
	known map[string]bool
	lost  bool

	// Of the message that is judged:
	number              int
	aux                 [][]byte
	now                 float64
	envelope            record
	outputs             []record
	output              *record // one of them
	hasStats            bool
	stats, part, deeper record
	sizes               []int // tokens of each output
	tokens              []uint32

	places []string // of the outputs of a message
	idle   []byte   // the statistics of a prefix cache in which nothing happened
}

// request is one that the engine was asked, and what it said of it.
type request struct {
	id       string
	asked    int // the number of the message that asked
	prompt   []uint32
	length   int // of the prompt, -1 if nobody can tell
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
		codec: codec, opt: opt, names: map[string][]string{}, requests: map[string]*request{}, calls: map[uint64]call{},
		clients: map[int]float64{}, known: map[string]bool{}, roomy: true, iterated: -1,
	}
	e.cache.unknown = opt.Late
	for name, s := range codec.Profile().Structs {
		for _, f := range s.Fields {
			e.names[name] = append(e.names[name], f.Name)
		}
	}
	e.envelopeNames, e.outputNames = e.names["EngineCoreOutputs"], e.names["EngineCoreOutput"]
	return e
}

// Ask takes in a request that is sent to the engine. payload is its message, nil if nobody has it.
func (e *Engine) Ask(r *protocol.Request, payload []byte) {
	e.asked++
	q := &request{
		id: r.ID, asked: e.asked, prompt: slices.Clone(r.PromptTokenIDs), length: len(r.PromptTokenIDs), sampling: r.Sampling,
		plain: isPlain(r), pooling: r.Pooling != nil, session: r.Resumable, skips: r.Sampling.SkipsCache() || r.Pooling != nil,
		images: r.MMFeatures != nil, after: e.latest(),
	}
	q.sampling.StopTokenIDs = slices.Clone(r.Sampling.StopTokenIDs)
	if r.PromptEmbeds != nil || r.PromptTokenIDs == nil {
		q.length, q.prompt = -1, nil
	}
	if known := e.requests[r.ID]; known != nil && known.finish == protocol.Unfinished && known.aborted == 0 {
		q.session, known.session = true, true // the prompt goes on
	}
	if payload != nil && e.part.readArray(e.names["EngineCoreRequest"], payload) {
		q.headers = slices.Clone(e.part.get("trace_headers"))
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
	var p record
	if r.Sampling.Raw == nil || !p.readMap(r.Sampling.Raw) {
		return r.Sampling.Temperature == 0 && r.HasSampling && r.Sampling.StructuredOutputs == nil && r.Sampling.MinTokens == 0
	}
	for _, name := range []string{"logit_bias", "allowed_token_ids", "bad_words", "_bad_words_token_ids", "structured_outputs", "extra_args", "thinking_token_budget"} {
		if p.get(name) != nil {
			return false
		}
	}
	for name, neutral := range map[string]float64{
		"temperature": 0, "min_tokens": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
	} {
		if v, ok := p.float(name); ok && v != neutral || !ok && name == "temperature" {
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
		e.reset = true
		var flag pack.Cursor
		if len(c.Args) > 0 {
			flag = pack.NewCursor(c.Args[0])
		}
		if running, err := flag.Bool(); err == nil && running {
			e.upset = true // they are preempted
		}
	case "pause_scheduler", "pause_generation", "sleep", "wake_up", "release_kv_cache_memory", "reinitialize_distributed", "collective_rpc":
		e.upset, e.reset, e.changed = true, true, true
	case "set_weight_version", "finish_weight_update", "start_weight_update", "update_weights":
		e.changed = true
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
			e.Ask(&r, frames[1])
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
func (e *Engine) Again() { clear(e.known) }

// Lose ends the judgement: a message could not be read, so what the engine has done is not known any more.
func (e *Engine) Lose() { e.lost = true }

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
	if e.lost || len(frames) == 0 || !e.readMessage(frames[0]) {
		return nil
	}
	e.found, e.number, e.aux, e.sizes = nil, number, frames[1:], e.sizes[:0]
	e.judgeEnvelope(client)
	if e.hasStats && e.part.readMap(e.stats.get("prefix_cache_stats")) && e.part.count("requests") > 0 {
		e.cache.looked = true
	}
	for i := range e.outputs {
		if i == len(e.places) {
			e.places = append(e.places, fmt.Sprintf(".outputs[%d]", i))
		}
		e.output = &e.outputs[i]
		e.judgeOutput(e.places[i])
	}
	if e.hasStats && client >= 0 {
		e.judgeStats()
	}
	e.judgeFinished(e.envelope.get("finished_requests"))
	if raw := e.envelope.get("utility_output"); raw != nil {
		e.judgeUtility(raw)
	}
	return e.found
}

// readMessage takes a message apart, in one pass over its bytes: its fields, those of each output, and those of the statistics.
func (e *Engine) readMessage(payload []byte) bool {
	e.outputs, e.hasStats = e.outputs[:0], false
	cur := pack.NewCursor(payload)
	r := &e.envelope
	r.begin(e.envelopeNames)
	n, err := cur.ArrayLen()
	for i := 0; err == nil && i < min(n, len(r.names)); i++ {
		inside := cur
		switch r.names[i] {
		case "outputs":
			if e.readOutputs(&inside) {
				cur = inside
				r.values = append(r.values, nil)
				continue
			}
		case "scheduler_stats":
			if e.hasStats = e.stats.takeMap(&inside); e.hasStats {
				cur = inside
				r.values = append(r.values, nil)
				continue
			}
		}
		err = r.read(&cur)
	}
	return err == nil
}

// readOutputs reads the outputs of the message, up to the first that is none.
func (e *Engine) readOutputs(cur *pack.Cursor) bool {
	n, err := cur.ArrayLen()
	for i := 0; err == nil && i < n; i++ {
		if i == cap(e.outputs) {
			e.outputs = slices.Grow(e.outputs, 1)
		}
		e.outputs = e.outputs[:i+1]
		if !e.outputs[i].takeArray(e.outputNames, cur) {
			e.outputs = e.outputs[:i]
			return false
		}
	}
	return err == nil
}

// fail reports what is wrong at a path of the message, once for each kind of it.
func (e *Engine) fail(code check.Code, path string, expected, actual any, format string, args ...any) {
	path = "EngineCoreOutputs" + path
	key := string(code) + check.Place(path)
	if e.known[key] {
		return
	}
	e.known[key] = true
	text := fmt.Sprintf(format, args...)
	e.found = append(e.found, check.Failed(code, "message %d: %s: expected %v, found %v: %s", e.number, path, expected, actual, text).
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

// Message judges the next message; number is for the failures. What passes between an engine and its coordinator, and KV events,
// are no concern of this package.
func (s *Session) Message(number int, m *trace.Message) []check.Failure {
	if m.Note != "" || len(m.Frames) == 0 || m.Channel != "input" && m.Channel != "output" {
		return nil
	}
	e := s.engines[m.Rank]
	if e == nil {
		e = New(s.codec, s.opt)
		s.engines[m.Rank] = e
	}
	fromEngine := m.Direction == trace.EngineToFrontend
	switch {
	case m.Channel == "output" && fromEngine:
		return e.Said(number, m.Client, m.Frames)
	case m.Channel == "output":
	case !fromEngine:
		e.Sent(m.Frames)
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
	other.calls, other.clients = maps.Clone(e.calls), maps.Clone(e.clients)
	// What is of one message has memory of its own.
	other.found, other.known, other.sizes, other.tokens, other.places, other.outputs = nil, map[string]bool{}, nil, nil, nil, nil
	for _, r := range []*record{&other.envelope, &other.stats, &other.part, &other.deeper} {
		*r = record{}
	}
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

// judgeEnvelope looks at what a message says of itself (vllm/v1/engine/core.py process_output_sockets, _attach_weight_version).
func (e *Engine) judgeEnvelope(client int) {
	before := e.clients[client]
	e.clients[client] = before
	if index, ok := e.envelope.int("engine_index"); ok && !e.opt.Scripted && e.ready.known && int(index) != e.ready.index {
		e.fail(CodeEnvelope, ".engine_index", e.ready.index, index, "the engine registered with another index")
	}
	if t, ok := e.envelope.float("timestamp"); ok {
		// The time is that of a monotonic clock, taken when the message is made.
		if t <= 0 || t < before {
			e.fail(CodeEnvelope, ".timestamp", fmt.Sprintf("at least %v", before), t, "the timestamp must not go back")
		}
		e.now = t
		e.clients[client] = max(before, t)
	}
	if client >= 0 {
		// Waves are for a coordinator: a frontend's client has no use for them (vllm/v1/engine/core_client.py).
		for _, name := range []string{"wave_complete", "start_wave"} {
			if wave, ok := e.envelope.int(name); ok {
				e.fail(CodeEnvelope, "."+name, "nil", wave, "waves are sent to a coordinator, never to a client")
			}
		}
	}
	if raw := e.envelope.get("weight_version"); raw != nil {
		version := check.Describe(raw)
		if e.weights == "" {
			e.weights = `"default"` // vllm/v1/engine/core.py _weight_version
		}
		if version != e.weights && !e.changed {
			e.fail(CodeEnvelope, ".weight_version", e.weights, version, "no call has changed the weight version")
		}
		if e.changed {
			e.weights = version
		}
	}
}

// judgeFinished: the ids are of requests that have ended.
func (e *Engine) judgeFinished(raw []byte) {
	if raw == nil {
		return
	}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		var id string
		if id, err = cur.StrString(); err != nil {
			return
		}
		if r := e.requests[id]; r == nil || r.finish == protocol.Unfinished && r.aborted == 0 && !r.session {
			e.fail(CodeEnvelope, ".finished_requests", "requests that have ended", fmt.Sprintf("%.200q", id), "the list may name only requests that have ended")
		}
	}
}

// judgeUtility: each call is answered once, by a value of the kind that the method returns.
func (e *Engine) judgeUtility(raw []byte) {
	if !e.part.readArray(e.names["UtilityOutput"], raw) {
		return
	}
	cur := pack.NewCursor(e.part.get("call_id"))
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
		e.fail(CodeCall, ".utility_output.call_id", "a call that was made", check.Describe(e.part.get("call_id")), "no frontend waits for an answer to this call")
		return
	case c.answered:
		e.fail(CodeCall, ".utility_output.call_id", "one answer to a call", id, "the call has been answered already")
		return
	}
	c.answered = true
	e.calls[id] = c
	e.read = max(e.read, c.asked)
	failure, result := e.part.get("failure_message"), e.part.get("result")
	u, declared := e.codec.Profile().Utilities[c.method]
	if failure != nil {
		if result != nil {
			e.fail(CodeCall, ".utility_output.result", "nil beside a failure", check.Describe(result), "a call of %s that failed has no result", c.method)
		}
		return
	}
	if !declared {
		e.fail(CodeCall, ".utility_output.failure_message", "a failure", "none", "the line has no method %.200q, so the call must fail", c.method)
		return
	}
	if result == nil {
		return
	}
	value := pack.NewCursor(result)
	if n, err := value.ArrayLen(); err != nil || n != 2 || value.Skip() != nil {
		return
	}
	kinds := map[string][]pack.Kind{
		"bool": {pack.Bool}, "none": {pack.Nil}, "str": {pack.String}, "ints": {pack.Array}, "strings": {pack.Array}, "list": {pack.Array},
	}[string(u.Result)]
	if kinds != nil && !slices.Contains(kinds, value.Kind()) {
		e.fail(CodeCall, ".utility_output.result", u.Result, value.Kind(), "the result of %s has this type or value", c.method)
		return
	}
	if is, err := value.Bool(); err == nil {
		want := is
		switch {
		case e.upset:
		case c.method == "is_sleeping" || c.method == "is_scheduler_paused":
			want = false // nobody has asked for it
		case c.method == "reset_prefix_cache" && c.idle && !e.joined:
			want = true // no request holds a block (vllm/v1/core/block_pool.py reset_prefix_cache)
		}
		if is != want {
			e.fail(CodeCall, ".utility_output.result", want, is, "the result of %s has this type or value", c.method)
		}
	}
}
