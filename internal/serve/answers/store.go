package answers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/player"
)

// Options configures a [Store].
type Options struct {
	// Tokenizer is that of the model; without one, only answers of the builtin frontend can be chosen.
	Tokenizer *tokenizer.Tokenizer
	// ToolParser and ReasoningParser are those of the frontend, as vLLM names them. Without the first, calls are written
	// as hermes reads them; without the second, there is no reasoning.
	ToolParser, ReasoningParser string
	// Builtin is set for the builtin frontend.
	Builtin bool
}

// A Store has the rules of a server. It is safe for concurrent use.
type Store struct {
	opt   Options
	calls *syntax

	mu       sync.Mutex
	rules    []Rule
	matched  []int // requests that fulfil all but the number, by rule
	used     []int // requests that a rule has answered
	requests int
	open     map[string]opened // of requests, by X-Request-Id
}

// opened is the answer of a request, and whether that has to have calls.
type opened struct {
	*Answer
	requires bool
}

// New returns a store without rules.
func New(opt Options) (*Store, error) {
	calls, err := findSyntax(opt.ToolParser)
	return &Store{opt: opt, calls: calls, open: map[string]opened{}}, err
}

// Set replaces all rules, and begins to count anew. It refuses answers that this server cannot give.
func (s *Store) Set(rules []Rule) error {
	for i := range rules {
		if err := s.possible(&rules[i].Answer); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.matched, s.used, s.requests = rules, make([]int, len(rules)), make([]int, len(rules)), 0
	return nil
}

func (s *Store) possible(a *Answer) error {
	switch {
	case !s.opt.Builtin && (a.Refusal != "" || a.Embedding != nil):
		return errors.New("only the builtin frontend answers with a refusal or an embedding that you choose: add --frontend builtin")
	case a.Reasoning != "" && !builtin.Reasons(s.opt.ReasoningParser):
		return fmt.Errorf("reasoning: the frontend has no parser that reads it as <think>…</think>: give one behind --, such as -- --reasoning-parser qwen3, not %q", s.opt.ReasoningParser)
	case len(a.ToolCalls) > 0 && s.calls == nil:
		return fmt.Errorf("tool_calls: how the parser %s reads calls is not known here: choose one of %s with -- --tool-call-parser", s.opt.ToolParser, strings.Join(Parsers(), ", "))
	case s.opt.Tokenizer == nil && a.Embedding == nil:
		return errors.New("this program cannot read the tokenizer of the model, so it cannot choose a text")
	case a.Embedding != nil:
		return nil
	}
	text, err := s.text(a, "", "")
	if err != nil {
		return err
	}
	if _, ok := s.opt.Tokenizer.EncodeOutput(text); !ok {
		return errors.New("the tokenizer of the model cannot spell the answer")
	}
	return nil
}

// text is what the model writes after a prompt, of which the end counts. With a schema, as the Python server makes one of
// tool_choice for parsers without structural tags, calls are that JSON alone.
func (s *Store) text(a *Answer, prompt, schema string) (string, error) {
	text := a.Refusal
	if a.Text != nil {
		text = *a.Text
	}
	if len(a.ToolCalls) > 0 && schema != "" {
		text = jsonCalls(a.ToolCalls, schema)
	} else if len(a.ToolCalls) > 0 {
		calls, err := s.calls.write(a.ToolCalls)
		if err != nil {
			return "", err
		}
		text += calls
	}
	if a.Reasoning != "" {
		text = builtin.Reasoned(s.opt.ReasoningParser, prompt, a.Reasoning) + text
	}
	return text, nil
}

// Unused returns the numbers of the rules, from 1, that have answered no request, and how many requests there were.
func (s *Store) Unused() (rules []int, requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.used {
		if n == 0 {
			rules = append(rules, i+1)
		}
	}
	return rules, s.requests
}

// choose returns the answer of the first rule that a request matches, nil without one.
func (s *Store) choose(q *question) (chosen *Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	for i := range s.rules {
		m := &s.rules[i].Match
		if !m.fits(q) {
			continue
		}
		s.matched[i]++
		if chosen == nil && (m.Nth == 0 || m.Nth == s.matched[i]) {
			chosen = &s.rules[i].Answer
			s.used[i]++
		}
	}
	return chosen
}

// bodyOf is the body of a request to a model; not ok of another request.
func bodyOf(r *http.Request) (text []byte, ok bool) {
	if r.Method != http.MethodPost || r.GetBody == nil || !strings.Contains(r.URL.Path, "/v1/") {
		return nil, false
	}
	body, _ := r.GetBody() // of a body in memory
	text, _ = io.ReadAll(body)
	return text, true
}

// Wrap returns a handler that finds the answers of requests before the frontend gets them.
func (s *Store) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		some := len(s.rules) > 0
		s.mu.Unlock()
		var text []byte
		if some {
			text, some = bodyOf(r)
		}
		if !some {
			next.ServeHTTP(w, r)
			return
		}
		q := readQuestion(r, text)
		if a := s.choose(&q); a != nil {
			id := r.Header.Get("X-Request-Id")
			s.keep(id, opened{a, q.requires})
			defer s.keep(id, opened{})
			r = r.WithContext(builtin.Choose(r.Context(), builtin.Chosen{Refusal: a.Refusal != "", Embedding: a.Embedding}))
		}
		next.ServeHTTP(w, r)
	})
}

