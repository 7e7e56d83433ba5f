package player

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// fakeClock is virtual time: After delivers when the test moves the clock.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Duration
	timers []fakeTimer
	armed  chan time.Duration // what After was asked for, if anybody listens
}

type fakeTimer struct {
	due   time.Duration
	fires chan time.Time
}

func (c *fakeClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	timer := fakeTimer{c.now + d, make(chan time.Time, 1)}
	c.timers = append(c.timers, timer)
	c.mu.Unlock()
	if c.armed != nil {
		c.armed <- d
	}
	return timer.fires
}

// advance moves the clock and fires what is due by then.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += d
	c.timers = slices.DeleteFunc(c.timers, func(t fakeTimer) bool {
		if t.due > c.now {
			return false
		}
		t.fires <- time.Time{}
		return true
	})
}

// start is the virtual time at which every rig begins.
const start = time.Hour

// rig is an engine without sockets: what it says is decoded as a frontend of
// its line does, and a message that such a frontend would not take fails the
// test.
type rig struct {
	t *testing.T
	*engine
	player    *Player
	clock     *fakeClock
	envelopes []envelope
	quiet     []envelope // those of steps without outputs
	refused   []string   // ids given to OnRefused, with the reason
	calls     int        // utility calls made
}

// envelope is one message of the engine to a client.
type envelope struct {
	protocol.Outputs
	at     time.Duration // since the rig's start
	client int
	aux    [][]byte
}

// newRig makes an engine with the given number of clients.
func newRig(t *testing.T, opt Options, clients int) *rig {
	t.Helper()
	r := &rig{t: t, clock: &fakeClock{now: start}}
	opt.Clock = r.clock
	opt.OnRefused = func(id string, err error) { r.refused = append(r.refused, fmt.Sprintf("%s: %v", id, err)) }
	p, err := New(opt)
	must(t, err)
	r.player, r.engine = p, p.engine
	r.addClients(clients)
	r.send = r.capture
	r.beside = func(do func(context.Context) func()) { do(t.Context())() }
	return r
}

func (r *rig) capture(client int, m protocol.ClientMessage) {
	r.t.Helper()
	e := envelope{at: r.clock.Now() - start, client: client}
	for _, frame := range m[1:] {
		e.aux = append(e.aux, slices.Clone(frame))
	}
	frame := slices.Clone(m[0])
	if err := r.codec.DecodeOutputs(frame, &e.Outputs); err != nil {
		r.t.Errorf("line %s: the frontend cannot read %s: %v", r.codec.Line(), pack.Format(frame), err)
	}
	if len(e.Outputs.Outputs) == 0 && e.SchedulerStats != nil {
		r.quiet = append(r.quiet, e)
		return
	}
	r.envelopes = append(r.envelopes, e)
}

// submit sends requests through the line's encoding, as a frontend would.
func (r *rig) submit(requests ...*protocol.Request) {
	r.t.Helper()
	for _, q := range requests {
		message := append(zmq.Message{{protocol.TypeAdd}, r.codec.AppendRequest(nil, q)}, q.Aux...)
		e, _ := r.player.decodeAny(message) // requests of tests have what the player reads, and not all that a line demands
		must(r.t, r.player.handle([]event{e}))
	}
}

// run makes steps until nothing is due at this moment.
func (r *rig) run() {
	for r.step() {
		r.answerDrained()
	}
	r.answerDrained()
}

// runAll runs and moves the clock from due output to due output to the end.
func (r *rig) runAll() {
	r.t.Helper()
	for range 10_000 {
		r.run()
		due, ok := r.nextDue()
		if !ok {
			return
		}
		r.clock.advance(due - r.clock.Now())
	}
	r.t.Fatal("the engine does not come to an end")
}

// held is the number of KV blocks in use.
func (r *rig) held() int { return r.ready.NumGPUBlocks - 1 - r.pool.FreeBlocks() }

// answer is all that one request got.
type answer struct {
	chunks [][]uint32
	at     []time.Duration // of each output, since the rig's start
	client int
	finish protocol.FinishReason
	stop   string // stop_reason as text, "" for nil
	err    string // see errorOf
}

// answers collects the outputs by request.
func (r *rig) answers() map[string]*answer {
	r.t.Helper()
	all := map[string]*answer{}
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			a := all[string(out.ID)]
			if a == nil {
				a = &answer{client: e.client}
				all[string(out.ID)] = a
			}
			if a.finish != protocol.Unfinished {
				r.t.Errorf("request %s got an output after its last one", out.ID)
			}
			a.chunks = append(a.chunks, append([]uint32{}, out.Tokens...))
			a.at = append(a.at, e.at)
			a.finish, a.stop, a.err = out.Finish, text(out.StopReason), r.errorOf(out)
		}
	}
	return all
}

func (r *rig) answer(id string) *answer {
	r.t.Helper()
	a := r.answers()[id]
	if a == nil {
		r.t.Fatalf("request %s got no answer", id)
	}
	return a
}

func (a *answer) tokens() []uint32 { return slices.Concat(a.chunks...) }

// errorOf returns an output's error as "code: message", with a "!" in front when
// the client may try again, and "" when there is none.
func (r *rig) errorOf(out protocol.RequestOutput) string {
	r.t.Helper()
	if out.Error == nil {
		return ""
	}
	e := decoded(r.t, out.Error).(map[string]any)
	mark := ""
	if e["retryable"] == true {
		mark = "!"
	}
	return fmt.Sprintf("%s%s: %s", mark, e["code"], e["message"])
}

// text formats a raw value that may be absent.
func text(raw []byte) string {
	if raw == nil {
		return ""
	}
	return pack.Format(raw)
}

// loose decodes a value without types: its integers are int64, or uint64 as they are written.
func loose(t *testing.T, raw []byte) any {
	t.Helper()
	d := msgpack.NewDecoder(bytes.NewReader(raw))
	d.UseLooseInterfaceDecoding(true)
	v, err := d.DecodeInterface()
	must(t, err)
	return v
}

// decoded turns a raw value into Go's: nil, bool, int64, float64, string, []any
// or map[string]any.
func decoded(t *testing.T, raw []byte) any {
	t.Helper()
	return signed(loose(t, raw))
}

func signed(v any) any {
	switch v := v.(type) {
	case uint64:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = signed(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = signed(v[key])
		}
	}
	return v
}

// ran is a rig with one client that has served the requests.
func ran(t *testing.T, opt Options, requests ...*protocol.Request) *rig {
	t.Helper()
	r := newRig(t, opt, 1)
	r.submit(requests...)
	r.runAll()
	return r
}

// equal compares two values of what is named, and goes on if they differ.
func equal(t testing.TB, what string, want, got any, opt ...cmp.Option) {
	t.Helper()
	require.NoDiff(t, cmp.Diff(want, got, opt...), "%s (-want +got)", what)
}

func must(t testing.TB, err error) {
	t.Helper()
	require.NoError(t, err)
}

// forSource is what a source gets of a request.
func forSource(r *protocol.Request) *Request {
	q := new(Request)
	q.set(r)
	return q
}

// busy reports whether there is a request that has not ended.
func (e *engine) busy() bool { return len(e.byID) > 0 }
