package check

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance/tables"
)

// Consequence is what a failure does to the users of the released frontends of the line, or of a frontend under test.
type Consequence string

// Consequences, the worst first. A failure that is about the inputs of a run, such as the bytes of a golden, has none.
const (
	FrontendExits Consequence = "frontend exits" // nobody is served any more
	RequestsFail  Consequence = "requests fail"  // with an error, or without an end
	WrongAnswer   Consequence = "wrong answer"   // a user gets something else than the real engine's answer
	MetricWrong   Consequence = "metric wrong"   // the answer is right, and a metric or a routing decision is not
	Differs       Consequence = "differs"        // from the real engine, without an effect on users
)

// Consequences are all of them, the worst first.
func Consequences() []Consequence {
	return []Consequence{FrontendExits, RequestsFail, WrongAnswer, MetricWrong, Differs}
}

// Level is a part of the wire that is judged on its own.
type Level string

// Levels. Core is what HTTP 200 with the right text takes: handshake, tokens, finish reasons, aborts.
const (
	LevelCore         Level = "core"
	LevelStatistics   Level = "statistics"
	LevelUtilities    Level = "utilities"
	LevelLogprobs     Level = "logprobs"
	LevelStructured   Level = "structured"
	LevelLoRA         Level = "lora"
	LevelDataParallel Level = "data-parallel"
	LevelKVEvents     Level = "kv-events"
	LevelKVTransfer   Level = "kv-transfer"
	LevelMultimodal   Level = "multimodal"
	// Of routers: what happens when engines end or drain, and whether requests go where their cache is.
	LevelFailover Level = "failover"
	LevelAffinity Level = "affinity"
)

// Levels are all of them, in the order of reports.
func Levels() []Level {
	return []Level{
		LevelCore, LevelStatistics, LevelUtilities, LevelLogprobs, LevelStructured, LevelLoRA, LevelDataParallel, LevelKVEvents,
		LevelKVTransfer, LevelMultimodal, LevelFailover, LevelAffinity,
	}
}

// levelPaths are the levels of what begins with a path; the first one that fits counts.
var levelPaths = []struct {
	level Level
	paths []string
}{
	{LevelKVTransfer, []string{
		"EngineCoreOutputs.scheduler_stats.kv_connector_stats", "EngineCoreOutputs.scheduler_stats.ec_connector_stats",
		"EngineCoreOutputs.outputs[].kv_transfer_params", "EngineCoreOutputs.outputs[].ec_transfer_params", "EngineCoreRequest.kv_transfer_params",
		"EngineCoreRequest.sampling_params.extra_args.kv_transfer_params", "kv_transfer_params", "EngineCoreRequest.kv_hints",
	}},
	{LevelLoRA, []string{
		"EngineCoreOutputs.scheduler_stats.running_lora_adapters", "EngineCoreOutputs.scheduler_stats.waiting_lora_adapters",
		"EngineCoreRequest.lora_request", "EngineCoreReadyResponse.supports_lora", "EngineCoreReadyResponse.max_loras",
	}},
	{LevelStatistics, []string{
		"EngineCoreOutputs.scheduler_stats", "EngineCoreOutputs.outputs[].prefill_stats", "EngineCoreOutputs.outputs[].events",
		"EngineCoreOutputs.outputs[].num_cached_tokens", "EngineCoreOutputs.outputs[].spec_decode_metrics", "EngineCoreOutputs.timestamp",
		"EngineCoreReadyResponse.kv_cache", "EngineCoreReadyResponse.num_gpu_blocks",
	}},
	{LevelLogprobs, []string{
		"EngineCoreOutputs.outputs[].new_logprobs", "EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors", "EngineCoreOutputs.outputs[].prompt_token_id_logprobs",
		"EngineCoreOutputs.outputs[].new_sampling_mask", "EngineCoreRequest.sampling_params.logprob", "EngineCoreRequest.sampling_params.prompt_logprob",
		"choices[].logprobs",
	}},
	{LevelUtilities, []string{"EngineCoreOutputs.utility_output", "UtilityCall"}},
	{LevelStructured, []string{"EngineCoreRequest.sampling_params.structured_outputs"}},
	{LevelMultimodal, []string{"EngineCoreRequest.mm_"}},
	{LevelKVEvents, []string{"EngineCoreReadyResponse.kv_events_config", "KVEventBatch"}},
	{LevelDataParallel, []string{
		"EngineCoreOutputs.wave_complete", "EngineCoreOutputs.start_wave", "EngineCoreRequest.data_parallel_rank", "EngineCoreRequest.current_wave",
		"EngineCoreReadyResponse.dp_stats_address", "EngineCoreReadyResponse.coord",
	}},
}

