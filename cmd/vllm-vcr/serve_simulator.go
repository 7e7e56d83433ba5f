package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
)

// What serve does with a flag of llm-d-inference-sim.
type simAction uint8

const (
	simSame    simAction = iota // serve has a flag of this name with the same meaning
	simOwn                      // only the simulator has it: it changes what the builtin frontend does
	simRenamed                  // a flag of serve does it
	simIgnored                  // it has no effect, as what it is about does not exist here
	simRefused                  // it ends the start with an error that names what to use
)

// A simFlag is a flag of llm-d-inference-sim. Its key in YAML is its name.
type simFlag struct {
	name string
	// kind is what its value is: text, int, number, time, bool, switch (without a value, and with a form that begins with "no-"), or list.
	kind string
	// fallback is its default in the simulator. Where the action is simSame, it replaces that of serve.
	fallback string
	action   simAction
	// here is the flag of serve, or what to do in its place.
	here string
	// lo and hi bound an int or a number, and wrong is the text of the simulator for one that is out of bounds.
	lo, hi float64
	wrong  string
}

// most is an upper bound that no value reaches.
const most = 1 << 53

// simFlags are all flags of llm-d-inference-sim: those of v0.10.2 and of its main branch, and those that older releases had. The flag
// --simulator, and so all of this, is described in docs/simulator.md, whose table is written from this one.
var simFlags = []simFlag{
	{name: "config", kind: "text", action: simSame},
	{name: "port", kind: "int", fallback: "8000", action: simSame},
	{name: "model", kind: "text", action: simRenamed, here: "the argument MODEL; the variable is `SIM_MODEL`"},
	{name: "served-model-name", kind: "list", action: simSame},
	{name: "lora-modules", kind: "list", action: simOwn, here: "the adapters are loaded at the start"},
	{name: "max-loras", kind: "int", fallback: "1", action: simSame, lo: 1, hi: most, wrong: "max LoRAs cannot be less than 1"},
	{name: "max-cpu-loras", kind: "int", action: simSame},
	{name: "max-model-len", kind: "int", fallback: "1024", action: simSame, lo: 1, hi: most, wrong: "max model len cannot be less than 1"},
	{name: "max-num-seqs", kind: "int", fallback: "5", action: simSame, lo: 1, hi: most, wrong: "max num seqs cannot be less than 1"},
	{name: "max-waiting-queue-length", kind: "int", fallback: "1000", action: simOwn, here: "requests above it get status 429", hi: most, wrong: "max waiting queue size cannot be less than 0"},
	{name: "max-request-body-size-mb", kind: "int", fallback: "4", action: simOwn, here: "larger bodies get status 413", lo: 1, hi: 512, wrong: "max-request-body-size-mb must be between 1 MB and 512 MB"},
	{name: "mode", kind: "text", fallback: "random", action: simSame, here: "`random` is `--mode text`"},
	{name: "seed", kind: "int", action: simSame},
	{name: "startup-duration", kind: "time", fallback: "0", action: simSame},
	{name: "time-to-first-token", kind: "time", fallback: "0", action: simSame},
	{name: "time-to-first-token-std-dev", kind: "time", fallback: "0", action: simSame},
	{name: "inter-token-latency", kind: "time", fallback: "0", action: simSame},
	{name: "inter-token-latency-std-dev", kind: "time", fallback: "0", action: simSame},
	{name: "prefill-overhead", kind: "time", fallback: "0", action: simSame},
	{name: "prefill-time-per-token", kind: "time", fallback: "0", action: simSame},
	{name: "prefill-time-std-dev", kind: "time", fallback: "0", action: simSame},
	{name: "kv-cache-transfer-latency", kind: "time", fallback: "0", action: simSame},
	{name: "kv-cache-transfer-latency-std-dev", kind: "time", fallback: "0", action: simSame},
	{name: "kv-cache-transfer-time-per-token", kind: "time", fallback: "0", action: simSame},
	{name: "kv-cache-transfer-time-std-dev", kind: "time", fallback: "0", action: simSame},
	{name: "time-factor-under-load", kind: "number", fallback: "1", action: simSame, lo: 1, hi: most, wrong: "time factor under load cannot be less than 1.0"},
	{name: "latency-calculator", kind: "text", action: simOwn, here: "chooses which of the times above count: `constant`, `per-token`, or all"},
	{name: "max-tool-call-integer-param", kind: "int", fallback: "100", action: simOwn, lo: -most, hi: most},
	{name: "min-tool-call-integer-param", kind: "int", fallback: "0", action: simOwn, lo: -most, hi: most},
	{name: "max-tool-call-number-param", kind: "number", fallback: "100", action: simOwn, lo: -most, hi: most},
	{name: "min-tool-call-number-param", kind: "number", fallback: "0", action: simOwn, lo: -most, hi: most},
	{name: "max-tool-call-array-param-length", kind: "int", fallback: "5", action: simOwn, lo: -most, hi: 1 << 16},
	{name: "min-tool-call-array-param-length", kind: "int", fallback: "1", action: simOwn, hi: 1 << 16, wrong: "MinToolCallArrayParamLength cannot be negative"},
	{name: "tool-call-not-required-param-probability", kind: "int", fallback: "50", action: simOwn, hi: 100, wrong: "ToolCallNotRequiredParamProbability should be between 0 and 100"},
	{name: "object-tool-call-not-required-field-probability", kind: "int", fallback: "50", action: simOwn, hi: 100, wrong: "ObjectToolCallNotRequiredParamProbability should be between 0 and 100"},
	{name: "tool-call-extra-call-probability", kind: "int", fallback: "45", action: simOwn, hi: 100, wrong: "ToolCallExtraCallProbability should be between 0 and 100"},
	{name: "skip-tool-validation", kind: "bool", action: simOwn},
	{name: "enable-kvcache", kind: "bool", action: simRenamed, here: "`--kv-events-config`; without it, `--no-enable-prefix-caching`"},
	{name: "kv-cache-size", kind: "int", fallback: "1024", action: simRenamed, here: "`--num-gpu-blocks-override`, one more, as vLLM never uses one block", hi: most, wrong: "KV cache size cannot be negative"},
	{name: "block-size", kind: "int", fallback: "16", action: simSame},
	{name: "hash-seed", kind: "text", action: simRenamed, here: "the variable `PYTHONHASHSEED`, as in vLLM"},
	{name: "zmq-endpoint", kind: "text", fallback: "tcp://127.0.0.1:5557", action: simRenamed, here: "`endpoint` of `--kv-events-config`"},
	{name: "kv-events-replay-endpoint", kind: "text", action: simRenamed, here: "`replay_endpoint` of `--kv-events-config`"},
	{name: "kv-events-replay-queue-size", kind: "int", fallback: "1024", action: simRenamed, here: "`buffer_steps` of `--kv-events-config`", lo: 1, hi: most, wrong: "kv-events-replay-queue-size cannot be less than 1"},
	{name: "event-batch-size", kind: "int", fallback: "16", action: simIgnored, here: "a batch has the events of one step, as in vLLM", lo: 1, hi: most, wrong: "event batch size cannot less than 1"},
	{name: "use-vllm-map-event-format", kind: "bool", action: simIgnored, here: "events have the format of the line, see `--vllm-version`"},
	{name: "global-cache-hit-threshold", kind: "number", fallback: "0", action: simOwn, hi: 1, wrong: "global cache hit threshold must be between in range [0, 1]"},
	{name: "failure-injection-rate", kind: "int", fallback: "0", action: simSame},
	{name: "failure-types", kind: "list", action: simSame},
	{name: "fake-metrics", kind: "text", action: simSame},
	{name: "fake-metrics-refresh-interval", kind: "time", fallback: "100ms", action: simIgnored, here: "values are computed when `/metrics` is read"},
	{name: "data-parallel-size", kind: "int", fallback: "1", action: simSame, here: "with `--port-per-rank`", lo: 1, hi: 8, wrong: "data parallel size must be between 1 and 8"},
	{name: "data-parallel-rank", kind: "int", fallback: "-1", action: simOwn, here: "the rank in KV events, and what is added to their ports", lo: -1, hi: 7, wrong: "data parallel rank must be between 0 and 7"},
	{name: "dataset-path", kind: "text", action: simRenamed, here: "`--dataset`"},
	{name: "dataset-url", kind: "text", action: simRefused, here: "serve downloads nothing: download the file, and give it as --dataset-path or --dataset"},
	{name: "dataset-in-memory", kind: "bool", action: simIgnored, here: "a dataset is always read once"},
	{name: "dataset-table-name", kind: "text", fallback: "llmd", action: simRefused, here: "--dataset reads the table llmd: rename the table"},
	{name: "render-url", kind: "text", fallback: "http://localhost:8082", action: simIgnored, here: "tokenizer and chat template run in this process"},
	{name: "render-timeout", kind: "time", fallback: "30s", action: simIgnored, here: "as `render-url`"},
	{name: "mm-render-timeout", kind: "time", fallback: "60s", action: simIgnored, here: "as `render-url`"},
	{name: "force-dummy-tokenizer", kind: "bool", action: simOwn, here: "also for a MODEL whose files are there"},
	{name: "enable-sleep-mode", kind: "switch", action: simOwn, here: "with the variable `VLLM_SERVER_DEV_MODE=1`, `/sleep` has an effect"},
	{name: "enable-request-id-headers", kind: "bool", action: simOwn, here: "without it, answers have no `X-Request-Id`"},
	{name: "log-http", kind: "bool", action: simRenamed, here: "`--log-requests -`: without headers and bodies"},
	{name: "ssl-certfile", kind: "text", action: simSame},
	{name: "ssl-keyfile", kind: "text", action: simSame},
	{name: "self-signed-certs", kind: "bool", action: simOwn, here: "a new certificate for localhost at each start"},
	{name: "default-embedding-dimensions", kind: "int", fallback: "384", action: simOwn, here: "of `/v1/embeddings`, which a server that generates has too", lo: 1, hi: 1 << 16, wrong: "default embedding dimensions must be at least 1"},
	{name: "mm-encoder-only", kind: "switch", action: simOwn},
	{name: "omni", kind: "switch", action: simOwn},
	{name: "image-emission-rate", kind: "int", fallback: "0", action: simOwn, hi: 100, wrong: "image emission rate should be between 0 and 100"},
	{name: "time-to-generate-image", kind: "time", fallback: "0", action: simOwn},
	{name: "time-to-generate-image-std-dev", kind: "time", fallback: "0", action: simOwn},
	{name: "strict", kind: "bool", action: simIgnored, here: "requests are always validated as vLLM does"},
	{name: "engine", kind: "text", fallback: "vllm", action: simRefused, here: "only vllm is imitated: leave it out"},
	{name: "mm-processor-kwargs", kind: "text", action: simIgnored, here: "as in the simulator"},
	{name: "ec-transfer-config", kind: "text", action: simIgnored, here: "as in the simulator"},
	{name: "enforce-eager", kind: "switch", action: simIgnored, here: "as in the simulator"},
	{name: "enable-prefix-caching", kind: "switch", action: simIgnored, here: "as in the simulator: `enable-kvcache` decides"},
	{name: "tensor-parallel-size", kind: "int", action: simIgnored, here: "as in the simulator", hi: most},
	// Of older releases.
	{name: "max-running-requests", kind: "int", action: simRefused, here: "use --max-num-seqs, as in newer releases of the simulator"},
	{name: "lora", kind: "list", action: simRefused, here: "use --lora-modules, as in newer releases of the simulator"},
	{name: "zmq-max-connect-attempts", kind: "int", fallback: "0", action: simIgnored, here: "the publisher tries until it is connected", hi: 10, wrong: "zmq retries times cannot be more than 10"},
	{name: "tokenizers-cache-dir", kind: "text", action: simIgnored, here: "as `render-url`"},
	{name: "uds-socket-path", kind: "text", action: simIgnored, here: "as `render-url`"},
	// Of klog.
	{name: "v", kind: "int", fallback: "2", action: simRenamed, here: "`--verbose` from 4 on", lo: -most, hi: most},
	{name: "add_dir_header", kind: "bool", action: simIgnored, here: "of klog: the log goes to standard error, see `--log-format`"},
	{name: "alsologtostderr", kind: "bool", action: simIgnored, here: "of klog"},
	{name: "log_backtrace_at", kind: "text", action: simIgnored, here: "of klog"},
	{name: "log_dir", kind: "text", action: simIgnored, here: "of klog"},
	{name: "log_file", kind: "text", action: simIgnored, here: "of klog"},
	{name: "log_file_max_size", kind: "int", action: simIgnored, here: "of klog", hi: most},
	{name: "logtostderr", kind: "bool", action: simIgnored, here: "of klog"},
	{name: "one_output", kind: "bool", action: simIgnored, here: "of klog"},
	{name: "skip_headers", kind: "bool", action: simIgnored, here: "of klog"},
	{name: "skip_log_headers", kind: "bool", action: simIgnored, here: "of klog"},
	{name: "stderrthreshold", kind: "text", action: simIgnored, here: "of klog"},
	{name: "vmodule", kind: "text", action: simIgnored, here: "of klog"},
}

