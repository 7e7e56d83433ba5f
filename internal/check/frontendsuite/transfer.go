package frontendsuite

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/player"
)

const CodeTransfer check.Code = "H019" // kv_transfer_params through HTTP are not the engine's

//go:embed transfer.md
var transferCodes string

var transfer = check.Check{Name: Transfer, Codes: transferCodes, Levels: []check.Level{check.LevelKVTransfer}, Run: judged((*frontendCase).transfers)}

// connector is that of the player: who it says it is to engines that would pull from it. Nobody does.
var connector = player.Transfer{EngineID: "vllm-vcr", Host: "127.0.0.1", Port: 5600, Lease: time.Hour}

const transferKey = "kv_transfer_params"

// transfers has a prompt computed for another engine, and lets an answer go on from what another engine has computed. A router
// that splits prefill and decode asks so: it takes kv_transfer_params from the answer of one frontend and gives them to another
// (vllm/entrypoints/openai, kv_transfer_params of requests and answers).
func (k *frontendCase) transfers() {
	prompt := k.prompt()
	messages := []object{{"role": "user", "content": sampler}}
	var decodes []func()
	for _, form := range []struct {
		name, route string
		body        object
	}{
		{"completion", k.route(), k.body(prompt, 1)},
		{"chat", chatRoute, object{"messages": messages}},
	} {
		if k.form == promptChat && form.name != "chat" {
			continue
		}
		body := form.body.with(object{"model": k.model, "max_tokens": 1, "temperature": 0})
		asked := map[string]any{
			"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
		}
		first, offered := k.transfer("prefill by a "+form.name, form.route, body, asked)
		if first == nil {
			continue
		}
		k.offered("prefill by a "+form.name, first, offered)
		if offered != nil {
			decodes = append(decodes, func() { k.transfer("decode by a "+form.name, form.route, body, offered) })
		}
	}
	// After these the engine sends the statistics of its connector. A Python frontend that was started without one ends then, as no
	// engine without a connector sends them.
	before := len(k.Failures)
	for _, decode := range decodes {
		decode()
	}
	if len(decodes) > 0 && k.lostAt == "" {
		k.stillServes("the statistics of a connector", "GET /health")
	}
	if k.lostAt != "" && len(decodes) > 0 && !strings.Contains(k.env.Frontend.Command, connectorFlag) {
		k.Failures = k.Failures[:before]
		k.Needs = "if the frontend has KV connectors, start it with " + connectorFlag
		k.AddNote("the frontend no longer serves after statistics of a KV connector, which it was started without")
		k.over = true // a command is started again
	}
}

// connectorFlag starts a frontend with a KV connector.
const connectorFlag = "--kv-transfer-config"

// transfer makes a request with kv_transfer_params, which the engine must get as they are. It returns the request that reached
// the engine, nil if there is nothing more to look at, and the kv_transfer_params of the answer.
func (k *frontendCase) transfer(what, route string, body object, params map[string]any) (h *heard, said map[string]any) {
	mark := k.ledger.mark()
	a := k.ask(what, http.MethodPost, route, body.with(object{transferKey: params}))
	if a == nil || k.lostAt != "" {
		return nil, nil
	}
	if a.Status >= 400 && a.Status < 500 {
		k.AddNote(fmt.Sprintf("%s: %s not taken (status %d)", what, transferKey, a.Status))
		return nil, nil
	}
	if r := openai.ReadReply(*a, false); r.Refused() {
		k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.Status, cmp.Or(r.Failure, "finish_reason "+r.Finish)).Compared(http.StatusOK, r.Status))
		return nil, nil
	}
	if h = k.single(what, "EngineCoreRequest.request_id", mark, isAdd); h == nil {
		return nil, nil
	}
	const path = "sampling_params.extra_args." + transferKey
	k.Asserted++
	extra, _ := carried(k.codec.Profile(), h.frames[1], "sampling_params.extra_args")
	got, _ := extra.(map[string]any)
	if carried, _ := got[transferKey].(map[string]any); !sameParams(params, carried) {
		k.fail(check.Failed(CodeCarried, "%s: the engine got %s = %s, but the HTTP request has %s", what, path, asJSON(got[transferKey]), asJSON(params)).
			Within(h.number, "EngineCoreRequest."+path).Compared(asJSON(params), asJSON(got[transferKey])))
	}
	var answer map[string]json.RawMessage
	if json.Unmarshal(a.Body, &answer) == nil {
		_ = json.Unmarshal(answer[transferKey], &said) // of another kind there are none
	}
	return h, said
}

// offered compares what HTTP says of the KV cache that is kept with what the engine said.
func (k *frontendCase) offered(what string, h *heard, got map[string]any) {
	k.Asserted++
	want := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": connector.EngineID, "remote_request_id": h.request.ID,
		"remote_host": connector.Host, "remote_port": connector.Port, "tp_size": 1,
	}
	same := true
	for key, v := range want {
		same = same && sameCarried(v, got[key])
	}
	blocks, _ := got["remote_block_ids"].([]any)
	if !same || len(blocks) != 1 {
		k.fail(check.Failed(CodeTransfer, "%s: the answer has %s = %s, but the engine sent %s with remote_block_ids of one group", what, transferKey, asJSON(got), asJSON(want)).
			Within(-1, transferKey).Compared(asJSON(want), asJSON(got)))
	}
}

// sameParams compares what was asked with what arrived. A key that is nil may be left out.
func sameParams(want, got map[string]any) bool {
	for _, both := range [][2]map[string]any{{want, got}, {got, want}} {
		for key, v := range both[0] {
			if v != nil && !sameCarried(v, both[1][key]) {
				return false
			}
		}
	}
	return got != nil
}
