package player

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// engineState is what utility calls read and change.
type engineState struct {
	asleep          []string // what is not in GPU memory, see sleepTags
	refusesRequests bool     // after pause_generation, until resumed (0.33)
	draining        []pendingCall
	weightVersion   string
	loras           adapters
	uses            uint64                  // of adapters
	stats           protocol.SchedulerStats // scratch of takeStats
	external        protocol.CacheStats     // likewise
}

// utility answers a call as the line's engine would; a method that the line's
// engine does not have, or a player cannot do, is answered with a failure.
func (e *engine) utility(call protocol.UtilityCall, client int) {
	if call.ClientIndex < len(e.batches) {
		client = call.ClientIndex
	}
	result, err := e.call(call)
	if err == errDeferred {
		e.state.draining = append(e.state.draining, pendingCall{client, call})
		return
	}
	e.reply(call, client, result, err)
}

func (e *engine) reply(call protocol.UtilityCall, client int, result any, err error) {
	now := seconds(e.clock.Now())
	if err == nil {
		var m protocol.ClientMessage
		if m, err = e.codec.UtilityResult(e.index, call, result, now); err == nil {
			e.send(client, m)
			return
		}
	}
	e.log.Warn("utility call failed", "method", call.Method, "error", err)
	e.send(client, e.codec.UtilityFailure(e.index, call, err.Error(), now))
}

func (e *engine) call(call protocol.UtilityCall) (any, error) {
	if _, known := e.codec.Profile().Utilities[call.Method]; !known {
		return nil, fmt.Errorf("'EngineCoreProc' object has no attribute '%s'", call.Method)
	}
	switch call.Method {
	case "get_supported_tasks":
		return e.opt.tasks(), nil
	case "is_sleeping":
		return e.scheduler.Pause != scheduler.Unpaused || len(e.state.asleep) > 0, nil
	case "is_scheduler_paused":
		return e.scheduler.Pause != scheduler.Unpaused, nil
	case "sleep":
		return nil, e.sleep(call)
	case "wake_up":
		return e.wakeUp(call)
	case "pause_scheduler", "pause_generation":
		return nil, e.pauseFor(call)
	case "resume_scheduler":
		e.resume()
		return nil, nil
	case "release_kv_cache_memory":
		return nil, e.releaseKVCache()
	case "reset_prefix_cache":
		return e.resetPrefixCache(boolArg(call, 0), boolArg(call, 1))
	}
	return e.callPassive(call)
}

// callPassive answers the methods that change nothing a replay depends on.
func (e *engine) callPassive(call protocol.UtilityCall) (any, error) {
	switch call.Method {
	case "reset_mm_cache", "reset_encoder_cache", "profile", "execute_dummy_batch":
		return nil, nil
	case "get_weight_version":
		return e.state.weightVersion, nil
	case "set_weight_version":
		version, err := stringArg(call, 0)
		if err == nil {
			e.state.weightVersion = version
		}
		return nil, err
	case "add_lora":
		return e.addLoRA(call)
	case "remove_lora":
		return e.removeLoRA(call)
	case "pin_lora":
		return e.pinLoRA(call)
	case "list_loras":
		return e.loraIDs(), nil
	case "collective_rpc":
		return pack.AppendNil(pack.AppendArrayHeader(nil, 1)), nil // one worker, which returns None
	case "compute_weight_checksums":
		return pack.AppendMapHeader(pack.AppendArrayHeader(nil, 1), 0), nil // one worker without weights
	}
	return nil, fmt.Errorf("a player has no weights, workers or peers to do it with")
}

// resetPrefixCache reports whether the cache could be emptied: not while requests
// hold blocks, unless these are to be computed again
// (vllm/v1/core/sched/scheduler.py reset_prefix_cache). The next statistics tell
// of it.
func (e *engine) resetPrefixCache(running, connector bool) (bool, error) {
	if running {
		for _, r := range e.scheduler.PreemptAll() {
			r.Owner.note(protocol.EventPreempted, e.clock.Now())
		}
	}
	done := e.pool.Reset()
	e.reset = e.reset || done
	if running && !done {
		return false, errors.New("requests hold blocks that they pull, or keep, for another engine: the KV cache is not emptied")
	}
	if connector && e.connector != nil {
		e.connector.stats.Reset = true // nothing else is there to forget
	}
	return done, nil
}

func stringArg(call protocol.UtilityCall, i int) (string, error) {
	if i >= len(call.Args) {
		return "", fmt.Errorf("argument %d is missing", i)
	}
	cur := pack.NewCursor(call.Args[i])
	s, err := cur.StrString()
	if err == nil && !utf8.ValidString(s) {
		err = fmt.Errorf("%q: %w", s, errNotText)
	}
	if err != nil {
		return "", fmt.Errorf("argument %d: %w", i, err)
	}
	return s, nil
}

func intArg(call protocol.UtilityCall, i int) (int64, error) {
	if i >= len(call.Args) {
		return 0, fmt.Errorf("argument %d is missing", i)
	}
	cur := pack.NewCursor(call.Args[i])
	n, err := cur.Int()
	if err != nil {
		return 0, fmt.Errorf("argument %d: %w", i, err)
	}
	return n, nil
}

func boolArg(call protocol.UtilityCall, i int) bool {
	if i >= len(call.Args) {
		return false
	}
	cur := pack.NewCursor(call.Args[i])
	b, err := cur.Bool()
	return b && err == nil
}
