package live

import (
	_ "embed"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeStatistics check.Code = "E019" // scheduler_stats lack a key or have a value that cannot be
	CodeGauges     check.Code = "E020" // the gauges of scheduler_stats do not return to 0
)

//go:embed statistics.md
var statisticsCodes string

var statistics = check.Check{Name: Statistics, Codes: statisticsCodes, Levels: []check.Level{check.LevelStatistics}, Run: judged((*live).checkStatistics)}

// checkStatistics runs four requests and compares the gauges afterwards. Then it aborts
// a request that runs alone: a real engine makes one more step, which reports that
// nothing runs (vllm/v1/core/sched/scheduler.py has_finished_requests). Without it an
// idle engine looks busy to routers and autoscalers until the next request.
func (l *live) checkStatistics() error {
	before := l.statsSeen
	if err := l.askMany(4, func(i int) (prompt, tokens int) { return 8 + i, 8 }); err != nil {
		return err
	}
	if l.statsSeen == before {
		l.f.Asserted = 0
		l.f.AddNote("the engine sends no scheduler_stats")
		return nil
	}
	if l.checkGauges("all requests have ended"); l.gauges != (gauges{}) {
		return nil
	}
	hit, err := l.tryAborts(l.abortLone)
	if err != nil {
		return err
	}
	if !hit {
		l.f.AddNote("every request had ended before the engine read its abort, so the gauges after an abort were not judged")
		return nil
	}
	// The step in which the abort came may take a while, and the next one follows it.
	for l.gauges != (gauges{}) {
		if err := l.receive(); check.CodeOf(err) == check.CodeSilence && l.ctx.Err() == nil {
			break
		} else if err != nil {
			return err
		}
	}
	l.checkGauges("the only request was aborted")
	return nil
}

// abortLone aborts the only request, and reports whether it was open when the engine read its abort.
func (l *live) abortLone() (hit bool, err error) {
	victim, err := l.askLong()
	if err != nil {
		return false, err
	}
	err = l.abort(victim)
	return victim.finish == protocol.Unfinished, err
}

// checkGauges compares the gauges that came last with those of an idle engine.
func (l *live) checkGauges(why string) {
	l.f.Asserted++
	if l.gauges != (gauges{}) {
		l.f.Fail(check.Failed(CodeGauges, "%s, and scheduler_stats say %d running, %d waiting, KV cache usage %v",
			why, l.gauges.running, l.gauges.waiting, l.gauges.usage).
			Within(l.messages, "EngineCoreOutputs.scheduler_stats").Compared("0 running, 0 waiting, 0 used", fmt.Sprint(l.gauges)))
	}
}
