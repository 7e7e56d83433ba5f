// Package pd holds the suites prefill and decode. An engine with a NixlConnector is judged by another side of ours: a decode that
// pulls blocks out of it, or a prefill that it pulls blocks from. Blocks move by NIXL; what is not about NIXL goes over the wire of
// the engine core, so no frontend takes part.
package pd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// side is an engine under test and what the cases of its line know of it. It is used by one goroutine.
type side struct {
	env    *check.Env
	nixl   *nixl.Line
	s      *check.Session
	random *rand.Rand // of prompts, the same in every run
	number int        // of requests, which names them
	open   map[string]*reply
	out    protocol.Outputs // scratch
	usage  float64          // of the KV cache, in the last statistics
	calls  uint64
	called map[uint64]bool

	// Learned from the first prompt that the engine keeps:
	address  string // of its side channel
	answer   *nixl.Answer
	metadata *nixl.Metadata
	ours     *reader

	// Tapped are the messages of the engine and of the side channel, for a golden of role nixl; as env asks for them.
	tapping sync.Mutex
	tapped  []trace.Message
	began   time.Time

	// Of the case:
	ctx context.Context
	f   *check.Outcome
}

// A reply is what the engine answered to a request.
type reply struct {
	id     string
	tokens int
	finish protocol.FinishReason
	params []byte // kv_transfer_params, a raw msgpack map, nil without
	failed string // the error, if there was one
	closed bool
}

// maxBlocks is how many blocks of an engine a reader holds.
const maxBlocks = 64

// Cases lists the cases of a suite on a line.
func Cases(suite check.Suite, line compat.Line, gating bool) []check.Case {
	checks := PrefillChecks
	if suite == check.SuiteDecode {
		checks = DecodeChecks
	}
	var cases []check.Case
	for _, k := range checks {
		cases = append(cases, check.Case{Line: line, Suite: suite, Assertion: k.Name, Gating: gating})
	}
	return cases
}

// judged makes the function of a check. The engine of the line starts with the first case. A failure to learn of its side channel
// belongs to the case handshake, and others are not judged after it.
func judged(judge func(*side) error) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, _ *check.Golden, c check.Case) (f check.Outcome, err error) {
		d, err := engineOf(e, c)
		if err != nil {
			return f, err
		}
		d.s = d.s.Owner().During(ctx)
		defer d.s.Close()
		d.ctx, d.f = d.s.Context, &f
		if d.ours == nil {
			if err := d.learn(); err != nil {
				if errors.As(err, new(check.EndError)) && c.Assertion != Handshake {
					return f, check.Infra(fmt.Errorf("the case handshake failed: %w", err))
				}
				err = f.End(err)
				return f, err
			}
		}
		err = f.End(judge(d))
		if done := err == nil && len(f.Failures) == 0; done && e.FramesOut != nil && (c.Assertion == Params || c.Assertion == Pull) {
			err = e.FramesOut(d.tapped)
			e.FramesOut = nil
		}
		return f, errors.Join(err, d.rest())
	}
}

// engineOf returns the engine of the line.
func engineOf(e *check.Env, c check.Case) (*side, error) {
	if e.NIXL == "" {
		return nil, check.Infra(errors.New("no Python with nixl is known"))
	}
	codec, err := check.CodecFor(c.Line)
	if err != nil {
		return nil, err
	}
	s, err := e.ShareEngine(c.Suite, c.Line, codec)
	if err != nil {
		return nil, err
	}
	state := e.State()
	if *state == nil {
		d, err := newSide(e, c.Line, s)
		if err != nil {
			return nil, err
		}
		*state = d
	}
	return (*state).(*side), nil
}

func newSide(e *check.Env, line compat.Line, s *check.Session) (*side, error) {
	boundary, err := nixl.Load(check.ProfileName(line))
	if err != nil {
		return nil, err
	}
	d := &side{
		env: e, nixl: boundary, s: s, random: rand.New(rand.NewPCG(1, 2)), open: map[string]*reply{}, called: map[uint64]bool{}, began: time.Now(),
	}
	for _, status := range s.Engine.Statuses {
		d.tap("handshake", trace.EngineToFrontend, status)
	}
	d.tap("input", trace.EngineToFrontend, s.Engine.RawReady)
	return d, nil
}

