package player

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// adapters are the LoRA adapters that an engine has loaded, by number.
type adapters map[int64]*adapter

type adapter struct {
	used   uint64 // when it was used last, counted in uses of any
	pinned bool   // never gives its place to another one
}

// checkLoRA returns why an adapter cannot be used. A real engine finds out when it computes
// the first step of a request, and dies of it with all others: here only those end that
// ask for such an adapter. KV events repeat the name, so it must be a string that others
// can read.
func (e *engine) checkLoRA(l *protocol.LoRA) error {
	if !utf8.ValidString(l.Name) {
		return fmt.Errorf("lora_name: %q is not UTF-8", l.Name)
	}
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

// loadLoRA makes an adapter the one that was used last. When there are as many as fit, the
// one that was not used for the longest time goes
// (vllm/lora/worker_manager.py LRUCacheWorkerLoRAManager.add_adapter).
func (e *engine) loadLoRA(id int64) {
	s := &e.state
	if s.loras == nil {
		s.loras = adapters{}
	}
	a := s.loras[id]
	if a == nil {
		if most := cmp.Or(e.opt.LoRA.MaxCPULoRAs, e.opt.LoRA.MaxLoRAs); most > 0 && len(s.loras) >= most {
			for _, r := range e.scheduler.Running() { // those in the batch have just been used
				if a := s.loras[r.LoRA]; a != nil {
					s.uses++
					a.used = s.uses
				}
			}
			s.loras.dropOldest()
		}
		a = &adapter{}
		s.loras[id] = a
	}
	s.uses++
	a.used = s.uses
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
