package selftest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/player"
)

// transferFault is what is wrong with how an engine moves KV caches, besides its messages.
type transferFault struct {
	prefill string        // a fault of [nixl.Faults]
	lease   time.Duration // in place of 2 s
	// lenient is enforce_handshake_compat false, recomputes is kv_load_failure_policy recompute without a prefix cache.
	lenient, recomputes bool
	// sends and hears change a notification, in which "" is none.
	sends, hears func(text string) string
	// reads does something else instead of a read.
	reads func(a agent.Agent, ctx context.Context, peer agent.Peer, blocks []agent.Block, notify string) error
}

// transferFaults are put in front of the suites prefill and decode.
func transferFaults() []Fault {
	const params = "outputs.kv_transfer_params."
	const asked = "sampling_params.extra_args.kv_transfer_params."
	add := func(field string, value any, nth int) []edit {
		return by(edit{of: "ADD", field: field, value: value, nth: nth})
	}
	text := func(old, other string) func(string) string {
		return func(text string) string { return strings.Replace(text, old, other, 1) }
	}
	drop := func(what string) func(string) string {
		return func(text string) string {
			if strings.HasPrefix(text, what) {
				return ""
			}
			return text
		}
	}
	type row struct {
		suiteRow
		transfer transferFault
	}
	var all []Fault
	of := func(suite conformance.Suite, rows []row) {
		for _, r := range rows {
			f := faultsOf(suite, []suiteRow{r.suiteRow})[0]
			f.suite.transfer, f.waits = &r.transfer, idle
			all = append(all, f)
		}
	}
	of(conformance.SuitePrefill, []row{
		{suiteRow{name: "no-fault", says: "a prefill engine behind the tamperer"}, transferFault{}},
		{suiteRow{pd.Handshake, "silent", "the side channel does not answer", pd.CodeSideChannel, "no answer within", nil}, transferFault{prefill: "silent"}},
		{suiteRow{pd.Handshake, "agent-gone", "the agent of the metadata is gone", pd.CodeMetadata, "agent_metadata", nil}, transferFault{prefill: "die:0s"}},
		{suiteRow{pd.Handshake, "other-hash", "the hash is another each time", pd.CodeHash, "and the second time", nil}, transferFault{prefill: "hash"}},
		{suiteRow{pd.Handshake, "statistics-of-text", "a number of the statistics is text", check.CodeLayout, "scheduler_stats", by(put(stats+"kv_cache_usage", "x", 1))}, transferFault{}},
		{suiteRow{pd.Params, "no-params", "an answer has no kv_transfer_params", pd.CodeParams, "has no kv_transfer_params", by(put("outputs.kv_transfer_params", nil, 2))}, transferFault{}},
		{suiteRow{pd.Params, "params-of-text", "a number of kv_transfer_params is text", pd.CodeParams, "is not a number", by(put(params+"remote_num_tokens", "x", 2))}, transferFault{}},
		{suiteRow{pd.Params, "no-host", "kv_transfer_params have no host", pd.CodeParams, "lack what a decode engine needs", by(put(params+"remote_host", omitted, 2))}, transferFault{}},
		{suiteRow{pd.Params, "key-lost", "kv_transfer_params lack a key", pd.CodeParams, "have no remote_num_tokens", by(put(params+"remote_num_tokens", omitted, 2))}, transferFault{}},
		{suiteRow{pd.Params, "key-added", "kv_transfer_params have a key more", pd.CodeParams, "have extra", by(put(params+"extra", 1, 2))}, transferFault{}},
		{suiteRow{pd.Params, "other-engine", "kv_transfer_params name another engine", pd.CodeParams, "remote_engine_id is not", nil}, transferFault{prefill: "engine"}},
		{suiteRow{pd.Params, "other-request", "kv_transfer_params name another request", pd.CodeParams, "remote_request_id is not", by(put(params+"remote_request_id", "x", 2))}, transferFault{}},
		{suiteRow{pd.Params, "tokens-too-few", "kv_transfer_params count fewer tokens", pd.CodeParams, "computed tokens in", by(put(params+"remote_num_tokens", plus(-1), 2))}, transferFault{}},
		{suiteRow{pd.Read, "block-beyond", "a block is behind the memory", pd.CodeRead, "has no such memory", by(put(params+"remote_block_ids.0.0", plus(1000), 2))}, transferFault{}},
		{suiteRow{pd.Read, "block-twice", "a block is named twice", pd.CodeContent, "are the same", by(put(params+"remote_block_ids.0.0", plus(1), 2))}, transferFault{}},
		{suiteRow{pd.Read, "block-empty", "a block was never written", pd.CodeContent, "is all zeros", by(put(params+"remote_block_ids.0.0", plus(100), 2))}, transferFault{}},
		{suiteRow{pd.Read, "other-block", "the second time a block is another one", pd.CodeContent, "the same prompt was computed twice", by(put(params+"remote_block_ids.0.0", plus(1), 3))}, transferFault{}},
		{suiteRow{pd.Release, "never-freed", "notifications are lost", pd.CodeRelease, "earlier cases were read", nil}, transferFault{hears: drop("cmpl"), lease: time.Hour}},
		{suiteRow{pd.Release, "not-freed", "a notification is of another request", pd.CodeRelease, "all of 1 reader", by(put(params+"remote_request_id", "x", 2))}, transferFault{lease: time.Hour}},
		{suiteRow{pd.Release, "freed-by-one", "the first of two readers frees the blocks", pd.CodeRelease, "1 of 2 readers", nil}, transferFault{hears: text(":2", ":1")}},
		{suiteRow{pd.TwoReaders, "read-twice", "of two prompts a block is named twice", pd.CodeContent, "are the same", by(put(params+"remote_block_ids.0.0", plus(1), 3))}, transferFault{}},
		{suiteRow{pd.Death, "read-beyond", "the second decode reads behind the memory", pd.CodeRead, "has no such memory", by(put(params+"remote_block_ids.0.0", plus(1000), 2))}, transferFault{}},
		{suiteRow{pd.Lease, "no-end", "a lease does not end", pd.CodeLease, "5 blocks in use", nil}, transferFault{lease: time.Hour}},
		{suiteRow{pd.Lease, "heartbeats-lost", "a heartbeat extends no lease", pd.CodeLease, "0 blocks in use", nil}, transferFault{hears: drop("HB:")}},
	})
	of(conformance.SuiteDecode, []row{
		{suiteRow{name: "no-fault", says: "a decode engine behind the tamperer"}, transferFault{}},
		{suiteRow{pd.Handshake, "silent", "the side channel does not answer", pd.CodeSideChannel, "no answer within", nil}, transferFault{prefill: "silent"}},
		{suiteRow{pd.Pull, "refuses", "the engine refuses its own hash", pd.CodePull, "has 0 of 4 tokens", nil}, transferFault{prefill: "hash"}},
		{suiteRow{pd.Pull, "asks-again", "the engine shakes hands for each request", pd.CodeAsked, "want once for", nil}, transferFault{recomputes: true, reads: func(a agent.Agent, ctx context.Context, peer agent.Peer, blocks []agent.Block, notify string) error {
			return errors.Join(errors.New("as if it had failed"), a.Read(ctx, peer, blocks, notify))
		}}},
		{suiteRow{pd.Pull, "other-readers", "the notification counts another number of readers", pd.CodeNotified, "the notification is", nil}, transferFault{sends: text(":1", ":2")}},
		{suiteRow{pd.Pull, "other-text", "the notification has another form", pd.CodeNotified, "without a request", nil}, transferFault{sends: text(":1", "")}},
		{suiteRow{pd.Pull, "no-notification", "there is no notification", pd.CodeNotified, "and sent no notification", nil}, transferFault{sends: drop("cmpl")}},
		{suiteRow{pd.Pull, "not-read", "blocks are not read", pd.CodeContent, "are not those that it pulled", nil}, transferFault{reads: func(a agent.Agent, ctx context.Context, peer agent.Peer, _ []agent.Block, notify string) error {
			return a.Notify(ctx, peer, notify)
		}}},
		{suiteRow{pd.StaleHash, "hash-ignored", "the engine ignores the hash", pd.CodeAccepted, "its compatibility hash is another one", nil}, transferFault{lenient: true}},
		{suiteRow{pd.Geometry, "hangs-on-geometry", "the end of the request is lost", pd.CodeHangs, "has not ended", by(instead("outputs.finish_reason", 3, nil))}, transferFault{}},
		{suiteRow{pd.Identity, "identity-ignored", "the engine ignores engine_id", pd.CodeAccepted, "and the engine notifies", add(asked+"remote_engine_id", "vcr-misfit-other", 0)}, transferFault{}},
		{suiteRow{pd.Gone, "hangs", "the end of the request is lost", pd.CodeHangs, "has not ended", by(instead("outputs.finish_reason", 3, nil))}, transferFault{}},
		{suiteRow{pd.Gone, "next-too-short", "the next request ends too early", pd.CodeBroken, "has 2 of 4 tokens", add("sampling_params.max_tokens", 2, 3)}, transferFault{}},
		{suiteRow{pd.Dies, "next-too-short-after-death", "the next request ends too early", pd.CodeBroken, "has 2 of 4 tokens", add("sampling_params.max_tokens", 2, 3)}, transferFault{}},
		{suiteRow{pd.Workers, "asks-a-third", "the engine asks for a worker that does not exist", pd.CodeAsked, "a prefill of two workers", add(asked+"tp_size", 4, 0)}, transferFault{}},
		{suiteRow{pd.Workers, "second-unnotified", "a worker gets no notification", pd.CodeNotified, "sent no notification", nil}, transferFault{sends: drop("cmpl")}},
		{suiteRow{pd.FourPrefills, "one-too-short", "one of 200 requests ends too early", pd.CodePull, "has 2 of 4 tokens", add("sampling_params.max_tokens", 2, 99)}, transferFault{}},
		{suiteRow{pd.FourPrefills, "unknown-request", "a notification is of no request", pd.CodeNotified, "of no request that was open", nil}, transferFault{sends: text("cmpl", "x")}},
		{suiteRow{pd.FourPrefills, "unnotified", "no notification comes", pd.CodeNotified, "came no notification", nil}, transferFault{sends: drop("cmpl")}},
	})
	return all
}