// alsoVLLM are those that vLLM has too. They alone do not make serve do as the simulator.
var alsoVLLM = []string{
	"lora-modules", "enable-sleep-mode", "enable-request-id-headers", "mm-encoder-only", "omni", "mm-processor-kwargs", "ec-transfer-config",
	"enforce-eager", "enable-prefix-caching", "tensor-parallel-size",
}

// simSections are the keys of YAML under which the simulator has some of its keys, by the same names.
var simSections = []string{"latencies", "kvcache"}

// simulatorOptions are the flags that only llm-d-inference-sim has. One of them, or --simulator, makes serve do as it does where
// vLLM does not have that, or does otherwise.
type simulatorOptions struct {
	on     bool // --simulator
	values map[string]*simValue
	model  string
	// modelLen is the context length that requests are checked with.
	modelLen int
}

// A simValue is the value of a flag of the simulator. It is a [pflag.Value].
type simValue struct {
	flag  *simFlag
	off   bool // of the form that begins with "no-"
	to    *simValue
	texts []string
}

func (v *simValue) String() string   { return strings.Join(v.texts, ",") }
func (v *simValue) IsBoolFlag() bool { return v.flag.kind == "bool" || v.flag.kind == "switch" }

// Type has names of its own, so that errors have the texts of Set.
func (v *simValue) Type() string {
	if v.flag.kind == "list" {
		return "stringArray"
	}
	return "simulator-" + v.flag.kind
}

