package vcr_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	module   = "github.com/vllm-vcr/conformance"
	aws      = "github.com/aws"
	toml     = "github.com/BurntSushi/toml"
	k8s      = "k8s.io"
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
)

// importRules holds, for each folder, what the code in it and below may import beside the standard library, itself and
// internal/base: packages of this module, named by their folder, and modules of others. A path stands for all packages below
// it too. Of two rules that fit a package the longer one counts. Tests may import what they like, but no command.
var importRules = map[string][]string{
	".":                    {},
	"cmd/vllm-vcr":         {"*"},
	"cmd/vllm-vcr-cluster": {"internal/capture/cluster"},
	"cmd/vllm-vcr-dataset": {"internal/engine/dataset/tables"},
	"conformance": {
		"player", "compat", "manifest", "trace", "internal/check", "internal/frontends", "internal/wire", "internal/golden",
		"internal/engine/kvtransfer", "internal/engine/nixl",
	},
	"internal/check":          {"player", "compat", "manifest", "trace", "internal/frontends", "internal/wire", "internal/engine", "internal/golden", "internal/upstream/acceptance/tables", "github.com/kballard/go-shellquote", "pgregory.net/rapid"},
	"internal/check/httpdiff": {"internal/frontends/openai", toml},
	"internal/check/router":   {"compat", "internal/check", "internal/frontends/extproc"},
	"compat":                  {toml},
	"manifest":                {toml},
	"trace":                   {"internal/wire/protocol", "github.com/klauspost/compress"},
	"player":                  {"trace", "internal/wire", "internal/engine", "golang.org/x/sys"},
	"recorder":                {"trace", "internal/wire"},
	"servetest":               {"player", "internal/serve", "internal/engine/tokenizer", "internal/wire/protocol"},

	"internal/wire/pack":     {},
	"internal/wire/zmq":      {"github.com/go-zeromq/zmq4"},
	"internal/wire/protocol": {"internal/wire/pack", "github.com/vmihailenco/msgpack/v5"},

	"internal/engine/scheduler":  {"internal/engine/kvcache"},
	"internal/engine/kvcache":    {"internal/wire/protocol", "github.com/zeebo"},
	"internal/engine/kvevents":   {"internal/engine/kvcache", "internal/wire"},
	"internal/engine/kvtransfer": {"internal/wire"},
	"internal/engine/nixl":       {"internal/wire", "internal/engine/kvtransfer", "github.com/vmihailenco/msgpack/v5"},
	"internal/engine/nixl/agent": {},
	"internal/engine/nixl/pairs": {"internal/engine/nixl", "internal/wire", toml},
	"internal/engine/latency":    {"trace"},
	"internal/engine/grammar":    {},
	"internal/engine/tokenizer":  {"golang.org/x/text"},
	"internal/engine/dataset":    {"player", "trace", "internal/engine/tokenizer", "github.com/vmihailenco/msgpack/v5"},
	"internal/engine/dataset/tables": {
		"internal/engine/dataset", "trace", "github.com/parquet-go/parquet-go", "github.com/ncruces/go-sqlite3",
	},

	"internal/frontends/coreclient": {"internal/wire"},
	"internal/frontends/openai":     {},
	"internal/frontends/extproc":    {grpc, protobuf},
	"internal/frontends/vllmrs":     {"internal/frontends/openai"},
	"internal/frontends/pyclient":   {"compat", "internal/upstream/pypi"},

	"internal/serve/answers":  {"player", "internal/engine/dataset", "internal/engine/tokenizer", "internal/serve/builtin", "github.com/BurntSushi/toml"},
	"internal/serve/edge":     {"golang.org/x/time"},
	"internal/serve/enginepb": {grpc, protobuf},
	"internal/serve/remote":   {"player", "internal/frontends/coreclient", "internal/wire"},
	"internal/serve/jinja":    {},
	"internal/serve/builtin":  {"player", "internal/engine/tokenizer", "internal/serve/enginepb", "internal/serve/jinja", "internal/wire/pack", "internal/wire/protocol", "github.com/zeebo", grpc, protobuf},
	"internal/serve": {
		".", "player", "internal/frontends", "internal/engine/tokenizer", "internal/capture/load", "internal/capture/local", "internal/wire/protocol",
	},
	"internal/serve/simulator": {"internal/engine", "internal/serve", "github.com/spf13/pflag", "go.yaml.in/yaml/v3"},

	"internal/golden":          {},
	"internal/golden/s3store":  {"internal/golden", "internal/forge/action", "github.com/aws"},
	"internal/report":          {"conformance", "compat", "internal/check", "github.com/sethvargo/go-githubactions", "github.com/jstemmer/go-junit-report/v2"},
	"internal/report/board":    {"conformance", "internal/check", "internal/report"},
	"internal/inspect":         {"trace", "internal/engine", "internal/report", "github.com/DataDog/sketches-go"},
	"internal/inspect/monitor": {"recorder", "trace", "golang.org/x/term"},

	"internal/upstream/pypi":     {"compat", "golang.org/x/net"},
	"internal/upstream/pinned":   {"internal/frontends/pyclient", "internal/upstream/pypi", toml},
	"internal/upstream/extract":  {"compat", "internal/wire", "internal/upstream/pypi"},
	"internal/upstream/wirediff": {"compat", "internal/report", "internal/wire"},
	"internal/upstream/drift": {
		"player", "compat", "manifest", "conformance", "internal/check", "internal/frontends", "internal/wire/protocol", "internal/capture", "internal/forge/github",
		"internal/report", "internal/upstream",
	},
	"internal/upstream/acceptance/tables": {},
	"internal/upstream/acceptance":        {"compat", "internal/check", "internal/frontends", "internal/wire", toml},
	"internal/upstream/skew":              {"golang.org/x/sync", "internal/frontends", "internal/report", "internal/wire", "player", "trace"},

	"internal/capture": {
		"conformance", "manifest", "compat", "trace", "recorder", "internal/capture/load", "internal/capture/target", "internal/golden",
	},
	"internal/capture/local": {
		"compat", "internal/capture", "internal/capture/load", "internal/capture/target", "internal/frontends", "internal/upstream/pinned",
		"internal/upstream/pypi", toml,
	},
	"internal/capture/cluster": {
		"conformance", "compat", "internal/capture", "internal/capture/deploy", "internal/capture/target", "internal/wire/protocol", k8s,
	},
	"internal/capture/deploy": {
		"internal/capture/load", "internal/capture/target", "internal/chart", "internal/forge/action", "internal/golden/s3store", "sigs.k8s.io/yaml",
		"k8s.io/apimachinery/pkg/api/resource", "k8s.io/apimachinery/pkg/util/validation",
	},
	"internal/capture/capturetest": {
		"conformance", "manifest", "compat", "trace", "recorder", "internal/capture", "internal/capture/load", "internal/capture/target",
		"internal/testenv",
	},
	"internal/capture/target": {"compat", "trace", "internal/capture/load", "internal/wire/protocol", toml},
	"internal/capture/load":   {"compat", "trace", "internal/frontends/openai", toml},

	"internal/chart": {
		"github.com/google/jsonschema-go", "sigs.k8s.io/yaml", "k8s.io/apimachinery/pkg/util/validation",
	},

	"internal/forge/action":            {"github.com/sethvargo/go-githubactions"},
	"internal/forge/dist":              {toml},
	"internal/forge/github":            {"github.com/google/go-github/v62"},
	"internal/forge/github/githubtest": {"internal/forge/github", "github.com/google/go-github/v62", "github.com/getkin/kin-openapi"},

	"internal/base":          {},
	"internal/base/tomlfile": {toml, "github.com/pelletier/go-toml/v2"},

	"internal/testenv": {"github.com/google/go-cmp"},
}