// LevelOfPath returns the level of a place of a message, "" if it is of no level of its own.
func LevelOfPath(path string) Level {
	path = Place(path)
	for _, of := range levelPaths {
		if slices.ContainsFunc(of.paths, func(p string) bool { return strings.HasPrefix(path, p) }) {
			return of.level
		}
	}
	return ""
}

// scenarioLevels are what the sessions of goldens show besides core and statistics.
var scenarioLevels = map[string][]Level{
	"transfer": {LevelKVTransfer}, "vision": {LevelMultimodal}, "images": {LevelMultimodal}, "ranks": {LevelDataParallel},
	"busy": {LevelUtilities, LevelLogprobs, LevelStructured, LevelLoRA}, "client": {LevelUtilities},
}

// LevelsOf returns the levels that a case of a check judges, its own first.
func (k Check) LevelsOf(c Case) []Level {
	if c.Assertion == Wire {
		return slices.Concat(k.Levels, scenarioLevels[c.Golden.Scenario])
	}
	return k.Levels
}

// Classify fills in the level and the consequence of a failure of a case whose check judges these levels. The consequence is
// measured where the explanation of the code allows it and a table of the line has the place; else it is that of the code.
func (e Explanation) Classify(c Case, judges []Level, f *Failure) {
	f.Consequence, f.Level = e.Consequence, e.Level
	if e.Level == LevelCore && len(judges) > 0 {
		f.Level = judges[0]
	}
	if of := LevelOfPath(f.Path); of != "" && e.Level != "" {
		f.Level = of
	}
	if e.Measured {
		f.measure(c)
	}
	if f.Consequence == FrontendExits {
		f.Level = LevelCore
	}
}

// measure looks up what the released program of the line makes of a value that is missing or of another kind.
func (f *Failure) measure(c Case) {
	program := tables.RustFrontend
	if c.Suite == SuiteFrontend {
		program = tables.EngineCore
	}
	outcome, release := tables.Look(c.Line.Name, program, Place(f.Path), variantOf(f.Actual))
	switch outcome {
	case "dead":
		f.Consequence = FrontendExits
		if program == tables.EngineCore {
			f.Consequence = RequestsFail
		}
	case "failed":
		f.Consequence = RequestsFail
	case "altered":
		f.Consequence = WrongAnswer
	case "served":
		f.Consequence = Differs
		if f.Level == LevelStatistics {
			f.Consequence = MetricWrong
		}
	default:
		return
	}
	f.Measured = program + " " + release
	if program == tables.EngineCore {
		f.Measured = "engine core " + release
	}
}

var (
	aKind    = lazyregexp.New(`^(nil|bool|int|float|str|bin|array|map)$`)
	aNumber  = lazyregexp.New(`^-?\d+$`)
	aDecimal = lazyregexp.New(`^-?\d+\.\d`)
)

// variantOf is what the tables call the change of a value to the one that a failure shows.
func variantOf(actual string) string {
	switch {
	case actual == "missing" || actual == "none":
		return "missing"
	case aKind().MatchString(actual):
		return actual
	case actual == "true" || actual == "false":
		return "bool"
	case strings.HasPrefix(actual, `"`):
		return "str"
	case actual == "[]" || actual == "{}":
		return "empty"
	case strings.HasPrefix(actual, "["):
		return "array"
	case strings.HasPrefix(actual, "{"):
		return "map"
	case aDecimal().MatchString(actual):
		return "float"
	case aNumber().MatchString(actual):
		if strings.HasPrefix(actual, "-") {
			return "negative"
		}
		return "int"
	}
	return ""
}

// consequenceLine is the first line of an explanation.
var consequenceLine = lazyregexp.New(`^\*Consequence: ([a-z ]+)(, or as measured)?\. Level: ([a-z-]+)\.\*`)

// Rank orders failures for a reader: the worst consequence first, and what cannot be decoded, or keeps a session from
// beginning, before what it contains. Failures of the inputs come first of all.
func (f Failure) Rank() int {
	first := 1
	switch f.Code {
	case CodeStart, CodeNoHandshake, CodeHandshake, CodeReadyUnreadable, CodeReadyMissing, CodeReadyKind, CodeReadyRequired,
		CodeUndecodable, CodeLayout, CodeEngineEnded, CodeStrict:
		first = 0
	}
	return 2*slices.Index(Consequences(), f.Consequence) + first
}
