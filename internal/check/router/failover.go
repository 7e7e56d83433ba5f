package router

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
)

// engineErrors are what engines answer in the case errors: vLLM's bodies.
var engineErrors = []struct {
	status int
	header http.Header
	body   string
}{
	{400, nil, `{"error":{"message":"max_tokens must be at least 1, got -1.","type":"BadRequestError","param":"max_tokens","code":400}}`},
	{404, nil, `{"error":{"message":"The model nothing does not exist.","type":"NotFoundError","param":"model","code":404}}`},
	{422, nil, `{"error":{"message":"The request cannot be processed.","type":"UnprocessableEntityError","param":null,"code":422}}`},
	{429, http.Header{"Retry-After": {"7"}}, `{"error":{"message":"Too many requests wait.","type":"TooManyRequests","param":null,"code":429}}`},
	{500, nil, `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}`},
	{503, http.Header{"Retry-After": {"3"}}, `{"error":{"message":"The server is paused.","type":"ServiceUnavailableError","param":null,"code":503}}`},
}

// checkErrors has all engines answer with an error.
func (s *session) checkErrors() error {
	for _, e := range engineErrors {
		s.fleet.setScript(func(w http.ResponseWriter, r *http.Request, c *call) {
			if c.engine < s.fleet.prefills {
				s.fleet.engines[c.engine].forward(w, r, c, nil)
				return
			}
			answer(w, c, e.status, e.header, e.body)
		})
		a := s.ask(s.completion("", 1))
		switch {
		case a.status == 0: // the hang is reported
		case a.status != e.status:
			s.fails(CodeError, "all engines answer with status %d, and the client gets %s", e.status, a)
		case a.header.Get("Retry-After") != e.header.Get("Retry-After"):
			s.fails(CodeError, "all engines answer with status %d and Retry-After: %s, and the client gets %q", e.status, e.header.Get("Retry-After"), a.header.Get("Retry-After"))
		case len(sameEvents([]string{e.body}, []string{string(a.body)})) > 0:
			s.fails(CodeError, "all engines answer with status %d and the body %s, and the client gets %s", e.status, e.body, a)
		}
	}
	return nil
}

// checkCutStream has an engine end in the middle of a stream. The client sees an error, and nothing of another engine.
func (s *session) checkCutStream() error {
	const n = 3
	r := s.completion("", 20, streamed)
	s.fleet.setScript(func(w http.ResponseWriter, request *http.Request, c *call) {
		s.fleet.engines[c.engine].forward(w, request, c, func(at int) {
			if at == n && c.engine >= s.fleet.prefills && len(s.fleet.of(r.mark)) == 1 {
				panic(http.ErrAbortHandler)
			}
		})
	})
	a := s.ask(r)
	calls := s.fleet.of(r.mark)
	if len(calls) == 0 {
		return check.Ends(CodeCut, "a stream reaches no engine: %s", a)
	}
	<-calls[0].done
	all := events(a.body)
	told := a.err != nil || a.status != http.StatusOK || slices.ContainsFunc(all, func(data string) bool { return strings.Contains(data, `"error"`) })
	switch {
	case len(calls) > 1:
		s.fails(CodeCut, "an engine ends after %d events of a stream, and the router sends the request again: the client gets %d events", n, len(all))
	case !told:
		s.fails(CodeCut, "an engine ends after %d events of a stream, and the client gets %d events and a clean end", n, len(all))
	case len(all) > 0 && len(sameEvents(events(calls[0].answer)[:min(n, len(all))], all[:min(n, len(all))])) > 0:
		s.fails(CodeCut, "an engine ends after %d events of a stream, and the client gets others: %s", n, a)
	}
	return nil
}

// requests sends requests one after the other, and returns those that failed and how many reached each engine.
func (s *session) requests(n int) (failed []*answered, reached []int) {
	reached = make([]int, len(s.fleet.engines))
	for range n {
		a := s.ask(s.completion("", 1))
		if !a.ok() {
			failed = append(failed, a)
		}
		for _, c := range s.fleet.of(a.mark) {
			reached[c.engine]++
		}
	}
	return failed, reached
}