// tap keeps a message for [check.Env.FramesOut].
func (d *side) tap(channel, direction string, frames ...[]byte) {
	if d.env.FramesOut == nil {
		return
	}
	m := trace.Message{At: time.Since(d.began), Channel: channel, Direction: direction, Frames: frames}
	d.tapping.Lock()
	defer d.tapping.Unlock()
	d.tapped = append(d.tapped, m.Clone())
}

// shake asks the side channel of the engine for the metadata of its first worker.
func (d *side) shake() (*nixl.Answer, error) {
	d.tap("nixl_request", trace.FrontendToEngine, d.nixl.Request(0, 0))
	a, err := d.nixl.Handshake(d.ctx, d.address, 0, 0)
	if err == nil {
		frames := [][]byte{a.Frame}
		if d.nixl.HasClock() {
			frames = append(frames, pack.AppendFloat64(nil, a.Clock))
		}
		d.tap("nixl_reply", trace.EngineToFrontend, frames...)
	}
	return a, err
}

// learn has the engine keep a prompt, whose kv_transfer_params name its side channel, asks that for the metadata, and connects.
func (d *side) learn() error {
	kept, err := d.keep(d.prompt(3))
	if err != nil {
		return err
	}
	d.address = nixl.JoinAddress(kept.Host, kept.Port)
	if d.answer, err = d.shake(); err != nil {
		return check.Ends(CodeSideChannel, "%v", err)
	}
	if d.metadata, err = d.nixl.DecodeMetadata(d.answer.Payload); err != nil {
		return check.Ends(CodeMetadata, "%v", err)
	}
	ours, err := d.newReader("vllm-vcr-judge")
	if err != nil {
		return err
	}
	context.AfterFunc(d.s.Owner().Context, func() { ours.Close() })
	d.ours = ours
	return ours.notify(d.ctx, kept, 1)
}

// prompt makes up a prompt of so many tokens, of which no other one has the first.
func (d *side) prompt(n int) []uint32 {
	prompt := make([]uint32, n)
	for i := range prompt {
		prompt[i] = 3 + d.random.Uint32N(1997)
	}
	return prompt
}

// send sends a request with the kv_transfer_params, a raw msgpack map or nil.
func (d *side) send(prompt []uint32, tokens int, params []byte) (*reply, error) {
	d.number++
	r := &reply{id: fmt.Sprintf("cmpl-pd-%d-%d", d.number, d.random.Uint32())}
	d.open[r.id] = r
	request := &protocol.Request{
		ID: r.id, ExternalID: r.id, PromptTokenIDs: prompt, DataParallelRank: -1, HasSampling: true,
		ArrivalTime: float64(time.Now().UnixMicro()) / 1e6,
		Sampling:    protocol.Sampling{MaxTokens: tokens, HasMaxTokens: true, EOSTokenID: -1, Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs},
	}
	if params != nil {
		request.Sampling.ExtraArgs = append(pack.AppendString(pack.AppendMapHeader(nil, 1), "kv_transfer_params"), params...)
	}
	payload := d.s.Front.Codec().AppendRequest(nil, request)
	d.tap("input", trace.FrontendToEngine, []byte{protocol.TypeAdd}, payload)
	if err := d.s.Front.SubmitRaw(0, payload); err != nil {
		return nil, d.s.Explain(err)
	}
	return r, nil
}

