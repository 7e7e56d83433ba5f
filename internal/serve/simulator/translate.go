package simulator

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
)

// Sentences are those of random answers that have signs, as parsers should see: with those of serve they are a prime number.
var Sentences = []string{
	`"Who is there?" she asked; nobody answered.`, "The list:\n- one (1)\n- two [2]\n- three {3}", "Café, naïve, Ω ≈ 3.14, 你好, 🙂!",
	`{"name": "x", "values": [1, 2.5, null]}`, "It's 50% off: #1 @ $9.99 & more…", `A path: C:\temp\new, and one: /tmp/a_b.txt`,
	"```go\nfunc f() {}\n```", "<b>bold</b> | 'single' | ~tilde~ | ^caret^", "Tabs\tand = signs + 2 * 3 / 4 - 5.", "Ja, „gut“ — ¿qué? ¡Sí!",
}

// get is the value of a flag of serve.
func (s *Flags) get(name string) string { return s.flags.Lookup(name).Value.String() }

// set changes a flag of serve as its default would.
func (s *Flags) set(name, value string) error {
	if err := s.flags.Lookup(name).Value.Set(value); err != nil {
		return fmt.Errorf("--%s: %w", name, err)
	}
	return nil
}

// Translate sets flags of serve from those of the simulator, if there is one or --simulator is given. It returns the
// model. knobs are those of the durations among the flags.
func (s *Flags) Translate(getenv func(string) string, now time.Time, knobs *latency.Knobs, model string) (string, error) {
	flags := s.flags
	var only []string // flags that serve does not have
	ofFile, unit := s.OwnConfig, ""
	flags.Visit(func(f *pflag.Flag) {
		ofFile = ofFile && (IsFlag(f) || inTable(f.Name))
		if v, is := f.Value.(*timeValue); is && v.number != "" {
			unit = fmt.Sprintf("--%s %s: want a time with a unit, such as %sms", f.Name, v.number, v.number)
		}
		if IsFlag(f) {
			only = append(only, f.Name)
		}
	})
	if !flags.Changed("simulator") {
		s.On = slices.ContainsFunc(only, func(name string) bool { return !slices.Contains(alsoVLLM, strings.TrimPrefix(name, "no-")) }) ||
			slices.ContainsFunc(s.values["lora-modules"].texts, func(text string) bool { return strings.HasPrefix(text, "{") }) ||
			ofFile || model == "" && getenv("SIM_MODEL") != ""
	}
	if !s.On {
		if len(only) > 0 {
			return "", fmt.Errorf("--%s needs --simulator, as serve does not have it otherwise: see docs/simulator.md; a flag of the frontend goes behind --", only[0])
		}
		if unit != "" {
			return "", errors.New(unit)
		}
		return model, nil
	}
	if frontend := s.get("frontend"); frontend != serve.Builtin && flags.Changed("frontend") {
		return "", fmt.Errorf("--frontend %s: flags of llm-d-inference-sim, and --simulator, work with the builtin frontend only: give --frontend builtin, or leave it out", frontend)
	}
	if model = cmp.Or(s.values["model"].String(), getenv("SIM_MODEL"), model); model == "" {
		return "", errors.New("model parameter is empty: give --model, or the argument MODEL")
	}
	s.model = model
	if err := s.checkTable(); err != nil {
		return "", err
	}
	if err := s.setOthers(now); err != nil {
		return "", err
	}
	if err := calculateTimes(s.text(latencyCalculator), knobs); err != nil {
		return "", err
	}
	s.Plans, s.Times = builtin.NewPlans(), newTimes(*knobs)
	if err := s.kvCache(); err != nil {
		return "", err
	}
	// An echo may be longer than what the context has room for: the frontend checks requests, and not the engine.
	s.modelLen, _ = strconv.Atoi(s.get("max-model-len"))
	return model, s.set("max-model-len", strconv.Itoa(2*s.modelLen))
}

// checkTable refuses flags as the table has it, checks values, and sets defaults.
func (s *Flags) checkTable() error {
	_, missing := os.Stat(s.text("dataset-path"))
	for i := range Table {
		f := &Table[i]
		own := s.flags.Lookup(f.Name)
		switch {
		case f.Action == Refused && s.given(f.Name) && s.text(f.Name) != f.Fallback && !(f.Name == "dataset-url" && s.given("dataset-path") && missing == nil):
			return fmt.Errorf("--%s is a flag of llm-d-inference-sim that serve does not have: %s", f.Name, f.Here)
		case f.Action != Same || IsFlag(own):
		case own.Changed && f.wrong != "":
			if err := f.Check(own.Value.String()); err != nil {
				return fmt.Errorf("--%s %s: %w", f.Name, own.Value, err)
			}
		case !own.Changed && f.Fallback != "":
			if err := s.set(f.Name, f.Fallback); err != nil {
				return err
			}
		}
	}
	return nil
}

