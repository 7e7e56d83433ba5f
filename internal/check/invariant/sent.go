package invariant

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// judgeSent looks at a request that a frontend sends, by what all released frontends keep to.
func (e *Engine) judgeSent(frames [][]byte) []check.Failure {
	e.failures = nil
	r := e.codec.Read(new(protocol.View), protocol.KindRequest, frames[1], frames[2:]...)
	e.judgeNames(r)
	e.judgeSampling(r.Field("sampling_params"))
	e.judgeAdapter(r.Field("lora_request"))
	for f := range r.Field("mm_features").Parts() {
		// The cache of the engine knows the content by its hash, behind the name of an adapter for the encoder.
		if id, hash := f.Field("identifier"), f.Field("mm_hash"); hash.Given() && !strings.HasSuffix(id.Text(), hash.Text()) {
			e.fail(CodeRequest, id, "ends with "+check.Describe(hash.Bytes()), check.Describe(id.Bytes()), "mm_hash is that of the content")
		}
		if kind := f.Field("modality"); !slices.Contains([]string{"image", "video", "audio", "vision_chunk", "prompt_embeds"}, kind.Text()) {
			e.fail(CodeRequest, kind, "a modality", check.Describe(kind.Bytes()), "the engine has encoders for images, video and audio")
		}
		place, prompt := f.Field("mm_position"), r.Field("prompt_token_ids")
		if end := place.Field("offset").Count() + place.Field("length").Count(); prompt.Given() && end > int64(prompt.Len()) {
			e.fail(CodeRequest, place, fmt.Sprintf("within %d tokens", prompt.Len()), end, "the placeholder tokens are in the prompt")
		}
	}
	if task := r.Field("pooling_params").Field("task"); task.Given() && !slices.Contains([]string{
		"embed", "classify", "score", "token_embed", "token_classify", "plugin", "embed&token_classify",
	}, task.Text()) {
		e.fail(CodeRequest, task, "a task", check.Describe(task.Bytes()), "the engine refuses the request")
	}
	return e.failures
}

