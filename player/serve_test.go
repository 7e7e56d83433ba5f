package player

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// patience is how long a test waits for what must come; nothing is timed by it.
const patience = 5 * time.Minute

// session is a player and a frontend of its line over real sockets. When the
// test ends both are stopped, and no goroutine may be left.
type session struct {
	t      *testing.T
	ctx    context.Context
	front  *coreclient.Frontend
	engine coreclient.Engine
	player *Player
	stop   context.CancelFunc
	ended  chan error // what Run returned
}

func connect(t *testing.T, opt Options, clients int) *session {
	t.Helper()
	s := &session{t: t, ended: make(chan error, 1)}
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ctx, done := context.WithTimeout(context.Background(), patience)
	t.Cleanup(done)
	s.ctx = ctx
	probe, err := New(opt)
	must(t, err)
	if s.front, err = coreclient.Listen(coreclient.Options{Codec: probe.codec, Clients: clients}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.front.Close() })
	opt.Handshake = s.front.Handshake()
	s.player, s.stop = run(t, ctx, opt, s.ended)
	if s.engine, err = s.front.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	<-s.player.Ready()
	return s
}

// run starts a player; what its Run returns comes through ended.
func run(t *testing.T, ctx context.Context, opt Options, ended chan<- error) (*Player, context.CancelFunc) {
	t.Helper()
	p, err := New(opt)
	must(t, err)
	ctx, stop := context.WithCancel(ctx)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		ended <- p.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-exited
	})
	return p, stop
}

func (s *session) submit(requests ...*protocol.Request) {
	s.t.Helper()
	for _, r := range requests {
		must(s.t, s.front.Submit(r))
	}
}

// next returns the next envelope for a client, those of steps without outputs left
// out: they come when there is nothing else to do.
func (s *session) next(client int) protocol.Outputs {
	s.t.Helper()
	for {
		var o protocol.Outputs
		if _, err := s.front.Next(s.ctx, client, &o); err != nil {
			s.t.Fatalf("client %d: %v", client, err)
		}
		if len(o.Outputs) > 0 || o.SchedulerStats == nil {
			return o
		}
	}
}

// reply waits for the answer to a utility call, through which the client knows
// that the engine has seen what it sent before. Nothing else may come.
func (s *session) reply(client int, method string, args ...[]byte) *protocol.UtilityOutput {
	s.t.Helper()
	id, err := s.front.Call(client, method, args...)
	must(s.t, err)
	o := s.next(client)
	if o.Utility == nil || o.Utility.CallID != id {
		s.t.Fatalf("got an envelope of %d outputs instead of the answer to %s", len(o.Outputs), method)
	}
	return o.Utility
}

// finished reads a client's envelopes until n requests have ended, and returns
// what each of them got and how many prompt tokens the statistics told.
func (s *session) finished(client, n int) (streams map[string]*stream, queries int64) {
	s.t.Helper()
	streams = map[string]*stream{}
	for n > 0 {
		o := s.next(client)
		if o.SchedulerStats != nil {
			e := envelope{Outputs: o}
			queries += e.stats(s.t)["prefix_cache_stats"].(map[string]any)["queries"].(int64)
		}
		for _, out := range o.Outputs {
			if a := s.collect(streams, out); a.finish != protocol.Unfinished {
				n--
			}
		}
	}
	return streams, queries
}

// stream is what one request got over the sockets.
type stream struct {
	tokens []uint32
	finish protocol.FinishReason
	err    string
}

func (s *session) collect(streams map[string]*stream, out protocol.RequestOutput) *stream {
	a := streams[string(out.ID)]
	if a == nil {
		a = new(stream)
		streams[string(out.ID)] = a
	}
	if a.finish != protocol.Unfinished {
		s.t.Errorf("request %s got an output after its last one", out.ID)
	}
	a.tokens, a.finish, a.err = append(a.tokens, out.Tokens...), out.Finish, text(out.Error)
	return a
}

// wait returns what Run returned.
func (s *session) wait() error {
	s.t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-s.ctx.Done():
		s.t.Fatal("Run does not return")
		return nil
	}
}

// hourAway is a take whose first token is an hour away.
func hourAway() take {
	return take{prompt: count(0, 4), output: []uint32{1}, ttft: float64(time.Hour / time.Millisecond)}
}

