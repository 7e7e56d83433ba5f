package player

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// adapters are the LoRA adapters that an engine has loaded, by number.
type adapters map[int64]*adapter

type adapter struct {
	used   uint64 // when it was used last, counted in uses of any
	pinned bool   // never gives its place to another one
}

// knowLoRA says why an adapter cannot be used. A real engine finds out when it computes
// the first step of a request, and dies of it with all others: here only those end that
// ask for such an adapter.
func (e *engine) knowLoRA(l *protocol.LoRA) error {
	if e.opt.LoRA.Names == nil || slices.Contains(e.opt.LoRA.Names, l.Name) {
		return nil
	}
	return noAdapter{l.Name, l.Path}
}

// noAdapter is vLLM's LoRAAdapterNotFoundError, in its words (vllm/exceptions.py).
type noAdapter struct{ name, path string }

func (e noAdapter) Error() string {
	return fmt.Sprintf("Loading lora %s failed: No adapter found for %s", e.name, e.path)
}

// notLoaded is what pinning answers for an adapter that is not there, in vLLM's words
// (vllm/lora/model_manager.py _pin_lora_in_cpu_cache).
type notLoaded struct{ id int64 }

func (e notLoaded) Error() string {
	return fmt.Sprintf("Pinning failed. LoRA %d is not registered.", e.id)
}

// checkLoRAs refuses numbers of adapters that no engine starts with.
func (o *Options) checkLoRAs() error {
	if o.LoRA.MaxCPULoRAs > 0 && o.LoRA.MaxCPULoRAs < o.LoRA.MaxLoRAs {
		return fmt.Errorf("%d adapters can be loaded, and %d run at once: want at least as many", o.LoRA.MaxCPULoRAs, o.LoRA.MaxLoRAs)
	}
	return nil
}

// offerLoRAs registers that there are adapters.
func (o *Options) offerLoRAs(r *protocol.ReadyResponse) {
	if o.LoRA.MaxLoRAs == 0 && o.LoRA.Names == nil {
		return
	}
	r.SupportsLoRA = true
	r.MaxLoRAs = cmp.Or(o.LoRA.MaxLoRAs, r.MaxLoRAs, len(o.LoRA.Names), 1)
}

// mostLoaded is how many adapters are loaded at a time; 0 is any number.
func (o *Options) mostLoaded() int { return cmp.Or(o.LoRA.MaxCPULoRAs, o.LoRA.MaxLoRAs) }

// load makes an adapter the one that was used last. When there are as many as fit, the
// one that was not used for the longest time goes
// (vllm/lora/worker_manager.py LRUCacheWorkerLoRAManager.add_adapter).
func (e *engine) load(id int64) {
	s := &e.state
	if s.loras == nil {
		s.loras = adapters{}
	}
	a := s.loras[id]
	if a == nil {
		if most := e.opt.mostLoaded(); most > 0 && len(s.loras) >= most {
			e.dropOldest()
		}
		a = &adapter{}
		s.loras[id] = a
	}
	s.uses++
	a.used = s.uses
}

// dropOldest makes room for an adapter. Those in the batch have just been used.
func (e *engine) dropOldest() {
	s := &e.state
	for _, r := range e.scheduler.Running() {
		if a := s.loras[r.LoRA]; a != nil {
			s.uses++
			a.used = s.uses
		}
	}
	s.loras.dropOldest()
}

func (all adapters) dropOldest() {
	oldest, found := int64(0), false
	for id, a := range all {
		if !a.pinned && (!found || a.used < all[oldest].used) {
			oldest, found = id, true
		}
	}
	if found {
		delete(all, oldest)
	}
}

func (e *engine) addLoRA(call protocol.UtilityCall) (any, error) {
	if len(call.Args) < 1 {
		return nil, fmt.Errorf("no adapter given")
	}
	lora, err := protocol.DecodeLoRA(call.Args[0])
	if err != nil {
		return nil, fmt.Errorf("argument 0: %w", err)
	}
	if err := e.knowLoRA(lora); err != nil {
		return nil, err
	}
	e.load(lora.ID)
	return true, nil
}

func (e *engine) removeLoRA(call protocol.UtilityCall) (any, error) {
	id, err := intArg(call, 0)
	_, loaded := e.state.loras[id]
	if err == nil {
		delete(e.state.loras, id)
	}
	return loaded, err
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
	ids := make([]int64, 0, len(e.state.loras))
	for id := range e.state.loras {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, cmp.Compare[int64])
	return ids
}
