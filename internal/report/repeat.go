package report

import (
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// Repeat is the command that runs a case alone, ready for a shell. flags are
// those of [conformance.Report.Flags].
func Repeat(c conformance.Case, flags ...string) string {
	args := append([]string{"vllm-vcr", "conform"}, flags...)
	if c.Suite == conformance.SuiteSelfTest {
		args = append(args, "--self-test")
	}
	if c.Variant.ThroughFrontend() {
		args = append(args, "--frontend", c.Line.Name+"="+c.Variant.Frontend.Binary, "--model", c.Variant.Frontend.ModelDir)
	}
	if n := c.Variant.Concurrency; c.Assertion == conformance.Fidelity && n != 16 && (n != 1 || c.Variant.ThroughFrontend()) {
		args = append(args, "--concurrency", strconv.Itoa(n)) // which no plan has unless it is asked for
	}
	args = append(args, "--run", c.Name())
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
