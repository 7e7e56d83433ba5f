package player

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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
	images          imageCache
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
	if call.Reply != nil {
		call.Reply(result, err)
		return
	}
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
	_, known := e.codec.Profile().Utilities[call.Method]
	if err := e.codec.CheckCall(&call); err != nil && (!known || !e.opt.Tolerant) {
		return nil, err
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
	case "reset_mm_cache":
		e.state.images = imageCache{}
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
	case "reset_encoder_cache", "profile", "execute_dummy_batch":
		return nil, nil
	case "get_weight_version":
		return e.state.weightVersion, nil
	case "set_weight_version":
		version, err := stringArg(call, 0)
		if err == nil {
			e.state.weightVersion = version
		}
		return nil, err
	case "add_lora", "remove_lora", "pin_lora", "list_loras":
		return e.callLoRA(call)
	case "collective_rpc":
		return e.callWorker(call)
	case "compute_weight_checksums":
		return pack.AppendMapHeader(pack.AppendArrayHeader(nil, 1), 0), nil // one worker without weights
	}
	return nil, fmt.Errorf("the player cannot do this: it has no weights, workers or peers")
}

// errNoLoRA and errNoTransfer are the errors of vllm/v1/worker/lora_model_runner_mixin.py and
// gpu_worker.py, of an engine that was started without.
var (
	//lint:ignore ST1005 the words of vLLM
	errNoLoRA = errors.New("LoRA is not enabled. Use --enable-lora to enable LoRA.")
	//lint:ignore ST1005 the words of vLLM
	errNoTransfer = errors.New("Weight transfer not configured. Please set weight_transfer_config to enable weight transfer.")
)

func (e *engine) callLoRA(call protocol.UtilityCall) (any, error) {
	if !e.ready.SupportsLoRA {
		return nil, errNoLoRA
	}
	switch call.Method {
	case "add_lora":
		return e.addLoRA(call)
	case "remove_lora":
		id, err := intArg(call, 0)
		_, loaded := e.state.loras[id]
		if err == nil {
			delete(e.state.loras, id)
		}
		return loaded, err
	case "pin_lora":
		return e.pinLoRA(call)
	}
	return e.loraIDs(), nil
}

// callWorker calls a method of the one worker that there is. What frontends call in a worker,
// to change its weights, wants an engine that was told how; nothing else is there to be called.
func (e *engine) callWorker(call protocol.UtilityCall) (any, error) {
	method, err := stringArg(call, 0)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(transferMethods, method):
		return nil, errNoTransfer
	case !e.ready.SupportsLoRA && slices.Contains(loraMethods, method):
		return nil, errNoLoRA
	case !slices.Contains(workerMethods, method):
		return nil, fmt.Errorf("'Worker' object has no attribute '%s'", method)
	}
	return pack.AppendNil(pack.AppendArrayHeader(nil, 1)), nil // it returns None
}

// Methods of a worker (vllm/v1/worker/gpu_worker.py): of weight transfer, of adapters, and
// those that return nothing.
var (
	transferMethods = []string{"init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"}
	loraMethods     = []string{"add_lora", "remove_lora", "pin_lora", "list_loras"}
	workerMethods   = []string{"check_health", "execute_dummy_batch", "reset_mm_cache", "reset_encoder_cache"}
)

func (e *engine) addLoRA(call protocol.UtilityCall) (any, error) {
	if len(call.Args) < 1 {
		return nil, errors.New("no adapter given")
	}
	lora, err := protocol.DecodeLoRA(call.Args[0])
	if err != nil {
		return nil, fmt.Errorf("argument 0: %w", err)
	}
	if err := e.checkLoRA(lora); err != nil {
		return nil, err
	}
	e.loadLoRA(lora.ID)
	return true, nil
}

// pinLoRA keeps an adapter loaded (vllm/lora/model_manager.py pin_adapter).
func (e *engine) pinLoRA(call protocol.UtilityCall) (any, error) {
	id, err := intArg(call, 0)
	if err != nil {
		return nil, err
	}
	a := e.state.loras[id]
	if a == nil {
		return nil, notLoaded{id}
	}
	a.pinned = true
	return true, nil
}

