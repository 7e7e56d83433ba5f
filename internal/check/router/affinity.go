package router

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Conversations whose turns arrive in an order without a pattern.
const conversations, turns = 8, 5

// warm sends the turns of conversations, and returns the share of later turns that reach an engine that had the turn before.
func (s *session) warm(turn func(conversation, turn int) *sent) (share float64, err error) {
	var order []int
	for c := range conversations {
		order = append(order, slices.Repeat([]int{c}, turns)...)
	}
	s.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	last, done := make([]int, conversations), make([]int, conversations)
	hits := 0
	for _, c := range order {
		r := turn(c, done[c])
		a := s.ask(r)
		calls := s.fleet.of(r.mark)
		if !a.ok() || len(calls) == 0 {
			return 0, check.Ends(CodeHangs, "turn %d of a conversation: %s", done[c], a)
		}
		at := calls[len(calls)-1].engine
		if done[c] > 0 && at == last[c] {
			hits++
		}
		last[c], done[c] = at, done[c]+1
	}
	return float64(hits) / (conversations * (turns - 1)), nil
}

// judgeShare compares a share with that of a random choice and with the ideal, which is 1: it has to be in the upper half.
func (s *session) judgeShare(code check.Code, what string, share float64) {
	chance := 1 / float64(len(s.fleet.engines)-s.fleet.prefills)
	text := fmt.Sprintf("%.0f %% of %s; a random choice has %.0f %%, the ideal is 100 %%", 100*share, what, 100*chance)
	s.AddNote(text)
	if share < (1+chance)/2 {
		s.fails(code, "%s", text)
	}
}

func (s *session) checkPrefixAffinity() error {
	if s.alone() {
		return nil
	}
	prompts := make([]string, conversations)
	share, err := s.warm(func(c, turn int) *sent {
		if turn == 0 {
			prompts[c] = fmt.Sprintf("%08x begins conversation %d.", s.random.Uint32(), c)
		}
		prompts[c] += fmt.Sprintf(" In turn %d of conversation %d, a user asks for a long story about a ship, a storm, two sailors and a lighthouse.", turn, c)
		_ = retry.Pause(s.ctx, noticed/50)
		return s.completion(prompts[c], 1)
	})
	if err == nil {
		s.judgeShare(CodeAffinity, "later turns reach the engine that has the turns before in its cache", share)
	}
	return err
}

// sessionHeaders are those in which routers look for a session.
var sessionHeaders = []string{"X-Session-Id", "X-User-Id", "X-Smg-Routing-Key", "X-Session-Token"}

func (s *session) checkSessionAffinity() error {
	if s.alone() {
		return nil
	}
	share, err := s.warm(func(c, _ int) *sent {
		name := fmt.Sprintf("session-%d", c)
		r := s.completion("", 1, object{"user": name})
		r.header = http.Header{}
		for _, h := range sessionHeaders {
			r.header.Set(h, name)
		}
		return r
	})
	if err == nil {
		s.judgeShare(CodeAffinity, "later requests of a session ("+strings.Join(sessionHeaders, ", ")+" and user) reach its engine", share)
	}
	return err
}

// noticed is how long a router may take to take notice of KV events and metrics.
const noticed = time.Second

// checkKVEvents has all engines forget their caches, and then others than those that the router chose have the prompts: only the KV
// events say so.
func (s *session) checkKVEvents() error {
	if s.alone() || s.fleet.prefills > 0 {
		return nil
	}
	if s.fleet.events == 0 {
		s.Needs = "it needs KV events at addresses of their own: Linux, without --router-backends"
		return nil
	}
	engines := s.fleet.engines[s.fleet.prefills:]
	prompts, moved := make([]string, conversations), make([]int, conversations)
	for i := range prompts {
		prompts[i] = fmt.Sprintf("%08x", s.random.Uint32()) + strings.Repeat(fmt.Sprintf(" and conversation %d goes on at length about the sea", i), 10)
		a := s.ask(s.completion(prompts[i], 1))
		calls := s.fleet.of(a.mark)
		if !a.ok() || len(calls) == 0 {
			return check.Ends(CodeHangs, "a conversation does not begin: %s", a)
		}
		moved[i] = (calls[0].engine - s.fleet.prefills + 1) % len(engines)
	}
	for _, e := range engines {
		if status, text, err := e.direct(s.ctx, http.MethodPost, "/reset_prefix_cache", ""); err != nil || status != http.StatusOK {
			return check.Infra(fmt.Errorf("reset the cache of an engine: status %d: %s (%v)", status, text, err))
		}
	}
	for i, at := range moved {
		if _, _, err := engines[at].direct(s.ctx, http.MethodPost, "/v1/completions", s.completion(prompts[i], 1).body); err != nil {
			return check.Infra(err)
		}
	}
	if err := retry.Pause(s.ctx, noticed); err != nil {
		return err
	}
	hits := 0
	for i, at := range moved {
		a := s.ask(s.completion(prompts[i]+" until its end", 1))
		if calls := s.fleet.of(a.mark); len(calls) > 0 && calls[0].engine == engines[at].index {
			hits++
		}
	}
	s.judgeShare(CodeKVEvents, "prompts whose blocks moved to another engine follow them", float64(hits)/conversations)
	return nil
}

