package router

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
)

//go:embed router.md
var routerCodes string

// Codes of what the suite router reports.
const (
	CodeHangs         check.Code = "U001" // no complete answer in time
	CodeNotPassed     check.Code = "U002" // a request that the engine would answer reaches none
	CodeRequestField  check.Code = "U003" // a field of a request does not arrive as it was sent
	CodeRequestHeader check.Code = "U004" // a header of a request does not arrive
	CodeAnswer        check.Code = "U005" // an answer is not the engine's
	CodeAnswerHeader  check.Code = "U006" // a header of an answer is lost or changed
	CodeEvent         check.Code = "U007" // an event of a stream is lost or changed
	CodeBuffered      check.Code = "U008" // a stream is held back
	CodeUnicode       check.Code = "U009" // characters are broken
	CodeNoAbort       check.Code = "U010" // a client leaves, and the engine goes on
	CodeError         check.Code = "U011" // an error of the engine is not passed on
	CodeOtherRefusal  check.Code = "U012" // a bad request is refused in another way
	CodeTwice         check.Code = "U013" // a request is sent more than once
	CodeMixedUp       check.Code = "U014" // a client gets the answer to another request
	CodeUneven        check.Code = "U015" // requests are not spread
	CodeLarge         check.Code = "U016" // a large body is refused or lost
	CodeSlowClient    check.Code = "U017" // a slow client loses data, or others wait for it
	CodeDown          check.Code = "U018" // requests fail although other engines serve
	CodeCut           check.Code = "U019" // a cut stream looks complete, or begins again
	CodeDraining      check.Code = "U020" // an engine that drains gets new requests
	CodeUnused        check.Code = "U021" // an engine that returns gets none
	CodeAffinity      check.Code = "U022" // later turns do not go where the cache is
	CodeKVEvents      check.Code = "U023" // KV events are not followed
	CodeLoRA          check.Code = "U024" // requests for an adapter go everywhere
	CodeTransfer      check.Code = "U025" // prefill and decode are not chained
	CodeScrape        check.Code = "U026" // the router asks engines for what they do not have
)

var (
	core     = []check.Level{check.LevelCore}
	failover = []check.Level{check.LevelFailover}
	affinity = []check.Level{check.LevelAffinity}
)

// Checks are the cases of the suite, in their order: those that leave the router as it was come first.
var Checks = []check.Check{
	{Name: "reaches", Codes: routerCodes, Levels: core, Run: judged(overCorpus(reaches), false)},
	{Name: "request-fields", Levels: core, Run: judged(overCorpus(fieldsArrive), false)},
	{Name: "request-headers", Levels: core, Run: judged(overCorpus(headersArrive), false)},
	{Name: "once", Levels: core, Run: judged(overCorpus(once), false)},
	{Name: "answers", Levels: core, Run: judged(overCorpus(answersArrive), false)},
	{Name: "answer-headers", Levels: core, Run: judged(overCorpus(answerHeadersArrive), false)},
	{Name: "streams", Levels: core, Run: judged(overCorpus(streamsArrive), false)},
	{Name: "chunks", Levels: core, Run: judged((*session).checkChunks, false)},
	{Name: "unicode", Levels: core, Run: judged((*session).checkUnicode, false)},
	{Name: "cancellation", Levels: core, Run: judged((*session).checkCancellation, false)},
	{Name: "spread", Levels: core, Run: judged((*session).checkSpread, false)},
	{Name: "slow-client", Levels: core, Run: judged((*session).checkSlowClient, false)},
	{Name: "scrapes", Levels: []check.Level{check.LevelStatistics}, Run: judged((*session).checkScrapes, false)},
	{Name: "transfer", Levels: []check.Level{check.LevelKVTransfer}, Run: judged((*session).checkTransfer, false)},
	{Name: "prefix-affinity", Levels: affinity, Run: judged((*session).checkPrefixAffinity, false)},
	{Name: "session-affinity", Levels: affinity, Run: judged((*session).checkSessionAffinity, false)},
	{Name: "kv-events", Levels: []check.Level{check.LevelKVEvents}, Run: judged((*session).checkKVEvents, false)},
	{Name: "lora-affinity", Levels: []check.Level{check.LevelLoRA}, Run: judged((*session).checkLoRA, false)},
	{Name: "large-bodies", Levels: core, Run: judged((*session).checkLarge, true)},
	{Name: "errors", Levels: core, Run: judged((*session).checkErrors, true)},
	{Name: "cut-stream", Levels: core, Run: judged((*session).checkCutStream, true)},
	{Name: "prefill-fails", Levels: []check.Level{check.LevelKVTransfer}, Run: judged((*session).checkPrefillFails, true)},
	{Name: "no-answer", Levels: failover, Run: judged((*session).checkNoAnswer, true)},
	{Name: "draining", Levels: failover, Run: judged((*session).checkDraining, true)},
	{Name: "engine-gone", Levels: failover, Run: judged((*session).checkEngineGone, true)},
}

