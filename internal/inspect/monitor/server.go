package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vllm-vcr/conformance/recorder"
)

const (
	// headerTimeout ends connections that are opened and left alone.
	headerTimeout = 5 * time.Second
	// shutdownTimeout is how long a scrape that is under way may take at the end.
	shutdownTimeout = time.Second
)

// A Server answers scrapes.
type Server struct {
	address string
	http    http.Server
	ended   chan struct{}
	err     error // valid once ended is closed
}

// Serve listens on address, HOST:PORT, and serves until the server is closed:
//
//	GET /metrics   the counters, as vllm_vcr_record_*
//	GET /healthz   200 while the tap runs, even if it records no more: it still forwards, and whoever restarts what is
//	               not healthy would cut off frontend and engine
//
// An address that cannot be listened on is an error at once.
func Serve(address string, stats func() recorder.Stats, log *slog.Logger) (*Server, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(newCollector(stats)); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { health(w, stats()) })
	s := &Server{
		address: ln.Addr().String(), ended: make(chan struct{}),
		http: http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)},
	}
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.err = err
			log.Warn("metrics are not served any more", "error", err)
		}
	}()
	return s, nil
}

// Address is where it listens, with the port that was chosen for port 0.
func (s *Server) Address() string { return s.address }

// Close lets scrapes that are under way end, for a second, and stops listening. Closing twice is no error.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	<-s.ended
	return s.err
}

func health(w http.ResponseWriter, s recorder.Stats) {
	text := "ok\n"
	if s.Stopped > 0 {
		text = "ok, but nothing is recorded any more\n"
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}