// Set checks a value. A time is a duration, or a number of milliseconds.
func (v *simValue) Set(text string) (err error) {
	f := v.flag
	number := 0.0
	switch f.kind {
	case "int":
		var n int64
		n, err = strconv.ParseInt(text, 10, 64)
		number = float64(n)
	case "number":
		number, err = strconv.ParseFloat(text, 64)
	case "time":
		if text, err = durationText(text); err != nil {
			return err
		}
		if text[0] == '-' {
			return fmt.Errorf("%s cannot be negative", strings.ReplaceAll(f.name, "-", " "))
		}
	case "bool", "switch":
		var is bool
		if is, err = strconv.ParseBool(text); err != nil {
			return errors.New("want true or false")
		}
		text = strconv.FormatBool(is != v.off)
	}
	if err != nil {
		return fmt.Errorf("want %s", map[string]string{"int": "a whole number", "number": "a number"}[f.kind])
	}
	if (f.lo != 0 || f.hi != 0) && !(number >= f.lo && number <= f.hi) {
		return errors.New(cmp.Or(f.wrong, fmt.Sprintf("want %v to %v", f.lo, f.hi)))
	}
	to := cmp.Or(v.to, v)
	if f.kind != "list" {
		to.texts = nil
	}
	to.texts = append(to.texts, text)
	return nil
}

