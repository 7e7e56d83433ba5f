package recorder

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// untilTap is a tap whose recording ends before it does.
type untilTap struct {
	*running
	t        *testing.T
	until    chan struct{}
	asked    chan struct{} // the end is in the queue
	finished chan error
}

// Write takes the log.
func (u *untilTap) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("the recording ends when no request is in flight")) {
		close(u.asked)
	}
	return len(p), nil
}

func startUntil(t *testing.T, f *rawFrontend, change func(*Config)) *untilTap {
	t.Helper()
	u := &untilTap{t: t, until: make(chan struct{}), asked: make(chan struct{}), finished: make(chan error, 1)}
	u.running = startTap(t, f.shake.Endpoint(), func(c *Config) {
		c.Until, c.Finished = u.until, func(_ Summary, err error) { u.finished <- err }
		c.Log = slog.New(slog.NewTextHandler(u, nil))
		if change != nil {
			change(c)
		}
	})
	return u
}

// startRawUntil is one between a frontend and an engine of which the test writes every frame.
func startRawUntil(t *testing.T, change func(*Config)) (*rawFrontend, *untilTap, *rawEngine) {
	t.Helper()
	f := newRawFrontend(t)
	u := startUntil(t, f, change)
	return f, u, f.dialRaw(t, u.engine, 0)
}

func (u *untilTap) await(event <-chan struct{}) {
	u.t.Helper()
	select {
	case <-event:
	case <-patient(u.t).Done():
		u.t.Fatal("it did not come to that")
	}
}

func (u *untilTap) awaitEnd() error {
	u.t.Helper()
	select {
	case err := <-u.finished:
		return err
	case <-patient(u.t).Done():
		u.t.Fatal("the recording did not end")
	}
	return nil
}

// submit sends a request as far as the engine.
func (f *rawFrontend) submit(t *testing.T, e *rawEngine, id string) {
	t.Helper()
	request := codec(t).AppendRequest(nil, tapRequest(0, id, []uint32{7}, 1))
	require.NoError(t, f.in.Send(f.identity, []byte{protocol.TypeAdd}, request))
	_, err := e.in.Recv()
	require.NoError(t, err)
}

// answer sends an answer as far as the frontend.
func (f *rawFrontend) answer(t *testing.T, e *rawEngine, id string) {
	t.Helper()
	said := oneToken(t, 0, id)
	mustSend(t, e.out, said)
	if got := next(t, f.out).Message[0]; !bytes.Equal(got, said) {
		t.Fatalf("%s came through as %x", id, got)
	}
}

// The files are whole while everything goes on, with what was in flight at the end and nothing that came later.
func TestRecordingEndsBeforeTheTap(t *testing.T) {
	noLeaks(t)
	f, u, e := startRawUntil(t, nil)
	f.submit(t, e, "before")
	f.answer(t, e, "before")
	f.submit(t, e, "in flight")
	close(u.until)
	u.await(u.asked)
	f.answer(t, e, "in flight")
	require.NoError(t, u.awaitEnd())

	whole, err := trace.Read(u.path("run.jsonl.gz"), trace.Options{Strict: true, KeepExtra: true})
	if err != nil || len(whole.Records) != 2 || string(whole.Records[1].Extra["request_id"]) != `"in flight"` {
		t.Fatalf("got %+v, %v; want two records", whole, err)
	}
	messages := len(readFrames(t, u.path("frames.jsonl.gz")))
	f.submit(t, e, "after")
	f.answer(t, e, "after")
	u.stop()
	u.recorded(2)
	if n := len(readFrames(t, u.path("frames.jsonl.gz"))); n != messages {
		t.Errorf("%d messages at the end, want %d", n, messages)
	}
	require.True(t, len(u.sum.Ranks) == 1 && len(u.sum.Ranks[0].Files) == 3 && u.sum.Stats.Done == 2, "summary %+v", u.sum)
}

// A request that never ends keeps the recording for a while only, and is missed.
func TestRecordingEndsWithARequestInFlight(t *testing.T) {
	noLeaks(t)
	f, u, e := startRawUntil(t, func(c *Config) { c.UntilWait = time.Millisecond })
	f.submit(t, e, "a")
	f.answer(t, e, "a")
	f.submit(t, e, "endless")
	close(u.until)
	const want = "requests in flight at the end, which are not in the recording: 1"
	if err := u.awaitEnd(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	u.recorded(1)
	f.answer(t, e, "endless") // passes all the same
	u.cancel()
	if err := u.end(); err == nil || err.Error() != want {
		t.Errorf("at the end: got %v, want %s", err, want)
	}
}

// Who ends the recording before there is an engine has none, and the engine is forwarded.
func TestRecordingEndsBeforeTheEngine(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	u := startUntil(t, f, nil)
	close(u.until)
	require.NoError(t, u.awaitEnd())
	e := f.dialRaw(t, u.engine, 0)
	f.submit(t, e, "a")
	f.answer(t, e, "a")
	u.stop()
	require.True(t, len(u.sum.Ranks) == 0 && u.sum.Stats.Requests == 0, "summary %+v, want nothing", u.sum)
}

// A disk that is full ends the recording as an error, once.
func TestRecordingEndsOnFullDisk(t *testing.T) {
	noLeaks(t)
	f, u, e := startRawUntil(t, func(c *Config) { c.Trace.Path = "/dev/full" })
	f.submit(t, e, "a")
	f.answer(t, e, "a")
	close(u.until)
	require.ErrorContains(t, u.awaitEnd(), "no space left on device")
	f.submit(t, e, "b")
	f.answer(t, e, "b")
	u.cancel()
	if err := u.end(); err == nil || strings.Count(err.Error(), "no space left on device") != 1 {
		t.Errorf("at the end: got %v", err)
	}
}
