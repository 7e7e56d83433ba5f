package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"sigs.k8s.io/yaml"
)

// Values are those of the chart's values.yaml, overridden by those of more, in their order. The schema of the chart holds for them.
func (c *Chart) Values(more ...map[string]any) (map[string]any, error) {
	text, err := fs.ReadFile(c.files, "values.yaml")
	if err != nil {
		return nil, err
	}
	values, err := fromYAML(string(text))
	if err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	for _, m := range more {
		merge(values, m)
	}
	return values, c.check(values)
}

// check holds values against the schema.
func (c *Chart) check(values map[string]any) error {
	const name = "values.schema.json"
	text, err := fs.ReadFile(c.files, name)
	if err != nil {
		return err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, document); err != nil {
		return err
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		return err
	}
	var invalid *jsonschema.ValidationError
	if err := schema.Validate(values); !errors.As(err, &invalid) {
		return err
	}
	return errors.Join(leaves(invalid)...)
}

// leaves are the errors of a validation that have no causes, each with the path of its value.
func leaves(e *jsonschema.ValidationError) []error {
	if len(e.Causes) == 0 {
		at := e.InstanceLocation
		if extra, ok := e.ErrorKind.(*kind.AdditionalProperties); ok {
			return []error{fmt.Errorf("%s: there is no such value", strings.Join(append(slices.Clone(at), extra.Properties...), "."))}
		}
		return []error{fmt.Errorf("%s: %s", strings.Join(at, "."), e.ErrorKind.LocalizedString(message.NewPrinter(language.English)))}
	}
	var all []error
	for _, cause := range e.Causes {
		all = append(all, leaves(cause)...)
	}
	return all
}

// ReadValues reads a file of values. The name is for errors.
func ReadValues(name string, text []byte) (map[string]any, error) {
	values, err := fromYAML(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return values, nil
}

// ParseSet reads KEY=VALUE. In KEY, dots are between the keys of maps, and \. is a dot; VALUE is YAML.
func ParseSet(text string) (map[string]any, error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return nil, fmt.Errorf("%q: want KEY=VALUE, such as decode.replicas=3", text)
	}
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		return nil, fmt.Errorf("%s: %q is not YAML: %w", key, value, err)
	}
	keys := strings.Split(strings.ReplaceAll(key, `\.`, "\x00"), ".")
	for _, k := range slices.Backward(keys) {
		if k == "" {
			return nil, fmt.Errorf("%q: there is nothing between two dots", key)
		}
		v = map[string]any{strings.ReplaceAll(k, "\x00", "."): v}
	}
	return v.(map[string]any), nil
}
