package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// ReadConfig sets the flags that are not set yet from a YAML file whose keys are the names of those that may be set, and
// returns its model. own reports whether all keys are of llm-d-inference-sim, and the model among them.
func ReadConfig(path string, flags *pflag.FlagSet, maySet func(*pflag.Flag) bool) (model string, own bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", false, fmt.Errorf("--config: %w", err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return "", false, fmt.Errorf("--config %s: %w", path, err)
	}
	if len(document.Content) == 0 {
		return "", false, nil
	}
	c := config{path, flags, maySet, "", true}
	err = c.set(document.Content[0], nil)
	return c.model, c.own && c.model != "", err
}

type config struct {
	path   string
	flags  *pflag.FlagSet
	maySet func(*pflag.Flag) bool
	model  string
	own    bool // all keys are of the simulator
}

// set sets flags from a mapping. above are the keys of the mapping that it is in.
func (c *config) set(keys *yaml.Node, above []string) error {
	if keys.Kind != yaml.MappingNode {
		return fmt.Errorf("--config %s:%d: want keys with values", c.path, keys.Line)
	}
	for i := 0; i+1 < len(keys.Content); i += 2 {
		name, value := keys.Content[i].Value, keys.Content[i+1]
		c.own = c.own && (inTable(name) || slices.Contains(Sections, name))
		at := fmt.Sprintf("--config %s:%d", c.path, keys.Content[i].Line)
		f := c.flags.Lookup(name)
		switch {
		case slices.Contains(above, name):
			return fmt.Errorf("%s: the key %q is there twice", at, name)
		case name == "model":
			if value.Kind != yaml.ScalarNode || value.Tag != "!!str" {
				return fmt.Errorf("%s: model: want a text", at)
			}
			c.model = value.Value
		case f == nil && value.Kind == yaml.MappingNode && slices.Contains(Sections, name):
			if err := c.set(value, slices.Clone(above)); err != nil {
				return err
			}
		case f == nil || name == "config" || !c.maySet(f):
			return fmt.Errorf("%s: unknown key %q: want the name of a flag of serve without --, or model", at, name)
		case !f.Changed:
			if err := c.setFlag(f, value); err != nil {
				return fmt.Errorf("%s: %s: %w", at, name, err)
			}
		}
		above = append(above, name)
	}
	return nil
}

// setFlag sets a flag, as often as a list has values if each of them may have commas in it.
func (c *config) setFlag(f *pflag.Flag, node *yaml.Node) error {
	values := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode && f.Value.Type() == "stringArray" {
		values = node.Content
	}
	for _, node := range values {
		text, err := valueText(node, f.Value.Type() == "stringSlice" || f.Name == "faults")
		if err == nil {
			err = c.flags.Set(f.Name, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// valueText is a value as the text of a flag. A list is one with commas where the flag takes such; anything else that has
// parts is JSON.
func valueText(node *yaml.Node, list bool) (string, error) {
	switch {
	case node.Kind == yaml.AliasNode:
		return valueText(node.Alias, list)
	case node.Tag == "!!null":
		return "", errors.New("the value is missing")
	case node.Kind == yaml.ScalarNode:
		return node.Value, nil
	case node.Kind == yaml.SequenceNode && list:
		parts := make([]string, len(node.Content))
		for i, item := range node.Content {
			var err error
			if parts[i], err = valueText(item, false); err != nil {
				return "", err
			}
		}
		return strings.Join(parts, ","), nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return "", err
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// ReadFakeMetrics reads JSON, or a file of YAML or JSON. It returns nil for an empty text.
func ReadFakeMetrics(text string) (*FakeMetrics, error) {
	if text == "" {
		return nil, nil
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return ParseFakeMetrics([]byte(text))
	}
	file, err := os.ReadFile(text)
	if err != nil {
		return nil, err
	}
	var value any // JSON is a part of YAML
	if err = yaml.Unmarshal(file, &value); err == nil {
		file, err = json.Marshal(value)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	return ParseFakeMetrics(file)
}
