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
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(stats))
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

// collector reads the counters at each scrape. Names follow https://prometheus.io/docs/practices/naming: base units, and
// _total on what only grows.
type collector func() recorder.Stats

// Describe sends nothing: which samples there are is checked when they are collected.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the samples.
func (c collector) Collect(samples chan<- prometheus.Metric) {
	s := c()
	send := func(kind prometheus.ValueType, name, help string, value uint64, labels ...string) {
		desc := prometheus.NewDesc("vllm_vcr_record_"+name, help, labels[:len(labels)/2], nil)
		samples <- prometheus.MustNewConstMetric(desc, kind, float64(value), labels[len(labels)/2:]...)
	}
	gauge := func(name, help string, value uint64) { send(prometheus.GaugeValue, name, help, value) }
	counter := func(name, help string, value uint64, labels ...string) {
		send(prometheus.CounterValue, name, help, value, labels...)
	}
	gauge("engines", "Engines that sent HELLO.", s.Engines)
	gauge("requests_in_flight", "Requests without their last output.", uint64(s.InFlight))
	gauge("queued_bytes", "Bytes that wait to be observed.", uint64(s.Queued))
	gauge("stopped_files", "Files that could not be written to the end. Forwarding goes on without them.", s.Stopped)
	counter("records_total", "Records written.", s.Records)
	counter("steps_total", "Lines of step statistics written.", s.Steps)
	counter("output_tokens_total", "Tokens that engines generated.", s.Tokens)
	counter("requests_total", "Requests that ended.", s.Aborted, "outcome", "aborted")
	counter("requests_total", "Requests that ended.", s.Done, "outcome", "done")
	counter("requests_total", "Requests that ended.", s.Lost, "outcome", "lost")
	for from, name := range map[recorder.Direction]string{recorder.FromEngine: "engine", recorder.FromFrontend: "frontend"} {
		counter("messages_total", "Messages forwarded.", s.Messages[from], "from", name)
		counter("bytes_total", "Bytes forwarded, of frames.", s.Bytes[from], "from", name)
	}
	for _, m := range misses(s) {
		counter(m.name+"_total", "Not in the recording: "+m.why+".", m.count)
	}
}
