package target

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// envEngines names the releases of real engines whose parsers read the flags, separated by spaces: "0.33.0 0.27.1". Each
// takes half a minute to import, so none is asked unless somebody wants it.
const envEngines = "VLLM_VCR_ENGINES"

// parser reads command lines as the engine does, a JSON array a line, and prints what it understood, a JSON object a line.
const parser = `
import json, sys
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

for line in sys.stdin:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    parsed = parser.parse_args(json.loads(line)[1:])
    print("parsed: " + json.dumps(vars(parsed), default=lambda o: getattr(o, "__dict__", None) or str(o)))
`

// TestRealEnginesTakeTheFlags: released engines understand what each scenario makes of the flags, as it is meant and as it
// is hashed.
func TestRealEnginesTakeTheFlags(t *testing.T) {
	versions := strings.Fields(os.Getenv(envEngines))
	if len(versions) == 0 {
		t.Skipf("set %s to the releases to ask, such as \"0.33.0 0.27.1\": .ci/peers engine installs them", envEngines)
	}
	targets := exampleTargets(t)
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			for i, parsed := range askParser(t, version, targets) {
				require.NoDiff(t, cmp.Diff(meant(targets[i]), understood(targets[i], parsed)), "%s (-meant +understood)", targets[i].Name())
			}
		})
	}
}

func askParser(t *testing.T, version string, targets []Target) []map[string]any {
	t.Helper()
	peers := os.Getenv("VLLM_VCR_PEERS")
	if peers == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		peers = filepath.Join(home, ".cache", "vllm-vcr", "peers")
	}
	var lines bytes.Buffer
	for _, one := range targets {
		require.NoError(t, json.NewEncoder(&lines).Encode(one.EngineArgs(addressesOf(one))))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(peers, "engines", version, "bin", "python"), "-c", parser)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = &lines, &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "is the engine installed? .ci/peers engine %s\n%s", version, stderr.String())
	var all []map[string]any
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "parsed: "); ok {
			var parsed map[string]any
			require.NoError(t, json.Unmarshal([]byte(text), &parsed))
			all = append(all, parsed)
		}
	}
	if len(all) != len(targets) {
		t.Fatalf("%d of %d command lines were parsed:\n%s%s", len(all), len(targets), out, stderr.String())
	}
	return all
}

// meant are the options of a target, and where it is.
func meant(one Target) map[string]string {
	options := maps.Clone(one.options())
	options["model_tag"], options["served_model_name"] = addressesOf(one).Model, "["+one.Model.Served+"]"
	if options["model_tag"] == "" {
		options["model_tag"] = one.Model.Source
	}
	options["headless"], options["data_parallel_rpc_port"] = "true", "5580"
	return options
}

// understood are the same as the engine's parser has them.
func understood(one Target, parsed map[string]any) map[string]string {
	options := map[string]string{}
	for _, name := range slices.Collect(maps.Keys(meant(one))) {
		value := parsed[name]
		switch name {
		case optGuesses:
			value = within(parsed, "speculative_config", "num_speculative_tokens")
		case optImages:
			value = within(parsed, "limit_mm_per_prompt", "image")
		case optGrammar:
			value = within(parsed, "structured_outputs_config", "backend")
		}
		options[name] = fmt.Sprint(value)
	}
	return options
}

func within(parsed map[string]any, name, key string) any {
	table, _ := parsed[name].(map[string]any)
	return table[key]
}
