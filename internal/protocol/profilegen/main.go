// Command profilegen writes the wire profiles of internal/protocol from the
// wire structs of the published vLLM wheels.
//
// Input is lines.json.gz beside this file: for each line the structs, enums
// and utility signatures read from the Python sources in the release's wheel.
// Output is one JSON file per line in ../profiles, one field per line of text
// so that the difference of two releases reads well in a review.
//
// Usage, from internal/protocol: go generate
package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

//go:embed lines.json.gz
var source []byte

type sourceLine struct {
	Version   string                    `json:"version"`
	Enums     map[string]map[string]any `json:"enums"`
	Structs   map[string]sourceStruct   `json:"structs"`
	Utilities map[string]map[string]any `json:"utility_methods"`
}

type sourceStruct struct {
	Module   string         `json:"module"`
	Kind     string         `json:"kind"`
	Encoding string         `json:"encoding"`
	Flags    map[string]any `json:"flags"`
	Fields   []sourceField  `json:"fields"`
}

type sourceField struct {
	Name     string          `json:"name"`
	Type     string          `json:"type"`
	Required bool            `json:"required"`
	Default  json.RawMessage `json:"default"`
}

func main() {
	if err := run("profiles"); err != nil {
		fmt.Fprintln(os.Stderr, "profilegen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	files, err := generate(source)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate maps file names in profiles/ to their content.
func generate(gz []byte) (map[string][]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(gz))
	if err != nil {
		return nil, fmt.Errorf("lines.json.gz: %w", err)
	}
	var lines map[string]sourceLine
	if err := json.NewDecoder(zr).Decode(&lines); err != nil {
		return nil, fmt.Errorf("lines.json.gz: %w", err)
	}
	files := map[string][]byte{}
	for line, src := range lines {
		files[line+".json"] = render(line, src)
	}
	return files, nil
}

func render(line string, src sourceLine) []byte {
	p := &protocol.Profile{
		Line: line, Version: src.Version,
		Enums: map[string]protocol.Enum{}, Utilities: map[string]protocol.Utility{}, Structs: map[string]protocol.Struct{},
	}
	for name, values := range src.Enums {
		var e protocol.Enum
		for _, key := range sortedKeys(values) {
			value, _ := json.Marshal(values[key])
			e.Members = append(e.Members, protocol.Member{Name: key, Value: value})
		}
		p.Enums[name] = e
	}
	for name, m := range src.Utilities {
		// A method without a signature is one the engine does not have itself
		// (handle_fault_tolerance is answered by a wrapper around it).
		if s, _ := m["engine_signature"].(string); s != "" {
			p.Utilities[name] = protocol.Utility{Signature: s, Result: protocol.ResultKind(resultKind(s))}
		}
	}
	for name, s := range src.Structs {
		omit, _ := s.Flags["omit_defaults"].(bool)
		out := protocol.Struct{Encoding: s.Encoding, OmitDefaults: omit, Place: protocol.Place{Module: s.Module}}
		for _, f := range s.Fields {
			field := protocol.Field{Name: f.Name, Type: f.Type, Required: f.Required}
			if !f.Required && string(f.Default) != "null" {
				field.Default = f.Default
			}
			out.Fields = append(out.Fields, field)
		}
		p.Structs[name] = out
	}
	var b bytes.Buffer
	if err := protocol.WriteProfile(&b, p); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// resultKind reduces the return annotation of an engine method to what a
// frontend checks of the answer.
func resultKind(signature string) string {
	_, annotation, annotated := strings.Cut(signature, " -> ")
	switch {
	case !annotated, annotation == "None", strings.Contains(annotation, "Future"):
		return "none"
	case annotation == "bool", annotation == "str":
		return annotation
	case strings.HasPrefix(annotation, "set[int]"):
		return "ints"
	case strings.HasPrefix(annotation, "tuple[SupportedTask"):
		return "strings"
	case strings.HasPrefix(annotation, "list["):
		return "list"
	}
	return "any"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