// durationText is a duration; a number without a unit, as older releases of the simulator have them, is one of milliseconds.
func durationText(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 63); err == nil && text != "0" {
		text += "ms"
	}
	d, err := time.ParseDuration(text)
	return d.String(), err
}

// timeValue is the value of a flag of serve that takes a number of milliseconds too.
type timeValue struct{ pflag.Value }

func (v timeValue) Set(text string) error {
	if long, err := durationText(text); err == nil {
		text = long
	}
	return v.Value.Set(text)
}

// anySeed is the value of a flag that takes negative numbers as well.
type anySeed struct{ pflag.Value }

func (v anySeed) Set(text string) error {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n < 0 {
		text = strconv.FormatUint(uint64(n), 10)
	}
	return v.Value.Set(text)
}

// add adds --simulator and, hidden, the flags that serve does not have.
func (s *simulatorOptions) add(flags *pflag.FlagSet) {
	flags.BoolVar(&s.on, "simulator", false, "do as llm-d-inference-sim where vLLM has nothing like it or differs, with the builtin frontend; a flag that only it has, such as --model, does the same. See docs/simulator.md")
	s.values = map[string]*simValue{}
	hidden := func(name string, value *simValue) {
		flags.Var(value, name, "of llm-d-inference-sim, see docs/simulator.md")
		added := mustLookup(flags, name)
		added.Hidden = true
		if value.IsBoolFlag() {
			added.NoOptDefVal = "true"
		}
	}
	for i := range simFlags {
		f := &simFlags[i]
		if own := flags.Lookup(f.name); own != nil {
			switch {
			case f.kind == "time":
				own.Value = timeValue{own.Value}
			case f.name == "seed":
				own.Value = anySeed{own.Value}
			}
			continue
		}
		s.values[f.name] = &simValue{flag: f}
		hidden(f.name, s.values[f.name])
		if no := "no-" + f.name; f.kind == "switch" && flags.Lookup(no) == nil {
			hidden(no, &simValue{flag: f, off: true, to: s.values[f.name]})
		}
	}
	grouped(flags, "Server")
}

// isSimulator reports whether a flag is one that only the simulator has.
func isSimulator(f *pflag.Flag) bool { _, is := f.Value.(*simValue); return is }

func (s *simulatorOptions) given(name string) bool { return s.values[name].texts != nil }

// text is the value of a flag, or its default.
func (s *simulatorOptions) text(name string) string {
	v := s.values[name]
	if len(v.texts) == 0 {
		return v.flag.fallback
	}
	return v.texts[len(v.texts)-1]
}

func (s *simulatorOptions) int(name string) int {
	n, _ := strconv.Atoi(s.text(name)) // Set has read it
	return n
}

func (s *simulatorOptions) number(name string) float64 {
	n, _ := strconv.ParseFloat(s.text(name), 64)
	return n
}

func (s *simulatorOptions) bool(name string) bool { return s.text(name) == "true" }

func (s *simulatorOptions) time(name string) time.Duration {
	d, _ := time.ParseDuration(s.text(name))
	return d
}

