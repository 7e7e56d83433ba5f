package wirediff

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// from and to name the two sides: by line, or by release if they are of one line.
func (c *comparison) from() string { return sideName(c.a, c.b) }
func (c *comparison) to() string   { return sideName(c.b, c.a) }

func sideName(p, other *protocol.Profile) string {
	if p.Line == other.Line {
		return p.Version
	}
	return p.Line
}

// describe is the declaration of a field: "int, required", "str | None = None".
func describe(f protocol.Field) string {
	if f.Required {
		return f.Type + ", required"
	}
	return f.Type + " = " + value(f.Default)
}

// value is a default as Python has it.
func value(raw json.RawMessage) string {
	switch text := strings.TrimSpace(string(raw)); text {
	case "", "null":
		return "None"
	case "true":
		return "True"
	case "false":
		return "False"
	default:
		return text
	}
}

func need(f protocol.Field) string {
	if f.Required {
		return "required"
	}
	return "default " + value(f.Default)
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// article is a noun that starts with a vowel or not: "an array", "a map".
func article(noun string) string {
	if strings.IndexAny(noun, "aeiou") == 0 {
		return "an " + noun
	}
	return "a " + noun
}

// plural is "1 field", "2 fields".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