// setOthers sets the flags of serve that have another name, or another default.
func (s *Flags) setOthers(now time.Time) error {
	change := map[string]string{"frontend": serve.Builtin}
	if !s.flags.Changed("host") {
		change["host"] = "0.0.0.0" // the simulator listens on all addresses
	}
	mode := s.get("mode")
	switch mode {
	case "random":
		change["mode"] = "text"
	case "echo", "text":
	default:
		return fmt.Errorf("invalid mode '%s', valid values are 'random' and 'echo'", mode)
	}
	switch {
	case mode == "echo" && (s.given("dataset-path") || s.given("dataset-url")):
		return errors.New("dataset cannot be defined in echo mode")
	case s.given("dataset-url") && !s.given("dataset-path"):
		return errors.New("dataset-path is required when dataset-url is set")
	case s.bool("self-signed-certs") && s.get("ssl-certfile")+s.get("ssl-keyfile") != "":
		return errors.New("cannot use both self-signed-certs and explicit ssl-certfile/ssl-keyfile")
	case (s.get("ssl-certfile") == "") != (s.get("ssl-keyfile") == ""):
		return errors.New("both ssl-certfile and ssl-keyfile must be provided together")
	}
	if s.get("dataset") == "" {
		change["dataset"] = s.text("dataset-path")
	}
	if !s.flags.Changed("seed") {
		change["seed"] = strconv.FormatUint(uint64(now.UnixNano()), 10)
	}
	if s.get("trace")+s.get("dataset")+s.text("dataset-path") == "" {
		change["strict"] = "false" // that of the simulator has another meaning
	}
	if s.bool("log-http") && s.get("log-requests") == "" {
		change["log-requests"] = "-"
	}
	if size, _ := strconv.Atoi(s.get("data-parallel-size")); size > 1 && s.int("data-parallel-rank") < 0 {
		change["port-per-rank"] = "true"
	} else {
		change["data-parallel-size"] = "1"
	}
	for name, value := range change {
		if err := s.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// kvCache sets up the prefix cache.
func (s *Flags) kvCache() error {
	size, _ := strconv.Atoi(s.get("block-size"))
	if !slices.Contains([]int{8, 16, 32, 64, 128}, size) {
		return errors.New("token block size should be one of the following: 8, 16, 32, 64, 128")
	}
	caching := s.bool("enable-kvcache")
	if err := s.set("no-enable-prefix-caching", strconv.FormatBool(!caching)); err != nil || s.flags.Changed("num-gpu-blocks-override") {
		return err
	}
	blocks := max(s.int("kv-cache-size"), 1) + 1
	if !caching {
		// As many blocks as all running requests can need: without a cache, the simulator has no bound.
		running, _ := strconv.Atoi(s.get("max-num-seqs"))
		length, _ := strconv.Atoi(s.get("max-model-len"))
		blocks = 1 << 20
		if each := length/size + 1; running < blocks/each {
			blocks = max(running*each+1, 1<<13)
		}
	}
	return s.set("num-gpu-blocks-override", strconv.Itoa(blocks))
}

// Verbose reports whether the log has everything.
func (s *Flags) Verbose() bool { return s.On && s.int("v") >= 4 }

// HashSeed is what PYTHONHASHSEED is otherwise.
func (s *Flags) HashSeed() string { return s.text("hash-seed") }

// OnlyWords reports whether a model has the tokenizer of words, without looking for its files if there are some.
func (s *Flags) OnlyWords(filesMissing bool) bool {
	return s.On && (s.bool("force-dummy-tokenizer") || filesMissing && s.get("tokenizer") == "")
}

// TLS is the configuration of --self-signed-certs, nil without it.
func (s *Flags) TLS() (*tls.Config, error) {
	if !s.On || !s.bool("self-signed-certs") {
		return nil, nil
	}
	return selfSigned()
}

// A Rank is what one of several engines has of its own.
type Rank struct {
	// Index is its number.
	Index int
	// KVEvents is its --kv-events-config, empty without events. Arrays writes these as arrays.
	KVEvents string
	Arrays   bool
}

// Rank is the engine behind the frontend number n. Each has a topic of KV events of its own, with its port.
func (s *Flags) Rank(getenv func(string) string, n int) (Rank, error) {
	rank := Rank{Index: max(s.int("data-parallel-rank"), n), Arrays: s.given(mapEvents) && !s.bool(mapEvents)}
	if !s.bool("enable-kvcache") {
		return rank, nil
	}
	port, _ := strconv.Atoi(s.get("port"))
	// The simulator always connects. vLLM, and so --kv-events-config, listens where the address is that of no machine.
	endpoint := strings.NewReplacer("//*:", "//127.0.0.1:", "//[::]:", "//127.0.0.1:", "//0.0.0.0:", "//127.0.0.1:").Replace(s.text("zmq-endpoint"))
	config := map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "buffer_steps": s.int("kv-events-replay-queue-size"),
		"topic": fmt.Sprintf("kv@%s:%d@%s", getenv("POD_IP"), port+n, s.model),
	}
	if replay := s.text("kv-events-replay-endpoint"); replay != "" {
		config["replay_endpoint"] = replay
	}
	text, err := json.Marshal(config)
	if err == nil {
		_, err = kvevents.ParseConfig(string(text))
	}
	if err != nil {
		return rank, fmt.Errorf("--zmq-endpoint, --kv-events-replay-endpoint: %w", err)
	}
	rank.KVEvents = string(text)
	return rank, nil
}

// adapters are those of --lora-modules.
func (s *Flags) adapters() (all []builtin.Adapter, err error) {
	for _, text := range s.values["lora-modules"].texts {
		one, base, err := builtin.ParseAdapter(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--lora-modules %q: %w", text, err)
		case one.Name == "":
			return nil, errors.New("--lora-modules: empty LoRA name")
		case base != "" && base != s.model:
			return nil, fmt.Errorf("--lora-modules: unknown base model '%s' for LoRA '%s'", base, one.Name)
		}
		all = append(all, builtin.Adapter{Name: one.Name, Path: cmp.Or(one.Path, one.Name)})
	}
	return all, nil
}

// Builtin are the options of the builtin frontend; nil if it is not to do as the simulator.
func (s *Flags) Builtin(getenv func(string) string) (o *builtin.Simulator, err error) {
	if !s.On {
		return nil, nil
	}
	running, _ := strconv.Atoi(s.get("max-num-seqs"))
	size, _ := strconv.Atoi(s.get("block-size"))
	seed, _ := strconv.ParseUint(s.get("seed"), 10, 64)
	o = &builtin.Simulator{
		Plans: s.Plans, Echo: s.get("mode") == "echo", Seed: seed,
		MaxModelLen: s.modelLen, Running: running, Waiting: s.int("max-waiting-queue-length"),
		Tools: builtin.ToolRanges{
			MinInteger: s.int("min-tool-call-integer-param"), MaxInteger: s.int("max-tool-call-integer-param"),
			MinNumber: s.number("min-tool-call-number-param"), MaxNumber: s.number("max-tool-call-number-param"),
			MinItems: s.int("min-tool-call-array-param-length"), MaxItems: s.int("max-tool-call-array-param-length"),
			Optional: s.int("tool-call-not-required-param-probability"), OptionalField: s.int("object-tool-call-not-required-field-probability"),
			Extra: s.int("tool-call-extra-call-probability"),
		},
		AnyTool: s.bool("skip-tool-validation"), CacheThreshold: s.number("global-cache-hit-threshold"), KVCache: s.bool("enable-kvcache"),
		BlockSize:  size,
		Sleeps:     s.bool("enable-sleep-mode") && getenv("VLLM_SERVER_DEV_MODE") == "1",
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
	ranks, _ := strconv.Atoi(s.get("data-parallel-size"))
	for range ranks {
		o.EngineIDs = append(o.EngineIDs, builtin.NewUUID())
	}
	o.Adapters, err = s.adapters()
	return o, err
}

// Apply makes a server do as the simulator. fake are its fake metrics.
func (s *Flags) Apply(cfg *serve.Config, fake *Fake, settings *Settings) {
	o := cfg.Builtin.Simulator
	maxLoRAs, _ := strconv.Atoi(s.get("max-loras"))
	fake.Imitate, fake.MaxLoRAs, fake.MaxModelLen = true, maxLoRAs, s.modelLen
	cfg.CacheConfig = []edge.Label{{Name: "block_size", Value: strconv.Itoa(o.BlockSize)}, {Name: "num_gpu_blocks", Value: strconv.Itoa(max(s.int("kv-cache-size"), 1))}}
	cfg.HTTP.Limits.Body = int64(s.int("max-request-body-size-mb")) << 20
	cfg.HTTP.Settings = append(cfg.HTTP.Settings, settings)
	cfg.HTTP.Policy.HideID = !s.bool("enable-request-id-headers")
	cfg.HTTP.Policy.OpenAdmin, cfg.HTTP.Policy.ReturnError, cfg.HTTP.Policy.NoRetryAfter = true, true, true
	cfg.AcceptReady = true
	cfg.HTTP.Policy.Endpoints = map[string]http.Handler{"POST /fake_metrics": fake}
	var requests atomic.Uint64
	// Servers with the same seed give the same ids, and so the same answers, in the same order. An id has the form of a
	// UUID.
	cfg.HTTP.Policy.NewID = func() string {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d-%d", o.Seed, requests.Add(1)))
		id := hex.EncodeToString(sum[:16])
		return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
	}
}