// keep keeps the answer of a request until there is none.
func (s *Store) keep(id string, a opened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id] = a; a.Answer == nil {
		delete(s.open, id)
	}
}

// find finds the answer of a request of an engine. Frontends put a kind before the id of the HTTP request, and numbers
// behind it.
func (s *Store) find(id string) opened {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		return opened{}
	}
	if at := strings.IndexAny(id, "-_"); at >= 0 && s.open[id].Answer == nil {
		id = id[at+1:]
	}
	for range 3 {
		if a := s.open[id]; a.Answer != nil {
			return a
		}
		id = id[:max(strings.LastIndexByte(id, '-'), 0)]
	}
	return opened{}
}

// Before returns a source that asks next about requests without a chosen answer.
func (s *Store) Before(next player.Source) player.Source { return source{s, next} }

type source struct {
	*Store
	next player.Source
}

// promptEnd is how many tokens at the end of a prompt are looked at for the begin of reasoning.
const promptEnd = 32

// Script implements [player.Source].
func (s source) Script(r *player.Request) (player.Script, error) {
	chosen := s.find(r.ID)
	a := chosen.Answer
	if a == nil {
		return s.next.Script(r)
	}
	prompt, schema := "", ""
	if len(a.ToolCalls) > 0 && chosen.requires {
		schema = r.JSONSchema()
	}
	if a.Reasoning != "" {
		prompt = s.opt.Tokenizer.Decode(r.PromptTokenIDs[max(0, len(r.PromptTokenIDs)-promptEnd):])
	}
	text, err := s.text(a, prompt, schema)
	if err != nil {
		return player.Script{}, err
	}
	ids, _ := s.opt.Tokenizer.EncodeOutput(text)
	script := player.Script{Tokens: ids, Finish: finishReasons[a.FinishReason], CachedTokens: player.LookUp}
	if script.Finish == player.FinishStop {
		script = dataset.Answer(ids, r)
	}
	script.Logprobs = a.Logprobs
	for sum := 0; (len(a.Chunk) > 0 || len(a.Delay) > 0) && sum <= len(ids); {
		n := max(a.Chunk.at(len(script.Chunks)), 1)
		if sum += n; sum >= len(ids) {
			sum, n = sum+1, n+1 // the end of sequence comes with the last token
		}
		script.Chunks = append(script.Chunks, n)
	}
	if script.Paced = len(a.Delay) > 0; script.Paced {
		script.FirstToken = time.Duration(a.Delay[0])
		for i := range max(len(a.Delay)-1, 1) {
			script.Gaps = append(script.Gaps, time.Duration(a.Delay.at(i+1)))
		}
	}
	return script, nil
}

// ServeHTTP shows the rules and how often each has answered (GET), replaces them (PUT) or removes them (DELETE).
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
	case http.MethodPut, http.MethodDelete:
		var rules []Rule
		var err error
		if r.Method == http.MethodPut {
			var text []byte
			if text, err = io.ReadAll(r.Body); err == nil {
				rules, err = Parse(text)
			}
		}
		if err == nil {
			err = s.Set(rules)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	default:
		w.Header().Set("Allow", "GET, PUT, DELETE")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	s.mu.Lock()
	shown := map[string]any{"rules": append([]Rule{}, s.rules...), "requests": s.requests, "answered": slices.Clone(s.used)}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(shown) // the client may be gone
}