// checkNoAnswer has an engine close connections without an answer, as one that is about to crash does.
func (s *session) checkNoAnswer() error {
	if s.picker != nil || s.alone() {
		s.AddNote("an endpoint picker sends no requests, and one engine has no other")
		return nil
	}
	e := s.victim()
	s.fleet.setScript(func(w http.ResponseWriter, r *http.Request, c *call) {
		if c.engine == e.index {
			panic(http.ErrAbortHandler)
		}
		s.fleet.engines[c.engine].forward(w, r, c, nil)
	})
	failed, reached := s.requests(6 * len(s.fleet.engines))
	if len(failed) > 0 {
		s.fails(CodeDown, "an engine closes connections before the first byte of an answer, others serve, and %d of %d requests fail: %s", len(failed), 6*len(s.fleet.engines), failed[0])
	}
	if reached[e.index] == 0 {
		s.AddNote("no request went to the engine that closes connections")
	}
	return nil
}

// victim is an engine that generates: the last one.
func (s *session) victim() *engine { return s.fleet.engines[len(s.fleet.engines)-1] }

// alone reports whether there is no other engine that generates.
func (s *session) alone() bool { return len(s.fleet.engines)-s.fleet.prefills < 2 }

// checkDraining has an engine drain while it serves a stream. The stream comes to its end, and new requests go elsewhere.
func (s *session) checkDraining() error {
	if s.alone() {
		return nil
	}
	e, release := s.victim(), make(chan struct{})
	held := make(chan *call, 100)
	s.fleet.setScript(func(w http.ResponseWriter, r *http.Request, c *call) {
		s.fleet.engines[c.engine].forward(w, r, c, func(n int) {
			if n != 2 || c.engine < s.fleet.prefills {
				return
			}
			held <- c
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})
	})
	ended := make(chan *answered, 100)
	ctx, stop := context.WithTimeout(s.ctx, 3*s.limit)
	defer stop()
	running, on := 0, 0
	for on == 0 && running < 8*len(s.fleet.engines) {
		r := s.completion("", 20, streamed)
		go func() { ended <- s.send(ctx, r) }()
		running++
		select {
		case c := <-held:
			if c.engine == e.index {
				on++
			}
		case <-ctx.Done():
			close(release)
			return check.Ends(CodeHangs, "a stream does not begin within %v", s.limit)
		}
	}
	if err := e.drain(true); err != nil {
		close(release)
		return err
	}
	defer func() { _ = e.drain(false) }()
	avoids := func() bool {
		for range 16 * len(s.fleet.engines) {
			failed, reached := s.requests(1)
			if len(failed) > 0 {
				s.fails(CodeDraining, "an engine drains, and a request fails: %s", failed[0])
			} else if reached[e.index] > 0 {
				return false
			}
		}
		return true
	}
	limit, asks := s.limit, ""
	if !s.asksItself() && !s.under.Knows("discovery") {
		limit, asks = s.pause(), "; the router asks engines for nothing itself"
	}
	if !s.eventually(limit, avoids) {
		s.fails(CodeDraining, "an engine drains (/health answers 503 to probes), and gets new requests %v later%s", limit, asks)
	}
	close(release)
	for range running {
		if a := <-ended; !a.ok() || !strings.Contains(string(a.body), "[DONE]") {
			s.fails(CodeDraining, "an engine drains, and a stream that had begun before ends with %s", a)
			break
		}
	}
	return nil
}

// asksItself reports whether the router has asked engines for something, such as their health, of its own accord.
func (s *session) asksItself() bool {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return slices.ContainsFunc(s.fleet.calls, func(c *call) bool { return c.mark == "" && c.method == http.MethodGet })
}

// reached counts the requests that an engine got.
func (s *session) reached(e *engine) (n int) {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	for _, c := range s.fleet.calls {
		if c.engine == e.index && c.mark != "" {
			n++
		}
	}
	return n
}

// checkEngineGone has an engine end. Requests go on with the others, and to the engine when it is back.
func (s *session) checkEngineGone() error {
	if s.alone() {
		return nil
	}
	e := s.victim()
	before := s.reached(e)
	e.down()
	if err := s.fleet.discover(); err != nil {
		return err
	}
	const n, lost = 40, 2
	failed, _ := s.requests(n)
	s.AddNote(fmt.Sprintf("%d of %d requests fail after the end of an engine", len(failed), n))
	if len(failed) > lost {
		s.fails(CodeDown, "an engine has ended, others serve, and %d of %d requests fail: %s", len(failed), n, failed[0])
	}
	if err := e.up(); err != nil {
		return err
	}
	if err := s.fleet.discover(); err != nil {
		return err
	}
	back := func() bool {
		_, reached := s.requests(2 * len(s.fleet.engines))
		return reached[e.index] > 0
	}
	if before > 0 && !s.eventually(s.limit*3/2, back) {
		s.fails(CodeUnused, "an engine that had ended serves again, and gets no request for %v", s.limit*3/2)
	}
	return nil
}
