package simulator

import "slices"

// An Action is what serve does with a flag of llm-d-inference-sim.
type Action uint8

const (
	Same    Action = iota // serve has a flag of this name with the same meaning
	Own                   // only the simulator has it: it changes what the builtin frontend does
	Renamed               // a flag of serve does it
	Ignored               // it has no effect, as what it is about does not exist here
	Refused               // it ends the start with an error that names what to use
)

// A Flag is a flag of llm-d-inference-sim. Its key in YAML is its name.
type Flag struct {
	Name string
	// Kind is what its value is: text, int, number, time, bool, switch (without a value, and with a form that begins
	// with "no-"), or list.
	Kind string
	// Fallback is its default in the simulator. Where the action is Same, it replaces that of serve.
	Fallback string
	Action   Action
	// Here is the flag of serve, or what to do in its place.
	Here string
	// lo and hi bound an int or a number, and wrong is the text of the simulator for one that is out of bounds.
	lo, hi float64
	wrong  string
}

// mapEvents is the flag for the format of KV events.
const mapEvents = "use-vllm-map-event-format"

// unbounded is an upper bound that no value reaches.
const unbounded = 1 << 53

// Table are all flags of llm-d-inference-sim: those of v0.10.2 and of its main branch, and those that older releases
// had. The flag --simulator, and so all of this, is described in docs/simulator.md, whose table is written from this
// one.
var Table = []Flag{
	{Name: "config", Kind: "text", Action: Same},
	{Name: "port", Kind: "int", Fallback: "8000", Action: Same},
	{Name: "model", Kind: "text", Action: Renamed, Here: "the argument MODEL; the variable is `SIM_MODEL`"},
	{Name: "served-model-name", Kind: "list", Action: Same},
	{Name: "lora-modules", Kind: "list", Action: Own, Here: "the adapters are loaded at the start"},
	{Name: "max-loras", Kind: "int", Fallback: "1", Action: Same, lo: 1, hi: unbounded, wrong: "max LoRAs cannot be less than 1"},
	{Name: "max-cpu-loras", Kind: "int", Action: Same},
	{Name: "max-model-len", Kind: "int", Fallback: "1024", Action: Same, lo: 1, hi: unbounded, wrong: "max model len cannot be less than 1"},
	{Name: "max-num-seqs", Kind: "int", Fallback: "5", Action: Same, lo: 1, hi: unbounded, wrong: "max num seqs cannot be less than 1"},
	{Name: "max-waiting-queue-length", Kind: "int", Fallback: "1000", Action: Own, Here: "requests above it get status 429", hi: unbounded, wrong: "max waiting queue size cannot be less than 0"},
	{Name: "max-request-body-size-mb", Kind: "int", Fallback: "4", Action: Own, Here: "larger bodies get status 413", lo: 1, hi: 512, wrong: "max-request-body-size-mb must be between 1 MB and 512 MB"},
	{Name: "mode", Kind: "text", Fallback: "random", Action: Same, Here: "`random` is `--mode text`"},
	{Name: "seed", Kind: "int", Action: Same},
	{Name: "startup-duration", Kind: "time", Fallback: "0", Action: Same},
	{Name: "time-to-first-token", Kind: "time", Fallback: "0", Action: Same},
	{Name: "time-to-first-token-std-dev", Kind: "time", Fallback: "0", Action: Same},
	{Name: "inter-token-latency", Kind: "time", Fallback: "0", Action: Same},
	{Name: "inter-token-latency-std-dev", Kind: "time", Fallback: "0", Action: Same},
	{Name: "prefill-overhead", Kind: "time", Fallback: "0", Action: Same},
	{Name: "prefill-time-per-token", Kind: "time", Fallback: "0", Action: Same},
	{Name: "prefill-time-std-dev", Kind: "time", Fallback: "0", Action: Same},
	{Name: "kv-cache-transfer-latency", Kind: "time", Fallback: "0", Action: Same},
	{Name: "kv-cache-transfer-latency-std-dev", Kind: "time", Fallback: "0", Action: Same},
	{Name: "kv-cache-transfer-time-per-token", Kind: "time", Fallback: "0", Action: Same},
	{Name: "kv-cache-transfer-time-std-dev", Kind: "time", Fallback: "0", Action: Same},
	{Name: "time-factor-under-load", Kind: "number", Fallback: "1", Action: Same, lo: 1, hi: unbounded, wrong: "time factor under load cannot be less than 1.0"},
	{Name: "latency-calculator", Kind: "text", Action: Own, Here: "chooses which of the times above count: `constant`, `per-token`, or all"},
	{Name: "max-tool-call-integer-param", Kind: "int", Fallback: "100", Action: Own, lo: -unbounded, hi: unbounded},
	{Name: "min-tool-call-integer-param", Kind: "int", Fallback: "0", Action: Own, lo: -unbounded, hi: unbounded},
	{Name: "max-tool-call-number-param", Kind: "number", Fallback: "100", Action: Own, lo: -unbounded, hi: unbounded},
	{Name: "min-tool-call-number-param", Kind: "number", Fallback: "0", Action: Own, lo: -unbounded, hi: unbounded},
	{Name: "max-tool-call-array-param-length", Kind: "int", Fallback: "5", Action: Own, lo: -unbounded, hi: 1 << 16},
	{Name: "min-tool-call-array-param-length", Kind: "int", Fallback: "1", Action: Own, hi: 1 << 16, wrong: "MinToolCallArrayParamLength cannot be negative"},
	{Name: "tool-call-not-required-param-probability", Kind: "int", Fallback: "50", Action: Own, hi: 100, wrong: "ToolCallNotRequiredParamProbability should be between 0 and 100"},
	{Name: "object-tool-call-not-required-field-probability", Kind: "int", Fallback: "50", Action: Own, hi: 100, wrong: "ObjectToolCallNotRequiredParamProbability should be between 0 and 100"},
	{Name: "tool-call-extra-call-probability", Kind: "int", Fallback: "45", Action: Own, hi: 100, wrong: "ToolCallExtraCallProbability should be between 0 and 100"},
	{Name: "skip-tool-validation", Kind: "bool", Action: Own},
	{Name: "enable-kvcache", Kind: "bool", Action: Renamed, Here: "`--kv-events-config`; without it, `--no-enable-prefix-caching`"},
	{Name: "kv-cache-size", Kind: "int", Fallback: "1024", Action: Renamed, Here: "`--num-gpu-blocks-override`, one more, as vLLM never uses one block", hi: unbounded, wrong: "KV cache size cannot be negative"},
	{Name: "block-size", Kind: "int", Fallback: "16", Action: Same},
	{Name: "hash-seed", Kind: "text", Action: Renamed, Here: "the variable `PYTHONHASHSEED`, as in vLLM"},
	{Name: "zmq-endpoint", Kind: "text", Fallback: "tcp://127.0.0.1:5557", Action: Renamed, Here: "`endpoint` of `--kv-events-config`"},
	{Name: "kv-events-replay-endpoint", Kind: "text", Action: Renamed, Here: "`replay_endpoint` of `--kv-events-config`"},
	{Name: "kv-events-replay-queue-size", Kind: "int", Fallback: "1024", Action: Renamed, Here: "`buffer_steps` of `--kv-events-config`", lo: 1, hi: unbounded, wrong: "kv-events-replay-queue-size cannot be less than 1"},
	{Name: "event-batch-size", Kind: "int", Fallback: "16", Action: Ignored, Here: "a batch has the events of one step, as in vLLM", lo: 1, hi: unbounded, wrong: "event batch size cannot less than 1"},
	{Name: mapEvents, Kind: "bool", Action: Own, Here: "`false` publishes events as arrays; without it they have the format of the line, maps"},
	{Name: "global-cache-hit-threshold", Kind: "number", Fallback: "0", Action: Own, hi: 1, wrong: "global cache hit threshold must be between in range [0, 1]"},
	{Name: "failure-injection-rate", Kind: "int", Fallback: "0", Action: Same},
	{Name: "failure-types", Kind: "list", Action: Same},
	{Name: "fake-metrics", Kind: "text", Action: Same},
	{Name: "fake-metrics-refresh-interval", Kind: "time", Fallback: "100ms", Action: Ignored, Here: "values are computed when `/metrics` is read"},
	{Name: "data-parallel-size", Kind: "int", Fallback: "1", Action: Same, Here: "with `--port-per-rank`", lo: 1, hi: 8, wrong: "data parallel size must be between 1 and 8"},
	{Name: "data-parallel-rank", Kind: "int", Fallback: "-1", Action: Own, Here: "the rank in KV events, and what is added to their ports", lo: -1, hi: 7, wrong: "data parallel rank must be between 0 and 7"},
	{Name: "dataset-path", Kind: "text", Action: Renamed, Here: "`--dataset`"},
	{Name: "dataset-url", Kind: "text", Action: Refused, Here: "serve downloads nothing: download the file, and give it as --dataset-path or --dataset"},
	{Name: "dataset-in-memory", Kind: "bool", Action: Ignored, Here: "a dataset is always read once"},
	{Name: "dataset-table-name", Kind: "text", Fallback: "llmd", Action: Refused, Here: "--dataset reads the table llmd: rename the table"},
	{Name: "render-url", Kind: "text", Fallback: "http://localhost:8082", Action: Ignored, Here: "tokenizer and chat template run in this process"},
	{Name: "render-timeout", Kind: "time", Fallback: "30s", Action: Ignored, Here: "tokenizer and chat template run in this process"},
	{Name: "mm-render-timeout", Kind: "time", Fallback: "60s", Action: Ignored, Here: "tokenizer and chat template run in this process"},
	{Name: "force-dummy-tokenizer", Kind: "bool", Action: Own, Here: "also for a MODEL whose files are there"},
	{Name: "enable-sleep-mode", Kind: "switch", Action: Own, Here: "with the variable `VLLM_SERVER_DEV_MODE=1`, `/sleep` has an effect"},
	{Name: "enable-request-id-headers", Kind: "bool", Action: Own, Here: "without it, answers have no `X-Request-Id`"},
	{Name: "log-http", Kind: "bool", Action: Renamed, Here: "`--log-requests -`: without headers and bodies"},
	{Name: "ssl-certfile", Kind: "text", Action: Same},
	{Name: "ssl-keyfile", Kind: "text", Action: Same},
	{Name: "self-signed-certs", Kind: "bool", Action: Own, Here: "a new certificate for localhost at each start"},
	{Name: "default-embedding-dimensions", Kind: "int", Fallback: "384", Action: Own, Here: "of `/v1/embeddings`, which a server that generates has too", lo: 1, hi: 1 << 16, wrong: "default embedding dimensions must be at least 1"},
	{Name: "mm-encoder-only", Kind: "switch", Action: Own},
	{Name: "omni", Kind: "switch", Action: Own},
	{Name: "image-emission-rate", Kind: "int", Fallback: "0", Action: Own, hi: 100, wrong: "image emission rate should be between 0 and 100"},
	{Name: "time-to-generate-image", Kind: "time", Fallback: "0", Action: Own},
	{Name: "time-to-generate-image-std-dev", Kind: "time", Fallback: "0", Action: Own},
	{Name: "strict", Kind: "bool", Action: Ignored, Here: "requests are always validated as vLLM does"},
	{Name: "engine", Kind: "text", Fallback: "vllm", Action: Refused, Here: "only vllm is imitated: leave it out"},
	{Name: "mm-processor-kwargs", Kind: "text", Action: Ignored, Here: "as in the simulator"},
	{Name: "ec-transfer-config", Kind: "text", Action: Ignored, Here: "as in the simulator"},
	{Name: "enforce-eager", Kind: "switch", Action: Ignored, Here: "as in the simulator"},
	{Name: "enable-prefix-caching", Kind: "switch", Action: Ignored, Here: "as in the simulator"},
	{Name: "tensor-parallel-size", Kind: "int", Action: Ignored, Here: "as in the simulator", hi: unbounded},
	// Of older releases.
	{Name: "max-running-requests", Kind: "int", Action: Refused, Here: "use --max-num-seqs, as in newer releases of the simulator"},
	{Name: "lora", Kind: "list", Action: Refused, Here: "use --lora-modules, as in newer releases of the simulator"},
	{Name: "zmq-max-connect-attempts", Kind: "int", Fallback: "0", Action: Ignored, Here: "the publisher tries until it is connected", hi: 10, wrong: "zmq retries times cannot be more than 10"},
	{Name: "tokenizers-cache-dir", Kind: "text", Action: Ignored, Here: "tokenizer and chat template run in this process"},
	{Name: "uds-socket-path", Kind: "text", Action: Ignored, Here: "tokenizer and chat template run in this process"},
	// Of klog.
	{Name: "v", Kind: "int", Fallback: "2", Action: Renamed, Here: "`--verbose` from 4 on", lo: -unbounded, hi: unbounded},
	{Name: "add_dir_header", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "alsologtostderr", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "log_backtrace_at", Kind: "text", Action: Ignored, Here: "of klog"},
	{Name: "log_dir", Kind: "text", Action: Ignored, Here: "of klog"},
	{Name: "log_file", Kind: "text", Action: Ignored, Here: "of klog"},
	{Name: "log_file_max_size", Kind: "int", Action: Ignored, Here: "of klog", hi: unbounded},
	{Name: "logtostderr", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "one_output", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "skip_headers", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "skip_log_headers", Kind: "bool", Action: Ignored, Here: "of klog"},
	{Name: "stderrthreshold", Kind: "text", Action: Ignored, Here: "of klog"},
	{Name: "vmodule", Kind: "text", Action: Ignored, Here: "of klog"},
}

// alsoVLLM are those that vLLM has too. They alone do not make serve do as the simulator.
var alsoVLLM = []string{
	"lora-modules", "enable-sleep-mode", "enable-request-id-headers", "mm-encoder-only", "omni", "mm-processor-kwargs", "ec-transfer-config",
	"enforce-eager", "enable-prefix-caching", "tensor-parallel-size",
}

// inTable reports whether a flag is one of llm-d-inference-sim.
func inTable(name string) bool {
	return slices.ContainsFunc(Table, func(f Flag) bool { return f.Name == name })
}

// Sections are the keys of YAML under which the simulator has some of its keys, by the same names.
var Sections = []string{"latencies", "kvcache"}
