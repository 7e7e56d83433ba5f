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

var requests = check.Check{Name: Requests, Codes: requestsCodes, Levels: []check.Level{check.LevelCore, check.LevelStructured, check.LevelLogprobs}, Run: judged((*frontendCase).requests)}

// requests sends requests of all kinds and looks at what reaches the engine. Whether
// each is exactly of the line is judged for all messages, see judgeMessages.
func (k *frontendCase) requests() {
	k.compareProbes(func(p probe) bool { return !p.Adapter })
	k.several()
}

// compareProbes makes some of the requests of which it is known what reaches the engine.
func (k *frontendCase) compareProbes(chosen func(probe) bool) {
	all, err := probes()
	var known []*expectation
	if err == nil {
		known, err = expectationsOf(k.line.Name)
	}
	if err != nil {
		k.fail(check.Failed(CodeCarried, "the expected requests of line %s: %v", k.line.Name, err))
		return
	}
	if len(known) == 0 {
		k.AddNote("what the released frontends of the line send is not known: only what HTTP asked for was compared")
	}
	ids := map[string]int{}
	k.learn()
	k.notTaken = map[int][]string{}
	for i, p := range all {
		if !p.Chat && k.form == promptChat || !chosen(p) && (i > 0 || k.reference != nil) {
			continue // the first one shows the end of sequence, and which frontend this one resembles
		}
		if k.hangs > maxHangs {
			k.AddNote(fmt.Sprintf("%d requests were not made, as too many were not answered", len(all)-i))
			break
		}
		h, prompt := k.probe(p)
		if h == nil {
			continue
		}
		k.identity(p.Name, h, ids)
		if len(known) == 0 {
			continue
		}
		if k.reference == nil {
			k.meet(p, h, prompt, all, known)
		}
		if want := k.reference.of(all, p.Name); want != nil {
			k.judgeProbe(p, h, prompt, want)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(k.notTaken)) {
		k.AddNote(fmt.Sprintf("not taken (status %d): %s", status, strings.Join(k.notTaken[status], ", ")))
	}
}

// meet learns from the first request the end of sequence, unless it is that of the model that the values were captured with, and which
// released frontend this one is held to.
func (k *frontendCase) meet(p probe, h *heard, prompt []uint32, all []probe, known []*expectation) {
	if id := h.request.Sampling.EOSTokenID; id >= 0 {
		eos := uint32(id)
		k.eos = &eos
	}
	if slices.Equal(k.sampled, known[0].Sampler) {
		k.eos = &known[0].EOS
	}
	k.reference = known[0]
	fewest := math.MaxInt
	for _, x := range known {
		if _, paths, err := k.differences(h.frames[1], h, x, prompt, x.of(all, p.Name)); err == nil && len(paths) < fewest {
			k.reference, fewest = x, len(paths)
		}
	}
}

// differences flattens a request, and returns it with the paths at which it is not what is expected. Ids of a text say nothing for
// another tokenizer than that of the captured values.
func (k *frontendCase) differences(payload []byte, h *heard, x *expectation, prompt []uint32, want map[string]any) (got map[string]any, paths []string, err error) {
	if got, err = flatten(k.codec.Profile(), payload); err != nil {
		return nil, nil, err
	}
	k.symbolic(got, h, prompt)
	expected := maps.Clone(want)
	if !slices.Equal(k.sampled, x.Sampler) {
		for _, path := range ofTokenizer {
			if got[path] != nil && want[path] != nil && want[path] != aPrompt {
				expected[path] = anyValue
			}
		}
	}
	return got, differing(expected, got), nil
}

// judgeProbe compares all fields of a request with what is expected.
func (k *frontendCase) judgeProbe(p probe, h *heard, prompt []uint32, want map[string]any) {
	if p.Body["bad_words"] != nil && want[badWords] == nil {
		want[badWords] = anyValue // vllm-rs loses them in completions
	}
	if want["lora_request.lora_name"] != nil && want[loadInPlace] == nil {
		want[loadInPlace] = anyValue // vllm-rs 0.32.0 sends the array of 0.31, which has nil there
	}
	h.finds = func(payload []byte) bool {
		_, paths, err := k.differences(payload, h, k.reference, prompt, want)
		return err != nil || len(paths) > 0 || len(k.codec.CheckMessage([][]byte{h.frames[0], payload})) > len(h.mismatches)
	}
	got, paths, err := k.differences(h.frames[1], h, k.reference, prompt, want)
	if err != nil {
		return // judgeMessages reports what is wrong with it
	}
	k.Asserted += len(want)
	k.compareProbe(p, h, paths, want, got)
}

// probe makes one request and returns what reached the engine, nil if nothing did, and the ids of its prompt, nil for a chat.
func (k *frontendCase) probe(p probe) (h *heard, prompt []uint32) {
	const tokens = 5
	what := "request with " + p.Name
	route, body := chatRoute, object{
		"model": k.model, "messages": []object{{"role": "user", "content": sampler}}, "max_tokens": tokens, "temperature": 0,
	}
	match := isAdd
	if !p.Chat {
		route = completionsRoute
		prompt, body = k.says(plainly(k.words(tokens)))
		match = asks(prompt)
	}
	mark := k.ledger.mark()
	r := k.attemptWith(p.Header, what, route, body.with(k.written(map[string]any(p.Body)).(map[string]any)))
	switch {
	case k.lostAt != "":
		return nil, nil
	case r == nil: // not answered; what reached the engine may say why
		return first(k.ledger.since(mark, match)), prompt
	}
	refused := r.Status >= 400 && r.Status < 500
	if p.Body["tools"] != nil { // vllm-rs without a parser of tools answers with 500
		refused = r.Status != http.StatusOK
	}
	if reached := len(k.ledger.since(mark, isAdd)) > 0; refused && !reached && (!p.Core || p.Chat && r.Status == http.StatusNotFound) {
		k.notTaken[r.Status] = append(k.notTaken[r.Status], p.Name)
		return nil, nil
	}
	if r.Refused() {
		k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.Status, cmp.Or(r.Failure, "finish_reason "+r.Finish)).Compared(http.StatusOK, r.Status))
	}
	if h = k.single(what, "EngineCoreRequest.prompt_token_ids", mark, match); h == nil {
		return nil, nil
	}
	if p.Body["logprobs"] == 3.0 && !r.Refused() && r.Logprobs != tokens {
		k.fail(check.Failed(CodeHTTPTokens, "%s: %d entries of logprobs for %d tokens", what, r.Logprobs, tokens).
			Within(-1, "choices[0].logprobs").Compared(tokens, r.Logprobs))
	}
	return h, prompt
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return excerpt(string(text))
}

const year2020 = 1577836800 // in Unix seconds

// identity checks what distinguishes requests.
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
	r := k.attempt("two choices", k.route(), body.with(object{"n": 2, "temperature": 0.5}))
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
