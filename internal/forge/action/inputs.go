package action

import (
	"fmt"
	"slices"
	"strings"
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

// Mode is the mode that is asked for.
func (in Inputs) Mode() (string, error) {
	mode, given := in["mode"]
	if !given {
		return Conform, nil
	}
	return oneOf("mode", mode, Modes()...)
}

// Cache tells whether goldens are to be kept for other runs.
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

func (in Inputs) toggle(name string, usual bool) (bool, error) {
	value, given := in[name]
	if !given {
		return usual, nil
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
