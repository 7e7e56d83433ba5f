package action

// Modes of the action.
const (
	Conform  = "conform"  // judge goldens, an engine or a frontend
	Matrix   = "matrix"   // print the lines for a job matrix
	Validate = "validate" // check compat.toml and the manifest
	Canary   = "canary"   // judge the newest vLLM release
	Watch    = "watch"    // move compat.toml to new vLLM releases
	Capture  = "capture"  // record the goldens of a line again
)

// Modes are all modes, the usual one first.
func Modes() []string { return []string{Conform, Matrix, Validate, Canary, Watch, Capture} }

// What a list, a switch or a text of an input becomes.
type kind int

const (
	text   kind = iota // --flag=value
	list               // a --flag=value for each value, which commas or lines part
	toggle             // --flag=true or --flag=false
	own                // no flag: the action itself reads it
)

// An input is one of action.yml.
type input struct {
	name  string
	kind  kind
	flag  string   // without dashes; "" when it has the name of the input
	modes []string // that have a use for it; nil: all
}

// everyInput are the inputs in the order of action.yml.
var everyInput = []input{
	{name: "mode", kind: own},
	{name: "line", kind: list, modes: []string{Conform, Matrix, Capture}},
	{name: "golden", kind: list, modes: []string{Conform, Capture}},
	{name: "assertion", kind: list, modes: []string{Conform}},
	{name: "suite", kind: text, modes: []string{Conform}},
	{name: "match", kind: list, modes: []string{Conform}},
	{name: "concurrency", kind: list, modes: []string{Conform}},
	{name: "enforce", kind: text, modes: []string{Conform}},
	{name: "run", kind: list, modes: []string{Conform}},
	{name: "skip", kind: list, modes: []string{Conform}},
	{name: "expectations", kind: text, modes: []string{Conform, Canary}},
	{name: "self-test", kind: toggle, modes: []string{Conform}},
	{name: "engine-command", kind: text, modes: []string{Conform}},
	{name: "engine-address", kind: text, modes: []string{Conform}},
	{name: "frontend-command", kind: text, modes: []string{Conform}},
	{name: "frontend-url", kind: text, modes: []string{Conform}},
	{name: "frontend-handshake", kind: text, modes: []string{Conform}},
	{name: "model", kind: text, modes: []string{Conform, Canary}},
	{name: "compat", kind: text, modes: []string{Conform, Matrix, Validate, Canary, Watch}},
	{name: "manifest", kind: text, modes: []string{Conform, Matrix, Validate, Canary, Watch}},
	{name: "goldens", kind: text, modes: []string{Conform, Canary}},
	{name: "bucket", kind: text, modes: []string{Conform, Canary}},
	{name: "bundle", kind: text, modes: []string{Conform}},
	{name: "offline", kind: toggle, modes: []string{Conform}},
	{name: "anonymous", kind: text, modes: []string{Conform}},
	{name: "region", kind: text, modes: []string{Conform}},
	{name: "endpoint-url", kind: text, modes: []string{Conform}},
	{name: "path-style", kind: text, modes: []string{Conform}},
	{name: "role-to-assume", kind: text, modes: []string{Conform}},
	{name: "role-session-name", kind: text, modes: []string{Conform}},
	{name: "cache", kind: own},
	{name: "cache-dir", kind: own},
	{name: "report-dir", kind: own},
	{name: "report-format", kind: list, modes: []string{Conform, Canary}},
	{name: "upload-reports", kind: own},
	{name: "artifact-name", kind: own},
	{name: "annotations", kind: own},
	{name: "annotation-limit", kind: text, modes: []string{Conform, Canary}},
	{name: "matrix-kind", kind: text, flag: "kind", modes: []string{Matrix}},
	{name: "watch", kind: own, modes: []string{Watch}},
	{name: "tags-file", kind: text, modes: []string{Watch}},
	{name: "pull-request", kind: own, modes: []string{Watch}},
	{name: "working-directory", kind: own},
	{name: "args", kind: own},
}

// Names are the inputs that [Read] reads, in the order of action.yml. Those that say which binary to install are read by
// the installer alone. The token is not among them: what is under test must not see it.
func Names() []string {
	var names []string
	for _, in := range everyInput {
		names = append(names, in.name)
	}
	return names
}