// forTests are the packages that only tests, and each other, may import.
var forTests = []string{
	"internal/testenv", "internal/capture/capturetest", "internal/forge/github/githubtest",
}

// A goPackage is what `go list -json` says of one package.
type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestImports(t *testing.T) {
	packages := listPackages(t)
	if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.ImportPath == module+"/internal/testenv" }) {
		t.Fatalf("go list ./... shows no internal/testenv among %d packages: nothing was checked", len(packages))
	}
	for _, p := range packages {
		for _, failure := range brokenRules(p) {
			t.Error(failure)
		}
	}
}

// TestConformanceIsLean: a module that imports conformance for its tests links no library that only commands need.
func TestConformanceIsLean(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./conformance").Output()
	require.NoErrorf(t, err, "go list")
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		if slices.ContainsFunc([]string{k8s, "github.com/google/go-github", "github.com/spf13/cobra"}, func(folder string) bool { return within(path, folder) }) {
			t.Errorf("conformance links %s", path)
		}
	}
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "go list\n%s", stderr.String())
	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, p)
	}
}

// brokenRules returns one failure for each import of p that breaks a rule.
func brokenRules(p goPackage) []string {
	var failures []string
	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		if within(path, module+"/cmd") {
			failure := fmt.Sprintf("a test of %s imports %s: nothing may import a command", p.ImportPath, path)
			failures = append(failures, failure)
		}
	}
	folder, allowed, ok := ruleOf(p.ImportPath)
	if !ok {
		return append(failures, p.ImportPath+" has no rule: add its folder to importRules")
	}
	for _, path := range p.Imports {
		if rule := broken(folder, allowed, path); rule != "" {
			failures = append(failures, fmt.Sprintf("%s imports %s: %s", p.ImportPath, path, rule))
		}
	}
	return failures
}

