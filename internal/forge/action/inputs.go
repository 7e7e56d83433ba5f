package action

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// Inputs are the values of inputs by their names, without those that are empty.
type Inputs map[string]string

// Read takes the inputs from the environment. White space around a value is not part of it: YAML leaves a line end
// behind a block.
func Read(lookup func(string) (string, bool)) Inputs {
	inputs := Inputs{}
	for _, name := range Names() {
		value, _ := lookup(Variable(name))
		if value = strings.TrimSpace(value); value != "" {
			inputs[name] = value
		}
	}
	return inputs
}

// Variable is the environment variable that holds an input: INPUT_REPORT_DIR for report-dir.
func Variable(input string) string {
	return "INPUT_" + strings.ToUpper(strings.ReplaceAll(input, "-", "_"))
}

// Mode is the mode that is given.
func (in Inputs) Mode() (string, error) {
	mode, given := in["mode"]
	if !given {
		return Conform, nil
	}
	return oneOf("mode", mode, Modes()...)
}

// Cache reports whether goldens are to be kept for other runs.
func (in Inputs) Cache() (bool, error) { return in.toggle("cache", true) }

// values are what a list holds. A value has no comma in it.
func values(list string) []string {
	var all []string
	for _, value := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' }) {
		if value = strings.TrimSpace(value); value != "" {
			all = append(all, value)
		}
	}
	return all
}

func (in Inputs) toggle(name string, byDefault bool) (bool, error) {
	value, given := in[name]
	if !given {
		return byDefault, nil
	}
	word, err := oneOf(name, value, "true", "false")
	return word == "true", err
}

func oneOf(name, value string, known ...string) (string, error) {
	if !slices.Contains(known, value) {
		return "", fmt.Errorf("input %s is %q: want %s", name, value, either(known))
	}
	return value, nil
}

// either is "a, b or c".
func either(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// Split takes a text apart into words as a shell does, and does nothing else that a shell does: what a shell would
// replace or act on outside single quotes is refused, as its author expects that and would get the characters.
func Split(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	quote := rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote == '\'' && r != '\'', quote == '"' && !strings.ContainsRune("\"\\$`", r):
			word.WriteRune(r)
		case r == quote:
			quote = 0
		case r == '\\':
			if i++; i == len(runes) {
				return nil, errors.New("it ends in a backslash")
			}
			if quote != 0 && !strings.ContainsRune("\"\\$`", runes[i]) {
				word.WriteRune('\\')
			}
			word.WriteRune(runes[i])
			inWord = true
		case strings.ContainsRune("$`", r), quote == 0 && strings.ContainsRune("|&;<>()", r):
			return nil, fmt.Errorf("%q has a meaning in a shell, but no shell runs the command: put it in single quotes", r)
		case r == '\'', r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if inWord {
				words, inWord = append(words, word.String()), false
				word.Reset()
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	case inWord:
		words = append(words, word.String())
	}
	return words, nil
}

// Modes of the action.
const (
	Conform  = "conform"  // judge goldens, an engine or a frontend
	Matrix   = "matrix"   // print the lines for a job matrix
	Validate = "validate" // check compat.toml and the manifest
	Canary   = "canary"   // judge the newest vLLM release
	Watch    = "watch"    // move compat.toml to new vLLM releases
	Capture  = "capture"  // record the goldens of a line again
)

// Modes are all modes, the default one first.
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
	{name: "level", kind: list, modes: []string{Conform}},
	{name: "match", kind: list, modes: []string{Conform}},
	{name: "concurrency", kind: list, modes: []string{Conform}},
	{name: "enforce", kind: text, modes: []string{Conform}},
	{name: "run", kind: list, modes: []string{Conform}},
	{name: "skip", kind: list, modes: []string{Conform}},
	{name: "expectations", kind: text, modes: []string{Conform, Canary}},
	{name: "self-test", kind: toggle, modes: []string{Conform}},
	{name: "engine-command", kind: text, modes: []string{Conform}},
	{name: "engine-handshake", kind: text, modes: []string{Conform}},
	{name: "engine-env", kind: list, modes: []string{Conform}},
	{name: "frontend-command", kind: text, modes: []string{Conform}},
	{name: "frontend-url", kind: text, modes: []string{Conform}},
	{name: "frontend-handshake", kind: text, modes: []string{Conform}},
	{name: "frontend-env", kind: list, modes: []string{Conform}},
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
	{name: "annotate-file", kind: text, modes: []string{Conform, Canary}},
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

// maxArtifactName is how long the readable part of a name gets.
const maxArtifactName = 80

// notInArtifact is what the name of an artifact may not have, and what is hard to read in one.
var notInArtifact = lazyregexp.New(`[^A-Za-z0-9._-]+`)

// A Job is where a step runs. Step is what no other step has.
type Job struct{ Name, OS, Arch, Attempt, Step string }

// ArtifactName is what the report is kept under. Unless it is given, it has the job's step in it: an artifact with the
// name of another is refused.
func (in Inputs) ArtifactName(job Job) (string, error) {
	if name, given := in["artifact-name"]; given {
		if strings.ContainsAny(name, "\"\\/:<>|*?\r\n") {
			return "", fmt.Errorf("input artifact-name is %q: want none of \" \\ / : < > | * ? in it", name)
		}
		return name, nil
	}
	parts := []string{"vllm-vcr", job.Name}
	parts = append(parts, values(in["line"])...)
	parts = append(parts, job.OS, job.Arch)
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	name := notInArtifact().ReplaceAllString(strings.Join(parts, "-"), "_")
	return fmt.Sprintf("%s-%s-%s", name[:min(len(name), maxArtifactName)], notInArtifact().ReplaceAllString(job.Attempt, "_"), job.Step), nil
}

// accountID is that of an AWS account in the name of a role: arn:aws:iam::123456789012:role/goldens.
var accountID = lazyregexp.New(`^arn:[a-z-]*:[a-z]*:[a-z0-9-]*:([0-9]{12}):`)

// Secrets are the parts of the inputs that must not be seen in a log.
func (in Inputs) Secrets() []string {
	if found := accountID().FindStringSubmatch(in["role-to-assume"]); found != nil {
		return found[1:]
	}
	return nil
}
