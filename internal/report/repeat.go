package report

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// Repeat is the command that runs a case alone, ready for a shell. flags are
// those of [conformance.Report.Flags]. A case through a real frontend brings the
// case without it along.
func Repeat(c conformance.Case, flags ...string) string {
	args := append([]string{"vllm-vcr", "conform"}, flags...)
	args = append(args, "--line", c.Line.Name, "--golden", c.Golden.ID, "--assertion", string(c.Assertion))
	if c.Assertion == conformance.Fidelity {
		args = append(args, "--match", string(c.Variant.Match), "--concurrency", fmt.Sprint(c.Variant.Concurrency))
	}
	if c.Variant.ThroughFrontend() {
		args = append(args, "--frontend", c.Line.Name+"="+c.Variant.Frontend.Binary, "--model", c.Variant.Frontend.ModelDir)
	}
	for i, arg := range args {
		args[i] = quote(arg)
	}
	return strings.Join(args, " ")
}

// quote protects an argument from the shell where that is needed.
func quote(arg string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:=@,+%", r)
	}
	if arg != "" && strings.TrimFunc(arg, plain) == "" {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