// Routes that stream.
var streaming = []struct {
	path, input string
}{
	{"/v1/completions", `"prompt": "MARK begins a stream."`},
	{"/v1/chat/completions", `"messages": [{"role": "user", "content": "MARK begins a stream."}]`},
}

// checkChunks holds the engine back after each event until the client has it.
func (s *session) checkChunks() error {
	for _, route := range streaming {
		r := s.completion("", 20, streamed)
		r.path = route.path
		r.body = strings.Replace(fmt.Sprintf(`{"model": %q, "max_tokens": 20, "ignore_eos": true, "stream": true, %s}`, s.fleet.model, route.input), "MARK", r.mark, 1)
		arrived, late := make(chan struct{}, 1000), 0
		s.fleet.setScript(func(w http.ResponseWriter, request *http.Request, c *call) {
			s.fleet.engines[c.engine].forward(w, request, c, func(n int) {
				if late == 0 && c.mark == r.mark && !s.happens(arrived) {
					late = n
				}
			})
		})
		ctx, stop := s.patience()
		got, cancel, err := s.open(ctx, r)
		n := 0
		if err == nil {
			lines := bufio.NewScanner(got.Body)
			for lines.Scan() {
				if lines.Text() == "" {
					arrived <- struct{}{}
					n++
				}
			}
			err = lines.Err()
			got.Body.Close()
		}
		cancel()
		stop()
		s.Asserted += n
		for _, c := range s.fleet.of(r.mark) {
			<-c.done
		}
		switch {
		case late > 0:
			s.fails(CodeBuffered, "POST %s: the engine sends event %d of a stream and waits, and within %v the client does not have it", r.path, late, s.pause())
		case err != nil:
			return check.Ends(CodeHangs, "POST %s: the stream ends after %d events: %v", r.path, n, err)
		case n == 0:
			return check.Ends(CodeEvent, "POST %s: a stream has no event for the client, status %d", r.path, got.StatusCode)
		}
	}
	return nil
}

// letters are of one to four bytes, with marks that combine and a joined emoji.
const letters = "aé漢🙂 e\u0301 👩\u200d🚀 \u05d0 ß"

// checkUnicode has an answer arrive in parts that end within characters.
func (s *session) checkUnicode() error {
	for _, stream := range []bool{true, false} {
		event := fmt.Sprintf(`{"id":"cmpl-1","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":%q,"finish_reason":null}]}`, s.fleet.model, letters)
		text := strings.Replace(event, "null", `"stop"`, 1)
		header := http.Header{"Content-Type": {"application/json"}}
		if stream {
			header = http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}
			text = strings.Repeat("data: "+event+"\n\n", 3) + "data: " + text + "\n\ndata: [DONE]\n\n"
		}
		s.fleet.setScript(func(w http.ResponseWriter, r *http.Request, c *call) {
			if c.engine < s.fleet.prefills {
				s.fleet.engines[c.engine].forward(w, r, c, nil)
				return
			}
			answer(w, c, http.StatusOK, header, "")
			c.answer = []byte(text)
			for i := range c.answer {
				_, _ = w.Write(c.answer[i : i+1])
				if c.answer[i] >= 0x80 {
					_ = http.NewResponseController(w).Flush()
					time.Sleep(200 * time.Microsecond) // so that the network keeps the parts apart
				}
			}
		})
		a := s.ask(s.completion("", 4, object{"stream": stream}))
		want, got := []string{text}, []string{string(a.body)}
		if stream {
			want, got = events([]byte(text)), events(a.body)
		}
		for _, d := range sameEvents(want, got) {
			if d.path != "" && !strings.HasSuffix(d.path, "text") {
				continue // the case answers judges that
			}
			s.fails(CodeUnicode, "characters arrive byte by byte, in an answer with stream = %v: %s is %s, and the client gets %s", stream, d.path, d.want, d.got)
			break
		}
	}
	return nil
}