// simArguments writes a command line of the simulator as one that is parsed: several values after a flag become several flags, and
// a value after a flag that is true or false is joined to it. The value of a list may be a word only where the model is not: if
// --model or --config is there, or something before the first flag.
func simArguments(args []string) []string {
	at := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if at < 0 || args[at] != "serve" {
		return args
	}
	out, rest := slices.Clone(args[:at+1]), args[at+1:]
	named := len(rest) > 0 && !strings.HasPrefix(rest[0], "-") || slices.ContainsFunc(rest, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--model" || name == "--config"
	})
	kinds := map[string]string{}
	for _, f := range simFlags {
		kinds["--"+f.name] = f.kind
		if f.kind == "switch" {
			kinds["--no-"+f.name] = f.kind
		}
	}
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		next := ""
		if i+1 < len(rest) {
			next = rest[i+1]
		}
		switch kind := kinds[arg]; {
		case arg == "--":
			return append(out, rest[i:]...)
		case (kind == "bool" || kind == "switch") && (next == "true" || next == "false"):
			out = append(out, arg+"="+next)
			i++
		case kind == "list" && named:
			if next == "" || strings.HasPrefix(next, "-") {
				break // a list without values
			}
			for i+1 < len(rest) && !strings.HasPrefix(rest[i+1], "-") {
				i++
				if rest[i] != "" {
					out = append(out, arg+"="+rest[i])
				}
			}
		case (arg == "-v" || strings.HasPrefix(arg, "-v=")) && named: // klog's, which has a number
			value, joined := strings.CutPrefix(arg, "-v=")
			if !joined {
				value = next
			}
			if _, err := strconv.Atoi(value); err != nil {
				out = append(out, arg)
				break
			}
			out = append(out, "--v="+value)
			if !joined {
				i++
			}
		default:
			out = append(out, arg)
		}
	}
	return out
}

// translate makes options of serve of those of the simulator, if there is one or --simulator is given. It returns the model.
func (s *simulatorOptions) translate(env *environment, flags *pflag.FlagSet, opts *serveOptions, model string) (string, error) {
	var only []string // flags that serve does not have
	flags.Visit(func(f *pflag.Flag) {
		if isSimulator(f) {
			only = append(only, f.Name)
		}
	})
	if !flags.Changed("simulator") {
		s.on = slices.ContainsFunc(only, func(name string) bool { return !slices.Contains(alsoVLLM, strings.TrimPrefix(name, "no-")) }) ||
			model == "" && env.getenv("SIM_MODEL") != ""
	}
	if !s.on {
		if len(only) > 0 {
			return "", fmt.Errorf("--%s needs --simulator, as serve does not have it otherwise: see docs/simulator.md", only[0])
		}
		return model, nil
	}
	if opts.frontend != serve.Builtin && flags.Changed("frontend") {
		return "", fmt.Errorf("--frontend %s: flags of llm-d-inference-sim, and --simulator, work with the builtin frontend only: give --frontend builtin, or leave it out", opts.frontend)
	}
	opts.frontend = serve.Builtin
	if model = cmp.Or(s.values["model"].String(), env.getenv("SIM_MODEL"), model); model == "" {
		return "", errors.New("model parameter is empty: give --model, or the argument MODEL")
	}
	s.model = model
	engine := &opts.play.engine
	for i := range simFlags {
		f := &simFlags[i]
		own := flags.Lookup(f.name)
		switch {
		case f.action == simRefused && s.given(f.name) && s.text(f.name) != f.fallback && !(f.name == "dataset-url" && s.datasetExists()):
			return "", fmt.Errorf("--%s is a flag of llm-d-inference-sim that serve does not have: %s", f.name, f.here)
		case f.action != simSame || isSimulator(own):
		case own.Changed && f.wrong != "":
			if err := (&simValue{flag: f}).Set(own.Value.String()); err != nil {
				return "", fmt.Errorf("--%s %s: %w", f.name, own.Value, err)
			}
		case !own.Changed && f.fallback != "":
			if err := own.Value.Set(f.fallback); err != nil {
				return "", fmt.Errorf("--%s: %w", f.name, err)
			}
		}
	}
	if !flags.Changed("host") {
		opts.host = "0.0.0.0" // the simulator listens on all addresses
	}
	switch mode := &opts.play.source.mode; *mode {
	case modeRandom:
		*mode = modeText
	case modeEcho, modeText:
	default:
		return "", fmt.Errorf("invalid mode '%s', valid values are 'random' and 'echo'", *mode)
	}
	if opts.play.source.mode == modeEcho && (s.given("dataset-path") || s.given("dataset-url")) {
		return "", errors.New("dataset cannot be defined in echo mode")
	}
	if s.given("dataset-url") && !s.given("dataset-path") {
		return "", errors.New("dataset-path is required when dataset-url is set")
	}
	if path := s.text("dataset-path"); path != "" && opts.play.source.dataset == "" {
		opts.play.source.dataset = path
	}
	if !flags.Changed("seed") {
		opts.play.source.seed = uint64(env.now().UnixNano())
	}
	if opts.play.source.recording+opts.play.source.dataset == "" {
		opts.play.source.strict = false // that of the simulator has another meaning
	}
	if s.bool("log-http") && opts.edge.requestLog == "" {
		opts.edge.requestLog = "-"
	}
	if s.bool("self-signed-certs") && opts.edge.cert+opts.edge.key != "" {
		return "", errors.New("cannot use both self-signed-certs and explicit ssl-certfile/ssl-keyfile")
	}
	if (opts.edge.cert == "") != (opts.edge.key == "") {
		return "", errors.New("both ssl-certfile and ssl-keyfile must be provided together")
	}
	opts.edge.selfSigned = s.bool("self-signed-certs")
	opts.play.peers.hashSeed = s.text("hash-seed")
	if s.int("v") >= 4 {
		env.verbose = true
		if err := env.openLog(); err != nil {
			return "", err
		}
	}
	if size := engine.opt.DataParallelSize; size > 1 && s.int("data-parallel-rank") < 0 {
		opts.edge.portPerRank = true
	} else {
		engine.opt.DataParallelSize = 1
	}
	if err := calculateTimes(s.text(latencyCalculator), &opts.play.timing.knobs); err != nil {
		return "", err
	}
	opts.play.source.plans = builtin.NewPlans()
	opts.play.timing.now = newSimTimes(opts.play.timing.knobs)
	if err := s.kvCache(flags, opts); err != nil {
		return "", err
	}
	// An echo may be longer than what the context has room for: the frontend checks requests, and not the engine.
	s.modelLen = engine.opt.Limits.MaxModelLen
	engine.opt.Limits.MaxModelLen = 2 * s.modelLen
	return model, nil
}

