package player

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// sleepTags are the parts of GPU memory that a sleeping engine has given up
// (vllm/v1/executor/abstract.py SLEEP_TAGS).
var sleepTags = [...]string{"weights", "kv_cache"}

// pendingCall is a pause that waits for what runs.
type pendingCall struct {
	client int
	call   protocol.UtilityCall
}

// errDeferred says that the call is answered once nothing runs any more.
var errDeferred = errors.New("answered later")

// answerDrained replies to the pauses that waited for the requests to end.
func (e *engine) answerDrained() {
	if len(e.state.draining) == 0 || !e.idle() {
		return
	}
	for _, p := range e.state.draining {
		e.reply(p.call, p.client, nil, e.finishPause(p.call))
	}
	e.state.draining = nil
}

// finishPause empties the caches once nothing runs any more, unless the call that paused
// does not want it (vllm/v1/engine/core.py _finish_pause).
func (e *engine) finishPause(call protocol.UtilityCall) error {
	clear := len(call.Args) < 2 || boolArg(call, 1)
	if call.Method == "sleep" {
		level, err := levelArg(call)
		clear = err == nil && level >= 1
	}
	if !clear {
		return nil
	}
	_, err := e.resetPrefixCache(true, true)
	return err
}

// idle tells whether there is nothing to make steps for.
func (e *engine) idle() bool {
	switch e.scheduler.Pause {
	case scheduler.PausedAll:
		return !e.flight.on
	case scheduler.PausedNew:
		return len(e.scheduler.Running()) == 0
	}
	return len(e.byID) == 0
}

// pauseFor pauses as a frontend's call asks. pause_generation (0.33) also
// decides whether new requests are refused or queued
// (vllm/v1/engine/core.py pause_generation).
func (e *engine) pauseFor(call protocol.UtilityCall) error {
	mode, err := modeArg(call, 0)
	if err != nil {
		return err
	}
	if call.Method == "pause_generation" {
		e.state.refusesRequests = mode != "keep"
	}
	return e.pauseIn(mode, call)
}

// pauseIn stops the steps: "abort" ends every request, "wait" lets finish what
// runs, "keep" freezes it. It returns errDeferred while something runs.
func (e *engine) pauseIn(mode string, call protocol.UtilityCall) error {
	e.scheduler.Pause = scheduler.PausedNew
	switch mode {
	case "abort":
		e.abortAll()
	case "keep":
		e.scheduler.Pause = scheduler.PausedAll
	}
	if !e.idle() {
		return errDeferred
	}
	return e.finishPause(call)
}

func (e *engine) resume() { e.scheduler.Pause, e.state.refusesRequests = scheduler.Unpaused, false }

// sleep frees the GPU in a real engine, from level 1 on; here requests wait
// until wake_up.
func (e *engine) sleep(call protocol.UtilityCall) error {
	level, err := levelArg(call)
	if err != nil {
		return err
	}
	mode, err := modeArg(call, 1)
	if err != nil {
		return err
	}
	if level >= 1 {
		e.state.asleep = sleepTags[:]
	}
	return e.pauseIn(mode, call)
}

// levelArg reads how deep to sleep, by default as deep as keeps the weights.
func levelArg(call protocol.UtilityCall) (int64, error) {
	if len(call.Args) == 0 {
		return 1, nil
	}
	return intArg(call, 0)
}

// wakeUp resumes once everything is back in memory: a frontend may wake up the
// weights and the KV cache one after the other. It returns whether that is so on
// lines where the method returns a bool (0.31 and later), else nothing.
func (e *engine) wakeUp(call protocol.UtilityCall) (any, error) {
	tags, err := tagsArg(call, 0)
	if err != nil {
		return nil, err
	}
	e.state.asleep = stillAsleep(e.state.asleep, tags)
	awake := len(e.state.asleep) == 0
	if awake {
		e.resume()
	}
	if e.codec.Profile().Utilities["wake_up"].Result == protocol.ResultBool {
		return awake, nil
	}
	return nil, nil
}

// stillAsleep is what remains asleep when the tags wake up: nothing when there
// are no tags, everything when one of them is not asleep, as in a real engine.
// "scheduling" stands for a sleep of level 0, which frees no memory.
func stillAsleep(asleep, tags []string) []string {
	if tags == nil {
		return nil
	}
	rest := slices.Clone(asleep)
	for _, tag := range tags {
		if tag == "scheduling" {
			continue
		}
		at := slices.Index(rest, tag)
		if at < 0 {
			return asleep
		}
		rest = slices.Delete(rest, at, at+1)
	}
	return rest
}

// releaseKVCache gives up the KV cache's memory until wake_up, as a real engine
// does only when it is paused and awake (0.31 and later).
func (e *engine) releaseKVCache() error {
	switch {
	case e.scheduler.Pause == scheduler.Unpaused || !e.idle():
		return errors.New("release_kv_cache_memory() requires a completed pause first")
	case len(e.state.asleep) > 0:
		return errors.New("release_kv_cache_memory() requires all executor memory to be resident")
	}
	e.state.asleep = []string{"kv_cache"}
	return nil
}

// modeArg reads a pause mode, which defaults to "abort" as in the engine's
// signature.
func modeArg(call protocol.UtilityCall, i int) (string, error) {
	if i >= len(call.Args) {
		return "abort", nil
	}
	mode, err := stringArg(call, i)
	if err != nil || mode != "abort" && mode != "wait" && mode != "keep" {
		return "", fmt.Errorf("mode %s: want abort, wait or keep", pack.Format(call.Args[i]))
	}
	return mode, nil
}

// tagsArg reads a list of names; nil when there is none.
func tagsArg(call protocol.UtilityCall, i int) ([]string, error) {
	if i >= len(call.Args) {
		return nil, nil
	}
	cur := pack.NewCursor(call.Args[i])
	if cur.Nil() {
		return nil, nil
	}
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, fmt.Errorf("argument %d: %w", i, err)
	}
	tags := make([]string, 0, n)
	for range n {
		tag, err := cur.StrString()
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i, err)
		}
		tags = append(tags, tag)
	}
	return tags, nil
}
