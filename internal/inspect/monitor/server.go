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
//	GET /healthz   200 while the tap runs, even if it records no more: it still forwards, and a restart would cut off frontend
//	               and engine
//
// An address that cannot be listened on is an error at once.
func Serve(address string, stats func() recorder.Stats, log *slog.Logger) (*Server, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(exposition(stats()))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		text := "ok\n"
		if stats().Stopped > 0 {
			text = "ok, but nothing is recorded any more\n"
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text)
	})
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

// Close lets scrapes that are under way end, for a second, and stops listening. Closing twice is not an error.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	<-s.ended
	return s.err
}

// exposition writes the counters in Prometheus' text format, version 0.0.4. Names follow
// https://prometheus.io/docs/practices/naming: base units, and _total on what only grows. client_golang would write the same,
// and take a tenth of the time in which a player starts.
func exposition(s recorder.Stats) []byte {
	var b []byte
	family := func(kind, name, help string) {
		b = fmt.Appendf(b, "# HELP vllm_vcr_record_%s %s\n# TYPE vllm_vcr_record_%[1]s %[3]s\n", name, help, kind)
	}
	sample := func(name, label string, value uint64) {
		b = fmt.Appendf(b, "vllm_vcr_record_%s%s %v\n", name, label, float64(value))
	}
	one := func(kind, name, help string, value uint64) {
		family(kind, name, help)
		sample(name, "", value)
	}
	one("gauge", "engines", "Engines that sent HELLO.", s.Engines)
	one("gauge", "requests_in_flight", "Requests without their last output.", uint64(s.InFlight))
	one("gauge", "queued_bytes", "Bytes that wait to be observed.", uint64(s.Queued))
	one("gauge", "stopped_files", "Files that could not be written to the end. Forwarding goes on without them.", s.Stopped)
	one("counter", "records_total", "Records written.", s.Records)
	one("counter", "steps_total", "Lines of step statistics written.", s.Steps)
	one("counter", "output_tokens_total", "Tokens that engines generated.", s.Tokens)
	family("counter", "requests_total", "Requests that ended.")
	sample("requests_total", `{outcome="aborted"}`, s.Aborted)
	sample("requests_total", `{outcome="done"}`, s.Done)
	sample("requests_total", `{outcome="lost"}`, s.Lost)
	for _, both := range []struct {
		name, help string
		values     [2]uint64
	}{{"messages_total", "Messages forwarded.", s.Messages}, {"bytes_total", "Bytes forwarded, of frames.", s.Bytes}} {
		family("counter", both.name, both.help)
		sample(both.name, `{from="engine"}`, both.values[recorder.FromEngine])
		sample(both.name, `{from="frontend"}`, both.values[recorder.FromFrontend])
	}
	for _, m := range misses(s) {
		one("counter", m.name+"_total", "Not in the recording: "+m.why+".", m.count)
	}
	return b
}