func (s *simulatorOptions) datasetExists() bool {
	_, err := os.Stat(s.text("dataset-path"))
	return s.given("dataset-path") && err == nil
}

const latencyCalculator = "latency-calculator"

// calculateTimes lets only the times count that a value of --latency-calculator chooses, or that have precedence over others without it.
func calculateTimes(calculator string, k *latency.Knobs) error {
	constant := k.TimeToFirstToken != 0 || k.TimeToFirstTokenStdDev != 0
	transfer := k.TransferLatency != 0 || k.TransferLatencyStdDev != 0
	switch calculator {
	case "":
	case "constant":
		constant, transfer = true, true
	case "per-token":
		constant, transfer = false, false
		k.TimeToFirstToken, k.TimeToFirstTokenStdDev, k.TransferLatency, k.TransferLatencyStdDev = 0, 0, 0, 0
	default:
		return fmt.Errorf("unknown latency-calculator %s, supported calculators are: constant and per-token", calculator)
	}
	if constant {
		k.PrefillOverhead, k.PrefillPerToken, k.PrefillStdDev = 0, 0, 0
	}
	if transfer {
		k.TransferPerToken, k.TransferStdDev = 0, 0
	}
	if k.PrefillOverhead == 0 && k.PrefillPerToken == 0 {
		k.PrefillStdDev = 0 // of nothing
	}
	if k.TransferPerToken == 0 {
		k.TransferStdDev = 0
	}
	return nil
}

// kvCache sets up the prefix cache, and its events if --enable-kvcache is given.
func (s *simulatorOptions) kvCache(flags *pflag.FlagSet, opts *serveOptions) error {
	engine := &opts.play.engine
	if size := engine.opt.KVCache.BlockSize; !slices.Contains([]int{8, 16, 32, 64, 128}, size) {
		return errors.New("token block size should be one of the following: 8, 16, 32, 64, 128")
	}
	engine.noCaching = !s.bool("enable-kvcache")
	if engine.noCaching {
		// As many blocks as all running requests can need: without a cache, the simulator has no bound.
		blocks := engine.opt.Limits.MaxNumSeqs*(engine.opt.Limits.MaxModelLen/engine.opt.KVCache.BlockSize+1) + 1
		if !flags.Changed("num-gpu-blocks-override") {
			engine.opt.KVCache.NumGPUBlocks = min(max(blocks, 1<<13), 1<<20)
		}
		return nil
	}
	if !flags.Changed("num-gpu-blocks-override") {
		engine.opt.KVCache.NumGPUBlocks = max(s.int("kv-cache-size"), 1) + 1
	}
	return nil
}

