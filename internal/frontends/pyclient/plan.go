package pyclient

import "fmt"

// The kinds of clients, by their names in the release.
const (
	asyncClient = "AsyncMPClient"
	syncClient  = "SyncMPClient"
)

// A plan is what the driver gets.
type plan struct {
	Sources     string     `json:"sources"`
	Model       string     `json:"model"`
	MaxModelLen int        `json:"max_model_len"`
	Patience    float64    `json:"patience"` // seconds until an answer counts as lost
	Sessions    []*session `json:"sessions"`
}

// A session is one client, from its handshake to the death of its engine.
type session struct {
	Client string   `json:"client"`
	Cases  []*aCase `json:"cases"`
}

// An aCase is something to try, and what must come of it.
type aCase struct {
	Name     string    `json:"name"`
	Do       string    `json:"do"`              // a method of the driver
	Pause    bool      `json:"pause,omitempty"` // the engine makes no step until all is asked
	Requests []request `json:"requests,omitempty"`
	Abort    []string  `json:"abort,omitempty"`
	Calls    [][]any   `json:"calls,omitempty"` // a method and its arguments each

	judge    func(facts) error
	optional bool // lines differ in whether they have the methods
}

// A request of the driver's.
type request struct {
	ID             string   `json:"id"`
	Prompt         []uint32 `json:"prompt"`
	MaxTokens      int      `json:"max_tokens"`
	StopTokenIDs   []uint32 `json:"stop_token_ids,omitempty"`
	Logprobs       *int     `json:"logprobs,omitempty"`
	PromptLogprobs *int     `json:"prompt_logprobs,omitempty"`
	LoRA           *adapter `json:"lora,omitempty"`
}

type adapter struct {
	Name string `json:"name"`
	ID   int    `json:"id"`
	Path string `json:"path"`
}

// contextSize is what the frontend is configured for. An engine that registers less must be minded.
const contextSize = 4096

// newPlan writes the cases for an engine that answers as opt has it.
func newPlan(opt Options) *plan {
	return &plan{
		Sources: opt.Sources.Dir, Model: opt.Model, MaxModelLen: contextSize, Patience: opt.Patience.Seconds(),
		Sessions: []*session{newSession(opt, asyncClient, "async/"), newSession(opt, syncClient, "sync/")},
	}
}

func newSession(opt Options, client, prefix string) *session {
	a := author{opt: opt, prefix: prefix, async: client == asyncClient}
	s := &session{Client: client}
	s.Cases = append(s.Cases, a.handshake())
	s.Cases = append(s.Cases, a.generation()...)
	s.Cases = append(s.Cases, a.utilities()...)
	s.Cases = append(s.Cases, a.death())
	return s
}

// An author writes the cases of one client.
type author struct {
	opt    Options
	prefix string
	async  bool // it can pause the engine, and many other things
}

func (a author) handshake() *aCase {
	return &aCase{Name: a.prefix + "handshake", Do: "handshake", judge: values(
		only(min(a.opt.MaxModelLen, contextSize)), only(a.opt.NumGPUBlocks), only(a.opt.BlockSize),
	)}
}

// ask is a request of some tokens. Its id is the case's name, so that no two have the same.
func (a author) ask(name string, prompt, tokens int) request {
	r := request{ID: a.prefix + name, MaxTokens: tokens}
	for i := range prompt {
		r.Prompt = append(r.Prompt, uint32(3+i))
	}
	return r
}

// stopAfter is a position at which the engine says the stop id of a request: more tokens than that are asked for.
const stopAfter = 5

func (a author) generation() []*aCase {
	stopping := a.ask("stop", 8, 40)
	stopping.StopTokenIDs = []uint32{a.opt.Says(stopping.ID)(stopAfter)}
	detailed := a.ask("logprobs", 6, 4)
	two, one := 2, 1
	detailed.Logprobs, detailed.PromptLogprobs = &two, &one
	adapted := a.ask("adapted", 8, 4)
	adapted.LoRA = &adapter{Name: "canary", ID: 7, Path: "/nowhere/canary"}
	cases := []*aCase{
		a.generate("tokens", a.ask("tokens", 20, 12)),
		a.generate("stop", stopping),
		a.generate("logprobs", detailed),
		a.generate("adapted", adapted),
		a.streams(),
	}
	if a.async {
		cases = append(cases, a.abort())
	}
	return cases
}

func (a author) generate(name string, requests ...request) *aCase {
	return &aCase{Name: a.prefix + name, Do: "generate", Requests: requests, judge: a.answers(requests)}
}

