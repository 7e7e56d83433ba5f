// Package remote is an engine of vLLM, in another process, for a frontend in this one: it waits for the engine at an
// address as the released frontends do, and speaks with it through ZeroMQ.
package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Options configures [Accept].
type Options struct {
	// Address is where the engine is waited for, tcp://HOST:PORT. The sockets for its messages get ports of their own
	// there.
	Address string
	// Line is that of the engine; default that of the release with which it registers.
	Line string
	// Step is called with what is being waited for; may be nil.
	Step func(step string)
	Log  *slog.Logger
}

// An Engine is one that has registered.
type Engine struct {
	front *coreclient.Frontend
	codec *protocol.Codec
	ready protocol.ReadyResponse
	index int
	tasks []string
	up    chan struct{} // closed
	log   *slog.Logger

	mu       sync.Mutex // also of what is sent
	requests map[string]protocol.Receiver
	calls    map[uint64]func(result any, err error)
	ended    error
}

// Accept waits for an engine.
func Accept(ctx context.Context, opt Options) (_ *Engine, err error) {
	anyPort := opt.Address[:max(strings.LastIndexByte(opt.Address, ':'), 0)] + ":0"
	front, err := coreclient.Listen(coreclient.Options{Address: anyPort, HandshakeAddress: opt.Address, Step: opt.Step})
	if err != nil {
		return nil, err
	}
	e := &Engine{
		front: front, up: make(chan struct{}), log: opt.Log, requests: map[string]protocol.Receiver{}, calls: map[uint64]func(any, error){},
	}
	close(e.up)
	defer func() {
		if err != nil {
			front.Close()
		}
	}()
	engine, err := front.Accept(ctx)
	if err != nil {
		return nil, fmt.Errorf("the engine at %s: %w", opt.Address, err)
	}
	e.ready, e.index = engine.Ready, engine.Index
	if n := e.ready.DataParallelSize; n > 1 {
		return nil, fmt.Errorf("the engine registered as one of %d data-parallel ranks: only a single engine is supported: start it with --data-parallel-size 1", n)
	}
	line := opt.Line
	if line == "" {
		if e.ready.VLLMVersion == "" {
			return nil, errors.New("the engine does not tell its release: give its line with --vllm-version")
		}
		line = protocol.LineOf(e.ready.VLLMVersion)
	}
	if e.codec, err = protocol.CodecFor(line); err != nil {
		return nil, fmt.Errorf("the engine registered as vLLM %s: %w", e.ready.VLLMVersion, err)
	}
	front.Speak(e.codec)
	return e, e.askTasks(ctx)
}