// kvEvents is the --kv-events-config of a rank. Each rank of the simulator has a topic of its own, with its port.
func (s *simulatorOptions) kvEvents(env *environment, port int, model string) (string, error) {
	// The simulator always connects. vLLM, and so --kv-events-config, listens where the address is that of no machine.
	endpoint := strings.NewReplacer("//*:", "//127.0.0.1:", "//[::]:", "//127.0.0.1:", "//0.0.0.0:", "//127.0.0.1:").Replace(s.text("zmq-endpoint"))
	config := map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "buffer_steps": s.int("kv-events-replay-queue-size"),
		"topic": fmt.Sprintf("kv@%s:%d@%s", env.getenv("POD_IP"), port, model),
	}
	if replay := s.text("kv-events-replay-endpoint"); replay != "" {
		config["replay_endpoint"] = replay
	}
	text, err := json.Marshal(config)
	if err == nil {
		_, err = kvevents.ParseConfig(string(text))
	}
	if err != nil {
		return "", fmt.Errorf("--zmq-endpoint, --kv-events-replay-endpoint: %w", err)
	}
	return string(text), nil
}

// rank sets up the engine behind the frontend number n: its rank, and the address and the topic of its KV events.
func (s *simulatorOptions) rank(env *environment, opts *serveOptions, play *playOptions, n int) (err error) {
	rank := max(s.int("data-parallel-rank"), n)
	play.peers.rank, play.engine.opt.EngineIndex, play.engine.opt.DataParallelSize, play.engine.alone = 0, rank, 1, true
	if s.bool("enable-kvcache") && play.peers.kvEvents == "" {
		play.peers.firstBatch = 1
		play.peers.kvEvents, err = s.kvEvents(env, opts.port+n, s.model)
	}
	return err
}

// adapters are those of --lora-modules.
func (s *simulatorOptions) adapters(model string) (all []builtin.Adapter, err error) {
	for _, text := range s.values["lora-modules"].texts {
		var one struct {
			Name string `json:"name"`
			Path string `json:"path"`
			Base string `json:"base_model_name"`
		}
		switch err := json.Unmarshal([]byte(text), &one); {
		case err != nil:
			return nil, fmt.Errorf(`--lora-modules %q: want JSON such as {"name": "lora1", "path": "/path/to/lora1"}: %w`, text, err)
		case one.Name == "":
			return nil, errors.New("--lora-modules: empty LoRA name")
		case one.Base != "" && one.Base != model:
			return nil, fmt.Errorf("--lora-modules: unknown base model '%s' for LoRA '%s'", one.Base, one.Name)
		}
		all = append(all, builtin.Adapter{Name: one.Name, Path: cmp.Or(one.Path, one.Name)})
	}
	return all, nil
}

// options are those of the builtin frontend; nil if it is not to do as the simulator.
func (s *simulatorOptions) options(env *environment, opts *serveOptions, model string) (o *builtin.Simulator, err error) {
	if !s.on {
		return nil, nil
	}
	o = &builtin.Simulator{
		Plans: opts.play.source.plans, Echo: opts.play.source.mode == modeEcho, Seed: opts.play.source.seed,
		MaxModelLen: s.modelLen, Running: opts.play.engine.opt.Limits.MaxNumSeqs, Waiting: s.int("max-waiting-queue-length"),
		Tools: builtin.ToolRanges{
			MinInteger: s.int("min-tool-call-integer-param"), MaxInteger: s.int("max-tool-call-integer-param"),
			MinNumber: s.number("min-tool-call-number-param"), MaxNumber: s.number("max-tool-call-number-param"),
			MinItems: s.int("min-tool-call-array-param-length"), MaxItems: s.int("max-tool-call-array-param-length"),
			Optional: s.int("tool-call-not-required-param-probability"), OptionalField: s.int("object-tool-call-not-required-field-probability"),
			Extra: s.int("tool-call-extra-call-probability"),
		},
		AnyTool: s.bool("skip-tool-validation"), CacheThreshold: s.number("global-cache-hit-threshold"), KVCache: s.bool("enable-kvcache"),
		BlockSize:  opts.play.engine.opt.KVCache.BlockSize,
		Sleeps:     s.bool("enable-sleep-mode") && env.getenv("VLLM_SERVER_DEV_MODE") == "1",
		Dimensions: s.int("default-embedding-dimensions"), EncoderOnly: s.bool("mm-encoder-only"), Omni: s.bool("omni"),
		ImageRate: s.int("image-emission-rate"), ImageTime: s.time("time-to-generate-image"), ImageTimeStdDev: s.time("time-to-generate-image-std-dev"),
	}
	switch t := &o.Tools; {
	case t.MaxInteger < t.MinInteger:
		return nil, errors.New("MaxToolCallIntegerParam cannot be less than MinToolCallIntegerParam")
	case t.MaxNumber < t.MinNumber:
		return nil, errors.New("MaxToolCallNumberParam cannot be less than MinToolCallNumberParam")
	case t.MaxItems < t.MinItems:
		return nil, errors.New("MaxToolCallArrayParamLength cannot be less than MinToolCallArrayParamLength")
	case float64(o.ImageTimeStdDev) > 0.3*float64(o.ImageTime):
		return nil, errors.New("time to generate image standard deviation cannot be more than 30% of time to generate image")
	}
	o.Adapters, err = s.adapters(model)
	return o, err
}

