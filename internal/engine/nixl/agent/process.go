package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed helper.py
var helper string

// Options configures [Start].
type Options struct {
	// Python is an interpreter with the package nixl-cu13 or nixl-cu12: `vllm-vcr capture nixl` installs one. Or it is [InMemory].
	Python string
	// Name is the beginning of the agent's name; default "vllm-vcr". Each start of the helper adds a random end.
	Name string
	// Length of the region in bytes.
	Length int64
	// Log gets the restarts; nil logs nothing.
	Log *slog.Logger
}

// maxRestarts is how often in succession a helper may end before it has answered anything.
const maxRestarts = 3

// maxMessage limits a message of the helper in bytes: the largest has the metadata of the agent.
const maxMessage = 16 << 20

// maxNotifications is how many notifications are kept.
const maxNotifications = 4096

// ErrHelper is the error of calls that the helper did not answer since it ended. It is started again.
var ErrHelper = errors.New("the NIXL helper ended")

// Start starts the helper process of an agent, and returns when it has registered the memory. ctx ends the start only. A
// helper that ends by itself is started again: open calls fail with [ErrHelper], peers are connected again, and the contents of
// the region are kept. An error of Start has the cause: no nixl, another CUDA flavour, UCX without a transport.
func Start(ctx context.Context, opt Options) (Agent, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Name = cmp.Or(opt.Name, "vllm-vcr")
	if opt.Length <= 0 {
		return nil, fmt.Errorf("NIXL: a region of %d bytes: want some", opt.Length)
	}
	if opt.Python == InMemory {
		return newMemory(opt), nil
	}
	memory, err := sharedFile(opt.Length)
	if err != nil {
		return nil, fmt.Errorf("NIXL: memory of %d bytes: %w", opt.Length, err)
	}
	a := &agent{
		opt: opt, File: memory, notifications: make(chan Notification, maxNotifications), closed: make(chan struct{}), ended: make(chan struct{}),
		metadata: map[Peer][]byte{},
	}
	first, err := a.launch(ctx)
	if err != nil {
		memory.Close()
		return nil, fmt.Errorf("NIXL: %w", err)
	}
	a.helper = first
	go a.keep(first)
	return a, nil
}

