package replay

import (
	"sync"
)

// refusals collects why the player refused requests: before 0.33 the wire has
// no place for the reason.
type refusals struct {
	mu   sync.Mutex
	byID map[string]error
}

func (r *refusals) add(id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]error{}
	}
	r.byID[id] = err
}

// explain attaches the reasons to the streams they are about.
func (r *refusals) explain(streams []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range streams {
		if err := r.byID[s.ID()]; err != nil {
			s.refused("the player refused it: " + err.Error())
		}
	}
}
