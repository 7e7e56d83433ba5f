package target

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// A Scenario is a variation of the engine.
type Scenario string

const (
	// Baseline has a prefix cache, and nothing else.
	Baseline Scenario = "baseline"
	// NoCache has no prefix cache.
	NoCache Scenario = "nocache"
	// SpecDecode guesses tokens ahead from n-grams of the prompt.
	SpecDecode Scenario = "specdecode"
	// Multimodal takes images in prompts.
	Multimodal Scenario = "multimodal"
	// LoRA serves low-rank adapters beside the model.
	LoRA Scenario = "lora"
	// Structured holds answers to a grammar.
	Structured Scenario = "structured"
)

// Scenarios are all scenarios, in the order in which they are listed to people.
func Scenarios() []Scenario {
	return []Scenario{Baseline, NoCache, SpecDecode, Multimodal, LoRA, Structured}
}

// Names of options that a scenario decides, and what they are unless the file says otherwise.
const (
	optPrefixCache = "enable_prefix_caching"
	optTensor      = "tensor_parallel_size"
	optImages      = "images_per_prompt"
	optGuesses     = "num_speculative_tokens"
	optLoRA        = "enable_lora"
	optMaxLoRAs    = "max_loras"
	optLoRARank    = "max_lora_rank"
	optGrammar     = "structured_backend"

	defaultGuesses = "3"
	defaultImages  = "4"
	defaultRank    = "16"
	defaultGrammar = "xgrammar"
)

// options are what the engine is started with, by name: those of the model, of the scenario, and what the file says of
// the model in the scenario. Three of them are no flags of the engine but values within one, see [flagsOf].
func (t Target) options() map[string]string {
	all := map[string]string{optTensor: "1", optPrefixCache: strconv.FormatBool(t.Scenario != NoCache)}
	maps.Copy(all, t.Model.Engine)
	if t.Session != nil {
		maps.Copy(all, t.Session.EngineOptions(t.Line))
		return all
	}
	switch t.Scenario {
	case SpecDecode:
		all[optGuesses] = defaultGuesses
	case Multimodal:
		all[optImages] = defaultImages
	case LoRA:
		all[optLoRA] = "true"
		all[optMaxLoRAs] = strconv.Itoa(max(1, len(t.Model.Adapters)))
		all[optLoRARank] = defaultRank
	case Structured:
		all[optGrammar] = defaultGrammar
	}
	maps.Copy(all, t.Model.Scenarios[t.Scenario])
	return all
}

// flagsOf are the flags of the engine for its options, sorted by name.
func flagsOf(options map[string]string) []string {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		case optGuesses:
			flags = append(flags, "--speculative-config", `{"method":"ngram","num_speculative_tokens":`+value+
				`,"prompt_lookup_max":4,"prompt_lookup_min":2}`)
		case optImages:
			flags = append(flags, "--limit-mm-per-prompt", `{"image":`+value+`}`)
		case optGrammar:
			flags = append(flags, "--structured-outputs-config", grammar(value))
		default:
			flags = append(flags, flagOf(name, value)...)
		}
	}
	return flags
}

func grammar(backend string) string { return `{"backend":"` + backend + `"}` }

// flagOf is an option on a command line: --max-model-len 4096, --enforce-eager, --no-enforce-eager.
func flagOf(name, value string) []string {
	name = strings.ReplaceAll(name, "_", "-")
	switch value {
	case "true":
		return []string{"--" + name}
	case "false":
		return []string{"--no-" + name}
	}
	return []string{"--" + name, value}
}

// EngineConfig is all of the configuration that decides what the engine says, in the form that config hashes take:
// "block_size=128;enable_prefix_caching=true;…", sorted by key. Where the engine listens is not part of it.
func (t Target) EngineConfig() string {
	config := t.options()
	config["tensor_parallel"] = config[optTensor]
	delete(config, optTensor)
	config["model"] = t.modelName()
	config["speculative"] = "none"
	if guesses, ok := config[optGuesses]; ok {
		config["speculative"] = "ngram-k" + guesses
		delete(config, optGuesses)
	}
	if t.Session != nil {
		config["session"] = t.Session.Name
	}
	if t.Scenario == LoRA {
		config["lora_modules"] = strings.Join(t.adapters(), ",")
	}
	pairs := make([]string, 0, len(config))
	for _, key := range slices.Sorted(maps.Keys(config)) {
		pairs = append(pairs, key+"="+config[key])
	}
	return strings.Join(pairs, ";")
}

// modelName is the name that identifies the model's weights: where a folder lies does not.
func (t Target) modelName() string {
	name := t.Model.Source
	if _, isFolder := t.Model.Folder(); isFolder {
		name = t.Model.Served
	}
	if t.Session != nil && t.Session.Model != name {
		name += "-" + t.Session.Model
	}
	return name
}

// adapters are the adapters as the frontend's flag takes them, name=source.
func (t Target) adapters() []string {
	all := make([]string, len(t.Model.Adapters))
	for i, a := range t.Model.Adapters {
		all[i] = a.Name + "=" + a.Source
	}
	return all
}

// ConfigHash is the hash of the GPU, the release and the configuration of the engine, as recordings and goldens have it.
func (t Target) ConfigHash() string { return trace.ConfigHash(t.Model.GPU, t.Tag, t.EngineConfig()) }

// variant is what an id has of the scenario: "nocache", "ngram-k3", or nothing.
func (t Target) variant() string {
	switch t.Scenario {
	case Baseline:
		return ""
	case SpecDecode:
		return "ngram-k" + t.options()[optGuesses]
	case Multimodal:
		return "mm"
	}
	return string(t.Scenario)
}

// The codes of the rules. They are stable: users filter by them.
const (
	codeUnreadable = "K001"
	codeSyntax     = "K002"
	codeUnknownKey = "K003"
	codeWrongType  = "K004"
	codeMissingKey = "K005"
	codeLine       = "K006"
	codeUnknown    = "K007"
	codeDigest     = "K008"
	codeImageTag   = "K009"
	codeNightly    = "K010"
	codeOneSeed    = "K011"
	codeFit        = "K012"
	codeSameID     = "K013"
	codeName       = "K014"
	codeImpossible = "K015"
	codeNoImages   = "K016"
	codeOption     = "K017"
	codeShape      = "K018"
	codeExcept     = "K019"
	codeMalformed  = "K020"
	codeCount      = "K021"
	codeElsewhere  = "K022"
	codeSession    = "K023"
)
