//go:build unix

package vllmrs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestStartNeedsItsPaths(t *testing.T) {
	for _, opt := range []Options{{}, {Binary: "vllm-rs"}, {ModelDir: "model"}} {
		if _, err := Start(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "want the path") {
			t.Errorf("%+v: got %v", opt, err)
		}
	}
	_, err := Start(t.Context(), Options{Binary: "/nonexistent/vllm-rs", ModelDir: "model"})
	require.True(t, errors.Is(err, os.ErrNotExist) && strings.Contains(err.Error(), "/nonexistent/vllm-rs"), "got %v, want one that names the path", err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{Binary: "/bin/sh", ModelDir: "model"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestCommandLine(t *testing.T) {
	server := startScript(t, Options{ReadyTimeout: 1500 * time.Millisecond, ServedName: "tiny"}, `echo "$@"`)
	<-server.Done()
	handshake, isTCP := strings.CutPrefix(server.Handshake(), "tcp://127.0.0.1:")
	port, isHTTP := strings.CutPrefix(server.URL(), "http://127.0.0.1:")
	if !isTCP || !isHTTP || handshake == port {
		t.Errorf("handshake %s, url %s: want two ports of 127.0.0.1", server.Handshake(), server.URL())
	}
	want := "serve some/model --served-model-name tiny --data-parallel-size 1 --data-parallel-size-local 0 " +
		"--data-parallel-address 127.0.0.1 --data-parallel-rpc-port " + handshake +
		" --host 127.0.0.1 --port " + port + " --engine-ready-timeout-secs 2\n"
	require.NoDiff(t, cmp.Diff(want, server.Tail()), "arguments (-want +got)")
}

func TestEnvironment(t *testing.T) {
	opt := Options{Env: []string{"VLLM_SERVER_DEV_MODE=1", "HF_HUB_OFFLINE=0"}}
	got := opt.environment([]string{"PATH=/bin", "VLLM_API_KEY=secret", "VLLM_DP_RANK=1", "HF_HOME=/hf"})
	want := []string{
		"PATH=/bin", "HF_HOME=/hf", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "NO_COLOR=1",
		"VLLM_SERVER_DEV_MODE=1", "HF_HUB_OFFLINE=0",
	}
	require.True(t, slices.Equal(got, want), "got  %q\nwant %q", got, want)
}

// A frontend that dies is reported at once, with its last words, whoever waits for it.
func TestDeathIsReported(t *testing.T) {
	const script = `echo "tokenizer.json: not found" >&2; exit 3`
	tests := []struct {
		name string
		wait func(context.Context, *Server) error
	}{
		{name: "for health", wait: func(ctx context.Context, s *Server) error { return s.Healthy(ctx) }},
		{name: "for a completion", wait: func(ctx context.Context, s *Server) error {
			_, err := s.Complete(ctx, openai.Request{Prompt: []uint32{5}})
			return err
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.wait(t.Context(), startScript(t, Options{}, script))
			var exit *process.ExitError
			require.True(t, errors.As(err, &exit) && exit.Code == 3 && strings.Contains(err.Error(), "tokenizer.json: not found"), "got %v, want exit code 3 and the last output", err)
		})
	}
}

func TestHealthyEndsWithItsContext(t *testing.T) {
	server := startScript(t, Options{}, `echo loading; exec sleep 600`)
	enough := errors.New("the player ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	err := server.Healthy(ctx)
	require.True(t, errors.Is(err, enough) && strings.Contains(err.Error(), "/health"), "got %v, want the cause and the address", err)
	var exit *process.ExitError
	require.True(t, !errors.As(err, &exit), "got %v: it is still running", err)
}

// Until it answers 200, a frontend may refuse the connection or answer something else.
func TestHealthyWaitsForStatus200(t *testing.T) {
	server := startScript(t, Options{}, `exec sleep 600`)
	answers := make(chan int, 3)
	answers <- http.StatusServiceUnavailable
	answers <- http.StatusNotFound
	answers <- http.StatusOK
	front := http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, r.URL.Path, "/health", "asked for %s", r.URL)
			w.WriteHeader(<-answers)
		}),
	}
	go front.Serve(listen(t, server.http.number))
	defer front.Close()
	require.NoError(t, server.Healthy(t.Context()))
	require.Equal(t, len(answers), 0, "healthy with answers left")
}

func TestServerEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server, err := Start(ctx, Options{Binary: script(t, `exec sleep 600`), ModelDir: "some/model"})
	require.NoError(t, err)
	cancel()
	<-server.Done()
	for range 2 {
		require.NoError(t, server.Close())
	}
}

// syncBuffer is written to by the reader of the output and read by the test.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func TestOutputIsLoggedLineByLine(t *testing.T) {
	var got syncBuffer
	log := slog.New(slog.NewTextHandler(&got, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "pid" {
				return slog.Attr{}
			}
			return a
		},
	}))
	server := startScript(t, Options{Log: log}, `printf 'one\r\ntwo'; printf ' words\n\nno end' >&2`)
	<-server.Done()
	got.mu.Lock()
	defer got.mu.Unlock()
	var lines []string
	for line := range strings.Lines(got.String()) {
		if strings.HasPrefix(line, "level=DEBUG") {
			lines = append(lines, line)
		}
	}
	want := []string{
		"level=DEBUG msg=vllm-rs line=one\n", "level=DEBUG msg=vllm-rs line=\"two words\"\n", "level=DEBUG msg=vllm-rs line=\"\"\n",
	}
	require.NoDiff(t, cmp.Diff(want, lines), "log (-want +got)")
}

func startScript(t *testing.T, opt Options, body string) *Server {
	t.Helper()
	opt.Binary, opt.ModelDir = script(t, body), "some/model"
	server, err := Start(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return server
}

// script writes a shell script that stands in for the binary.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vllm-rs")
	testenv.WriteProgram(t, path, "#!/bin/sh\n"+body+"\n")
	return path
}

func listen(t *testing.T, port int) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener
}
