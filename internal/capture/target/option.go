package target

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// transport are options that say where an engine is and which clients may ask it: the capture decides, and what the engine says does
// not depend on them. A name that ends in an underscore means all that begin with it.
var transport = []string{
	"host", "port", "uds", "headless", "api_key", "api_server_count", "config", "grpc", "root_path", "ssl_", "uvicorn_",
	"allowed_", "data_parallel_", "master_", "nnodes", "node_rank", "hf_token", "download_dir",
	"shutdown_timeout", "disable_log_", "enable_log_", "otlp_",
}

// scenarioOptions are the options that scenarios decide, and those of them that a scenario may be given in the file.
var scenarioOptions = map[string]Scenario{
	optGuesses: SpecDecode, optImages: Multimodal, optMaxLoRAs: LoRA, optLoRARank: LoRA, optGrammar: Structured,
	optPrefixCache: "", optLoRA: "", "speculative_config": "", "speculative": "", "lora_modules": "",
	"limit_mm_per_prompt": "", "structured_outputs_config": "", "guided_decoding_backend": "",
}

// ownNames are options that a model has a key of its own for.
var ownNames = map[string]string{"model": "source", "served_model_name": "served", "tensor_parallel": optTensor}

var (
	optionName = lazyregexp.New(`^[a-z][a-z0-9_]*$`)
	number     = lazyregexp.New(`^[1-9][0-9]{0,6}$`)
	word       = lazyregexp.New(`^[a-z][a-z0-9_-]*$`)
)

// checkOption checks an option of the engine; s is the scenario that it is for, "" if it is for all.
func checkOption(t *tomlfile.Table, name, value string, s Scenario) {
	report := func(message, hint string) { fail(t, codeOption, name, message, hint) }
	owner, isScenarios := scenarioOptions[name]
	switch own := ownNames[name]; {
	case !optionName().MatchString(name):
		report(fmt.Sprintf("%q is no option of the engine", clip(name)),
			"write it as the engine does, without dashes before it and with underscores: max_model_len")
	case own != "":
		report(name+" is not given as an option", "write "+own+" instead")
	case isTransport(name):
		report(name+" is a place of the engine, and does not change what it sends", "remove it: the capture decides")
	case isScenarios && owner == "":
		report("the scenario decides "+name, "remove it")
	case isScenarios && owner != s:
		report(fmt.Sprintf("%s is of the scenario %s", name, owner), fmt.Sprintf("write it in [models.….scenarios.%s]", owner))
	case value == "" || strings.Contains(value, ";") || strings.ContainsFunc(value, unicode.IsControl):
		report(fmt.Sprintf("%s %q cannot stand in engine_config", name, clip(value)), "give it a value without semicolons and line ends")
	case strings.HasPrefix(value, "-"):
		report(fmt.Sprintf("%s %q would be taken for a flag", name, clip(value)), "")
	case name == optGrammar && !word().MatchString(value):
		report(fmt.Sprintf("%s %q is no backend", name, clip(value)), `write a name such as "xgrammar"`)
	case isCount(name) && !number().MatchString(value):
		report(fmt.Sprintf("%s %q is no number above 0", name, clip(value)), "")
	}
}

func isTransport(name string) bool {
	return slices.ContainsFunc(transport, func(other string) bool {
		return name == other || strings.HasSuffix(other, "_") && strings.HasPrefix(name, other)
	})
}

func isCount(name string) bool {
	return slices.Contains([]string{optGuesses, optImages, optMaxLoRAs, optLoRARank, optTensor, "max_num_seqs"}, name)
}
