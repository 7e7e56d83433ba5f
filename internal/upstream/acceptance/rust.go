package acceptance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// An Outcome is what becomes of a frontend that gets a message.
type Outcome string

// Outcomes, the best first.
const (
	Served  Outcome = "served"  // the client of the frontend is answered as without the variant
	Altered Outcome = "altered" // it is answered, with something else
	Failed  Outcome = "failed"  // it gets an error, or no answer; the frontend serves on
	Dead    Outcome = "dead"    // the frontend no longer serves, or does not begin to
)

// Outcomes are all of them, the best first.
var Outcomes = []Outcome{Served, Altered, Failed, Dead}

// Rust measures with vllm-rs.
type Rust struct {
	Binary, Model string // the program, and a model directory
	// Before comes before the command line of the frontend: with it, Binary is an interpreter, see [StartPython].
	Before []string
	// Ready is how long a frontend may wait for the rest of a handshake that is tampered with; default 4 s.
	Ready time.Duration
	// Workers is how many frontends run at a time, by default 4.
	Workers int
	Log     *slog.Logger
	// Progress gets how many of the probes are done, one call at a time; may be nil.
	Progress func(done, of int)
}

// How long a frontend is waited for. What must come comes within a tenth of a second on an idle machine.
const (
	startTime  = 60 * time.Second // for a handshake with nothing wrong in it
	readyTime  = 4 * time.Second  // for one that is tampered with; the frontend itself gives up then
	answerTime = 20 * time.Second // for a request of which the engine has said all
)

// Measure returns what becomes of each probe, in their order.
func (r Rust) Measure(ctx context.Context, m *Messages) ([]Outcome, error) {
	r.Ready = cmp.Or(r.Ready, readyTime)
	return measure(ctx, m, r.Workers, r.Progress, func() prober { return &rustWorker{Rust: r, m: m} })
}

// A prober tries one probe after the other.
type prober interface {
	probe(ctx context.Context, p *Probe) (Outcome, error)
	close()
}

// measure shares the probes among some workers, by default 4.
func measure(ctx context.Context, m *Messages, workers int, progress func(done, of int), prober func() prober) ([]Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes := make([]Outcome, len(m.Probes))
	var next atomic.Int64
	var counting sync.Mutex
	done := 0
	var group sync.WaitGroup
	for range cmp.Or(workers, 4) {
		group.Go(func() {
			w := prober()
			defer w.close()
			for i := int(next.Add(1)) - 1; i < len(m.Probes); i = int(next.Add(1)) - 1 {
				var err error
				if outcomes[i], err = w.probe(ctx, &m.Probes[i]); err != nil {
					cancel(fmt.Errorf("%s, %s: %w", m.Probes[i].Place, m.Probes[i].Variant, err))
					return
				}
				counting.Lock()
				if done++; progress != nil {
					progress(done, len(m.Probes))
				}
				counting.Unlock()
			}
		})
	}
	group.Wait()
	return outcomes, context.Cause(ctx)
}

// rustWorker has one frontend at a time.
type rustWorker struct {
	Rust
	m       *Messages
	session *rustSession // nil if there is none that serves
	usual   map[*scenario]string
}

// rustSession is a frontend before us as its engine.
type rustSession struct {
	server *vllmrs.Server
	client *openai.Client
	conns  []*zmq.Conn
	input  *zmq.Conn
	output *zmq.Conn
	heard  chan zmq.Message // of the input socket; closed when that ends
}

func (w *rustWorker) close() {
	if w.session != nil {
		w.session.close()
		w.session = nil
	}
}