// loraIDs are the numbers of the loaded adapters, lowest first.
func (e *engine) loraIDs() []int64 {
	return append([]int64{}, slices.Sorted(maps.Keys(e.state.loras))...)
}

// resetPrefixCache reports whether the cache could be emptied: not while requests
// hold blocks, unless these are to be computed again
// (vllm/v1/core/sched/scheduler.py reset_prefix_cache). The next statistics
// report it.
func (e *engine) resetPrefixCache(running, connector bool) (bool, error) {
	if running {
		for _, r := range e.scheduler.PreemptAll() {
			r.Owner.addEvent(protocol.EventPreempted, e.clock.Now())
		}
	}
	done := e.pool.Reset()
	e.counters.reset = e.counters.reset || done
	if e.publish != nil && e.opt.KVCache.Events.AtOnce {
		e.publish(e.pool.TakeEvents())
	}
	if running && !done {
		return false, errors.New("the KV cache was not emptied: requests hold blocks that are transferred from or to another engine")
	}
	if connector && e.connector != nil {
		e.connector.stats.Reset = true // nothing else is there to forget
	}
	return done, nil
}

// readArg reads an argument of a call.
func readArg[T any](call protocol.UtilityCall, i int, read func(*pack.Cursor) (T, error)) (value T, err error) {
	if i >= len(call.Args) {
		return value, fmt.Errorf("argument %d is missing", i)
	}
	cur := pack.NewCursor(call.Args[i])
	if value, err = read(&cur); err != nil {
		err = fmt.Errorf("argument %d: %w", i, err)
	}
	return value, err
}

func stringArg(call protocol.UtilityCall, i int) (string, error) {
	return readArg(call, i, func(cur *pack.Cursor) (string, error) {
		s, err := cur.StrString()
		if err == nil && !utf8.ValidString(s) {
			err = fmt.Errorf("%q: %w", s, errNotText)
		}
		return s, err
	})
}

func intArg(call protocol.UtilityCall, i int) (int64, error) {
	return readArg(call, i, (*pack.Cursor).Int)
}

func boolArg(call protocol.UtilityCall, i int) bool {
	is, err := readArg(call, i, (*pack.Cursor).Bool)
	return is && err == nil
}

// sleepTags are the parts of GPU memory that a sleeping engine has given up
// (vllm/v1/executor/abstract.py SLEEP_TAGS).
var sleepTags = [...]string{"weights", "kv_cache"}

// pendingCall is a pause that waits for what runs.
type pendingCall struct {
	client int
	call   protocol.UtilityCall
}

// errDeferred: the call is answered once no request runs any more.
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
	e.state.images = imageCache{}
	_, err := e.resetPrefixCache(true, true)
	return err
}

// idle reports whether there is nothing to make steps for.
func (e *engine) idle() bool {
	switch e.scheduler.Pause {
	case scheduler.PausedAll:
		return !e.current.active
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
	e.sleepLevel.Store(int32(min(max(level, 0), 2)))
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
		e.sleepLevel.Store(0)
		e.resume()
	}
	if e.codec.Profile().Utilities["wake_up"].Result == protocol.ResultBool {
		return awake, nil
	}
	return nil, nil
}

// stillAsleep is what remains asleep when the tags wake up: nothing when there
// are no tags, everything when one of them is not asleep, as in a real engine.
// "scheduling" means a sleep of level 0, which frees no memory.
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
	return readArg(call, i, func(cur *pack.Cursor) ([]string, error) {
		if cur.Nil() {
			return nil, nil
		}
		return decodeTexts(cur)
	})
}

// decodeTexts reads a list of texts.
func decodeTexts(cur *pack.Cursor) ([]string, error) {
	n, err := cur.ArrayLen()
	texts := []string{}
	for i := 0; i < n && err == nil; i++ {
		var text string
		text, err = cur.StrString()
		texts = append(texts, text)
	}
	return texts, err
}
