package player

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// named finds records by their recorded request id.
type named struct {
	byID map[string][]int
}

func newNamed(t *trace.Trace, records []*trace.Record) (*named, error) {
	f := &named{byID: map[string][]int{}}
	for i, rec := range records {
		var id string
		if raw, ok := rec.Extra["request_id"]; !ok || !answers(rec) || json.Unmarshal(raw, &id) != nil || id == "" {
			continue
		}
		f.byID[id] = append(f.byID[id], i)
		if client := clientID(id); client != id {
			f.byID[client] = append(f.byID[client], i)
		}
	}
	if len(f.byID) == 0 {
		return nil, fmt.Errorf("%s: no record has a request_id; matching by it needs a trace that vllm-vcr recorded", t.Name)
	}
	return f, nil
}

// find looks for the id of the engine, then for that of the client.
func (f *named) find(r *Request, used []bool) (index, depth int, err error) {
	for _, id := range []string{r.ID, r.ExternalID, clientID(r.ID)} {
		if candidates := f.byID[id]; id != "" && len(candidates) > 0 {
			return firstUnused(candidates, used), len(r.PromptTokenIDs), nil
		}
	}
	return 0, 0, fmt.Errorf("%w: no record has its request id", errNoRecord)
}

// clientID is an engine's request id without the random digits that a frontend
// appends to the client's.
func clientID(id string) string {
	dash := strings.LastIndexByte(id, '-')
	if dash < 1 || len(id)-dash-1 != randomDigits || strings.Trim(id[dash+1:], "0123456789abcdef") != "" {
		return id
	}
	return id[:dash]
}

// drawID is the id that draws depend on: without what a frontend drew itself, so that a
// client that names its requests gets the same again. Each of n answers has its own.
func drawID(id, external string) string {
	if client := clientID(id); external != "" && strings.HasSuffix(client, external) {
		return client
	}
	return id
}