// askTasks asks the engine what it is for. It reads messages until the answer comes; there are no others yet.
func (e *Engine) askTasks(ctx context.Context) error {
	const method = "get_supported_tasks"
	if _, known := e.codec.Profile().Utilities[method]; !known {
		return nil
	}
	id, err := e.front.Call(0, method)
	var o protocol.Outputs
	for err == nil {
		if _, err = e.front.Next(ctx, 0, &o); err == nil && o.Utility != nil && o.Utility.CallID == id {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the engine was asked for its tasks: %w", err)
	}
	cur := pack.NewCursor(o.Utility.Result)
	n, err := cur.ArrayLen()
	if err != nil || o.Utility.Failed {
		return fmt.Errorf("the engine was asked for its tasks and did not answer with a list: %s", o.Utility.Failure)
	}
	for range n {
		task, err := cur.StrString()
		if err != nil {
			return fmt.Errorf("the tasks of the engine: %w", err)
		}
		e.tasks = append(e.tasks, task)
	}
	return nil
}

// Tasks are what the engine does.
func (e *Engine) Tasks() []string { return e.tasks }

// Handshake is where the engine has come from.
func (e *Engine) Handshake() string { return e.front.Handshake() }

// Release is that with which the engine has registered, or "".
func (e *Engine) Release() string { return e.ready.VLLMVersion }

// Line is that of the engine.
func (e *Engine) Line() string { return e.codec.Profile().Line }

// Ready is closed.
func (e *Engine) Ready() <-chan struct{} { return e.up }

// Engines describes the engine, as it has registered.
func (e *Engine) Engines() []player.EngineInfo {
	info := player.EngineInfo{
		Index: e.index, BlockSize: e.ready.BlockSize, NumGPUBlocks: e.ready.NumGPUBlocks, MaxModelLen: e.ready.MaxModelLen, PrefixCaching: true,
	}
	if e.ready.SupportsLoRA {
		if info.MaxLoRAs = e.ready.MaxLoRAs; info.MaxLoRAs == 0 {
			info.MaxLoRAs = -1
		}
	}
	if !slices.ContainsFunc(e.codec.Profile().Structs["EngineCoreReadyResponse"].Fields, func(f protocol.Field) bool { return f.Name == "supports_lora" }) {
		info.MaxLoRAs = -1 // engines of older lines do not tell; one without LoRA refuses adapters
	}
	return []player.EngineInfo{info}
}

// Run is RunLocal without statistics.
func (e *Engine) Run(ctx context.Context) error {
	return e.RunLocal(ctx, func(int, *player.EngineStats) {})
}

// RunLocal takes the messages of the engine until ctx ends, or the engine does. Its requests and calls have all ended
// then.
func (e *Engine) RunLocal(ctx context.Context, report func(engine int, s *player.EngineStats)) error {
	var err error
	var o protocol.Outputs
	var stats protocol.SchedulerStats
	for err == nil {
		var aux [][]byte
		if aux, err = e.front.Next(ctx, 0, &o); err == nil {
			err = e.take(&o, aux)
		}
		if err == nil && o.SchedulerStats != nil {
			if stats, err = protocol.DecodeStats(o.SchedulerStats); err == nil {
				report(0, &stats)
			}
		}
	}
	finish := protocol.FinishError
	if ctx.Err() != nil {
		err, finish = nil, protocol.FinishAbort
	}
	e.mu.Lock()
	e.ended = err
	if err == nil {
		e.ended = context.Canceled
	}
	requests, calls := e.requests, e.calls
	e.requests, e.calls = nil, nil
	e.mu.Unlock()
	for _, to := range requests {
		to.Receive(&protocol.Output{Finish: finish}, 0)
	}
	for _, reply := range calls {
		reply(nil, errors.New("the engine has ended"))
	}
	return errors.Join(err, e.front.Close())
}

// take hands what a message has to those who wait for it.
func (e *Engine) take(o *protocol.Outputs, aux [][]byte) error {
	for i := range o.Outputs {
		in := &o.Outputs[i]
		e.mu.Lock()
		to := e.requests[string(in.ID)]
		if in.Finish != protocol.Unfinished {
			delete(e.requests, string(in.ID))
		}
		e.mu.Unlock()
		if to == nil {
			continue // it was aborted
		}
		out, err := in.Decode(aux)
		if err != nil {
			return fmt.Errorf("request %s: %w", in.ID, err)
		}
		to.Receive(&out, o.Timestamp)
	}
	if u := o.Utility; u != nil && !protocol.IsNotice(u.CallID) {
		e.mu.Lock()
		reply := e.calls[u.CallID]
		delete(e.calls, u.CallID)
		e.mu.Unlock()
		switch {
		case reply == nil:
		case u.Failed:
			reply(nil, errors.New(u.Failure))
		default:
			reply(readResult(u.Result), nil)
		}
	}
	return nil
}

// readResult is a bool, or nil, or the bytes of something else.
func readResult(raw []byte) any {
	cur := pack.NewCursor(raw)
	if raw == nil || cur.Nil() {
		return nil
	}
	if is, err := cur.Bool(); err == nil {
		return is
	}
	return bytes.Clone(raw)
}

// NewRequest returns a request with the defaults of SamplingParams.
func (e *Engine) NewRequest(int) *player.EngineRequest {
	r := new(protocol.Request)
	r.Reset()
	return r
}

// Submit sends a request. It ends with an error if the engine has ended.
func (e *Engine) Submit(_ int, r *player.EngineRequest) {
	e.mu.Lock()
	err := e.ended
	if err == nil {
		e.requests[r.ID] = r.Receiver
		if err = e.front.Submit(r); err != nil {
			delete(e.requests, r.ID)
			e.log.Warn("a request could not be sent to the engine", "request", r.ID, "error", err)
		}
	}
	e.mu.Unlock()
	if err != nil {
		r.Receiver.Receive(&protocol.Output{Finish: protocol.FinishError}, 0)
	}
}

// Abort ends a request. Its receiver gets nothing more.
func (e *Engine) Abort(_ int, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return
	}
	delete(e.requests, id)
	if err := e.front.Abort(0, id); err != nil {
		e.log.Debug("an abort could not be sent to the engine", "request", id, "error", err)
	}
}

// Call calls a utility method.
func (e *Engine) Call(_ int, call player.UtilityCall) {
	e.mu.Lock()
	err := e.ended
	if err == nil {
		var id uint64
		if id, err = e.front.Call(0, call.Method, call.Args...); err == nil {
			e.calls[id] = call.Reply
		}
	}
	e.mu.Unlock()
	if err != nil {
		call.Reply(nil, fmt.Errorf("the engine cannot be asked: %w", err))
	}
}

// Resume has nothing to do: engines do not wait for clients that read slowly.
func (e *Engine) Resume(int) {}
