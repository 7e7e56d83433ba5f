package conformance

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
)

// maxWorkers bounds how many goldens are replayed at a time: each is in memory, with a player and a frontend.
const maxWorkers = 4

// workers is how many goldens of a plan can be replayed at a time. Only the embedded player can: an engine or a frontend under
// test is one process, or one address, or has the machine to itself.
func (r *Runner) workers(cases []Case) int {
	own := r.Engine != nil || r.Address != "" || r.Frontend != nil || r.KeepAlive != nil
	if own || slices.ContainsFunc(cases, func(c Case) bool { return c.Suite != SuiteReplay || c.Variant.ThroughFrontend() }) {
		return 1
	}
	return min(runtime.GOMAXPROCS(0), maxWorkers)
}

// attempt is what came of a case.
type attempt struct {
	outcome     check.Outcome
	err         error
	took        time.Duration
	interrupted bool // the run ended before
}

// caseGroup is the cases of one golden, which follow each other in a plan.
type caseGroup struct {
	cases    []Case
	golden   *check.Golden
	loaded   chan struct{}  // closed when golden is set
	attempts []chan attempt // one for each case
}

func groupCases(cases []Case) []*caseGroup {
	var groups []*caseGroup
	for i, c := range cases {
		if i == 0 || !sameGolden(c, cases[i-1]) {
			groups = append(groups, &caseGroup{loaded: make(chan struct{})})
		}
		g := groups[len(groups)-1]
		g.cases, g.attempts = append(g.cases, c), append(g.attempts, make(chan attempt, 1))
	}
	return groups
}

// pool makes the attempts at cases, several goldens at a time, and at most one golden more is in memory. With one worker
// there is no goroutine: each attempt is made when it is asked for.
type pool struct {
	run     *run
	ctx     context.Context
	cancel  context.CancelFunc // ends all attempts, whose results are then not asked for
	workers int
	slots   chan struct{} // one for each golden in memory
	working sync.WaitGroup
}

func (r *run) startPool(ctx context.Context, workers int, groups []*caseGroup) *pool {
	p := &pool{run: r, workers: workers, slots: make(chan struct{}, workers+1)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	if workers == 1 {
		return p
	}
	var next atomic.Int64
	var versions sync.Mutex
	for range workers {
		p.working.Go(func() {
			env := r.newEnv(p.ctx)
			for {
				// A group is taken after a slot, so the first group without one is never waited for.
				p.slots <- struct{}{}
				i := int(next.Add(1)) - 1
				if i >= len(groups) {
					<-p.slots
					break
				}
				p.work(env, groups[i])
			}
			env.Finish()
			versions.Lock()
			defer versions.Unlock()
			maps.Copy(r.env.Versions, env.Versions)
		})
	}
	return p
}

func (p *pool) work(env *check.Env, group *caseGroup) {
	g := p.run.load(p.ctx, group.cases[0]) // the group may be released before the last of its cases, which nobody waits for, has been tried
	group.golden = g
	close(group.loaded)
	for i, c := range group.cases {
		group.attempts[i] <- p.run.attempt(p.ctx, env, g, c)
	}
}

// golden returns the golden of a group. Groups are asked for in their order.
func (p *pool) golden(group *caseGroup) *check.Golden {
	if p.workers == 1 {
		return p.run.load(p.ctx, group.cases[0])
	}
	<-group.loaded
	return group.golden
}

// attempt returns what came of a case of a group.
func (p *pool) attempt(group *caseGroup, g *check.Golden, i int) attempt {
	if p.workers == 1 {
		return p.run.attempt(p.ctx, p.run.env, g, group.cases[i])
	}
	return <-group.attempts[i]
}

// release forgets the golden of a group.
func (p *pool) release(group *caseGroup) {
	if p.workers > 1 {
		group.golden = nil
		<-p.slots
	}
}

// wait ends the pool.
func (p *pool) wait() {
	p.working.Wait()
	p.cancel()
	p.run.env.Finish()
}

// attempt makes the assertion of a case, unless it is known to be skipped.
func (r *run) attempt(ctx context.Context, env *check.Env, g *check.Golden, c Case) attempt {
	if c.Skip != "" {
		return attempt{}
	}
	start := time.Now()
	env.Case = c.Name()
	f, err := r.assert(ctx, env, g, c)
	return attempt{f, err, time.Since(start), ctx.Err() != nil}
}
