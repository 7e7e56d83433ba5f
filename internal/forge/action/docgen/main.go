// Command docgen writes the tables of docs/action.md from action.yml: go generate ./internal/forge/action.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: docgen action.yml docs/action.md")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

// actionFile is what the tables need of action.yml. The nodes keep the order.
type actionFile struct {
	Inputs, Outputs yaml.Node
}

func run(from, page string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var file actionFile
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	inputs, err := inputTable(file.Inputs)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	outputs, err := outputTable(file.Outputs)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	after := string(before)
	for _, table := range []struct{ name, text string }{{"inputs", inputs}, {"outputs", outputs}} {
		if after, err = replace(after, table.name, table.text); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(after), 0o644)
}

// replace puts a table between the marks of its name.
func replace(page, name, table string) (string, error) {
	begin, end := "<!-- "+name+": written by go generate ./internal/forge/action from action.yml -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New("it lacks the lines " + strings.TrimSpace(begin) + " and " + end)
	}
	return before + begin + table + end + after, nil
}

func inputTable(inputs yaml.Node) (string, error) {
	var b strings.Builder
	b.WriteString("| input | default | |\n|---|---|---|\n")
	err := each(inputs, func(name string, fields map[string]string) {
		usual := ""
		if fields["default"] != "" {
			usual = "`" + fields["default"] + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, usual, cell(fields["description"]))
	})
	return b.String(), err
}

func outputTable(outputs yaml.Node) (string, error) {
	var b strings.Builder
	b.WriteString("| output | |\n|---|---|\n")
	err := each(outputs, func(name string, fields map[string]string) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, cell(fields["description"]))
	})
	return b.String(), err
}

// each calls f for each entry of a mapping, in its order.
func each(mapping yaml.Node, f func(name string, fields map[string]string)) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name, fields := mapping.Content[i].Value, map[string]string{}
		if err := mapping.Content[i+1].Decode(&fields); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f(name, fields)
	}
	return nil
}

// cell is a text as it may stand in a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
