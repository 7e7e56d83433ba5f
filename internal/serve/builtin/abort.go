package builtin

import (
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// running are the answers that are being generated, by the ids that clients know: that of the request, and that of the
// answer where it has one of its own. Those of gRPC are always noted, and those of HTTP if all is set: if there are
// endpoints that abort them.
type running struct {
	all  bool
	mu   sync.Mutex
	byID map[string][]*sequence
}

func (o *running) add(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range g.all {
		o.byID[g.id] = append(o.byID[g.id], q)
		if q.external != g.id {
			o.byID[q.external] = append(o.byID[q.external], q)
		}
	}
}

func (o *running) remove(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range g.all {
		for _, id := range []string{g.id, q.external} {
			left := slices.DeleteFunc(o.byID[id], func(other *sequence) bool { return other == q })
			if o.byID[id] = left; len(left) == 0 {
				delete(o.byID, id)
			}
		}
	}
}

// abort ends requests, all of them if no id is given.
func (o *running) abort(ids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(ids) == 0 {
		ids = slices.Collect(maps.Keys(o.byID))
	}
	ended := map[*sequence]bool{}
	for _, id := range ids {
		for _, q := range o.byID[id] {
			if !ended[q] {
				ended[q] = true
				group := q.gen.server.opt.Group
				group.Abort(q.engine, q.id)
				// The reply comes from the goroutine of the engine, behind all outputs that were on their way: what is counted
				// is what is sent.
				group.Call(q.engine, player.UtilityCall{Method: "is_sleeping", Reply: func(any, error) {
					q.Receive(&player.EngineOutput{Finish: protocol.FinishAbort}, 0)
				}})
			}
		}
	}
}

// serveAbort ends requests, all of them without ids. needed says whether the ids have to be there.
func (s *Server) serveAbort(needed bool) handler {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		var q struct {
			IDs []string `json:"request_ids"`
		}
		switch err := readJSON(r, &q); {
		case err != nil:
			return err
		case needed && q.IDs == nil:
			return badRequest("request_ids", "missing in the request: request_ids")
		case !needed || len(q.IDs) > 0:
			s.open.abort(q.IDs...)
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}