// sharedFile is a file without a name that two processes can map, in memory where the system has a place for that.
func sharedFile(length int64) (*os.File, error) {
	file, err := os.CreateTemp("/dev/shm", "vllm-vcr-nixl-")
	if err != nil {
		if file, err = os.CreateTemp("", "vllm-vcr-nixl-"); err != nil {
			return nil, err
		}
	}
	if err = errors.Join(os.Remove(file.Name()), file.Truncate(length)); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// An agent is a helper process, and what is needed to start the next one.
type agent struct {
	*os.File      // the region
	opt           Options
	notifications chan Notification
	closed, ended chan struct{}
	closing       sync.Once
	mortal        atomic.Bool // it is not started again

	mu       sync.Mutex
	helper   *running // the newest
	failure  error    // why there is no other
	metadata map[Peer][]byte
}

// running is one process.
type running struct {
	process  *process.Process
	in       *os.File
	metadata []byte
	base     uint64

	writing   sync.Mutex
	mu        sync.Mutex
	next      uint64
	open      map[uint64]chan answer // by the id of the message; nil after the end
	answered  bool
	connected map[Peer]bool
}

// A message is one of the helper.
type message struct {
	Ready *struct {
		Metadata []byte
		Base     uint64
	}
	Failed       string
	Notification *Notification
	ID           uint64
	answer
}

type answer struct {
	Peer  Peer
	Error string
}

// launch starts a process and waits until it is ready.
func (a *agent) launch(ctx context.Context) (*running, error) {
	requests, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, answers, err := os.Pipe()
	if err != nil {
		requests.Close()
		in.Close()
		return nil, err
	}
	cmd := exec.Command(a.opt.Python, "-I", "-B", "-c", helper, a.opt.Name+"-"+strings.ToLower(rand.Text()[:8]), fmt.Sprint(a.opt.Length))
	cmd.ExtraFiles = []*os.File{a.File, requests, answers}
	cmd.Env = process.Environment(os.Environ(), func(name, _ string) bool {
		return slices.Contains([]string{"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}, name) || strings.HasPrefix(name, "UCX_") || strings.HasPrefix(name, "NIXL_")
	})
	r := &running{in: in, open: map[uint64]chan answer{}, connected: map[Peer]bool{}}
	r.process, err = process.Start(cmd, process.Options{Name: "NIXL helper", Grace: time.Second})
	requests.Close() // the ends of the helper: without them its end is that of the pipes
	answers.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("%w: `vllm-vcr capture nixl` installs a Python with nixl", err)
	}
	ready := make(chan error, 1)
	go r.receive(out, ready, a.notify)
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-a.closed:
		err = os.ErrClosed
	}
	if err != nil {
		in.Close()
		_ = r.process.Stop(context.WithoutCancel(ctx)) // of a process that survives SIGKILL there is nothing more to learn
		return nil, err
	}
	return r, nil
}

// receive reads messages until the process ends. It sends to ready once, nil if the helper is ready.
func (r *running) receive(out io.ReadCloser, ready chan<- error, notify func(Notification)) {
	defer out.Close()
	err := r.receiveAll(out, ready, notify)
	r.in.Close() // the process ends by it, if it has not
	<-r.process.Done()
	var stopped error = r.process.Exit()
	if err != nil {
		stopped = err
	}
	select {
	case ready <- stopped:
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, waiting := range r.open {
		close(waiting)
	}
	r.open = nil
}

func (r *running) receiveAll(out io.Reader, ready chan<- error, notify func(Notification)) error {
	for {
		var head [4]byte
		if _, err := io.ReadFull(out, head[:]); err != nil {
			return nil
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxMessage {
			return fmt.Errorf("the NIXL helper announces a message of %d bytes", n)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(out, text); err != nil {
			return nil
		}
		var m message
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("the NIXL helper wrote %q: %w", safetext.Clip(string(text), 200), err)
		}
		switch {
		case m.Failed != "":
			return errors.New(safetext.Line(m.Failed))
		case m.Ready != nil:
			r.metadata, r.base = m.Ready.Metadata, m.Ready.Base
			ready <- nil
		case m.Notification != nil:
			notify(*m.Notification)
		default:
			r.mu.Lock()
			waiting := r.open[m.ID]
			delete(r.open, m.ID)
			r.answered = true
			r.mu.Unlock()
			if waiting != nil {
				waiting <- m.answer
			}
		}
	}
}

// notify keeps a notification, in the place of the oldest if there is no room.
func (a *agent) notify(n Notification) {
	for {
		select {
		case a.notifications <- n:
			return
		default:
		}
		select {
		case <-a.notifications:
			a.opt.Log.Warn("a NIXL notification was dropped: they are not read")
		default:
		}
	}
}

// keep starts the helper again whenever it ends.
func (a *agent) keep(r *running) {
	defer close(a.ended)
	ctx := context.Background()
	for useless := 0; ; {
		select {
		case <-a.closed:
			r.in.Close()
			_ = r.process.Stop(ctx) // of a process that survives SIGKILL there is nothing more to learn
			return
		case <-r.process.Done():
		}
		r.mu.Lock()
		if useless++; r.answered {
			useless = 0
		}
		r.mu.Unlock()
		err := fmt.Errorf("it ended %d times without an answer: %w", useless, r.process.Exit())
		next := r
		if useless < maxRestarts && !a.mortal.Load() {
			a.opt.Log.Warn("the NIXL helper ended and is started again", "how", r.process.Exit())
			next, err = a.launch(ctx)
		}
		a.mu.Lock()
		if err == nil {
			a.helper = next
		}
		a.failure = err
		a.mu.Unlock()
		if err != nil {
			return
		}
		r = next
	}
}

// current is the process that is running now, or was until a moment ago.
func (a *agent) current() (*running, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failure != nil {
		return nil, fmt.Errorf("the NIXL helper cannot be started again: %w", a.failure)
	}
	return a.helper, nil
}

func (a *agent) Metadata() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.helper.metadata
}

func (a *agent) Region() (uint64, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.helper.base, int(a.opt.Length)
}

func (a *agent) Notifications() <-chan Notification { return a.notifications }

// Close ends the helper.
func (a *agent) Close() (err error) {
	a.closing.Do(func() {
		close(a.closed)
		<-a.ended
		close(a.notifications)
		err = a.File.Close()
	})
	return err
}

// call sends a message to the helper and waits for its answer.
func (r *running) call(ctx context.Context, fields map[string]any) (answer, error) {
	waiting := make(chan answer, 1)
	r.mu.Lock()
	if r.open == nil {
		r.mu.Unlock()
		return answer{}, ErrHelper
	}
	r.next++
	id := r.next
	r.open[id] = waiting
	r.mu.Unlock()
	fields["id"] = id
	if err := r.send(fields); err != nil {
		return answer{}, ErrHelper
	}
	select {
	case got, ok := <-waiting:
		switch {
		case !ok:
			return answer{}, ErrHelper
		case got.Error != "":
			return answer{}, errors.New(safetext.Line(got.Error))
		}
		return got, nil
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.open, id)
		r.mu.Unlock()
		_ = r.send(map[string]any{"id": 0, "do": "cancel", "read": id}) // a helper that ended has nothing to cancel
		return answer{}, context.Cause(ctx)
	}
}

func (r *running) send(fields map[string]any) error {
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	_, err = r.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// Connect loads the metadata of a peer.
func (a *agent) Connect(ctx context.Context, metadata []byte) (Peer, error) {
	r, err := a.current()
	if err != nil {
		return "", err
	}
	got, err := r.call(ctx, map[string]any{"do": "connect", "metadata": metadata})
	if err != nil {
		return "", fmt.Errorf("NIXL: load the metadata of a peer: %w", err)
	}
	a.mu.Lock()
	a.metadata[got.Peer] = bytes.Clone(metadata)
	a.mu.Unlock()
	r.mu.Lock()
	r.connected[got.Peer] = true
	r.mu.Unlock()
	return got.Peer, nil
}

// ask makes a call about a peer, which a helper that was started again does not know yet.
func (a *agent) ask(ctx context.Context, peer Peer, fields map[string]any) error {
	r, err := a.current()
	if err != nil {
		return err
	}
	r.mu.Lock()
	connected := r.connected[peer]
	r.mu.Unlock()
	if !connected {
		a.mu.Lock()
		metadata := a.metadata[peer]
		a.mu.Unlock()
		if metadata == nil {
			return fmt.Errorf("the peer %q is not connected", safetext.Line(string(peer)))
		}
		if _, err := a.Connect(ctx, metadata); err != nil {
			return err
		}
	}
	fields["peer"] = peer
	_, err = r.call(ctx, fields)
	return err
}

func (a *agent) Misbehave(ctx context.Context, pause time.Duration, die bool) error {
	r, err := a.current()
	if err != nil {
		return err
	}
	a.mortal.Store(die)
	_, err = r.call(ctx, map[string]any{"do": "misbehave", "pause": pause.Seconds(), "die": die})
	return err
}

func (a *agent) DieReading(ctx context.Context, peer Peer, blocks []Block) error {
	a.mortal.Store(true)
	switch err := a.read(ctx, peer, blocks, "", true); {
	case err == nil:
		return errors.New("NIXL: the read was over at once")
	case !errors.Is(err, ErrHelper):
		return err
	}
	return nil
}

// Read copies blocks of the peer into the region.
func (a *agent) Read(ctx context.Context, peer Peer, blocks []Block, notify string) error {
	return a.read(ctx, peer, blocks, notify, false)
}

func (a *agent) read(ctx context.Context, peer Peer, blocks []Block, notify string, die bool) error {
	rows := make([][4]uint64, len(blocks))
	for i, b := range blocks {
		if b.Local < 0 || b.Len <= 0 || b.Local > a.opt.Length-int64(b.Len) {
			return fmt.Errorf("NIXL: block %d: %d bytes at offset %d do not fit into the region of %d bytes", i, b.Len, b.Local, a.opt.Length)
		}
		rows[i] = [4]uint64{b.Remote, uint64(b.RemoteDevice), uint64(b.Local), uint64(b.Len)}
	}
	if len(rows) == 0 {
		return a.Notify(ctx, peer, notify)
	}
	if err := a.ask(ctx, peer, map[string]any{"do": "read", "blocks": rows, "notify": notify, "die": die}); err != nil {
		return fmt.Errorf("NIXL: read %s of %s: %w", safetext.Count(len(blocks), "block"), safetext.Line(string(peer)), err)
	}
	return nil
}

// Notify sends a notification.
func (a *agent) Notify(ctx context.Context, peer Peer, text string) error {
	if err := a.ask(ctx, peer, map[string]any{"do": "notify", "notify": text}); err != nil {
		return fmt.Errorf("NIXL: notify %s: %w", safetext.Line(string(peer)), err)
	}
	return nil
}