// adapters is how many LoRA adapters all engines have loaded.
const adapters = 4

// loadAdapters loads them.
func (f *fleet) loadAdapters(ctx context.Context) error {
	for _, e := range f.engines {
		for a := range adapters {
			status, text, err := e.direct(ctx, http.MethodPost, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name": "adapter-%d", "lora_path": %q, "load_inplace": true}`, a, filepath.Dir(f.discovery)))
			if err != nil || status != http.StatusOK {
				return check.Infra(fmt.Errorf("load an adapter: status %d: %s (%v)", status, text, err))
			}
		}
	}
	return nil
}

// checkLoRA sends requests for adapters that all engines have loaded: those for one adapter go to few of them.
func (s *session) checkLoRA() error {
	if s.alone() {
		return nil
	}
	const each = 8
	engines := s.fleet.engines[s.fleet.prefills:]
	reached := make([]map[int]bool, adapters)
	for i := range adapters * each {
		adapter := s.random.IntN(adapters)
		if i < adapters {
			adapter, reached[i] = i, map[int]bool{}
		}
		a := s.ask(s.completion("", 4, object{"model": fmt.Sprintf("adapter-%d", adapter)}))
		calls := s.fleet.of(a.mark)
		if !a.ok() || len(calls) == 0 {
			return check.Ends(CodeLoRA, "a request for an adapter that all engines have gets %s", a)
		}
		reached[adapter][calls[len(calls)-1].engine] = true
	}
	sum := 0
	for _, of := range reached {
		sum += len(of)
	}
	mean := float64(sum) / adapters
	text := fmt.Sprintf("requests for an adapter reach %.1f of %d engines", mean, len(engines))
	s.AddNote(text)
	if mean > float64(1+len(engines))/2 {
		s.fails(CodeLoRA, "%s, so each engine has to hold all adapters", text)
	}
	return nil
}

// splits reports whether the router knows which engines compute prompts.
func (s *session) splits() bool {
	if s.fleet.prefills == 0 {
		s.AddNote("the router is not told which engines compute prompts, by {prefills} and {decodes}")
	}
	return s.fleet.prefills > 0
}

// checkTransfer looks at each step of requests that one engine computes and another one answers.
func (s *session) checkTransfer() error {
	if !s.splits() {
		return nil
	}
	found := &causes{}
	for _, stream := range []bool{false, true, false, true} {
		found.of++
		r := s.completion(fmt.Sprintf("%08x", s.random.Uint32())+strings.Repeat(" a prompt of several blocks goes from one engine to another", 6), 4, object{"stream": stream})
		a := s.ask(r)
		s.chain(r, a, found)
	}
	found.report(s)
	return nil
}

// chain judges one request.
func (s *session) chain(r *sent, a *answered, found *causes) {
	fail := func(path, format string, args ...any) { found.add(r.mark, CodeTransfer, path, format, args...) }
	var prefills, decodes []*call
	for _, c := range s.fleet.all(r.mark) {
		if c.engine < s.fleet.prefills {
			prefills = append(prefills, c)
		} else {
			decodes = append(decodes, c)
		}
	}
	if len(prefills) != 1 || len(decodes) != 1 || !a.ok() {
		fail("calls", "a request makes %d calls of engines that compute prompts and %d of engines that generate, want one of each; the client gets %s", len(prefills), len(decodes), a)
		return
	}
	p, d := prefills[0], decodes[0]
	<-p.done
	if p.order > d.order {
		fail("order", "the engine that generates is asked before the one that computes the prompt")
	}
	asked, given, err := decoded(p.body, p.answer)
	wanted, _, err2 := decoded(d.body, []byte("{}"))
	if err != nil || err2 != nil {
		fail("body", "a body is not JSON: %v, %v", err, err2)
		return
	}
	if params, _ := asked.(object)["kv_transfer_params"].(object); params["do_remote_decode"] != true {
		fail("do_remote_decode", "the engine that computes the prompt is not asked to keep its blocks: kv_transfer_params = %s", shown(asked.(object)["kv_transfer_params"]))
	}
	if n := shown(asked.(object)["max_tokens"]); n != "1" {
		fail("max_tokens", "the engine that computes the prompt is asked for max_tokens = %s, want 1", n)
	}
	for _, diff := range compared("kv_transfer_params", given.(object)["kv_transfer_params"], wanted.(object)["kv_transfer_params"]) {
		fail(diff.path, "one engine answers %s = %s, and the other one gets %s", diff.path, diff.want, diff.got)
	}
}

// checkPrefillFails has the engines that compute prompts fail: those that generate can compute the prompt themselves.
func (s *session) checkPrefillFails() error {
	if !s.splits() {
		return nil
	}
	s.fleet.setScript(func(w http.ResponseWriter, r *http.Request, c *call) {
		if c.engine < s.fleet.prefills {
			answer(w, c, http.StatusInternalServerError, nil, engineErrors[4].body)
			return
		}
		s.fleet.engines[c.engine].forward(w, r, c, nil)
	})
	if a := s.ask(s.completion("", 4)); !a.ok() {
		s.fails(CodeTransfer, "the engines that compute prompts fail, those that generate serve, and the client gets %s", a)
	}
	return nil
}