// await receives until the requests have ended.
func (d *side) await(replies ...*reply) error {
	for slices.ContainsFunc(replies, func(r *reply) bool { return !r.closed }) {
		if err := d.receive(); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a request and waits for its end.
func (d *side) ask(prompt []uint32, tokens int, params []byte) (*reply, error) {
	r, err := d.send(prompt, tokens, params)
	if err == nil {
		err = d.await(r)
	}
	return r, err
}

func (d *side) receive() error {
	ctx, stop := context.WithTimeoutCause(d.ctx, d.s.Limits.Idle, check.Infra(check.WithCode(check.CodeSilence, fmt.Errorf("no output for %v", d.s.Limits.Idle))))
	defer stop()
	if _, err := d.s.Front.Next(ctx, 0, &d.out); err != nil {
		return d.s.WithOutput(d.s.Explain(err))
	}
	d.tap("output", trace.EngineToFrontend, d.s.Front.Last(0)...)
	for i := range d.out.Outputs {
		o := &d.out.Outputs[i]
		r := d.open[string(o.ID)]
		if r == nil {
			continue // the suite live judges that
		}
		r.tokens += len(o.Tokens)
		if o.KVTransfer != nil {
			r.params = bytes.Clone(o.KVTransfer)
		}
		if o.Finish != protocol.Unfinished {
			r.finish, r.closed, r.failed = o.Finish, true, string(o.Error)
			delete(d.open, r.id)
		}
	}
	if d.out.SchedulerStats != nil {
		stats, err := protocol.DecodeStats(d.out.SchedulerStats)
		if err != nil {
			return check.Ends(check.CodeLayout, "scheduler_stats: %v", err)
		}
		d.usage = stats.KVCacheUsage
	}
	if d.out.Utility != nil {
		d.called[d.out.Utility.CallID] = true
	}
	return nil
}

// forgetCache makes the engine forget what it has cached of prompts.
func (d *side) forgetCache() error {
	d.calls++
	id, no := d.calls, pack.AppendBool(nil, false)
	call := protocol.AppendUtilityCall(nil, protocol.UtilityCall{CallID: id, Method: "reset_prefix_cache", Args: [][]byte{no, no}})
	if err := d.s.Front.SendRaw(0, []byte{protocol.TypeUtility}, call); err != nil {
		return d.s.Explain(err)
	}
	for !d.called[id] {
		if err := d.receive(); err != nil {
			return err
		}
	}
	return nil
}

// rest aborts what a case has left open.
func (d *side) rest() error {
	owner := d.s.Owner()
	if len(d.open) == 0 || owner.Lost != nil || owner.Context.Err() != nil {
		return nil
	}
	for id := range d.open {
		if err := d.s.Front.Abort(0, id); err != nil {
			return d.s.Explain(err)
		}
	}
	clear(d.open)
	return nil
}

// blocksInUse is how many blocks the engine does not have free. It makes a step, in which it sees what happened meanwhile.
func (d *side) blocksInUse() (int, error) {
	if _, err := d.ask(d.prompt(2), 1, nil); err != nil {
		return 0, err
	}
	return int(d.usage*float64(d.metadata.Blocks/max(d.metadata.PhysicalBlocks, 1)) + 0.5), nil
}

// awaitInUse makes steps until so many blocks are in use, and returns after how long; not within the limit it is an error.
func (d *side) awaitInUse(want int, limit time.Duration, code check.Code, why string) (time.Duration, error) {
	began := time.Now()
	for {
		got, err := d.blocksInUse()
		took := time.Since(began)
		switch {
		case err != nil:
			return took, err
		case got == want:
			return took, nil
		case took > limit:
			return took, check.Ends(code, "%s, and %s in use %v later, want %d", why, safetext.Count(got, "block"), took.Round(time.Second), want)
		}
		select { // an idle engine looks for notifications when it has something to do
		case <-d.ctx.Done():
			return took, context.Cause(d.ctx)
		case <-time.After(min(100*time.Millisecond+took/20, time.Second)):
		}
	}
}

// promptFor is the number of tokens of a prompt with so many blocks, the last of which has one token less than it could.
func (d *side) promptFor(blocks int) int { return blocks*d.logicalBlock() - 1 }

// logicalBlock is the number of tokens of a block of the scheduler, which has one or more blocks of the kernel.
func (d *side) logicalBlock() int { return d.metadata.BlockSize * max(d.metadata.PhysicalBlocks, 1) }

// kept is a prompt whose blocks an engine keeps for another one.
type kept struct {
	kvtransfer.Cache
	reply  *reply
	fields []string // of kv_transfer_params
	tokens int      // remote_num_tokens
	cached int      // remote_prefill_cached_tokens; -1 if the line has none
}

// producing are the kv_transfer_params with which a router asks for a prompt to be kept.
var producing = func() []byte {
	b := pack.AppendMapHeader(nil, 6)
	b = pack.AppendBool(pack.AppendString(b, "do_remote_decode"), true)
	b = pack.AppendBool(pack.AppendString(b, "do_remote_prefill"), false)
	for _, key := range []string{"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"} {
		b = pack.AppendNil(pack.AppendString(b, key))
	}
	return b
}()

// keep has the engine compute a prompt and keep its blocks.
func (d *side) keep(prompt []uint32) (*kept, error) {
	r, err := d.ask(prompt, 1, producing)
	if err != nil {
		return nil, err
	}
	if r.params == nil {
		return nil, check.Ends(CodeParams, "request %s with do_remote_decode ended by %s, and its last output has no kv_transfer_params: the engine has no NixlConnector", r.id, r.finish)
	}
	return readKept(r)
}

func readKept(r *reply) (*kept, error) {
	unreadable := func(err error) error { return check.Ends(CodeParams, "kv_transfer_params: %v", err) }
	params, err := kvtransfer.DecodeParams(r.params)
	if err != nil {
		return nil, unreadable(err)
	}
	if err := params.Incomplete(); err != nil {
		return nil, check.Ends(CodeParams, "the kv_transfer_params of an answer lack what a decode engine needs: %v", err)
	}
	k := &kept{Cache: params.Cache, reply: r, cached: -1}
	for value := range protocol.ViewOf(r.params).Parts() {
		k.fields = append(k.fields, value.Name())
		var to *int
		switch value.Name() {
		case "remote_num_tokens":
			to = &k.tokens
		case "remote_prefill_cached_tokens":
			to = &k.cached
		default:
			continue
		}
		n, ok := value.Int()
		if !ok {
			return nil, unreadable(fmt.Errorf("%s is not a number", value.Name()))
		}
		*to = int(n)
	}
	return k, nil
}

// A reader is a decode of ours: an agent that is connected to the engine.
type reader struct {
	agent.Agent
	peer     agent.Peer
	metadata *nixl.Metadata
	side     *side
}

// newReader starts an agent and connects it to the engine.
func (d *side) newReader(name string) (*reader, error) {
	r := &reader{metadata: d.metadata, side: d}
	var err error
	if r.Agent, err = agent.Start(d.ctx, agent.Options{Python: d.env.NIXL, Name: name, Length: int64(maxBlocks * r.blockLen()), Log: d.env.Log}); err != nil {
		return nil, check.Infra(err)
	}
	if r.peer, err = r.Connect(d.ctx, d.metadata.AgentMetadata); err != nil {
		r.Close()
		return nil, check.Ends(CodeMetadata, "agent_metadata: %v", err)
	}
	return r, nil
}

// blockLen is the number of bytes of a block of the scheduler in all regions.
func (r *reader) blockLen() int {
	n := 0
	for _, size := range r.metadata.BlockLens {
		n += size
	}
	return n * max(r.metadata.PhysicalBlocks, 1)
}

// descriptors are where the blocks are in the engine, and where they go: to the beginning of the region, one after the other.
func (r *reader) descriptors(blocks []int) (all []agent.Block) {
	m, ratio, local := r.metadata, max(r.metadata.PhysicalBlocks, 1), int64(0)
	for _, id := range blocks {
		for physical := id * ratio; physical < (id+1)*ratio; physical++ {
			for region, base := range m.BaseAddresses {
				all = append(all, agent.Block{
					Remote: base + uint64(physical)*uint64(m.Stride(region)), RemoteDevice: m.DeviceID, Local: local, Len: m.BlockLens[region],
				})
				local += int64(m.BlockLens[region])
			}
		}
	}
	return all
}

// read pulls the blocks of a prompt as a decode does, with the notification that ends their lease, and returns their bytes.
func (r *reader) read(ctx context.Context, k *kept, readers int) ([]byte, error) {
	if len(k.Blocks) > maxBlocks {
		return nil, check.Infra(fmt.Errorf("a prompt of %d tokens has %d blocks", k.tokens, len(k.Blocks)))
	}
	text := nixl.Notification{Request: k.RequestID, Readers: readers}.String()
	r.side.tap("nixl_notification", trace.FrontendToEngine, []byte(text))
	if err := r.Read(ctx, r.peer, r.descriptors(k.Blocks), text); err != nil {
		return nil, check.Ends(CodeRead, "%v", err)
	}
	p := make([]byte, len(k.Blocks)*r.blockLen())
	_, err := r.ReadAt(p, 0)
	return p, err
}

// notify ends the lease of a prompt without a read.
func (r *reader) notify(ctx context.Context, k *kept, readers int) error {
	text := nixl.Notification{Request: k.RequestID, Readers: readers}.String()
	r.side.tap("nixl_notification", trace.FrontendToEngine, []byte(text))
	return r.Notify(ctx, r.peer, text)
}
