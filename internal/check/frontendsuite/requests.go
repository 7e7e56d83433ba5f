package frontendsuite

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeCarried   check.Code = "H004" // a request does not carry what HTTP asked for
	CodeNoRequest check.Code = "H005" // an HTTP request does not reach the engine exactly once
)

//go:embed requests.md
var requestsCodes string

var requests = check.Check{Name: Requests, Codes: requestsCodes, Run: judged((*frontendCase).requests)}

// asked is a request for which the engine must be told certain things.
type asked struct {
	name string
	body object         // besides model, prompt and max_tokens
	want map[string]any // by path in EngineCoreRequest
	// extra requests are of parameters that a frontend need not take.
	extra bool
}

// askedRequests are of every group of parameters that reaches an engine.
func (k *frontendCase) askedRequests() []asked {
	stop := k.words(2)
	return []asked{
		{name: "greedy", body: object{"temperature": 0}, want: map[string]any{"sampling_params.temperature": 0}},
		{name: "sampled", body: object{"temperature": 0.7, "top_p": 0.9, "seed": 1234}, want: map[string]any{
			"sampling_params.temperature": 0.7, "sampling_params.top_p": 0.9, "sampling_params.seed": 1234,
		}},
		{name: "penalties", body: object{"presence_penalty": 0.5, "frequency_penalty": 0.25}, want: map[string]any{
			"sampling_params.presence_penalty": 0.5, "sampling_params.frequency_penalty": 0.25,
		}},
		{name: "stop string", body: object{"stop": []string{"\u0001no such text"}}},
		{name: "logprobs", body: object{"logprobs": 3}, want: map[string]any{"sampling_params.logprobs": 3}},
		{name: "logit_bias", extra: true, body: object{"logit_bias": object{fmt.Sprint(stop[0]): 1.5}}, want: map[string]any{
			"sampling_params.logit_bias": map[string]any{fmt.Sprint(stop[0]): 1.5},
		}},
		{name: "top_k, min_p and repetition_penalty", extra: true, body: object{"temperature": 0.7, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}, want: map[string]any{
			"sampling_params.top_k": 5, "sampling_params.min_p": 0.1, "sampling_params.repetition_penalty": 1.1,
		}},
		{name: "stop_token_ids and min_tokens", extra: true, body: object{"stop_token_ids": stop, "min_tokens": 2, "ignore_eos": true}, want: map[string]any{
			"sampling_params.stop_token_ids": listOf(stop), "sampling_params.min_tokens": 2,
		}},
		{name: "prompt_logprobs", extra: true, body: object{"prompt_logprobs": 1}, want: map[string]any{"sampling_params.prompt_logprobs": 1}},
		{name: "priority", extra: true, body: object{"priority": 3}, want: map[string]any{"priority": 3}},
		{name: "cache_salt", extra: true, body: object{"cache_salt": "pepper"}, want: map[string]any{"cache_salt": "pepper"}},
	}
}

// requests sends requests of all kinds and looks at what reaches the engine. Whether
// each is exactly of the line is judged for all messages, see judgeMessages.
func (k *frontendCase) requests() {
	ids := map[string]int{}
	k.learn()
	for _, a := range k.askedRequests() {
		if h := k.request(a); h != nil {
			k.identity(a.name, h, ids)
		}
	}
	k.several()
}

// request makes one request and returns what reached the engine.
func (k *frontendCase) request(a asked) *heard {
	const tokens = 5
	what := "request with " + a.name
	prompt, body := k.says(plainly(k.words(tokens)))
	mark := k.ledger.mark()
	r := k.attempt(what, completionsRoute, body.with(a.body))
	if r == nil || k.lostAt != "" {
		return nil
	}
	if a.extra && r.Status >= 400 && r.Status < 500 {
		k.AddNote(fmt.Sprintf("%s: not taken (status %d)", a.name, r.Status))
		return nil
	}
	if r.Refused() {
		k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.Status, cmp.Or(r.Failure, "finish_reason "+r.Finish)).Compared(http.StatusOK, r.Status))
	}
	h := k.sent(what, mark, prompt)
	if h == nil {
		return nil
	}
	want := map[string]any{"prompt_token_ids": listOf(prompt), "sampling_params.max_tokens": tokens, "abort_immediately": false}
	maps.Copy(want, a.want)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		k.carries(what, h, path, want[path])
	}
	if a.body["logprobs"] != nil && !r.Refused() && r.Logprobs != tokens {
		k.fail(check.Failed(CodeHTTPTokens, "%s: %d entries of logprobs for %d tokens", what, r.Logprobs, tokens).
			Within(-1, "choices[0].logprobs").Compared(tokens, r.Logprobs))
	}
	return h
}

func (k *frontendCase) carries(what string, h *heard, path string, want any) {
	got, ok := carried(k.codec.Profile(), h.frames[1], path)
	k.Asserted++
	if ok && sameCarried(want, got) {
		return
	}
	k.fail(check.Failed(CodeCarried, "%s: the engine got %s = %s, but the HTTP request has %s", what, path, asJSON(got), asJSON(want)).
		Within(h.number, "EngineCoreRequest."+path).Compared(asJSON(want), asJSON(got)))
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return excerpt(string(text))
}

