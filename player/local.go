package player

import (
	"context"
	"errors"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// What passes between the engines of a group and a frontend in the same process, see [Group.RunLocal]: the values that are
// messages between processes.
type (
	EngineRequest  = protocol.Request
	EngineOutput   = protocol.Output
	EngineStats    = protocol.SchedulerStats
	EngineReceiver = protocol.Receiver
	UtilityCall    = protocol.UtilityCall
)

// RunLocal is [Group.Run] for a frontend in this process, which sends its requests by [Group.Submit]: no socket is opened, and the
// handshake address is not used. report takes the statistics of each step of an engine, valid during the call, from the goroutine
// of this engine.
func (g *Group) RunLocal(ctx context.Context, report func(engine int, s *EngineStats)) error {
	for i, p := range g.players {
		p.engine.report = func(s *EngineStats) { report(i, s) }
	}
	return g.run(ctx, (*Player).runLocal)
}

// runLocal is Run without sockets.
func (p *Player) runLocal(ctx context.Context) error {
	defer p.stopClock()
	if err := p.openKVEvents(); err != nil {
		return err
	}
	defer p.closeKVEvents()
	close(p.up)
	defer p.startFetching(ctx)()
	err := p.serve(ctx)
	if errors.Is(err, ErrKilled) {
		for _, q := range p.engine.byID { // a frontend in another process finds its engine dead
			p.opt.Requests.output(p.engine, q.id, nil, protocol.FinishError)
			p.engine.cancel(q)
			q.stream.Receiver().Receive(&protocol.Output{Finish: protocol.FinishError}, seconds(p.engine.clock.Now()))
		}
	}
	p.engine.abortAll()
	for _, e := range p.inbox.take() { // those that came too late
		if e.request != nil {
			e.request.Receiver.Receive(&protocol.Output{Finish: protocol.FinishAbort}, seconds(p.opt.Clock.Now()))
		}
	}
	return err
}

// NewRequest returns a request with the defaults of SamplingParams, to be filled and submitted to an engine. Its Receiver has to
// be set.
func (g *Group) NewRequest(engine int) *EngineRequest {
	r := g.players[engine].inbox.request()
	r.Reset()
	return r
}

// Submit hands a request of [Group.NewRequest] to an engine, the n-th one of the group from 0. It is the engine's from then on.
func (g *Group) Submit(engine int, r *EngineRequest) {
	g.players[engine].inbox.put(event{request: r})
}

// Abort ends a request. Its receiver may still get outputs that were on their way, and no last one.
func (g *Group) Abort(engine int, id string) {
	g.players[engine].inbox.put(event{abort: []string{id}})
}

// Call calls a utility method of an engine. Its result goes to call.Reply, from the goroutine of the engine.
func (g *Group) Call(engine int, call UtilityCall) {
	g.players[engine].inbox.put(event{call: &call})
}

// Resume makes an engine ask receivers again whether they are full.
func (g *Group) Resume(engine int) { g.players[engine].inbox.ring() }