// probe tries a message. An error is of this side.
func (w *rustWorker) probe(ctx context.Context, p *Probe) (Outcome, error) {
	if p.scenario.root != nil && p.scenario.method == "" {
		return w.handshake(ctx, p)
	}
	if w.session == nil {
		if err := w.start(ctx); err != nil {
			return "", err
		}
	}
	usual, err := w.reference(ctx, p)
	if err != nil {
		return "", err
	}
	if usual == "" {
		return "", nil // the frontend has no such route
	}
	got := w.ask(ctx, p.scenario, p.message)
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	// An ordinary request shows whether it goes on.
	control := w.ask(ctx, w.m.plain, nil)
	if control != w.usual[w.m.plain] {
		w.close()
		return Dead, context.Cause(ctx)
	}
	switch {
	case got == usual:
		return Served, nil
	case got == "":
		return Failed, nil
	}
	return Altered, nil
}

// reference returns what a scenario is answered with without a variant.
func (w *rustWorker) reference(ctx context.Context, p *Probe) (string, error) {
	s := p.scenario
	if p.scenario.raw != nil {
		s = w.m.plain
	}
	if usual, is := w.usual[s]; is {
		return usual, nil
	}
	usual := w.ask(ctx, s, nil)
	if usual == "" && s == w.m.plain {
		return "", errors.Join(errors.New("an ordinary completion fails"), context.Cause(ctx), errors.New(w.session.server.Tail()))
	}
	if w.usual == nil {
		w.usual = map[*scenario]string{}
	}
	w.usual[s] = usual
	return usual, nil
}

// start starts a frontend that serves.
func (w *rustWorker) start(ctx context.Context) error {
	f := facts{ready: w.m.ready}
	s, err := w.open(ctx, startTime, w.m.hello.clean(f), w.m.register.clean(f), w.m.end.clean(f))
	if err != nil {
		return err
	}
	w.session = s
	_, err = w.reference(ctx, &Probe{scenario: w.m.plain})
	return err
}

// handshake starts a frontend for itself, with one of the messages tampered with.
func (w *rustWorker) handshake(ctx context.Context, p *Probe) (Outcome, error) {
	if w.usual == nil {
		if err := w.start(ctx); err != nil {
			return "", err
		}
	}
	f := facts{ready: w.m.ready}
	of := func(s *scenario) []byte {
		if s == p.scenario {
			return p.message(f)[0]
		}
		return s.clean(f)
	}
	began := time.Now()
	s, err := w.open(ctx, w.Ready, of(w.m.hello), of(w.m.register), of(w.m.end))
	if err != nil && time.Since(began) > w.Ready/2 { // it waits for more, or it is slow
		s, err = w.open(ctx, w.Ready, of(w.m.hello), of(w.m.register), of(w.m.end))
	}
	if err != nil {
		return Dead, context.Cause(ctx)
	}
	before := w.session
	w.session = s
	got := w.ask(ctx, w.m.plain, nil)
	w.session = before
	s.close()
	switch got {
	case w.usual[w.m.plain]:
		return Served, context.Cause(ctx)
	case "":
		return Dead, context.Cause(ctx)
	}
	return Altered, context.Cause(ctx)
}

// open starts a frontend and registers with it. It returns when the frontend is healthy.
func (w *rustWorker) open(ctx context.Context, limit time.Duration, hello, register, ready []byte) (s *rustSession, err error) {
	server, err := vllmrs.Start(ctx, vllmrs.Options{
		Binary: w.Binary, Before: w.Before, ModelDir: w.Model, ReadyTimeout: limit, Log: w.Log, Env: []string{"VLLM_SERVER_DEV_MODE=1"},
	})
	if err != nil {
		return nil, err
	}
	s = &rustSession{server: server, client: openai.NewClient(server.URL(), server.Model()), heard: make(chan zmq.Message, 64)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, limit+startTime/2)
	defer cancel()
	gone, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-server.Done():
			stop()
		case <-gone.Done():
		}
	}()
	dial := func(address string, t zmq.Type) (*zmq.Conn, error) {
		c, err := zmq.Dial(gone, address, t, zmq.Options{Identity: protocol.Identity(0)})
		if err == nil {
			s.conns = append(s.conns, c)
		}
		return c, err
	}
	shake, err := dial(server.Handshake(), zmq.Dealer)
	if err != nil {
		return s, err
	}
	if err = shake.Send(hello); err != nil {
		return s, err
	}
	detach := context.AfterFunc(gone, func() { _ = shake.Close() })
	answer, err := shake.Recv()
	detach()
	if err != nil {
		return s, err
	}
	addresses, err := protocol.DecodeInit(answer[len(answer)-1])
	if err != nil {
		return s, err
	}
	if s.input, err = dial(addresses.Inputs[0], zmq.Dealer); err != nil {
		return s, err
	}
	if s.output, err = dial(addresses.Outputs[0], zmq.Push); err != nil {
		return s, err
	}
	if err = s.input.Send(register); err != nil {
		return s, err
	}
	if err = shake.Send(ready); err != nil {
		return s, err
	}
	if err = server.Healthy(ctx); err != nil {
		return s, err
	}
	go s.listen()
	return s, nil
}

