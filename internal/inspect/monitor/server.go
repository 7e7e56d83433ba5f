package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
	families := metrics()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(exposition(families, stats()))
	})
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

// A metric is a family and how its samples are read. Names follow https://prometheus.io/docs/practices/naming: base units,
// and _total on what only grows.
type metric struct {
	name, help, kind string
	label            string // of the samples; empty if the family has one sample
	read             func(recorder.Stats) []sample
}

// A sample is a value and what its label says.
type sample struct {
	label string
	value uint64
}

// metrics returns the families by name, and the samples of each by label, as scrapers sort them.
func metrics() []metric {
	one := func(read func(recorder.Stats) uint64) func(recorder.Stats) []sample {
		return func(s recorder.Stats) []sample { return []sample{{value: read(s)}} }
	}
	gauge := func(name, help string, read func(recorder.Stats) uint64) metric {
		return metric{name: name, help: help, kind: "gauge", read: one(read)}
	}
	counter := func(name, help string, read func(recorder.Stats) uint64) metric {
		return metric{name: name, help: help, kind: "counter", read: one(read)}
	}
	directions := func(name, help string, read func(recorder.Stats) [2]uint64) metric {
		return metric{name: name, help: help, kind: "counter", label: "from", read: func(s recorder.Stats) []sample {
			return []sample{{"engine", read(s)[recorder.FromEngine]}, {"frontend", read(s)[recorder.FromFrontend]}}
		}}
	}
	all := []metric{
		gauge("engines", "Engines that sent HELLO.", func(s recorder.Stats) uint64 { return s.Engines }),
		gauge("requests_in_flight", "Requests without their last output.", func(s recorder.Stats) uint64 { return uint64(s.InFlight) }),
		gauge("queued_bytes", "Bytes that wait to be observed.", func(s recorder.Stats) uint64 { return uint64(s.Queued) }),
		gauge("stopped_files", "Files that could not be written to the end. Forwarding goes on without them.",
			func(s recorder.Stats) uint64 { return s.Stopped }),
		counter("records_total", "Records written.", func(s recorder.Stats) uint64 { return s.Records }),
		counter("steps_total", "Lines of step statistics written.", func(s recorder.Stats) uint64 { return s.Steps }),
		counter("output_tokens_total", "Tokens that engines generated.", func(s recorder.Stats) uint64 { return s.Tokens }),
		{name: "requests_total", help: "Requests that ended.", kind: "counter", label: "outcome", read: func(s recorder.Stats) []sample {
			return []sample{{"aborted", s.Aborted}, {"done", s.Done}, {"lost", s.Lost}}
		}},
		directions("messages_total", "Messages forwarded.", func(s recorder.Stats) [2]uint64 { return s.Messages }),
		directions("bytes_total", "Bytes forwarded, of frames.", func(s recorder.Stats) [2]uint64 { return s.Bytes }),
	}
	for i, m := range misses(recorder.Stats{}) {
		all = append(all, counter(m.name+"_total", "Not in the recording: "+m.why+".",
			func(s recorder.Stats) uint64 { return misses(s)[i].count }))
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return all
}

// exposition writes the metrics in Prometheus' text format, version 0.0.4. No help text and no label value has a character
// that the format would have to escape.
func exposition(metrics []metric, s recorder.Stats) []byte {
	var b []byte
	for _, m := range metrics {
		name := "vllm_vcr_record_" + m.name
		b = fmt.Appendf(b, "# HELP %s %s\n# TYPE %s %s\n", name, m.help, name, m.kind)
		for _, sample := range m.read(s) {
			b = append(b, name...)
			if m.label != "" {
				b = fmt.Appendf(b, "{%s=%q}", m.label, sample.label)
			}
			b = append(strconv.AppendFloat(append(b, ' '), float64(sample.value), 'g', -1, 64), '\n')
		}
	}
	return b
}