func TestEachClientGetsItsOwn(t *testing.T) {
	for _, line := range []string{"0.25", "0.33"} {
		t.Run(line, func(t *testing.T) {
			s := connect(t, Options{VLLMVersion: line, Seed: 1, Limits: Limits{MaxNumSeqs: 5}}, 2)
			const each = 10
			for i := range each {
				s.submit(ask(fmt.Sprintf("a%d-x", i), count(0, 10), 20+i), ask(fmt.Sprintf("b%d-x", i), count(0, 7), 30-i, toClient(1)))
			}
			var queries int64
			for client, letter := range []string{"a", "b"} {
				got, q := s.finished(client, each)
				queries += q
				want := map[string]*stream{}
				for i := range each {
					n := 20 + i
					if client == 1 {
						n = 30 - i
					}
					id := fmt.Sprintf("%s%d-x", letter, i)
					want[id] = &stream{tokens: randomTokens(1, defaultVocab, id, n), finish: protocol.FinishLength}
				}
				require.NoDiff(t, cmp.Diff(want, got, cmp.AllowUnexported(stream{})), "client %d (-want +got)", client)
			}
			if want := int64(each * 17); queries != want {
				t.Errorf("the statistics of both clients told %d prompt tokens, want %d, each once", queries, want)
			}
		})
	}
}

func TestShutdownAnswersWhatIsOpen(t *testing.T) {
	for _, line := range []string{"0.25", "0.33"} {
		t.Run(line, func(t *testing.T) {
			s := connect(t, Options{VLLMVersion: line, Trace: traceOf(t, hourAway(), hourAway(), hourAway()), Timing: Timing{Pace: PaceRecorded}, Limits: Limits{MaxNumSeqs: 1}}, 3)
			s.submit(ask("replay-0", count(0, 4), 1), ask("replay-1", count(0, 4), 1, toClient(1)), ask("replay-2", count(0, 4), 1, toClient(1)))
			for client := range 2 {
				s.reply(client, "is_sleeping")
			}
			s.stop()
			for client, ids := range [][]string{{"replay-0"}, {"replay-1", "replay-2"}, nil} {
				for _, id := range ids {
					o := s.next(client)
					if len(o.Outputs) != 1 || string(o.Outputs[0].ID) != id || o.Outputs[0].Finish != protocol.FinishAbort {
						t.Errorf("client %d got %d outputs, want the abort of %s", client, len(o.Outputs), id)
					}
					require.NoDiff(t, cmp.Diff([][]byte{[]byte(id)}, o.FinishedRequests), "client %d: finished_requests (-want +got)", client)
				}
				var o protocol.Outputs
				if _, err := s.front.Next(s.ctx, client, &o); !errors.Is(err, protocol.ErrEngineDead) {
					t.Errorf("client %d was told %v, want that the engine is dead", client, err)
				}
				if _, err := s.front.Next(s.ctx, client, &o); !errors.Is(err, coreclient.ErrEngineGone) {
					t.Errorf("client %d was told %v, want that the engine is gone", client, err)
				}
			}
			require.NoErrorf(t, s.wait(), "Run")
		})
	}
}

func TestAFrontendThatIsGoneEndsTheRun(t *testing.T) {
	for _, tt := range []struct {
		name string
		opt  Options
		open func(*session)
	}{
		{"idle", Options{}, func(*session) {}},
		{
			"while the engine waits",
			Options{Trace: traceOf(t, hourAway()), Timing: Timing{Pace: PaceRecorded}},
			func(s *session) {
				s.submit(ask("replay-0", count(0, 4), 1))
				s.reply(0, "is_sleeping")
			},
		},
		{
			"in the middle of two streams",
			Options{Limits: Limits{MaxModelLen: 1 << 30}},
			func(s *session) {
				s.submit(ask("x", count(0, 4), 1<<29))
				s.next(0)
				s.submit(ask("y", count(0, 4), 1<<29, toClient(1)))
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := connect(t, tt.opt, 2)
			tt.open(s)
			s.front.Close()
			require.ErrorIs(t, s.wait(), ErrFrontendGone)
		})
	}
}

// What is said to one client leaves although there is more to say to another.
func TestAShortAnswerDoesNotWaitForALongOne(t *testing.T) {
	s := connect(t, Options{Limits: Limits{MaxModelLen: 1 << 30}}, 2)
	s.submit(ask("long-x", count(0, 4), 1<<29, toClient(1)))
	s.next(1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		var o protocol.Outputs
		for {
			if _, err := s.front.Next(s.ctx, 1, &o); err != nil {
				return // the engine is dead
			}
		}
	}()
	s.submit(ask("short-x", count(0, 4), 1))
	if got, _ := s.finished(0, 1); len(got["short-x"].tokens) != 1 {
		t.Errorf("got %+v, want one token", got["short-x"])
	}
	s.stop()
	<-read
}