// tinyModel is the part of config.json that the form of a KV cache follows from.
const tinyModel = `{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "torch_dtype": "float32"}`

// into lets an engine move KV caches, with agents in this process. tidy removes the folder of its model.
func (f *transferFault) into(opt *player.Options) (tidy func(), err error) {
	model, err := os.MkdirTemp("", "vllm-vcr-model-")
	if err == nil {
		err = os.WriteFile(filepath.Join(model, "config.json"), []byte(tinyModel), 0o644)
	}
	if err != nil {
		return nil, err
	}
	opt.KVCache.NumGPUBlocks = 256
	opt.KVCache.NoPrefixCaching = f.recomputes
	opt.Transfer = &kvtransfer.Config{EngineID: "player", Host: "127.0.0.1", Lease: 2 * time.Second, IgnoreHash: f.lenient}
	if f.lease > 0 {
		opt.Transfer.Lease = f.lease
	}
	if f.recomputes {
		opt.Transfer.FailurePolicy = kvtransfer.RecomputeOnLoadFailure
	}
	opt.Transfer.Open = func(engine *kvtransfer.Config, form kvtransfer.Form) (kvtransfer.DataPlane, error) {
		engine.Port = 0 // any
		return nixl.Open(engine, form, nixl.Options{Model: model, Fault: f.prefill}, func(length int64) (agent.Agent, error) {
			a, err := agent.Start(context.Background(), agent.Options{Python: agent.InMemory, Length: length})
			if err != nil {
				return nil, err
			}
			faulty := &faultyAgent{Agent: a, fault: f, heard: make(chan agent.Notification)}
			go faulty.hear()
			return faulty, nil
		}, slog.New(slog.DiscardHandler))
	}
	return func() { os.RemoveAll(model) }, nil
}

// faultyAgent is the agent of an engine with a fault.
type faultyAgent struct {
	agent.Agent
	fault *transferFault
	heard chan agent.Notification
}

func (a *faultyAgent) hear() {
	defer close(a.heard)
	for n := range a.Agent.Notifications() {
		if a.fault.hears != nil {
			n.Text = a.fault.hears(n.Text)
		}
		if n.Text != "" {
			a.heard <- n
		}
	}
}

func (a *faultyAgent) Notifications() <-chan agent.Notification { return a.heard }

func (a *faultyAgent) Read(ctx context.Context, peer agent.Peer, blocks []agent.Block, notify string) error {
	if a.fault.sends != nil {
		notify = a.fault.sends(notify)
	}
	if a.fault.reads != nil {
		return a.fault.reads(a.Agent, ctx, peer, blocks, notify)
	}
	return a.Agent.Read(ctx, peer, blocks, notify)
}