// broken names the rule that folder breaks by importing path, or returns "".
func broken(folder string, allowed []string, path string) string {
	ours, isOurs := strings.CutPrefix(path, module+"/")
	switch {
	case path == "C":
		return "the binary is built without cgo"
	case isStandard(path), isOurs && within(ours, folder):
		return ""
	case isOurs && within(ours, "cmd"):
		return "nothing may import a command"
	case !slices.Contains(forTests, folder) && slices.ContainsFunc(forTests, func(folder string) bool { return isOurs && within(ours, folder) }):
		return "only tests may import it"
	case isOurs && within(ours, "internal/base"), slices.Contains(allowed, "*"):
		return ""
	case path == module && slices.Contains(allowed, "."): // the embedded files
		return ""
	case slices.ContainsFunc(allowed, func(a string) bool { return within(path, a) || isOurs && within(ours, a) }):
		return ""
	case len(allowed) == 0:
		return folder + " may import the standard library and internal/base only"
	}
	return fmt.Sprintf("%s may import the standard library, %s", folder, strings.Join(allowed, ", "))
}

// ruleOf returns the longest listed folder that holds the package. The top folder, ".", holds nothing but itself.
func ruleOf(path string) (folder string, allowed []string, ok bool) {
	if path == module {
		return ".", importRules["."], true
	}
	for name, rule := range importRules {
		if within(path, module+"/"+name) && len(name) > len(folder) {
			folder, allowed, ok = name, rule, true
		}
	}
	return folder, allowed, ok
}

// within reports whether path is the folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// isStandard reports whether path is of the standard library: only other modules have a dot in their first element.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestBrokenRules(t *testing.T) {
	tests := []struct {
		name, pkg string // pkg, imports and tests: folders of this module, or paths of others after "="
		imports   []string
		tests     []string
		want      []string // parts of the failures, one each
	}{
		{name: "standard library", pkg: "internal/wire/pack", imports: []string{"=encoding/binary"}},
		{name: "its own inside", pkg: "internal/wire/protocol", imports: []string{"internal/wire/protocol/wire", "internal/wire/pack"}},
		{name: "a folder below", pkg: "player", imports: []string{"trace"}},
		{name: "below a module", pkg: "trace", imports: []string{"=github.com/klauspost/compress/gzip"}},
		{name: "a leaf", pkg: "internal/wire/pack", imports: []string{"internal/base/retry"}},
		{name: "commands import all", pkg: "cmd/vllm-vcr", imports: []string{"internal/report", "=github.com/spf13/cobra"}},
		{
			name: "a folder above", pkg: "player", imports: []string{"conformance"},
			want: []string{"player imports " + module + "/conformance: player may import the standard library, trace"},
		},
		{
			name: "a folder of similar name", pkg: "player", imports: []string{"internal/tracery"},
			want: []string{"internal/tracery: player may import"},
		},
		{
			name: "below a folder", pkg: "internal/wire/protocol/wire", imports: []string{"internal/wire/zmq"},
			want: []string{"internal/wire/protocol/wire imports " + module + "/internal/wire/zmq: internal/wire/protocol may import"},
		},
		{
			name: "another's module", pkg: "internal/wire/pack", imports: []string{"=github.com/google/go-cmp/cmp"},
			want: []string{"go-cmp/cmp: internal/wire/pack may import the standard library and internal/base only"},
		},
		{
			name: "the top folder", pkg: "internal/wire/pack", imports: []string{"=" + module},
			want: []string{"standard library and internal/base only"},
		},
		{name: "cgo", pkg: "cmd/vllm-vcr", imports: []string{"=C"}, want: []string{"without cgo"}},
		{
			name: "testenv in code", pkg: "cmd/vllm-vcr", imports: []string{"internal/testenv"},
			want: []string{"only tests may import it"},
		},
		{name: "testenv in tests", pkg: "internal/wire/pack", tests: []string{"internal/testenv", "player"}},
		{
			name: "a command", pkg: "conformance", imports: []string{"cmd/vllm-vcr"}, tests: []string{"cmd/vllm-vcr"},
			want: []string{"a test of", "nothing may import a command"},
		},
		{name: "a folder without a rule", pkg: "internal/misc", want: []string{"add its folder to importRules"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := brokenRules(goPackage{
				ImportPath:   module + "/" + test.pkg,
				Imports:      fullPaths(test.imports),
				XTestImports: fullPaths(test.tests),
			})
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %d failures", got, len(test.want))
			}
			for i, want := range test.want {
				require.Contains(t, got[i], want)
			}
		})
	}
}

// fullPaths puts the module before each path that does not start with "=".
func fullPaths(short []string) []string {
	var paths []string
	for _, path := range short {
		if other, ok := strings.CutPrefix(path, "="); ok {
			paths = append(paths, other)
		} else {
			paths = append(paths, module+"/"+path)
		}
	}
	return paths
}
