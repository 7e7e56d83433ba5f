package vllmrs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// Options configures [Start].
type Options struct {
	// Binary is the path of vllm-rs.
	Binary string
	// ModelDir holds config.json, tokenizer.json and tokenizer_config.json; weights are not read.
	ModelDir string
	// ServedName is the model's name in requests, default "model". AlsoServed are more names.
	ServedName string
	AlsoServed []string
	// ReadyTimeout is how long the frontend waits for the engine, in whole seconds, rounded up; default 60. It ends with
	// an error when no engine has registered by then.
	ReadyTimeout time.Duration
	// Env is added to the environment, as "NAME=value". The frontend inherits no secrets, and none of the
	// owner's VLLM_ variables: a data-parallel rank that happens to be set would change what it does.
	Env []string
	// Args are added to the command line, and Before comes before "serve" in it. With both, Binary may be the interpreter of
	// a release that has the frontend in Python; it is told ReadyTimeout in its environment.
	Before, Args []string
	// Engines is how many engines the frontend waits for, default 1.
	Engines int
	// Handshake and HTTP are ports that the caller keeps for several frontends, one after the other. Without them the
	// frontend gets ports of its own.
	Handshake, HTTP Port
	// Output gets what the frontend writes, beside the log; may be nil.
	Output io.Writer
	// Log gets start and stop, and at debug level every line that the frontend writes; nil logs nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Binary == "" || o.ModelDir == "" {
		return o, errors.New("vllm-rs: want the path of the binary and of a model directory")
	}
	o.ServedName = cmp.Or(o.ServedName, "model")
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = time.Minute
	}
	if o.Engines <= 0 {
		o.Engines = 1
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o, nil
}

// Server is a running frontend. It is safe for use by several goroutines.
type Server struct {
	opt             Options
	process         *process.Process
	client          *openai.Client
	handshake, http Port
	own             []Port      // of these two, those that the caller does not keep
	detach          func() bool // from the context that was given to Start
	released        sync.Once
}

// Start starts the frontend on two free ports of 127.0.0.1 and returns at once: wait with [Server.Healthy]. It stops
// with [Server.Close], or when ctx ends.
//
// On Linux no other program is given the ports. Elsewhere another program may take one before the frontend does; the
// frontend then ends, and the error that Healthy returns says that the address is in use.
func Start(ctx context.Context, opt Options) (*Server, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("start vllm-rs: %w", err)
	}
	s := &Server{opt: opt, handshake: opt.Handshake, http: opt.HTTP}
	for _, port := range []*Port{&s.handshake, &s.http} {
		if port.number != 0 {
			continue
		}
		if *port, err = Reserve(); err != nil {
			s.release()
			return nil, fmt.Errorf("reserve a port for vllm-rs: %w", err)
		}
		s.own = append(s.own, *port)
	}
	cmd := exec.Command(opt.Binary, s.arguments()...)
	cmd.Env = opt.environment(os.Environ())
	output := opt.Output
	if output == nil {
		output = lineLog(opt.Log)
	}
	name := "vllm-rs"
	if opt.python() {
		name = "the Python frontend"
	}
	s.process, err = process.Start(cmd, process.Options{Name: name, Output: output, Guarded: opt.python()})
	if err != nil {
		s.release()
		return nil, err
	}
	s.client = openai.NewClient(s.URL(), opt.ServedName)
	s.detach = context.AfterFunc(ctx, func() { _ = s.process.Stop(context.Background()) })
	opt.Log.Info("frontend started", "binary", opt.Binary, "pid", s.process.Pid(), "handshake", s.Handshake(), "url", s.URL())
	return s, nil
}

func (s *Server) release() {
	s.released.Do(func() {
		for _, port := range s.own {
			port.Release()
		}
	})
}

func (s *Server) arguments() []string {
	args := append(slices.Clone(s.opt.Before),
		"serve", s.opt.ModelDir, "--served-model-name", s.opt.ServedName)
	args = append(args, s.opt.AlsoServed...)
	args = append(args,
		"--data-parallel-size", strconv.Itoa(s.opt.Engines), "--data-parallel-size-local", "0",
		"--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", strconv.Itoa(s.handshake.number),
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.http.number),
	)
	if !s.opt.python() {
		args = append(args, "--engine-ready-timeout-secs", s.opt.readySeconds())
	}
	return append(args, s.opt.Args...)
}

func (o Options) python() bool { return len(o.Before) > 0 }

