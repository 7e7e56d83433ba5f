package vllmrs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// Options configures [Start].
type Options struct {
	// Binary is the path of vllm-rs.
	Binary string
	// ModelDir holds config.json, tokenizer.json and tokenizer_config.json; weights are not read.
	ModelDir string
	// ServedName is the model's name in requests, default "model".
	ServedName string
	// ReadyTimeout is how long the frontend waits for the engine, in whole seconds, rounded up; default 60. It ends with
	// an error when no engine has registered by then.
	ReadyTimeout time.Duration
	// Env is added to the environment, as "NAME=value". The frontend inherits none of the owner's VLLM_ variables: an
	// API key or a data-parallel rank that happens to be set would change what it does.
	Env []string
	// Log tells of start and stop, and at debug level every line that the frontend writes; nil logs nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Binary == "" || o.ModelDir == "" {
		return o, errors.New("vllm-rs: want the path of the binary and of a model directory")
	}
	if o.ServedName == "" {
		o.ServedName = "model"
	}
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return o, nil
}

// Server is a running frontend. It is safe for use by several goroutines.
type Server struct {
	opt             Options
	process         *process.Process
	client          *Client
	handshake, http *port
	detach          func() bool // from the context that was given to Start
	released        sync.Once
}

// Start starts the frontend on two free ports of 127.0.0.1 and returns at once: wait with [Server.Healthy]. It stops
// with [Server.Close], or when ctx ends.
//
// On Linux nobody else is given the ports. Elsewhere another program may take one before the frontend does; the
// frontend then ends, and the error that Healthy returns says that the address is in use.
func Start(ctx context.Context, opt Options) (*Server, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("start vllm-rs: %w", err)
	}
	s := &Server{opt: opt}
	if err := s.reserve(); err != nil {
		return nil, err
	}
	cmd := exec.Command(opt.Binary, s.arguments()...)
	cmd.Env = opt.environment(os.Environ())
	s.process, err = process.Start(cmd, process.Options{Name: "vllm-rs", Output: lineLog(opt.Log)})
	if err != nil {
		s.release()
		return nil, err
	}
	s.client = NewClient(s.URL(), opt.ServedName)
	s.detach = context.AfterFunc(ctx, func() { _ = s.process.Stop(context.Background()) })
	opt.Log.Info("frontend started", "binary", opt.Binary, "pid", s.process.Pid(), "handshake", s.Handshake(), "url", s.URL())
	return s, nil
}

func (s *Server) reserve() (err error) {
	if s.handshake, err = reserve(); err != nil {
		return fmt.Errorf("reserve a handshake port for vllm-rs: %w", err)
	}
	if s.http, err = reserve(); err != nil {
		s.handshake.release()
		return fmt.Errorf("reserve an HTTP port for vllm-rs: %w", err)
	}
	return nil
}

func (s *Server) release() {
	s.released.Do(func() {
		s.handshake.release()
		s.http.release()
	})
}

func (s *Server) arguments() []string {
	seconds := (s.opt.ReadyTimeout + time.Second - 1) / time.Second
	return []string{
		"serve", s.opt.ModelDir, "--served-model-name", s.opt.ServedName,
		"--data-parallel-size", "1", "--data-parallel-size-local", "0",
		"--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", strconv.Itoa(s.handshake.number),
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.http.number),
		"--engine-ready-timeout-secs", strconv.FormatInt(int64(seconds), 10),
	}
}

// environment is that of the frontend: no downloads, no usage reports, no colours in the tail.
func (o Options) environment(inherited []string) []string {
	var env []string
	for _, entry := range inherited {
		if !strings.HasPrefix(entry, "VLLM_") {
			env = append(env, entry)
		}
	}
	env = append(env, "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "NO_COLOR=1")
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

// Tail returns the last 16 KiB of what the frontend has written.
func (s *Server) Tail() string { return s.process.Tail() }

// Close stops the frontend, by SIGTERM and after 5 seconds by SIGKILL, and returns when it is gone. Closing it twice is
// no error.
func (s *Server) Close() error {
	s.detach()
	err := s.process.Stop(context.Background())
	s.release()
	s.client.http.CloseIdleConnections()
	s.opt.Log.Info("frontend stopped", "pid", s.process.Pid())
	return err
}