// traceparent is the header of W3C Trace Context.
var traceparent = lazyregexp.New(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// judgeNames looks at who a request is from, and of when.
func (e *Engine) judgeNames(r protocol.Value) {
	id, external := r.Field("request_id"), r.Field("external_req_id")
	if external.Given() && !strings.Contains(id.Text(), external.Text()) {
		// vllm/v1/engine/input_processor.py assign_request_id: what makes it unique is added.
		e.fail(CodeRequest, external, "a part of "+check.Describe(id.Bytes()), check.Describe(external.Bytes()), "the id of a request is that of the client, made unique")
	}
	if at := r.Field("client_index"); e.init != nil && at.Count() >= int64(len(e.init.Inputs)) {
		e.fail(CodeRequest, at, fmt.Sprintf("below %d", len(e.init.Inputs)), at.Count(), "the engine answers on the socket of this client, and has no more")
	}
	if rank, ok := r.Field("data_parallel_rank").Int(); ok && e.ready.known && int(rank) != e.ready.index && e.ready.ranks > 1 {
		e.fail(CodeRequest, r.Field("data_parallel_rank"), e.ready.index, rank, "the request is sent to another rank than it asks for")
	}
	const hour = 3600
	arrival := r.Field("arrival_time")
	if t, ok := arrival.Float(); ok {
		if e.arrived > 0 && (t < e.arrived-hour || t > e.arrived+100*hour) {
			e.fail(CodeRequest, arrival, fmt.Sprintf("about %v", e.arrived), t, "the time of a request is near that of the one before")
		}
		e.arrived = t
	}
	if v := r.Field("trace_headers").Field("traceparent"); v.Given() && !traceparent().MatchString(v.Text()) {
		e.fail(CodeRequest, v, "version-trace-parent-flags", check.Describe(v.Bytes()), "this is the header of W3C Trace Context")
	}
}

// judgeSampling: an engine masks all ids that stop a request until min_tokens are out, so the frontend lists them once more
// (vllm/sampling_params.py update_from_generation_config).
func (e *Engine) judgeSampling(s protocol.Value) {
	all, stops := s.Field("_all_stop_token_ids"), s.Field("stop_token_ids")
	eos, hasEOS := s.Field("_eos_token_id").Int()
	if known, ok := all.Ints(); ok {
		ids, _ := stops.Ints()
		if hasEOS {
			ids = append(ids, eos)
		}
		for _, id := range ids {
			if !slices.Contains(known, id) {
				e.fail(CodeRequest, all, fmt.Sprintf("%d in it", id), check.Around(known, 0), "the list has the stop_token_ids and the end of the sequence")
				break
			}
		}
	}
	if backend := s.Field("structured_outputs").Field("_backend"); backend.Given() &&
		!slices.Contains([]string{"xgrammar", "guidance", "outlines", "lm-format-enforcer"}, backend.Text()) {
		e.fail(CodeRequest, backend, "a backend", check.Describe(backend.Bytes()), "the engine has no such backend for structured outputs")
	}
}

// judgeAdapter: an adapter has one name, one id and one path in a session.
func (e *Engine) judgeAdapter(a protocol.Value) {
	if a.Kind() != pack.Array {
		return
	}
	own := adapter{a.Field("lora_name").Text(), a.Field("lora_int_id").Count(), a.Field("lora_path").Text()}
	for _, known := range e.adapters {
		if known != own && (known.name == own.name || known.id == own.id) {
			e.fail(CodeRequest, a, fmt.Sprint(known), fmt.Sprint(own), "an adapter has the name, the id and the path that it had before")
		}
	}
	if !slices.Contains(e.adapters, own) {
		e.adapters = append(e.adapters, own)
	}
}

// adapter is a LoRARequest.
type adapter struct {
	name string
	id   int64
	path string
}

// judgeInit looks at the addresses that the frontend tells the engine.
func (e *Engine) judgeInit(payload []byte) []check.Failure {
	e.failures = nil
	for of := range e.codec.Read(new(protocol.View), protocol.KindInit, payload).Field("addresses").Parts() {
		of.Walk(func(v protocol.Value) bool {
			if text := v.Text(); v.Kind() == pack.String && !isAddress(text) {
				e.fail(CodeRequest, v, "tcp://host:port or ipc://path", fmt.Sprintf("%.200q", text), "the engine dials it")
			}
			return true
		})
	}
	return e.failures
}

func isAddress(text string) bool {
	if at, is := strings.CutPrefix(text, "tcp://"); is {
		_, port, err := net.SplitHostPort(at)
		return err == nil && strings.Trim(port, "0123456789") == "" && port != "" || err == nil && port == "*"
	}
	return strings.HasPrefix(text, "ipc://") || strings.HasPrefix(text, "inproc://")
}

// blocks are what KV events tell of the prefix cache of one engine.
type blocks struct {
	stored map[string]bool // hashes, as they are in messages
	sent   float64         // time of the last batch
}

// judgeKVEvents looks at what an engine publishes of its prefix cache (vllm/distributed/kv_events.py): a block is behind one
// that is stored, and one that is removed was stored.
func (e *Engine) judgeKVEvents(number int, payload []byte) []check.Failure {
	e.failures, e.number = nil, number
	batch := e.codec.Read(new(protocol.View), protocol.KindKVEvents, payload)
	b := &e.blocks
	if b.stored == nil {
		b.stored = map[string]bool{}
	}
	at := batch.Field("ts")
	if t, ok := at.Float(); ok {
		if t < b.sent {
			e.fail(CodeKVEvents, at, fmt.Sprintf("at least %v", b.sent), t, "the time must not go back")
		}
		b.sent = max(b.sent, t)
	}
	if rank, ok := batch.Field("data_parallel_rank").Int(); ok && e.ready.known && int(rank) != e.ready.index {
		e.fail(CodeKVEvents, batch.Field("data_parallel_rank"), e.ready.index, rank, "the engine registered with another rank")
	}
	for event := range batch.Field("events").Parts() {
		hashes, ids := event.Field("block_hashes"), event.Field("token_ids")
		if medium := event.Field("medium"); medium.Given() && !slices.Contains([]string{"GPU", "CPU", "FS", "OBJ", "DISK"}, medium.Text()) {
			e.fail(CodeKVEvents, medium, "GPU or CPU", check.Describe(medium.Bytes()), "vLLM keeps blocks in these media")
		}
		if kind := event.Field("kv_cache_spec_kind"); kind.Given() && !slices.Contains(specKinds, kind.Text()) {
			e.fail(CodeKVEvents, kind, "one of "+strings.Join(specKinds, ", "), check.Describe(kind.Bytes()), "vLLM has these kinds of layers")
		}
		if group := event.Field("group_idx"); e.ready.single() && group.Count() != 0 {
			e.fail(CodeKVEvents, group, 0, group.Count(), "the KV cache has one kind of blocks")
		}
		switch {
		case ids.Kind() == pack.Array:
			e.judgeStored(event, hashes, ids)
		case hashes.Kind() == pack.Array:
			for v := range hashes.Parts() {
				if !b.stored[string(v.Bytes())] {
					e.fail(CodeKVEvents, hashes, "blocks that are stored", check.Describe(v.Bytes()), "a block can be removed only after it was stored")
				}
				delete(b.stored, string(v.Bytes()))
			}
		default:
			clear(b.stored)
		}
	}
	return e.failures
}

// specKinds are those of KVCacheSpecKind (vllm/v1/kv_cache_interface.py).
var specKinds = []string{
	"full_attention", "mla_attention", "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "sink_full_attention",
	"encoder_only_attention", "cross_attention", "unknown",
}

func (e *Engine) judgeStored(event, hashes, ids protocol.Value) {
	b := &e.blocks
	if parent := event.Field("parent_block_hash"); parent.Given() && !b.stored[string(parent.Bytes())] {
		e.fail(CodeKVEvents, parent, "a block that is stored", check.Describe(parent.Bytes()), "a block is behind the one that was stored before it")
	}
	size := event.Field("block_size")
	if int64(ids.Len()) != size.Count()*int64(hashes.Len()) {
		e.fail(CodeKVEvents, size, fmt.Sprintf("%d tokens in %d blocks", ids.Len(), hashes.Len()), size.Count(), "each block has block_size tokens")
	}
	id, name := event.Field("lora_id"), event.Field("lora_name")
	known := slices.ContainsFunc(e.adapters, func(a adapter) bool {
		return (!id.Given() || a.id == id.Count()) && (!name.Given() || a.name == name.Text())
	})
	if (id.Given() || name.Given()) && !known {
		e.fail(CodeKVEvents, name, "the adapter of a request", check.Describe(name.Bytes()), "no request has an adapter of this name and id")
	}
	for v := range hashes.Parts() {
		b.stored[string(v.Bytes())] = true
	}
}
