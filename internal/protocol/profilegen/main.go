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
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n\"line\": %q,\n\"version\": %q,\n", line, src.Version)
	fmt.Fprintf(&b, "\"request_types\": %s,\n", compact(src.Enums["EngineCoreRequestType"]))
	fmt.Fprintf(&b, "\"finish_reasons\": %s,\n", compact(src.Enums["FinishReason"]))
	b.WriteString("\"utilities\": {\n")
	renderUtilities(&b, src.Utilities)
	b.WriteString("},\n\"structs\": {\n")
	renderStructs(&b, src.Structs)
	b.WriteString("}\n}\n")
	return b.Bytes()
}

func renderUtilities(b *bytes.Buffer, methods map[string]map[string]any) {
	signatures := map[string]string{}
	for name, m := range methods {
		// A method without a signature is one the engine does not have itself
		// (handle_fault_tolerance is answered by a wrapper around it).
		if s, _ := m["engine_signature"].(string); s != "" {
			signatures[name] = s
		}
	}
	names := sortedKeys(signatures)
	for i, name := range names {
		signature := signatures[name]
		fmt.Fprintf(b, "%q: {\"signature\": %s, \"result\": %q}%s\n",
			name, compact(signature), resultKind(signature), comma(i, len(names)))
	}
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

func renderStructs(b *bytes.Buffer, structs map[string]sourceStruct) {
	names := sortedKeys(structs)
	for i, name := range names {
		s := structs[name]
		omit, _ := s.Flags["omit_defaults"].(bool)
		fmt.Fprintf(b, "%q: {\"encoding\": %q, \"omit_defaults\": %t, \"module\": %q, \"fields\": [\n",
			name, s.Encoding, omit, s.Module)
		for j, f := range s.Fields {
			renderField(b, f)
			b.WriteString(comma(j, len(s.Fields)) + "\n")
		}
		b.WriteString("]}" + comma(i, len(names)) + "\n")
	}
}

func renderField(b *bytes.Buffer, f sourceField) {
	fmt.Fprintf(b, "  {\"name\": %q, \"type\": %s", f.Name, compact(f.Type))
	if f.Required {
		b.WriteString(`, "required": true`)
	} else if len(f.Default) > 0 && string(f.Default) != "null" {
		fmt.Fprintf(b, ", \"default\": %s", f.Default)
	}
	b.WriteString("}")
}

func compact(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // cannot fail: v came out of JSON a moment ago
	return strings.TrimSpace(b.String())
}

func comma(i, n int) string {
	if i == n-1 {
		return ""
	}
	return ","
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