// streams asks for several at once. Where the engine can be paused it begins with all of them, so that they share a
// step, which the statistics must tell.
func (a author) streams() *aCase {
	var requests []request
	for i := range 4 {
		requests = append(requests, a.ask(fmt.Sprintf("streams-%d", i), 3+5*i, 2+6*i))
	}
	c := a.generate("streams", requests...)
	if !a.async {
		return c
	}
	c.Pause = true
	said := c.judge
	c.judge = func(f facts) error {
		if f.Together != len(requests) || f.Stats == 0 || f.Running == 0 {
			return fmt.Errorf("at most %d of %d streams in one message, %d statistics, of at most %d running requests",
				f.Together, len(requests), f.Stats, f.Running)
		}
		return said(f)
	}
	return c
}

// abort takes back a request while the engine pauses. One that did not hear it says tokens to both.
func (a author) abort() *aCase {
	other := a.ask("abort-other", 4, 6)
	c := a.generate("abort", a.ask("abort", 4, 6), other)
	c.Pause, c.Abort, c.judge = true, []string{c.Requests[0].ID}, a.answers([]request{other})
	return c
}

func (a author) utilities() []*aCase {
	lora := map[string]any{"lora": adapter{Name: "canary", ID: 7, Path: "/nowhere/canary"}}
	nothing, no, yes := only(nil), only(false), only(true)
	cases := []*aCase{
		a.call("tasks", step{"get_supported_tasks", nil, only([]string{"generate"})}),
		a.call("caches", step{"reset_mm_cache", nil, nothing}, step{"reset_encoder_cache", nil, nothing},
			step{"reset_prefix_cache", []any{false, false}, yes}),
		a.call("sleep", step{"is_sleeping", nil, no}, step{"sleep", []any{1, "abort"}, nothing},
			step{"is_sleeping", nil, yes}, step{"wake_up", []any{nil}, oneOf(nil, true)}, step{"is_sleeping", nil, no}),
		a.call("profile", step{"profile", []any{true}, nothing}, step{"profile", []any{false}, nothing}),
		// An engine loads the adapter of a request, so that of "adapted" is there if it was asked for.
		a.call("adapters", step{"remove_lora", []any{7}, oneOf(true, false)},
			step{"list_loras", nil, only([]int{})}, step{"add_lora", []any{lora}, yes},
			step{"list_loras", nil, only([]int{7})}, step{"pin_lora", []any{7}, yes}, step{"remove_lora", []any{7}, yes},
			step{"remove_lora", []any{7}, no}, step{"list_loras", nil, only([]int{})}),
		a.call("workers", step{"collective_rpc", []any{"check_health"}, only([]any{nil})}),
		optional(a.call("weights", step{"set_weight_version", []any{"canary-1"}, nothing},
			step{"get_weight_version", nil, only("canary-1")})),
	}
	if a.async {
		paused := func(method string) []step {
			return []step{
				{"is_scheduler_paused", nil, no},
				{method, []any{"abort", true}, nothing},
				{"is_scheduler_paused", nil, yes},
				{"resume_scheduler", nil, nothing},
				{"is_scheduler_paused", nil, no},
			}
		}
		cases = append(cases,
			optional(a.call("pause-generation", paused("pause_generation")...)),
			optional(a.call("memory", step{"pause_scheduler", []any{"keep", false}, nothing},
				step{"release_kv_cache_memory", nil, nothing}, step{"wake_up", []any{nil}, oneOf(nil, true)},
				step{"is_scheduler_paused", nil, no})),
			a.call("pause", paused("pause_scheduler")...),
		)
	}
	return cases
}

func optional(c *aCase) *aCase {
	c.optional = true
	return c
}

// A step is the call of a utility, and what it must return.
type step struct {
	method    string
	arguments []any
	want      accepted
}

func (a author) call(name string, steps ...step) *aCase {
	c := &aCase{Name: a.prefix + name, Do: "call"}
	var wants []accepted
	for _, s := range steps {
		c.Calls = append(c.Calls, append([]any{s.method}, s.arguments...))
		wants = append(wants, s.want)
	}
	c.judge = values(wants...)
	return c
}

// death ends the engine: the client must notice, and take no more requests.
func (a author) death() *aCase {
	return &aCase{
		Name: a.prefix + "death", Do: "die", Requests: []request{a.ask("death", 4, 4)},
		judge: values(only("EngineDeadError"), only("EngineDeadError")),
	}
}