// checkCancellation has clients leave at three moments; the engine must notice.
func (s *session) checkCancellation() error {
	for _, when := range []struct {
		says   string
		events int // that the client reads before it leaves; 0: it leaves before the first byte
		body   object
	}{
		{"after two events of a stream", 2, streamed},
		{"before the first event of a stream", 0, streamed},
		{"while it waits for an answer that is no stream", 0, nil},
	} {
		r := s.completion("", 30000, when.body)
		calls := make(chan *call, 8)
		s.fleet.setScript(func(w http.ResponseWriter, request *http.Request, c *call) {
			if c.engine < s.fleet.prefills {
				s.fleet.engines[c.engine].forward(w, request, c, nil)
				return
			}
			calls <- c
			if when.events > 0 {
				answer(w, c, http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}, strings.Repeat("data: "+emptyEvent(s.fleet.model)+"\n\n", 3))
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-c.left:
			case <-s.ctx.Done():
			case <-time.After(2 * s.pause()):
			}
		})
		ctx, stop := s.patience()
		got := make(chan error, 1)
		leave := make(chan struct{})
		go func() {
			answer, end, err := s.open(ctx, r)
			if err == nil {
				lines := bufio.NewReader(answer.Body)
				for n := 0; n < when.events && err == nil; {
					var line string
					if line, err = lines.ReadString('\n'); line == "\n" {
						n++
					}
				}
				close(leave)
				<-ctx.Done()
				answer.Body.Close()
			}
			end()
			got <- err
		}()
		var c *call
		select {
		case c = <-calls:
		case <-ctx.Done():
		}
		if c != nil && when.events > 0 {
			s.happens(leave)
		}
		stop() // the client leaves
		<-got
		if c == nil {
			return check.Ends(CodeHangs, "a request has reached no engine within %v", s.limit)
		}
		s.Asserted++
		if !s.happens(c.left) {
			s.fails(CodeNoAbort, "a client leaves %s, and the router is still connected to the engine %v later", when.says, s.pause())
		}
		<-c.done
	}
	return nil
}

// emptyEvent is an event of a completion.
func emptyEvent(model string) string {
	return fmt.Sprintf(`{"id":"cmpl-1","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}`, model)
}

// checkSpread sends many requests, several at a time. Each engine gets some, none gets most, and each answer is that of its request.
func (s *session) checkSpread() error {
	const atOnce = 16
	engines := len(s.fleet.engines) - s.fleet.prefills
	var all []*sent
	for range 16 * engines {
		all = append(all, s.completion("", 4))
	}
	got := make([]*answered, len(all))
	ctx, stop := s.patience()
	defer stop()
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, r := range all {
		slots <- struct{}{}
		running.Go(func() {
			got[i] = s.send(ctx, r)
			<-slots
		})
	}
	running.Wait()
	count := make([]int, len(s.fleet.engines))
	for i, r := range all {
		s.Asserted++
		calls := s.fleet.of(r.mark)
		if !got[i].ok() || len(calls) == 0 {
			return check.Ends(CodeHangs, "%d requests, %d at a time: one got %s", len(all), atOnce, got[i])
		}
		c := calls[len(calls)-1]
		count[c.engine]++
		if want, have, err := decoded(c.answer, got[i].body); err == nil && want.(object)["id"] != have.(object)["id"] {
			s.fails(CodeMixedUp, "an engine answers a request with the id %v, and its client gets %v", want.(object)["id"], have.(object)["id"])
		}
	}
	count = count[s.fleet.prefills:]
	s.AddNote(fmt.Sprintf("requests of each engine: %v", count))
	if engines > 1 && (slices.Min(count) == 0 || slices.Max(count) > 3*16) {
		s.fails(CodeUneven, "%d requests, %d at a time and each with another prompt, are spread over the engines as %v", len(all), atOnce, count)
	}
	return nil
}

const largeBody = 100 << 20 // bytes

