package chart

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
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
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := resolved.Validate(values); err != nil {
		return fieldError(err)
	}
	return nil
}

var (
	propertyOf = lazyregexp.New(`/properties/([^/:]+): `)
	unknownKey = lazyregexp.New(`unexpected additional properties \["([^"]+)"`)
)

// fieldError names the field that an error of a validation is about, by the properties of the schema on the way to it.
func fieldError(err error) error {
	var path []string
	text := err.Error()
	for _, found := range propertyOf().FindAllStringSubmatch(text, -1) {
		path = append(path, found[1])
	}
	if extra := unknownKey().FindStringSubmatch(text); extra != nil {
		return fmt.Errorf("%s: there is no such value", strings.Join(append(path, extra[1]), "."))
	}
	const step = "validating "
	reason := text[strings.LastIndex(text, step)+len(step):]
	_, reason, _ = strings.Cut(reason, ": ")
	if strings.HasPrefix(reason, "not: ") { // its schema is false
		reason = "the chart sets this value"
	}
	return fmt.Errorf("%s: %s", strings.Join(path, "."), reason)
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