// listen passes on what the frontend says to its engine.
func (s *rustSession) listen() {
	defer close(s.heard)
	for {
		m, err := s.input.Recv()
		if err != nil {
			return
		}
		s.heard <- m
	}
}

// ask has the frontend answer a request and returns what it answered, without what no two answers have in common; empty
// if it was an error, or nothing. message is what the engine says to it, nil for what a sound engine does.
func (w *rustWorker) ask(ctx context.Context, sc *scenario, message func(facts) [][]byte) string {
	s := w.session
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answered := make(chan string, 1)
	go func() {
		var body any
		if sc.body != nil {
			body = sc.body
		}
		a, err := s.client.Send(ctx, sc.method, sc.path, body)
		if err != nil || a.Status != http.StatusOK {
			answered <- ""
			return
		}
		answered <- settled(a.Body)
	}()
	for {
		select {
		case text := <-answered:
			return text
		case <-s.server.Done():
			return ""
		case m, open := <-s.heard:
			if !open {
				return ""
			}
			if patience, ok := w.answer(sc, m, message); ok && patience {
				// The engine may have said nothing that the frontend can relate to the call.
				time.AfterFunc(w.Ready/2, cancel)
			}
		}
	}
}

// answer says to a message of the frontend what the scenario wants. It reports whether the message was what the
// scenario is about, and whether the frontend may not have what it needs.
func (w *rustWorker) answer(sc *scenario, m zmq.Message, message func(facts) [][]byte) (lost, ok bool) {
	if len(m) < 2 || len(m[0]) != 1 {
		return false, false
	}
	f := facts{ready: w.m.ready, finish: protocol.FinishLength}
	switch m[0][0] {
	case protocol.TypeAdd:
		var r protocol.Request
		if w.m.Codec.DecodeRequest(m[1], &r) != nil {
			return false, false
		}
		f.id = r.ID
	case protocol.TypeUtility:
		call, err := protocol.DecodeUtilityCall(m[1])
		if err == nil && call.Method == "get_supported_tasks" { // the Python client asks before its first request
			if tasks, err := w.m.Codec.UtilityResult(0, call, []string{"generate"}, sampleTime); err == nil {
				_ = w.session.output.Send(tasks...)
			}
		}
		if err != nil || call.Method != sc.call {
			return false, false
		}
		f.callID = call.CallID
	default:
		return false, false
	}
	if message == nil {
		_ = w.session.output.Send(sc.clean(f)) // a frontend that is gone answers nothing, which is noticed
		return false, true
	}
	_ = w.session.output.Send(message(f)...)
	if sc.call != "" {
		return true, true
	}
	f.finish = protocol.FinishStop // shows which of the two it was
	_ = w.session.output.Send(sc.clean(f))
	return false, true
}

// settled is an answer without its name and time.
func settled(body []byte) string {
	var value map[string]any
	if json.Unmarshal(body, &value) != nil {
		return "text " + string(bytes.TrimSpace(body))
	}
	for _, key := range []string{"id", "created", "request_id"} {
		delete(value, key)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (s *rustSession) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.client.Close()
	_ = s.server.Close()
}
