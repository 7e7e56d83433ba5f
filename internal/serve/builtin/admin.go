package builtin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// call calls a utility method of all engines, and returns the result of the first one: what is more than a bool as JSON. args are
// msgpack values.
func (s *Server) call(ctx context.Context, method string, args ...[]byte) (any, error) {
	type reply struct {
		engine int
		result any
		err    error
	}
	s.calls.Add(1)
	engines := len(s.balance.open)
	replies := make(chan reply, engines)
	for i := range engines {
		s.opt.Group.Call(i, player.UtilityCall{Method: method, Args: args, Reply: func(result any, err error) { replies <- reply{i, result, err} }})
	}
	var first any
	var errs []error
	for range engines {
		select {
		case r := <-replies:
			if r.engine == 0 {
				first = r.result
			}
			errs = append(errs, r.err)
		case <-ctx.Done():
			return nil, errGone
		case <-s.ended:
			return nil, errEngine
		}
	}
	if packed, is := first.([]byte); is {
		first = unpacked(packed)
	}
	return first, errors.Join(errs...)
}

// callFailed is the error of an endpoint that calls a method of the engines. calls counts them, as the frontends do. The failure of an
// engine in another process begins as it does here.
func (s *Server) callFailed(what, method string, err error) *apiError {
	begin := "Call to " + method + " method failed: "
	return &apiError{status: http.StatusInternalServerError, message: fmt.Sprintf(
		"failed to call %s: utility call `%s` failed (call_id=%d): %s%s", what, method, s.calls.Load(), begin, strings.TrimPrefix(err.Error(), begin))}
}

// adapters are the LoRA adapters that clients have loaded.
type adapters struct {
	mu   sync.Mutex
	all  []*protocol.LoRA // in the order in which they were loaded
	last int64            // number
}

func (a *adapters) find(name string) *protocol.LoRA {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.at(name); at >= 0 {
		return a.all[at]
	}
	return nil
}

// at is where an adapter is in the list, -1 if it is not.
func (a *adapters) at(name string) int {
	return slices.IndexFunc(a.all, func(l *protocol.LoRA) bool { return l.Name == name })
}

func (a *adapters) list() []*protocol.LoRA {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

// put adds an adapter, in the place of one of the same name.
func (a *adapters) put(l *protocol.LoRA) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.at(l.Name); at >= 0 {
		a.all[at] = l
	} else {
		a.all = append(a.all, l)
	}
}

func (a *adapters) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.at(name); at >= 0 {
		a.all = slices.Delete(a.all, at, at+1)
	}
}

func (a *adapters) next() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	return a.last
}

// addAdapters makes adapters known to requests.
func (s *Server) addAdapters(all []Adapter) {
	for _, a := range all {
		s.models.adapter.put(&protocol.LoRA{Name: a.Name, Path: a.Path, ID: s.models.adapter.next()})
	}
}

// loadAdapters loads those of --lora-modules.
func (s *Server) loadAdapters(ctx context.Context) error {
	for _, a := range s.opt.Flags.Adapters {
		codec, err := protocol.CodecFor(s.opt.Group.Line())
		if err == nil {
			_, err = s.call(ctx, "add_lora", codec.AppendLoRA(nil, s.models.adapter.find(a.Name)))
		}
		if err != nil {
			return fmt.Errorf("--lora-modules: the adapter %s was not loaded: %w", a.Name, err)
		}
	}
	return nil
}

var errNoLoRA = badRequest("", "engine was not started with LoRA enabled")

func (s *Server) serveLoadLoRA(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Name    *string `json:"lora_name"`
		Path    *string `json:"lora_path"`
		InPlace bool    `json:"load_inplace"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	switch {
	case q.Name == nil:
		return missing("lora_name")
	case q.Path == nil:
		return missing("lora_path")
	case !s.opt.LoRA:
		return errNoLoRA
	case *q.Name == "":
		return badRequest("", "lora_name must not be empty")
	case *q.Path == "":
		return badRequest("", "lora_path must not be empty")
	}
	if slices.Contains(s.models.base, *q.Name) {
		return badRequest("lora_name", "LoRA adapter `%s` conflicts with a served base model", *q.Name)
	}
	old := s.models.adapter.find(*q.Name)
	if old != nil && !q.InPlace && s.sim == nil {
		return badRequest("lora_name", "LoRA adapter `%s` is already loaded. If you want to load the adapter in place, set 'load_inplace' to true.", *q.Name)
	}
	if _, err := os.Stat(*q.Path); filepath.IsAbs(*q.Path) && err != nil && s.sim == nil {
		return badRequest("lora_path", "Local LoRA adapter path must exist and be accessible.")
	}
	lora := &protocol.LoRA{Name: *q.Name, Path: *q.Path}
	if old != nil {
		lora.ID = old.ID
	} else {
		lora.ID = s.models.adapter.next()
	}
	codec, failed := protocol.CodecFor(s.opt.Group.Line())
	if failed != nil {
		return errInternal
	}
	again := *lora
	again.InPlace = q.InPlace || old != nil // else the engine keeps the weights that it has
	if _, err := s.call(r.Context(), "add_lora", codec.AppendLoRA(nil, &again)); err != nil {
		return s.callFailed("add_lora", "add_lora", err)
	}
	s.models.adapter.put(lora)
	return writeText(w, "Success: LoRA adapter '"+lora.Name+"' added successfully.")
}

func (s *Server) serveUnloadLoRA(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Name *string `json:"lora_name"`
		ID   *int64  `json:"lora_int_id"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	switch {
	case q.Name == nil:
		return missing("lora_name")
	case !s.opt.LoRA:
		return errNoLoRA
	case *q.Name == "":
		return badRequest("lora_name", "'lora_name' needs to be provided to unload a LoRA adapter.")
	}
	lora := s.models.adapter.find(*q.Name)
	switch {
	case lora == nil && s.sim != nil:
		w.WriteHeader(http.StatusOK)
		return nil
	case lora == nil:
		return modelNotFound(*q.Name)
	case q.ID != nil && *q.ID != lora.ID:
		return badRequest("lora_int_id", "the adapter '%s' has the id %d, not %d", lora.Name, lora.ID, *q.ID)
	}
	if _, err := s.call(r.Context(), "remove_lora", pack.AppendInt(nil, lora.ID)); err != nil {
		return s.callFailed("remove_lora", "remove_lora", err)
	}
	s.models.adapter.remove(lora.Name)
	return writeText(w, "Success: LoRA adapter '"+lora.Name+"' removed successfully.")
}

func writeText(w http.ResponseWriter, text string) *apiError {
	h := w.Header()
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	_, _ = w.Write([]byte(text)) // the client may be gone
	return nil
}
