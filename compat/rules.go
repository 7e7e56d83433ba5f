package compat

// CodeNoProfile is the code of the rule that only another version of this project can
// satisfy.
const CodeNoProfile = "C020"

// The codes of the rules. They are stable: users filter by them.
const (
	codeUnreadable = "C001"
	codeSyntax     = "C002"
	codeNoEntries  = "C003"
	codeDefault    = "C004"
	codeSameLine   = "C005"
	codeSameTag    = "C006"
	codeHalfPatch  = "C007"
	codeUnknownKey = "C008"
	codeWrongType  = "C009"
	codeRev        = "C010"
	codeStableTag  = "C011"
	codeTracker    = "C012"
	codeNightlyTag = "C013"
	codeRCTag      = "C014"
	codeNewest     = "C015"
	codeOrder      = "C016"
	codeTooMany    = "C017"
	codeGap        = "C018"
	codeNoGoldens  = "C019"
	codeOtherPatch = "C021"
	codeMissingKey = "C022"
)

// Rules lists what is checked, by code.
func Rules() []Rule {
	return []Rule{
		{Code: codeUnreadable, Text: "the file exists and is UTF-8 text of a reasonable size"},
		{Code: codeSyntax, Text: "the file is TOML"},
		{Code: codeNoEntries, Text: "the file has at least one [[vllm]] entry"},
		{Code: codeDefault, Text: "exactly one line is the default"},
		{Code: codeSameLine, Text: "no line is listed twice"},
		{Code: codeSameTag, Text: "no tag is listed twice"},
		{Code: codeHalfPatch, Text: "patch_repo and patch_rev come together"},
		{Code: codeUnknownKey, Text: "every key is known, or starts with x_"},
		{Code: codeWrongType, Text: "every value has the type of its key"},
		{Code: codeRev, Text: "a revision is a git commit of 9 to 40 hexadecimal digits"},
		{Code: codeStableTag, Text: "a stable line is named major.minor, and its tag is a release of it"},
		{Code: codeTracker, Text: "a tracker is neither the default nor validated"},
		{Code: codeNightlyTag, Text: "the tag of nightly is nightly"},
		{Code: codeRCTag, Text: "the tag of rc is a release candidate newer than the default line"},
		{Code: codeNewest, Text: "the default is the newest stable line"},
		{Code: codeOrder, Text: "trackers come first, then stable lines, the newest first"},
		{Code: codeTooMany, Text: "the window is not larger than the policy allows"},
		{Code: codeGap, Text: "no stable line between the newest and the oldest is missing"},
		{Code: codeNoGoldens, Text: "a validated line has at least one fidelity golden"},
		{Code: CodeNoProfile, Text: "every line has a wire profile"},
		{Code: codeOtherPatch, Text: "the goldens of a validated line were captured from its tag"},
		{Code: codeMissingKey, Text: "line, tag and protocol_rev are present"},
	}
}