func TestAnAbortReachesABusyEngine(t *testing.T) {
	s := connect(t, Options{Limits: Limits{MaxModelLen: 1 << 30}}, 2)
	s.submit(ask("endless-x", count(0, 4), 1<<29))
	s.next(0)
	must(t, s.front.Abort(0, "endless-x"))
	// What was said before the abort still comes; then the answer, and no more.
	id, err := s.front.Call(0, "is_sleeping")
	must(t, err)
	for o := s.next(0); o.Utility == nil || o.Utility.CallID != id; o = s.next(0) {
		for _, out := range o.Outputs {
			require.Equal(t, out.Finish, protocol.Unfinished, "the aborted request finished by")
		}
	}
	s.submit(ask("after-x", count(0, 4), 1))
	o := s.next(0)
	require.True(t, len(o.Outputs) == 1 && string(o.Outputs[0].ID) == "after-x", "%d outputs after the abort, want one for the next request", len(o.Outputs))
}

func TestAnUndecodableRequestIsAnswered(t *testing.T) {
	id := pack.AppendString(nil, "broken-x")
	request := func(fields int, rest ...byte) []byte {
		return slices.Concat(pack.AppendArrayHeader(nil, fields), id, rest)
	}
	nils := bytes.Repeat([]byte{0xc0}, 21)
	for _, tt := range []struct {
		name    string
		payload []byte
		reason  string
	}{
		{"a prompt that is none", request(22, append([]byte{7}, nils...)...), "EngineCoreRequest.prompt_token_ids: "},
		{"a prompt of 2^32-1 ids", request(22, append([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, nils...)...), "EngineCoreRequest.prompt_token_ids: "},
		{"too few fields", request(2, 0xc0), "2 fields, the line " + protocol.Newest() + " requires "},
		{"bytes after it", request(22, append([]byte{0xc0}, nils...)...), "1 bytes after the message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var refused []string
			s := connect(t, Options{Tolerant: true, OnRefused: func(id string, err error) { refused = append(refused, id+": "+err.Error()) }}, 2)
			must(t, s.front.SubmitRaw(1, tt.payload))
			got, _ := s.finished(1, 1)
			a := got["broken-x"]
			if a == nil || a.finish != protocol.FinishError || !strings.Contains(a.err, "bad_request") {
				t.Fatalf("answered %+v, want a bad_request error for broken-x", got)
			}
			s.submit(ask("after-x", count(0, 4), 1, toClient(1)))
			if got, _ := s.finished(1, 1); got["after-x"].finish != protocol.FinishLength {
				t.Errorf("the next request got %+v", got["after-x"])
			}
			s.stop()
			s.wait()
			if len(refused) != 1 || !strings.Contains(refused[0], tt.reason) || !strings.HasPrefix(refused[0], "broken-x: ") {
				t.Errorf("OnRefused was told %q, want once of broken-x: %s", refused, tt.reason)
			}
		})
	}
}

// A frontend of another line is named, once, with the line to play; a frontend of the player's own line is not.
func TestOtherLineNamed(t *testing.T) {
	for _, test := range []struct {
		player, frontend string
		want             []string // of the log; nil is no line of it
	}{
		{"0.33", "0.27", []string{"engine_line=0.33", "request_layout_of=0.25–0.27", "expected 22 fields, found 20 fields", "--vllm-version 0.27"}},
		{"0.27", "0.33", []string{"engine_line=0.27", "request_layout_of=0.31–0.33", "--vllm-version 0.33"}},
		{"0.28", "", []string{"engine_line=0.28", "required_by=0.29–0.33", "supports_lora max_loras", "--vllm-version 0.33"}},
		{"0.33", "0.33", nil},
		{"0.33", "", nil}, // no line requires more
	} {
		var log bytes.Buffer
		p, err := New(Options{VLLMVersion: test.player, Log: slog.New(slog.NewTextHandler(&log, nil))})
		must(t, err)
		if test.frontend != "" {
			codec, err := CodecFor(test.frontend)
			must(t, err)
			request := protocol.Request{ID: "a", PromptTokenIDs: []uint32{1}, HasSampling: true, Sampling: protocol.Sampling{EOSTokenID: -1}}
			for range 2 {
				p.decode(zmq.Message{{protocol.TypeAdd}, codec.AppendRequest(nil, &request)})
			}
		}
		p.explainLeft()
		if lines := strings.Count(log.String(), "\n"); (lines == 1) != (test.want != nil) || lines > 1 {
			t.Errorf("player %s, frontend %s: %d lines:\n%s", test.player, test.frontend, lines, log.String())
		}
		for _, want := range test.want {
			require.True(t, strings.Contains(log.String(), want), "player %s, frontend %s: without %q:\n%s", test.player, test.frontend, want, log.String())
		}
	}
}