func (o Options) readySeconds() string {
	return strconv.FormatInt(int64((o.ReadyTimeout+time.Second-1)/time.Second), 10)
}

// environment is that of the frontend: no secrets, no downloads, no usage reports, no colours in the tail.
func (o Options) environment(inherited []string) []string {
	keep := func(name, value string) bool {
		return !strings.HasPrefix(name, "VLLM_") && !process.Secret(name, value)
	}
	env := process.Environment(inherited, keep, "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "NO_COLOR=1")
	if o.python() {
		env = append(env, "VLLM_ENGINE_READY_TIMEOUT_S="+o.readySeconds())
	}
	return append(env, o.Env...)
}

// Handshake returns the address that an engine core dials, "tcp://127.0.0.1:PORT".
func (s *Server) Handshake() string { return "tcp://127.0.0.1:" + strconv.Itoa(s.handshake.number) }

// URL returns the base of the HTTP side, "http://127.0.0.1:PORT". It answers once [Server.Healthy] has returned nil.
func (s *Server) URL() string { return "http://127.0.0.1:" + strconv.Itoa(s.http.number) }

// Model returns the name that the model is served under.
func (s *Server) Model() string { return s.opt.ServedName }

// Done returns a channel that is closed when the frontend has ended.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Patience is that of the process, see [process.Process.Patience].
func (s *Server) Patience(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	return s.process.Patience(ctx, d, cause)
}

// Pid returns the process id.
func (s *Server) Pid() int { return s.process.Pid() }

// Exit returns how the frontend ended, nil while it runs.
func (s *Server) Exit() *process.ExitError { return s.process.Exit() }

// Tail returns the last 16 KiB of what the frontend has written.
func (s *Server) Tail() string { return s.process.Tail() }

// Close stops the frontend, by SIGTERM and after 5 seconds by SIGKILL, and returns when it is gone. Closing it twice is
// no error.
func (s *Server) Close() error {
	s.detach()
	err := s.process.Stop(context.Background())
	s.release()
	s.client.Close()
	s.opt.Log.Info("frontend stopped", "pid", s.process.Pid())
	return err
}

// The pauses between two requests for /health: short at first, as a frontend is up within a tenth of a second of its
// engine, and longer when the engine takes its time.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// Healthy waits until GET /health answers 200, which it does when an engine has registered. It returns at once, with the
// last of the output, when the frontend ends; and when ctx ends, with its cause and what the frontend last answered.
func (s *Server) Healthy(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := s.client.Health(ctx)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.process.Done():
			timer.Stop()
			return fmt.Errorf("wait for the frontend to be healthy: %w", s.process.Exit())
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the frontend to be healthy: %w: %w; the last of its output:\n%s",
				context.Cause(ctx), err, safetext.Block(s.Tail()))
		}
	}
}

// exitDelay is how long the end of the frontend may take to be known after a connection to it broke.
const exitDelay = time.Second

// Complete sends a request and reads the whole answer, see [openai.Client.Complete]. When the frontend ends meanwhile, the
// error has a [*process.ExitError] with the last of its output.
func (s *Server) Complete(ctx context.Context, r openai.Request) (openai.Completion, error) {
	completion, err := s.client.Complete(ctx, r)
	var status *openai.StatusError
	if err == nil || errors.As(err, &status) || ctx.Err() != nil {
		return completion, err
	}
	patience, stop := s.process.Patience(context.Background(), exitDelay, nil)
	defer stop()
	select {
	case <-s.process.Done():
		err = fmt.Errorf("%w: %w", err, s.process.Exit())
	case <-patience.Done():
	}
	return completion, err
}

// maxLogLine bounds the part of a line that is kept until its end comes, in bytes.
const maxLogLine = 64 << 10

// lineLog returns a writer that logs each line at debug level, or nil if the logger leaves out that level.
func lineLog(log *slog.Logger) io.Writer {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return &lineWriter{log: log}
}

type lineWriter struct {
	log  *slog.Logger
	rest []byte // of a line without its end
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, ended := bytes.Cut(p, []byte("\n"))
		w.rest = append(w.rest, line...)
		if ended || len(w.rest) > maxLogLine {
			w.log.Debug("vllm-rs", "line", string(bytes.TrimRight(w.rest, "\r")))
			w.rest = w.rest[:0]
		}
		if !ended {
			return n, nil
		}
		p = rest
	}
}