// checkLarge sends a body of 100 MB, and gets one.
func (s *session) checkLarge() error {
	largeBody := cmp.Or(s.under.LargeBody, largeBody)
	r := s.completion("", 1)
	prefix := fmt.Sprintf(`{"model":%q,"max_tokens":1,"prompt":"%s`, s.fleet.model, r.mark)
	padding := io.LimitReader(repeat{}, largeBody-int64(len(prefix))-2)
	r.large = io.MultiReader(strings.NewReader(prefix), padding, strings.NewReader(`"}`))
	s.fleet.setScript(func(w http.ResponseWriter, _ *http.Request, c *call) {
		answer(w, c, http.StatusOK, nil, fmt.Sprintf(`{"id":"cmpl-1","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":"`, s.fleet.model))
		_, _ = io.CopyN(w, repeat{}, largeBody)
		_, _ = io.WriteString(w, `","finish_reason":"stop"}]}`)
	})
	ctx, stop := context.WithTimeout(s.ctx, 3*s.limit)
	defer stop()
	limit := s.limit * 3 / 2
	silence := time.AfterFunc(limit, stop)
	defer silence.Stop()
	watch := func(of io.Reader) io.Reader { return moving{of, silence, limit} }
	s.fleet.setWatch(watch)
	defer s.fleet.setWatch(nil)
	r.large = watch(r.large)
	s.Asserted++
	got, cancel, err := s.open(ctx, r)
	defer cancel()
	if err != nil {
		return check.Ends(CodeLarge, "a request of %d MB has no answer, and nothing moves for %v: %v", largeBody>>20, limit, err)
	}
	defer got.Body.Close()
	var last tail
	n, err := io.Copy(&last, watch(got.Body))
	calls := s.fleet.of(r.mark)
	const spaces = 10_000 // another encoding of JSON has others
	switch {
	case len(calls) == 0:
		return check.Ends(CodeLarge, "a request of %d MB reaches no engine, and the client gets status %d: %s", largeBody>>20, got.StatusCode, last)
	case calls[0].size < largeBody-spaces || calls[0].size > largeBody+spaces:
		return check.Ends(CodeLarge, "a request of %d bytes has %d bytes at the engine", largeBody, calls[0].size)
	case err != nil || n < largeBody:
		return check.Ends(CodeLarge, "an answer of %d MB arrives with %d bytes: %v", largeBody>>20, n, err)
	}
	return nil
}

// moving puts off the end of patience with each byte that is read.
type moving struct {
	io.Reader
	silence *time.Timer
	limit   time.Duration
}

func (m moving) Read(p []byte) (int, error) {
	m.silence.Reset(m.limit)
	return m.Reader.Read(p)
}

// repeat reads as the same letter without end.
type repeat struct{}

func (repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// tail keeps the last of what is written.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p[max(0, len(p)-200):]...)
	*t = (*t)[max(0, len(*t)-200):]
	return len(p), nil
}

// checkSlowClient has a client stop reading a long stream; others are served meanwhile, and it gets all of it.
func (s *session) checkSlowClient() error {
	const size, n = 1000, 4000
	r := s.completion("", n, streamed)
	event := strings.Replace(emptyEvent(s.fleet.model), `"a"`, `"`+strings.Repeat("x", size)+`"`, 1)
	s.fleet.setScript(func(w http.ResponseWriter, request *http.Request, c *call) {
		if c.mark != r.mark || c.engine < s.fleet.prefills {
			s.fleet.engines[c.engine].forward(w, request, c, nil)
			return
		}
		answer(w, c, http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}, "")
		for i := range n { // each another one: some routers end a stream that repeats itself
			_, _ = fmt.Fprintf(w, "data: %s\n\n", strings.Replace(event, "xxxxxx", fmt.Sprintf("x%05d", i), 1))
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	ctx, stop := s.patience()
	defer stop()
	got, cancel, err := s.open(ctx, r)
	defer cancel()
	if err != nil {
		return check.Ends(CodeSlowClient, "a stream of %d events does not begin: %v", n, err)
	}
	defer got.Body.Close()
	for range 4 * len(s.fleet.engines) {
		if a := s.ask(s.completion("", 1)); !a.ok() {
			return check.Ends(CodeSlowClient, "a client reads nothing of its stream, and another one gets %s", a)
		}
	}
	body, err := io.ReadAll(got.Body)
	s.Asserted++
	if all := events(body); len(all) <= n || err != nil { // a router may add one
		return check.Ends(CodeSlowClient, "a client that was slow gets %d of %d events: %v", len(all), n+1, err)
	}
	return nil
}

// checkScrapes looks at what the router itself asked engines for.
func (s *session) checkScrapes() error {
	s.fleet.mu.Lock()
	own := slices.Clone(s.fleet.calls)
	s.fleet.mu.Unlock()
	found := &causes{}
	seen := map[string]bool{}
	for _, c := range own {
		select {
		case <-c.done:
		default:
			continue
		}
		if c.mark != "" || c.status == 0 {
			continue
		}
		found.of++
		s.Asserted++
		path, _, _ := strings.Cut(c.path, "?")
		seen[c.method+" "+path] = true
		if c.method == http.MethodGet && c.status >= 400 && c.status != http.StatusServiceUnavailable {
			found.add(c.method+" "+path, CodeScrape, path, "the router asks engines for %s %s, which answer with status %d", c.method, path, c.status)
		}
	}
	var paths []string
	for path := range seen {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	s.AddNote("the router itself asks for: " + strings.Join(paths, ", "))
	found.report(s)
	if found.of == 0 {
		s.Asserted++
	}
	return nil
}
