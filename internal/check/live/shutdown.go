package live

import (
	"context"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
)

// checkStatistics has four requests run and looks at what the engine says of
// itself afterwards.
func (l *live) checkStatistics() error {
	before := l.statsSeen
	var asks []*ask
	for i := range 4 {
		a, err := l.ask(l.prompt(8+i), greedy(8))
		if err != nil {
			return err
		}
		asks = append(asks, a)
	}
	if err := l.await(asks...); err != nil {
		return err
	}
	if err := l.barrier(); err != nil {
		return err
	}
	if l.statsSeen == before {
		l.f.Asserted = 0
		l.f.AddNote("the engine sends no scheduler_stats")
		return nil
	}
	l.f.Asserted++
	if l.gauges != (gauges{}) {
		l.f.Fail(check.Failed(CodeGauges, "all requests have ended, and scheduler_stats say %d running, %d waiting, KV cache usage %v",
			l.gauges.running, l.gauges.waiting, l.gauges.usage).
			Within(l.messages, "EngineCoreOutputs.scheduler_stats").Compared("0 running, 0 waiting, 0 used", fmt.Sprint(l.gauges)))
	}
	return nil
}

// checkShutdown ends the engine while a request is open, by SIGTERM if it is a
// process, and waits for its end.
func (l *live) checkShutdown() error {
	owner := l.s.Owner()
	switch {
	case owner.Remote:
		l.f.AddNote("somebody else runs the engine")
		return nil
	case l.env.KeepAlive != nil:
		l.f.AddNote("the engine is kept alive")
		return nil
	}
	a, err := l.ask(l.prompt(8), greedy(min(512, max(l.s.Engine.Ready.MaxModelLen/2, 2))))
	if err != nil {
		return err
	}
	if err := l.awaitOutput(a); err != nil {
		return err
	}
	owner.Lost = errShutDown
	owner.Cancel(context.Canceled)
	<-owner.Done
	l.f.Asserted++
	l.checkExit()
	return nil
}

var errShutDown = check.WithCode(check.CodeEngineEnded, fmt.Errorf("the shutdown case has ended it"))

// checkExit looks at how a process ended.
func (l *live) checkExit() {
	ended, ok := l.s.Subject.(interface {
		End() (*process.ExitError, bool)
	})
	if !ok {
		return
	}
	exit, killed := ended.End()
	switch {
	case exit == nil:
		l.f.Fail(check.Failed(CodeShutdown, "the engine has not ended, not even by SIGKILL"))
	case killed:
		l.f.Fail(check.Failed(CodeShutdown, "the engine did not end within the grace after SIGTERM and was killed: %s\n%s", check.FirstLine(exit), safetext.Block(exit.Tail)).
			Compared("an end within the grace", exit.Status))
	default:
		l.f.AddNote("ended by SIGTERM: " + exit.Status)
	}
}
