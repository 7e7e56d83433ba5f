package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vllm-vcr/conformance/recorder"
)

// A metric is a family and how its samples are read. Names follow
// https://prometheus.io/docs/practices/naming: base units, and _total on what only grows.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(recorder.Stats) []sample
}

// A sample is a value and its label, empty if the family has none.
type sample struct {
	label string
	value float64
}

// collector reads the counters once for each scrape, so that its samples fit each other.
type collector struct {
	stats   func() recorder.Stats
	metrics []metric
}

func newCollector(stats func() recorder.Stats) collector {
	metrics := []metric{
		gauge("engines", "Engines that said HELLO.",
			func(s recorder.Stats) float64 { return float64(s.Engines) }),
		gauge("requests_in_flight", "Requests without their last output.",
			func(s recorder.Stats) float64 { return float64(s.InFlight) }),
		gauge("queued_bytes", "Bytes that wait to be observed.",
			func(s recorder.Stats) float64 { return float64(s.Queued) }),
		gauge("stopped_files", "Files that could not be written to the end. Forwarding goes on without them.",
			func(s recorder.Stats) float64 { return float64(s.Stopped) }),
		counter("records_total", "Records written.",
			func(s recorder.Stats) float64 { return float64(s.Records) }),
		counter("steps_total", "Lines of step statistics written.",
			func(s recorder.Stats) float64 { return float64(s.Steps) }),
		counter("output_tokens_total", "Tokens that engines generated.",
			func(s recorder.Stats) float64 { return float64(s.Tokens) }),
		counters("requests_total", "Requests that ended.", "outcome", func(s recorder.Stats) []sample {
			return []sample{{"done", float64(s.Done)}, {"aborted", float64(s.Aborted)}, {"lost", float64(s.Lost)}}
		}),
		counters("messages_total", "Messages forwarded.", "from", directions(func(s recorder.Stats) [2]uint64 { return s.Messages })),
		counters("bytes_total", "Bytes forwarded, of frames.", "from", directions(func(s recorder.Stats) [2]uint64 { return s.Bytes })),
	}
	for i, m := range misses(recorder.Stats{}) {
		metrics = append(metrics, counter(m.name+"_total", "Not in the recording: "+m.why+".",
			func(s recorder.Stats) float64 { return float64(misses(s)[i].count) }))
	}
	return collector{stats, metrics}
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	for _, m := range c.metrics {
		for _, sample := range m.read(s) {
			var labels []string
			if sample.label != "" {
				labels = []string{sample.label}
			}
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, sample.value, labels...)
		}
	}
}

func gauge(name, help string, read func(recorder.Stats) float64) metric {
	return metric{describe(name, help), prometheus.GaugeValue, single(read)}
}

func counter(name, help string, read func(recorder.Stats) float64) metric {
	return metric{describe(name, help), prometheus.CounterValue, single(read)}
}

func counters(name, help, label string, read func(recorder.Stats) []sample) metric {
	return metric{describe(name, help, label), prometheus.CounterValue, read}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("vllm_vcr_record_"+name, help, labels, nil)
}

func single(read func(recorder.Stats) float64) func(recorder.Stats) []sample {
	return func(s recorder.Stats) []sample { return []sample{{value: read(s)}} }
}

func directions(read func(recorder.Stats) [2]uint64) func(recorder.Stats) []sample {
	return func(s recorder.Stats) []sample {
		both := read(s)
		return []sample{{"engine", float64(both[recorder.FromEngine])}, {"frontend", float64(both[recorder.FromFrontend])}}
	}
}
