package load

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeServer answers all that a workload asks, each prompt with words of its own, and remembers what it was asked.
type fakeServer struct {
	*httptest.Server
	// refuse, if set, may answer a request with a status of its own.
	refuse func(path string, body map[string]any) int
	// exact makes answers as long as they may be.
	exact bool

	mu     sync.Mutex
	asked  []string // path and body
	ids    []string // headers X-Request-Id
	gone   int      // clients that left before the end
	atOnce struct{ now, most int }
}

func newServer(t testing.TB) *fakeServer {
	s := &fakeServer{refuse: func(string, map[string]any) int { return 0 }}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var body map[string]any
	_ = json.Unmarshal(text, &body)
	s.enter(r.Method+" "+r.URL.Path+" "+string(text), r.Header.Get("X-Request-Id"))
	defer s.leave()
	if status := s.refuse(r.URL.Path, body); status != 0 {
		http.Error(w, "I do not know that", status)
		return
	}
	switch {
	case body["stream"] == true:
		s.stream(w, r, text, body)
	case r.URL.Path == completionsPath || r.URL.Path == chatPath:
		whole(w, body)
	}
}

func (s *fakeServer) enter(asked, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, asked)
	s.ids = append(s.ids, id)
	s.atOnce.now++
	s.atOnce.most = max(s.atOnce.most, s.atOnce.now)
}

func (s *fakeServer) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atOnce.now--
}

// stream sends an event for each token, of which an endless answer has no end.
func (s *fakeServer) stream(w http.ResponseWriter, r *http.Request, text []byte, body map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	n, endless := 3, body["max_tokens"] == 500.0
	if most, ok := body["max_tokens"].(float64); ok && s.exact {
		n = int(most)
	}
	for i := 0; i < n || endless; i++ {
		event(w, `{"choices":[{"index":0,"text":" %x","delta":{},"finish_reason":null}]}`, sha256.Sum256(fmt.Append(text, i)))
		if r.Context().Err() != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.gone++
			return
		}
	}
	event(w, `{"choices":[{"index":0,"text":"","finish_reason":"length"}]}`)
	event(w, `{"choices":[],"usage":{"completion_tokens":%d,"prompt_tokens":%d}}`, n, length(body["prompt"]))
	event(w, `[DONE]`)
}

// length is the tokens of a prompt, of which a word has one.
func length(prompt any) int {
	if ids, ok := prompt.([]any); ok {
		return len(ids)
	}
	text, _ := prompt.(string)
	return len(strings.Fields(text))
}

func event(w http.ResponseWriter, format string, args ...any) {
	fmt.Fprintf(w, "data: "+format+"\n\n", args...)
	_ = http.NewResponseController(w).Flush()
}

func whole(w http.ResponseWriter, body map[string]any) {
	choices := 1
	if n, ok := body["n"].(float64); ok {
		choices = int(n)
	}
	if batch, ok := body["prompt"].([]any); ok {
		if _, ids := batch[0].(float64); !ids {
			choices = len(batch)
		}
	}
	doc := object{"usage": object{"completion_tokens": choices}}
	var all []object
	for i := range choices {
		all = append(all, object{"index": i, "text": "x", "finish_reason": "stop"})
	}
	doc["choices"] = all
	_ = json.NewEncoder(w).Encode(doc)
}

// questions are what was asked so far, sorted.
func (s *fakeServer) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := slices.Clone(s.asked)
	slices.Sort(asked)
	return asked
}
