package target

import "github.com/vllm-vcr/conformance/internal/base/tomlfile"

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
)

// Rules lists what is checked, by code.
func Rules() []tomlfile.Rule {
	return []tomlfile.Rule{
		{Code: codeUnreadable, Text: "the file exists and is UTF-8 text of a reasonable size"},
		{Code: codeSyntax, Text: "the file is TOML"},
		{Code: codeUnknownKey, Text: "every key is known, or starts with x_"},
		{Code: codeWrongType, Text: "every value has the type of its key"},
		{Code: codeMissingKey, Text: "what is required is present"},
		{Code: codeLine, Text: "every line is in compat.toml"},
		{Code: codeUnknown, Text: "models, scenarios and workloads that targets name exist"},
		{Code: codeDigest, Text: "images are named by digest"},
		{Code: codeImageTag, Text: "the tag of an engine image is the release that stands for its line"},
		{Code: codeNightly, Text: "the engine image of nightly is of the commit that compat.toml has"},
		{Code: codeOneSeed, Text: "what gates is captured with two seeds or more, or says why not"},
		{Code: codeFit, Text: "nothing is fitted to what gates"},
		{Code: codeSameID, Text: "no line has two targets of the same id"},
		{Code: codeName, Text: "names fit into the ids of goldens and the names of a cluster's objects"},
		{Code: codeImpossible, Text: "model and workload can give what the scenario is about"},
		{Code: codeNoImages, Text: "a line that needs a GPU has images"},
		{Code: codeOption, Text: "options of the engine are neither addresses nor what the scenario decides"},
		{Code: codeShape, Text: "a workload has what its kind uses, and nothing else"},
		{Code: codeExcept, Text: "exceptions have a reason, and except something"},
		{Code: codeMalformed, Text: "values are well-formed"},
		{Code: codeCount, Text: "each [[target]] asks for something, within reason"},
		{Code: codeElsewhere, Text: "what is captured on a cluster needs no file of this machine"},
	}
}
