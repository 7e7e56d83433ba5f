package edge

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An Engine has what the metrics of vLLM's Python server contain of an engine, and those of vllm-rs do not.
type Engine struct {
	Index int
	// CacheConfig are the labels of vllm:cache_config_info; nil leaves it out.
	CacheConfig []Label
	// MaxLoRAs is how many adapters can run in one step; 0 is an engine without LoRA.
	MaxLoRAs int
	// SleepLevel is 0 for an engine that is awake.
	SleepLevel int
}

// A Label is one of a metric.
type Label struct{ Name, Value string }

// MetricsType is the Content-Type of metrics in the text format.
const MetricsType = "text/plain; version=0.0.4; charset=utf-8"

// endpoints answers /ready, /health/ready and /metrics, which frontends have not or not whole.
func (e *Edge) endpoints(rank int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case get && (r.URL.Path == "/ready" || r.URL.Path == "/health/ready"):
			e.serveReady(w, r, next)
		case get && r.URL.Path == "/metrics":
			e.serveMetrics(w, r, rank, next)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// serveReady answers whether requests are served, for probes.
func (e *Edge) serveReady(w http.ResponseWriter, r *http.Request, frontend http.Handler) {
	w.Header().Set("Cache-Control", "no-store")
	if left := e.opt.StartupDuration - time.Since(e.started); left > 0 {
		apiError{status: http.StatusServiceUnavailable, message: "the server is starting", retryAfter: left}.write(w)
		return
	}
	if e.draining.Load() {
		apiError{status: http.StatusServiceUnavailable, message: "the server is draining: send no new requests"}.write(w)
		return
	}
	if answer := fetchFrom(frontend, r, "/health"); answer.status > http.StatusOK {
		apiError{status: http.StatusServiceUnavailable, message: "the health check of the frontend has status " + strconv.Itoa(answer.status)}.write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// serveMetrics completes the metrics of the frontend, or shows those of the policy in their place.
func (e *Edge) serveMetrics(w http.ResponseWriter, r *http.Request, rank int, frontend http.Handler) {
	var text []byte
	whole := false
	if e.opt.Policy.Metrics != nil {
		text, whole = e.opt.Policy.Metrics()
	}
	if text == nil {
		if e.opt.Engines == nil {
			frontend.ServeHTTP(w, r)
			return
		}
		answer := fetchFrom(frontend, r, "/metrics")
		if text = answer.body.Bytes(); answer.status != http.StatusOK {
			maps.Copy(w.Header(), answer.header)
			w.WriteHeader(answer.status)
			_, _ = w.Write(text)
			return
		}
	}
	if whole && e.opt.Engines != nil {
		out := bytes.NewBuffer(text)
		writeCacheConfig(out, e.opt.Engines(rank)) // schedulers need it, and nothing fakes it
		text = out.Bytes()
	} else if e.opt.Engines != nil {
		text = complete(text, e.opt.Engines(rank), e.opt.ModelName, time.Now())
	}
	w.Header().Set("Content-Type", MetricsType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client may be gone
}

// complete adds to metrics in the text format what the Python server of vLLM exports as well.
func complete(text []byte, engines []Engine, model string, now time.Time) []byte {
	if len(engines) == 0 {
		return text
	}
	maxLoRAs := 0
	for _, e := range engines {
		maxLoRAs = max(maxLoRAs, e.MaxLoRAs)
	}
	const lora = "vllm:lora_requests_info"
	var out bytes.Buffer
	has := make(map[string]bool) // a sample of it, or its type
	labelled := false
	for line := range bytes.Lines(text) {
		name := line[:max(0, bytes.IndexAny(line, "{ \n"))]
		if bytes.HasPrefix(line, []byte("# ")) {
			if words := bytes.Fields(line); len(words) > 2 {
				has[string(words[2])] = true
				if maxLoRAs > 0 && string(words[2]) == lora {
					continue // written anew, with its samples
				}
			}
		} else if maxLoRAs > 0 && string(name) == lora {
			if !labelled {
				WriteHead(&out, lora, "gauge", LoRAHelp)
				labelled = true
			}
			if !bytes.Contains(line, []byte("max_lora=")) {
				line = bytes.Replace(line, []byte("{"), fmt.Appendf(nil, `{max_lora="%d",`, maxLoRAs), 1)
			}
		}
		out.Write(line)
	}
	if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
		out.WriteByte('\n')
	}
	if maxLoRAs > 0 && !labelled {
		WriteHead(&out, lora, "gauge", LoRAHelp)
		WriteSample(&out, lora, float64(now.UnixMilli())/1000, Label{"max_lora", strconv.Itoa(maxLoRAs)}, Label{"running_lora_adapters", ""}, Label{"waiting_lora_adapters", ""})
	}
	if !has[cacheConfig] {
		writeCacheConfig(&out, engines)
	}
	if state := "vllm:engine_sleep_state"; !has[state] {
		WriteHead(&out, state, "gauge", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "+
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
		for _, e := range engines {
			for level, name := range []string{"awake", "weights_offloaded", "discard_all"} {
				value := 0.0
				if e.SleepLevel == level {
					value = 1
				}
				WriteSample(&out, state, value, Label{"engine", strconv.Itoa(e.Index)}, Label{"model_name", model}, Label{"sleep_state", name})
			}
		}
	}
	return out.Bytes()
}

const cacheConfig = "vllm:cache_config_info"

func writeCacheConfig(out *bytes.Buffer, engines []Engine) {
	if len(engines) == 0 || engines[0].CacheConfig == nil {
		return
	}
	WriteHead(out, cacheConfig, "gauge", "Information of the LLMEngine CacheConfig")
	for _, e := range engines {
		WriteSample(out, cacheConfig, 1, e.CacheConfig...)
	}
}

// LoRAHelp is the help text of vllm:lora_requests_info.
const LoRAHelp = "Running stats on lora requests."

// WriteHead writes the help and the type of a metric.
func WriteHead(out *bytes.Buffer, name, kind, help string) {
	fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// WriteSample writes a value of a metric.
func WriteSample(out *bytes.Buffer, name string, value float64, labels ...Label) {
	WriteNumber(out, name, strconv.FormatFloat(value, 'f', -1, 64), labels)
}

// WriteNumber writes a value of a metric that is a text already.
func WriteNumber(out *bytes.Buffer, name, value string, labels []Label) {
	out.WriteString(name)
	for i, l := range labels {
		out.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(out, `%s="%s"`, l.Name, labelEscapes.Replace(l.Value))
	}
	if len(labels) > 0 {
		out.WriteByte('}')
	}
	fmt.Fprintf(out, " %s\n", value)
}
