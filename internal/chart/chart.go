package chart

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// A Release is one installation of a chart. Its name is the first part of the names of its objects.
type Release struct {
	Name, Namespace string
	// Version is that of vllm-vcr, such as 1.2.3; empty if it is not a released one.
	Version string
}

// check refuses names that objects cannot have.
func (r Release) check() error {
	// The longest name of an object of Kubernetes has 63 characters; Helm takes 53 for what charts append.
	if wrong := validation.IsDNS1035Label(r.Name); len(wrong) > 0 || len(r.Name) > 53 {
		return fmt.Errorf("name %q: want at most 53 lower-case letters, digits and hyphens, the first of them a letter", r.Name)
	}
	if wrong := validation.IsDNS1123Label(r.Namespace); len(wrong) > 0 {
		return fmt.Errorf("namespace %q: want at most 63 lower-case letters, digits and hyphens", r.Namespace)
	}
	return nil
}

// A Chart is a Helm chart in a folder. Its templates may use the functions of [chartFuncs] only, with the meaning that Helm gives them,
// and files of the chart, but no charts below it.
type Chart struct {
	files     fs.FS
	templates *template.Template
	names     []string // of the templates that make objects, in the order of their output
}

// Open reads the templates of a chart.
func Open(files fs.FS) (*Chart, error) {
	c := &Chart{files: files, templates: template.New("chart").Option("missingkey=zero")}
	c.templates.Funcs(c.funcs())
	found, err := fs.Glob(files, "templates/*")
	if err != nil {
		return nil, err
	}
	for _, name := range found {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		if _, err := c.templates.New(name).Parse(string(text)); err != nil {
			return nil, err
		}
		if path.Ext(name) == ".yaml" {
			c.names = append(c.names, name)
		}
	}
	return c, nil
}

// Render returns the objects of a release. Values are as [Chart.Values] returns them.
func (c *Chart) Render(r Release, values map[string]any) ([]any, error) {
	var all []any
	for _, name := range c.names {
		text, err := c.execute(name, r, values)
		if err != nil {
			return nil, err
		}
		objects, err := Documents(name, []byte(text))
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// RenderFile returns a file of the chart that is a template, but not one of Helm's.
func (c *Chart) RenderFile(name string, r Release, values map[string]any) (string, error) {
	text, err := fs.ReadFile(c.files, name)
	if err != nil {
		return "", err
	}
	if _, err := c.templates.New(name).Parse(string(text)); err != nil {
		return "", err
	}
	return c.execute(name, r, values)
}

// chartFiles is .Files of a template.
type chartFiles struct{ fs.FS }

// Get returns the text of a file, and no text if there is no such file.
func (f chartFiles) Get(name string) string {
	text, err := fs.ReadFile(f.FS, name)
	if err != nil {
		return ""
	}
	return string(text)
}

func (c *Chart) execute(name string, r Release, values map[string]any) (string, error) {
	if err := r.check(); err != nil {
		return "", err
	}
	text, err := c.include(name, map[string]any{
		"Values": values, "Files": chartFiles{c.files},
		"Release": map[string]any{"Name": r.Name, "Namespace": r.Namespace},
		"Chart":   map[string]any{"AppVersion": r.Version},
	})
	var refused *refusal
	if errors.As(err, &refused) {
		return "", refused
	}
	return text, err
}

// include is what Helm's function of this name does: the output of a template as text.
func (c *Chart) include(name string, data any) (string, error) {
	var text strings.Builder
	err := c.templates.ExecuteTemplate(&text, name, data)
	return text.String(), err
}

// A refusal is the error of the function fail.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// funcs are functions of Helm and Sprig.
func (c *Chart) funcs() template.FuncMap {
	return template.FuncMap{
		"include": c.include,
		"tpl": func(text string, data any) (string, error) {
			t, err := template.Must(c.templates.Clone()).New("tpl").Parse(text)
			if err != nil {
				return "", err
			}
			var out strings.Builder
			err = t.Execute(&out, data)
			return out.String(), err
		},
		"fail":     func(text string) (string, error) { return "", &refusal{text} },
		"toYaml":   toYAML,
		"fromYaml": fromYAML,
		"nindent":  func(n int, text string) string { return "\n" + indented(n, text) },
		"quote":    func(v any) string { return strconv.Quote(fmt.Sprint(v)) },
		"default": func(fallback, v any) any {
			if truth, _ := template.IsTrue(v); truth {
				return v
			}
			return fallback
		},
		"list":      func(v ...any) []any { return v },
		"dict":      dict,
		"get":       get,
		"until":     until,
		"int":       toInt,
		"add":       func(a, b any) int { return toInt(a) + toInt(b) },
		"lower":     strings.ToLower,
		"splitList": func(sep, text string) []string { return strings.Split(text, sep) },
		"first":     func(list []string) string { return list[0] },
		"last":      func(list []string) string { return list[len(list)-1] },
		"trimSuffix": func(suffix, text string) string {
			return strings.TrimSuffix(text, suffix)
		},
		"sha256sum": func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
		"mergeOverwrite": func(to map[string]any, more ...map[string]any) map[string]any {
			for _, from := range more {
				merge(to, from)
			}
			return to
		},
	}
}

func toYAML(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

func fromYAML(text string) (map[string]any, error) {
	v := map[string]any{}
	return v, yaml.Unmarshal([]byte(text), &v)
}

func indented(n int, text string) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(text, "\n", "\n"+pad)
}

func dict(pairs ...any) map[string]any {
	made := map[string]any{}
	for pair := range slices.Chunk(pairs, 2) {
		made[pair[0].(string)] = pair[1]
	}
	return made
}

func get(from map[string]any, key string) any {
	if v, ok := from[key]; ok {
		return v
	}
	return ""
}

func until(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

func toInt(v any) int {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return int(n.Int())
	case n.CanFloat():
		return int(n.Float())
	}
	return 0
}

// merge copies values into others. Of two maps the keys are merged.
func merge(to, from map[string]any) {
	for key, value := range from {
		inner, isMap := value.(map[string]any)
		if old, wasMap := to[key].(map[string]any); isMap && wasMap {
			merged := maps.Clone(old)
			merge(merged, inner)
			value = merged
		}
		to[key] = value
	}
}

// Documents are the objects of a file, without its empty documents. The name is for errors.
func Documents(file string, text []byte) ([]any, error) {
	var all []any
	for part := range bytes.SplitSeq(append([]byte("\n"), text...), []byte("\n---\n")) {
		var object map[string]any
		// A text at the end keeps its last newline.
		if err := yaml.Unmarshal(append(part[:len(part):len(part)], '\n'), &object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if object == nil {
			continue
		}
		if object["kind"] == nil {
			return nil, fmt.Errorf("%s: has a document that is not an object", file)
		}
		all = append(all, object)
	}
	return all, nil
}