// simTimes are times that can be changed while engines run. It is a [latency.Model].
type simTimes struct{ now atomic.Pointer[latency.Knobs] }

func newSimTimes(k latency.Knobs) *simTimes {
	t := &simTimes{}
	t.now.Store(&k)
	return t
}

// Duration implements [latency.Model].
func (t *simTimes) Duration(s *latency.Step) time.Duration { return t.now.Load().Duration(s) }

// Transfer implements [latency.Model].
func (t *simTimes) Transfer(r *latency.Request) time.Duration { return t.now.Load().Transfer(r) }

// simSettings are what /admin/config shows and changes beside faults and fake metrics.
type simSettings struct {
	opts    *serveOptions
	mu      sync.Mutex
	servers []*builtin.Server
	rate    int              // image-emission-rate
	image   [2]time.Duration // time-to-generate-image, and its deviation
}

func (s *simSettings) add(server *builtin.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, server)
}

// simDurations are the times of a [latency.Knobs] by their keys.
func simDurations(k *latency.Knobs) map[string]*time.Duration {
	return map[string]*time.Duration{
		"time-to-first-token": &k.TimeToFirstToken, "time-to-first-token-std-dev": &k.TimeToFirstTokenStdDev,
		"inter-token-latency": &k.InterTokenLatency, "inter-token-latency-std-dev": &k.InterTokenLatencyStdDev,
		"prefill-overhead": &k.PrefillOverhead, "prefill-time-per-token": &k.PrefillPerToken, "prefill-time-std-dev": &k.PrefillStdDev,
		"kv-cache-transfer-latency": &k.TransferLatency, "kv-cache-transfer-latency-std-dev": &k.TransferLatencyStdDev,
		"kv-cache-transfer-time-per-token": &k.TransferPerToken, "kv-cache-transfer-time-std-dev": &k.TransferStdDev,
	}
}

// Shown implements [edge.Settings].
func (s *simSettings) Shown() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := *s.opts.play.timing.now.now.Load()
	shown := map[string]any{"time-factor-under-load": max(k.LoadFactor, 1), "image-emission-rate": s.rate, "model": s.opts.sim.model, "mode": s.opts.play.source.mode}
	if shown["mode"] == modeText {
		shown["mode"] = modeRandom
	}
	for key, d := range simDurations(&k) {
		shown[key] = d.String()
	}
	for name, v := range s.opts.sim.values {
		if _, has := shown[name]; !has && v.flag.action == simOwn && v.flag.kind != "list" {
			shown[name] = s.opts.sim.text(name)
		}
	}
	return shown
}

// Change implements [edge.Settings]. A time is a text such as "1s", or a number of nanoseconds, as in the simulator.
func (s *simSettings) Change(values map[string]json.RawMessage) (apply func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, rate, image, calculator := *s.opts.play.timing.now.now.Load(), s.rate, s.image, s.opts.sim.text(latencyCalculator)
	durations := simDurations(&k)
	durations["time-to-generate-image"], durations["time-to-generate-image-std-dev"] = &image[0], &image[1]
	for key, raw := range values {
		var text string
		var number float64
		isText := json.Unmarshal(raw, &text) == nil
		if !isText {
			err = json.Unmarshal(raw, &number)
		}
		at, isTime := durations[key]
		switch {
		case key == latencyCalculator && isText:
			calculator, err = text, calculateTimes(text, new(latency.Knobs)) // of k when all values are there
		case key == "time-factor-under-load":
			if k.LoadFactor = number; err == nil && number < 1 {
				err = errors.New("time factor under load cannot be less than 1.0")
			}
		case key == "image-emission-rate":
			if rate = int(number); err == nil && (number < 0 || number > 100) {
				err = errors.New("image emission rate should be between 0 and 100")
			}
		case isTime && isText:
			*at, err = time.ParseDuration(text)
		case isTime:
			*at = time.Duration(number)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		delete(values, key)
	}
	if err := calculateTimes(calculator, &k); err != nil {
		return nil, err
	}
	if err := k.Validate(); err != nil {
		return nil, err
	}
	if image[0] < 0 || image[1] < 0 || float64(image[1]) > 0.3*float64(image[0]) {
		return nil, errors.New("time to generate image standard deviation cannot be more than 30% of time to generate image")
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.opts.play.timing.now.now.Store(&k)
		s.rate, s.image = rate, image
		if calculator != s.opts.sim.text(latencyCalculator) {
			s.opts.sim.values[latencyCalculator].texts = []string{calculator}
		}
		for _, server := range s.servers {
			server.SetImages(rate, image[0], image[1])
		}
	}, nil
}
