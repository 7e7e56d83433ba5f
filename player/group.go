package player

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Group is several engine cores in one process, in front of one frontend: the ranks of
// a data-parallel deployment, or a part of them. Each has sockets, requests and caches
// of its own; the waves of their requests are shared, and so is a source.
type Group struct {
	players []*Player
	up      chan struct{}
}

// NewGroup prepares one player for each of the options, which name different engines,
// see [Ranks]. A source in the options must be safe for concurrent use.
func NewGroup(options []Options) (*Group, error) {
	if len(options) == 0 {
		return nil, errors.New("a group needs at least one engine")
	}
	g := &Group{up: make(chan struct{})}
	taken := map[int]bool{}
	for _, opt := range options {
		if taken[opt.EngineIndex] {
			return nil, fmt.Errorf("engine index %d is given twice", opt.EngineIndex)
		}
		taken[opt.EngineIndex] = true
		if opt.DataParallelSize == 0 && len(options) > 1 {
			opt.DataParallelSize = len(options)
		}
		p, err := New(opt)
		if err != nil {
			return nil, nameEngine(err, opt.EngineIndex, len(options))
		}
		g.players = append(g.players, p)
	}
	first := g.players[0]
	w := newWaves(first.Line(), len(g.players), len(g.players) >= first.ready.DataParallelSize)
	for rank, p := range g.players {
		p.waves, p.rank = w, rank
	}
	return g, nil
}

// nameEngine adds to an error which of several engines it is of.
func nameEngine(err error, index, count int) error {
	if count == 1 {
		return err
	}
	return fmt.Errorf("engine %d: %w", index, err)
}

// Ranks are the options of count engines with consecutive indexes, beginning with that
// of opt, which answer out of one source.
func Ranks(opt Options, count int) ([]Options, error) {
	if count < 1 {
		return nil, fmt.Errorf("%d engines: want at least one", count)
	}
	source, err := opt.withDefaults().source()
	if err != nil {
		return nil, err
	}
	opt.Source = source
	if opt.DataParallelSize == 0 && count > 1 {
		opt.DataParallelSize = opt.EngineIndex + count
	}
	if opt.DataParallelSize > 0 && opt.EngineIndex+count > opt.DataParallelSize {
		return nil, fmt.Errorf("engines %d to %d do not fit into a group of %d engines", opt.EngineIndex, opt.EngineIndex+count-1, opt.DataParallelSize)
	}
	all := slices.Repeat([]Options{opt}, count)
	for i := range all {
		all[i].EngineIndex += i
	}
	return all, nil
}

// Ready is closed when every engine has registered and sent READY.
func (g *Group) Ready() <-chan struct{} { return g.up }

// Line returns the vLLM line of the players' messages.
func (g *Group) Line() string { return g.players[0].Line() }

// EngineInfo describes an engine as it has registered, or will.
type EngineInfo struct {
	Index                                int
	BlockSize, NumGPUBlocks, MaxModelLen int
	PrefixCaching                        bool
	// MaxLoRAs is how many adapters run in one step: -1 without a limit, 0 without LoRA.
	MaxLoRAs int
	// SleepLevel is that of the last call of sleep, 0 for an engine that is awake.
	SleepLevel int
}

// Engines describes the engines. It may be called at any time.
func (g *Group) Engines() []EngineInfo {
	all := make([]EngineInfo, len(g.players))
	for i, p := range g.players {
		all[i] = EngineInfo{
			Index: p.opt.EngineIndex, BlockSize: p.ready.BlockSize, NumGPUBlocks: p.ready.NumGPUBlocks, MaxModelLen: p.ready.MaxModelLen,
			PrefixCaching: p.opt.caching(), SleepLevel: int(p.engine.sleepLevel.Load()),
		}
		if p.ready.SupportsLoRA {
			if all[i].MaxLoRAs = p.opt.LoRA.MaxLoRAs; all[i].MaxLoRAs == 0 {
				all[i].MaxLoRAs = -1
			}
		}
	}
	return all
}

// UnmatchedFaults returns the faults of the options whose pattern no request has had, on any engine, and how many requests there
// were. It may be called when [Group.Run] has returned.
func (g *Group) UnmatchedFaults() (unmatched []Fault, requests int) {
	matched := map[Fault]int{}
	for _, p := range g.players {
		if d := p.engine.faults; d != nil {
			requests += d.requests
			for i, f := range d.faults {
				matched[f] += d.matched[i]
			}
		}
	}
	for _, f := range g.players[0].opt.Faults {
		if matched[f] == 0 {
			unmatched = append(unmatched, f)
		}
	}
	return unmatched, requests
}

// Run serves the frontend with all engines until ctx ends, which returns nil. When one
// of them fails, or the frontend leaves it, the others are shut down, and the error of
// the first one is returned. A group runs once.
func (g *Group) Run(ctx context.Context) error { return g.run(ctx, (*Player).Run) }

func (g *Group) run(ctx context.Context, run func(*Player, context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	failures := make(chan error, len(g.players))
	for _, p := range g.players {
		running.Go(func() {
			if err := run(p, ctx); err != nil {
				failures <- nameEngine(err, p.opt.EngineIndex, len(g.players))
			}
			cancel() // an engine that has ended leaves the others nothing to do
		})
	}
	running.Go(func() { g.await(ctx) })
	running.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

// await returns when all are ready, or when ctx ends.
func (g *Group) await(ctx context.Context) {
	for _, p := range g.players {
		select {
		case <-p.Ready():
			continue
		case <-ctx.Done():
		}
		select {
		case <-p.Ready(): // it was, when it ended
		default:
			return
		}
	}
	close(g.up)
}
