package acceptance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An Engine measures what an engine core makes of the messages of a frontend: the outcomes are those of [NewRequests].
type Engine struct {
	// Start starts an engine that registers with the frontend at an address.
	Start    func(handshake string) (*process.Process, error)
	Workers  int
	Progress func(done, of int)
}

// How long an engine is waited for.
const (
	bootTime    = time.Minute            // for a handshake with nothing wrong in it
	initTime    = 5 * time.Second        // for one that is tampered with
	silentTime  = 15 * time.Second       // for an answer to an ordinary request, until the engine is taken for dead
	controlTime = 300 * time.Millisecond // at most, until another ordinary request shows whether the engine still reads
)

// Measure returns what becomes of each probe, in their order.
func (e Engine) Measure(ctx context.Context, m *Messages) ([]Outcome, error) {
	start := func(handshake string) (func(), <-chan struct{}, error) {
		p, err := e.Start(handshake)
		if err != nil {
			return nil, nil, err
		}
		return func() { _ = p.Stop(context.Background()) }, p.Done(), nil
	}
	return measure(ctx, m, e.Workers, e.Progress, func() prober { return &engineWorker{m: m, start: start} })
}

// engineWorker is a frontend of one engine at a time.
type engineWorker struct {
	m       *Messages
	start   func(handshake string) (stop func(), done <-chan struct{}, err error)
	session *engineSession // nil if there is none that serves
	usual   map[*scenario]string
	sent    uint64 // messages of any kind
}

// engineSession is an engine before us as its frontend.
type engineSession struct {
	frontend *coreclient.Frontend
	cancel   context.CancelFunc
	stop     func()
	answers  chan engineAnswer // closed when the engine is gone
}

// engineAnswer is one thing that the engine says.
type engineAnswer struct {
	id   string // of a request, empty for a call
	text string // empty if it failed
	more bool   // the request is not at its end
}

func (w *engineWorker) close() {
	if w.session != nil {
		w.session.cancel()
		_ = w.session.frontend.Close() // first, so that the engine does not wait for it
		w.session.stop()
		w.session = nil
	}
}

// probe tries a message. An error is of this side.
func (w *engineWorker) probe(ctx context.Context, p *Probe) (Outcome, error) {
	if p.scenario == w.m.init {
		w.close()
		err := w.open(ctx, initTime, func(f facts) []byte { return p.message(f)[0] })
		_, serves := "", false
		if err == nil {
			_, serves = w.ask(ctx, nil)
		}
		w.close()
		if serves {
			return Served, context.Cause(ctx)
		}
		return Dead, context.Cause(ctx)
	}
	if w.session == nil {
		if err := w.open(ctx, bootTime, nil); err != nil {
			return "", err
		}
	}
	usual, is := w.usual[p.scenario]
	if !is {
		var serves bool
		if usual, serves = w.ask(ctx, func(f facts) [][]byte { return [][]byte{{p.scenario.kind}, p.scenario.clean(f)} }); !serves {
			w.close()
			return "", errors.Join(fmt.Errorf("an ordinary %s ends the engine", p.scenario.name), context.Cause(ctx))
		}
		if w.usual == nil {
			w.usual = map[*scenario]string{}
		}
		w.usual[p.scenario] = usual
	}
	got, serves := w.ask(ctx, p.input)
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	switch {
	case !serves:
		w.close()
		return Dead, nil
	case got == usual:
		return Served, nil
	case got == "":
		return Failed, nil
	}
	return Altered, nil
}

// open starts an engine and takes it through the handshake; init makes what answers its HELLO, nil for the usual.
func (w *engineWorker) open(ctx context.Context, limit time.Duration, init func(facts) []byte) error {
	opt := coreclient.Options{Codec: w.m.Codec}
	if init != nil {
		opt.Init = func(usual []byte) []byte {
			addresses, err := protocol.DecodeInit(usual)
			if err != nil {
				return usual
			}
			return init(facts{ready: map[string][]byte{
				"inputs": pack.AppendString(nil, addresses.Inputs[0]), "outputs": pack.AppendString(nil, addresses.Outputs[0]),
			}})
		}
	}
	frontend, err := coreclient.Listen(opt)
	if err != nil {
		return err
	}
	s := &engineSession{frontend: frontend, answers: make(chan engineAnswer, 64)}
	stop, done, err := w.start(frontend.Handshake())
	if err != nil {
		return errors.Join(err, frontend.Close())
	}
	s.stop = stop
	ctx, s.cancel = context.WithCancel(ctx)
	w.session = s
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel() // it has refused the handshake
		case <-limited.Done():
		}
	}()
	if _, err := frontend.Accept(limited); err != nil {
		w.close()
		return err
	}
	go s.listen(ctx)
	return nil
}

// listen passes on what the engine says, until it is gone.
func (s *engineSession) listen(ctx context.Context) {
	defer close(s.answers)
	var o protocol.Outputs
	tokens := map[string]int{}
	say := func(a engineAnswer) {
		select {
		case s.answers <- a:
		case <-ctx.Done():
		}
	}
	for {
		if _, err := s.frontend.Next(ctx, 0, &o); err != nil {
			return
		}
		if u := o.Utility; u != nil {
			text := "a result"
			if u.Failed {
				text = ""
			}
			say(engineAnswer{text: text})
		}
		for _, output := range o.Outputs {
			a := engineAnswer{id: string(output.ID), more: output.Finish == 0}
			tokens[a.id] += len(output.Tokens)
			if output.Finish != protocol.FinishError && output.Finish != protocol.FinishAbort {
				a.text = fmt.Sprintf("%v after %d tokens, log-probabilities %t %t", output.Finish, tokens[a.id], output.Logprobs != nil, output.PromptLogprobs != nil)
			}
			say(a)
		}
	}
}

// ask sends a message, and then ordinary requests until they tell what became of it: got is what the engine answered it
// with, empty if it failed or was not answered. Nothing that no two engines have in common is in it. serves reports
// whether the engine still answers ordinary requests.
func (w *engineWorker) ask(ctx context.Context, message func(facts) [][]byte) (got string, serves bool) {
	s := w.session
	w.sent++
	asked := message == nil
	if message != nil && s.frontend.SendRaw(0, message(facts{id: fmt.Sprintf("asked-%d", w.sent), callID: w.sent})...) != nil {
		return "", false
	}
	answered := asked
	mine := map[string]bool{} // controls of this message; one of an earlier message may be answered late
	patience := time.NewTimer(silentTime)
	defer patience.Stop()
	for controls := 0; ; controls++ {
		w.sent++
		control := fmt.Sprintf("control-%d", w.sent)
		mine[control] = true
		if s.frontend.SendRaw(0, []byte{protocol.TypeAdd}, w.m.plain.clean(facts{id: control})) != nil {
			return "", false
		}
		again := time.After(min(controlTime, 5*time.Millisecond<<min(controls, 10)))
		running := false
		for waiting := true; waiting; {
			select {
			case a, open := <-s.answers:
				switch {
				case !open:
					return "", false
				case strings.HasPrefix(a.id, "control-"):
					if serves = serves || mine[a.id] && !a.more && a.text != ""; a.id == control && !a.more {
						waiting = false
					}
				case a.more:
					running = true
				default:
					got, answered = a.text, true
				}
			case <-again: // what it reads no more cannot be sent to it
				waiting = false
			case <-patience.C:
				return "", false
			case <-ctx.Done():
				return "", false
			}
		}
		if serves && (answered || controls > 0 && !running) {
			return got, true
		}
	}
}