// identity checks what tells requests apart.
func (k *frontendCase) identity(what string, h *heard, ids map[string]int) {
	k.Asserted++
	id := h.request.ID
	if earlier, twice := ids[id]; twice || id == "" {
		k.fail(check.Failed(CodeCarried, "request with %s: its id %q is empty, or that of message %d", what, id, earlier).
			Within(h.number, "EngineCoreRequest.request_id").Compared("an id of its own", id))
	}
	ids[id] = h.number
	if h.request.ClientIndex != h.client {
		k.fail(check.Failed(CodeCarried, "request with %s: client_index is %d, on input socket %d", what, h.request.ClientIndex, h.client).
			Within(h.number, "EngineCoreRequest.client_index").Compared(h.client, h.request.ClientIndex))
	}
	const year2020 = 1577836800 // in Unix seconds
	if h.request.ArrivalTime < year2020 {
		k.fail(check.Failed(CodeCarried, "request with %s: arrival_time is %v, not in Unix seconds", what, h.request.ArrivalTime).
			Within(h.number, "EngineCoreRequest.arrival_time").Compared("Unix seconds", h.request.ArrivalTime))
	}
}

// several asks for two choices, which a frontend makes of two requests if it takes
// that at all.
func (k *frontendCase) several() {
	prompt, body := k.says(plainly(k.words(3)))
	mark := k.ledger.mark()
	r := k.attempt("two choices", completionsRoute, body.with(object{"n": 2, "temperature": 0.5}))
	if r == nil {
		return
	}
	if r.Status >= 400 && r.Status < 500 {
		k.AddNote(fmt.Sprintf("n=2: not taken (status %d)", r.Status))
		return
	}
	found := k.ledger.since(mark, asks(prompt))
	k.Asserted++
	if r.Choices != 2 || len(found) != 2 {
		k.fail(check.Failed(CodeNoRequest, "two choices: expected 2 choices from 2 requests to the engine, got %d from %d", r.Choices, len(found)).
			Within(-1, "choices").Compared(2, r.Choices))
	}
}

// carried returns the value that a request has at a path such as
// "sampling_params.temperature": with the default of the line where a map leaves it
// out, as JSON has it otherwise. false means that the line has no such field.
func carried(profile *protocol.Profile, payload []byte, path string) (value any, ok bool) {
	if pack.Validate(payload) != nil {
		return nil, false
	}
	name, key, nested := strings.Cut(path, ".")
	i := profile.Structs["EngineCoreRequest"].Index(name)
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if i < 0 || err != nil || i >= n {
		return nil, false
	}
	for range i {
		if cur.Skip() != nil {
			return nil, false
		}
	}
	value, err = plainValue(&cur)
	if !nested || err != nil {
		return value, err == nil
	}
	declared := profile.Structs["SamplingParams"]
	if i = declared.Index(key); i < 0 {
		return nil, false
	}
	if m, is := value.(map[string]any); is {
		if v, has := m[key]; has {
			return v, true
		}
	}
	var fallback any
	_ = json.Unmarshal(declared.Fields[i].Default, &fallback) // absent means nil
	return fallback, true
}

// plainValue reads a value as package json would: numbers as float64, maps by the
// text of their keys. What JSON does not have is its printed form.
func plainValue(cur *pack.Cursor) (any, error) {
	switch cur.Kind() {
	case pack.Nil:
		return nil, cur.Skip()
	case pack.Bool:
		return cur.Bool()
	case pack.Int, pack.Float:
		return cur.Float()
	case pack.String:
		return cur.StrString()
	case pack.Array:
		return plainList(cur)
	case pack.Map:
		return plainMap(cur)
	}
	raw, err := cur.Raw()
	return pack.Format(raw), err
}

func plainList(cur *pack.Cursor) (any, error) {
	n, err := cur.ArrayLen()
	list := []any{}
	for range n {
		var v any
		if v, err = plainValue(cur); err != nil {
			break
		}
		list = append(list, v)
	}
	return list, err
}

func plainMap(cur *pack.Cursor) (any, error) {
	n, err := cur.MapLen()
	m := map[string]any{}
	for range n {
		var key, value any
		if key, err = plainValue(cur); err == nil {
			value, err = plainValue(cur)
		}
		if err != nil {
			break
		}
		m[fmt.Sprint(key)] = value
	}
	return m, err
}

// sameCarried compares what HTTP asked for with what a request carries: a frontend
// may keep a float in 32 bits.
func sameCarried(want, got any) bool {
	if w, ok := number(want); ok {
		g, is := number(got)
		return is && (w == g || float32(w) == float32(g))
	}
	w, ok := want.([]any)
	g, is := got.([]any)
	if ok && is {
		return slices.EqualFunc(w, g, sameCarried)
	}
	return reflect.DeepEqual(want, got)
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, !math.IsNaN(v)
	case int:
		return float64(v), true
	case uint32:
		return float64(v), true
	}
	return 0, false
}

// listOf makes a list of values.
func listOf(ids []uint32) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = float64(id)
	}
	return list
}
