package manifest

// The codes of the rules. They are stable: users filter by them.
const (
	codeUnreadable = "M001"
	codeSyntax     = "M002"
	codeUnknownKey = "M003"
	codeMissingKey = "M004"
	codeSHA256     = "M005"
	codeConfigHash = "M006"
	codeRole       = "M007"
	codeOrphan     = "M008"
	codeSameID     = "M009"
	codeSameBytes  = "M010"
	codeSamePath   = "M011"
	codePath       = "M012"
	codePathTag    = "M013"
	codeBlock      = "M014"
	codeOutside    = "M015"
	codeRecomputed = "M016"
	codeOneSeed    = "M017"
	codeSharedHash = "M018"
	codeRC         = "M019"
	codeNoTokens   = "M020"
	codeWrongType  = "M021"
	codeMalformed  = "M022"
)

// Rules lists what is checked, by code.
func Rules() []Rule {
	return []Rule{
		{Code: codeUnreadable, Text: "the file exists and is UTF-8 text of a reasonable size"},
		{Code: codeSyntax, Text: "the file is TOML"},
		{Code: codeUnknownKey, Text: "every key is known, or starts with x_"},
		{Code: codeMissingKey, Text: "line, bucket_path, sha256, config_hash, workload and role are present"},
		{Code: codeSHA256, Text: "sha256 is 64 lowercase hexadecimal digits"},
		{Code: codeConfigHash, Text: "config_hash is 64 lowercase hexadecimal digits"},
		{Code: codeRole, Text: "role is schema, fidelity, wire or timing"},
		{Code: codeOrphan, Text: "the line of a golden is in compat.toml"},
		{Code: codeSameID, Text: "no line has two goldens of the same id"},
		{Code: codeSameBytes, Text: "no sha256 is listed twice"},
		{Code: codeSamePath, Text: "no bucket_path stands for two different contents"},
		{Code: codePath, Text: "bucket_path and mirrors are plain paths or locations of a trace"},
		{Code: codePathTag, Text: "the tag in a bucket_path is the tag of the golden's line"},
		{Code: codeBlock, Text: "the markers of blocks come in pairs, one pair a line"},
		{Code: codeOutside, Text: "a golden stands in the block of its line, if the line has one"},
		{Code: codeRecomputed, Text: "config_hash is the fingerprint of gpu, tag and engine_config"},
		{Code: codeOneSeed, Text: "a validated line has fidelity goldens of two seeds or more"},
		{Code: codeSharedHash, Text: "captures with and without prefix cache have different config_hashes"},
		{Code: codeRC, Text: "the tracker rc has no goldens"},
		{Code: codeNoTokens, Text: "a fidelity golden has tokens_sha256"},
		{Code: codeWrongType, Text: "every value has the type of its key"},
		{Code: codeMalformed, Text: "the optional keys are well-formed"},
	}
}
