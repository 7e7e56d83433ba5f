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
)

const (
	module = "github.com/vllm-vcr/conformance"
	aws    = "github.com/aws"
	toml   = "github.com/BurntSushi/toml"
	k8s    = "k8s.io"
)

// arrows holds, for each room, what its code may import beside the standard library and itself: rooms, named by their
// folder, and modules of others. A path stands for all packages below it too. Tests may import what they like, but no
// command. A room may be listed before its first file exists.
var arrows = map[string][]string{
	".":            {},
	"cmd/vllm-vcr": {"*"},
	"conformance": {
		"player", "compat", "manifest", "internal/frontend", "internal/vllmrs", "internal/protocol", "internal/pack",
		"internal/trace", "internal/golden", "internal/tomlfile", "internal/zmq", "internal/process",
	},
	"compat":   {"internal/tomlfile", toml},
	"manifest": {"internal/tomlfile", toml},
	"player": {
		"internal/protocol", "internal/pack", "internal/zmq", "internal/trace", "internal/latency", "internal/scheduler",
		"internal/kvcache", "internal/kvevents", "internal/grammar", "golang.org/x/sys",
	},
	"recorder":           {"internal/protocol", "internal/pack", "internal/zmq", "internal/trace"},
	"internal/pack":      {},
	"internal/zmq":       {"github.com/go-zeromq/zmq4"},
	"internal/tomlfile":  {toml, "github.com/google/go-cmp"}, // go-cmp for rulestest
	"internal/protocol":  {"internal/pack", "github.com/vmihailenco/msgpack/v5"},
	"internal/trace":     {"github.com/klauspost/compress"},
	"internal/frontend":  {"internal/protocol", "internal/pack", "internal/zmq"},
	"internal/vllmrs":    {"internal/process"},
	"internal/process":   {},
	"internal/latency":   {"internal/trace"},
	"internal/kvcache":   {"github.com/zeebo/xxh3"},
	"internal/scheduler": {"internal/kvcache"},
	"internal/kvevents":  {"internal/protocol", "internal/pack", "internal/zmq", "internal/kvcache"},
	"internal/grammar":   {},
	"internal/tokenizer": {"golang.org/x/text"},
	"internal/dataset": {
		"player", "internal/protocol", "internal/trace", "internal/tokenizer", "github.com/parquet-go/parquet-go",
		"github.com/ncruces/go-sqlite3", "github.com/tetratelabs/wazero",
	},
	"internal/golden":  {"internal/retry", "internal/oidc", aws},
	"internal/oidc":    {"internal/retry"},
	"internal/retry":   {},
	"internal/report":  {"conformance", "internal/page", "github.com/sethvargo/go-githubactions"},
	"internal/openai":  {"player"},
	"internal/monitor": {"recorder", "github.com/prometheus/client_golang", "golang.org/x/term"},
	"internal/drift": {
		"internal/pypi", "internal/vllmrs", "internal/protocol", "internal/upstream", "internal/wirediff",
		"internal/pyclient", "internal/cpuengine", "internal/capture", "internal/target", "internal/load", "player", "compat",
		"manifest", "conformance",
	},
	"internal/pyclient": {"internal/process", "internal/pypi", "compat"},
	"internal/pypi":     {"compat", "internal/retry", "golang.org/x/net"},
	"internal/wirediff": {"internal/protocol"},
	"internal/pyast":    {"github.com/tetratelabs/wazero"},
	"internal/upstream": {
		"internal/pyast", "internal/protocol", "internal/pypi", "compat",
	},
	"internal/github": {"internal/retry", "github.com/google/go-github/v62"},
	"internal/github/githubtest": {
		"internal/github", "github.com/google/go-github/v62", "github.com/getkin/kin-openapi",
	},
	"internal/action":    {"go.yaml.in/yaml/v3"}, // for docgen
	"internal/dist":      {},
	"internal/inspect":   {"internal/trace", "internal/latency", "internal/scheduler", "internal/kvcache"},
	"internal/load":      {"internal/retry", "internal/trace"},
	"internal/target":    {"internal/load", "internal/trace", "internal/tomlfile", "compat", toml},
	"internal/deploy":    {"internal/target", "internal/load", k8s, "sigs.k8s.io/yaml", "go.yaml.in/yaml/v2"},
	"internal/cluster":   {"internal/retry", "internal/oidc", k8s, "sigs.k8s.io/yaml"},
	"internal/cpuengine": {"internal/process", "internal/pypi", "internal/retry", "compat"},
	"internal/capture": {
		"internal/target", "internal/deploy", "internal/cluster", "internal/cpuengine", "internal/load", "internal/process",
		"internal/vllmrs", "internal/golden", "internal/trace", "internal/retry", "conformance", "manifest", "compat", k8s,
	},
	"internal/adopt": {
		"internal/wirediff", "internal/protocol", "internal/target", "internal/report", "internal/tomlfile", "conformance",
		"manifest", "compat",
	},
	"internal/page":    {},
	"internal/history": {"internal/page", "internal/wirediff", "internal/protocol", "compat"},
	"internal/canary":  {"internal/github", "compat"},
	"internal/testenv": {"internal/process"},
}

// forTests are the rooms that only tests may import.
var forTests = []string{"internal/testenv", "internal/tomlfile/rulestest", "internal/github/githubtest"}

// A goPackage is what `go list -json` says of one package.
type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestArrowsPointDown(t *testing.T) {
	packages := listPackages(t)
	if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.ImportPath == module+"/internal/testenv" }) {
		t.Fatalf("go list ./... shows no internal/testenv among %d packages: nothing was checked", len(packages))
	}
	for _, p := range packages {
		for _, complaint := range offences(p) {
			t.Error(complaint)
		}
	}
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
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

// offences returns one complaint for each import of p that breaks a rule.
func offences(p goPackage) []string {
	var complaints []string
	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		if within(path, module+"/cmd") {
			complaint := fmt.Sprintf("a test of %s imports %s: nothing may import a command", p.ImportPath, path)
			complaints = append(complaints, complaint)
		}
	}
	room, allowed, ok := roomOf(p.ImportPath)
	if !ok {
		return append(complaints, p.ImportPath+" has no rule: add its room to the table of arrows")
	}
	for _, path := range p.Imports {
		if rule := broken(room, allowed, path); rule != "" {
			complaints = append(complaints, fmt.Sprintf("%s imports %s: %s", p.ImportPath, path, rule))
		}
	}
	return complaints
}

// broken names the rule that room breaks by importing path, or returns "".
func broken(room string, allowed []string, path string) string {
	ours, isOurs := strings.CutPrefix(path, module+"/")
	switch {
	case path == "C":
		return "the binary is built without cgo"
	case isStandard(path), isOurs && within(ours, room):
		return ""
	case isOurs && within(ours, "cmd"):
		return "nothing may import a command"
	case slices.ContainsFunc(forTests, func(room string) bool { return isOurs && within(ours, room) }):
		return "only tests may import it"
	case slices.Contains(allowed, "*"):
		return ""
	case slices.ContainsFunc(allowed, func(a string) bool { return within(path, a) || isOurs && within(ours, a) }):
		return ""
	case len(allowed) == 0:
		return room + " may import the standard library only"
	}
	return fmt.Sprintf("%s may import the standard library, %s", room, strings.Join(allowed, ", "))
}

// roomOf returns the longest listed room that holds the package. The top folder, ".", holds nothing but itself.
func roomOf(path string) (room string, allowed []string, ok bool) {
	if path == module {
		return ".", arrows["."], true
	}
	for name, rule := range arrows {
		if within(path, module+"/"+name) && len(name) > len(room) {
			room, allowed, ok = name, rule, true
		}
	}
	return room, allowed, ok
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

func TestOffences(t *testing.T) {
	tests := []struct {
		name, pkg string // pkg, imports and tests: folders of this module, or paths of others after "="
		imports   []string
		tests     []string
		want      []string // parts of the complaints, one each
	}{
		{name: "standard library", pkg: "internal/pack", imports: []string{"=encoding/binary"}},
		{name: "its own inside", pkg: "internal/protocol", imports: []string{"internal/protocol/wire", "internal/pack"}},
		{name: "a room below", pkg: "player", imports: []string{"internal/trace"}},
		{name: "below a module", pkg: "internal/trace", imports: []string{"=github.com/klauspost/compress/gzip"}},
		{name: "commands import all", pkg: "cmd/vllm-vcr", imports: []string{"internal/report", "=github.com/spf13/cobra"}},
		{
			name: "a room above", pkg: "player", imports: []string{"conformance"},
			want: []string{"player imports " + module + "/conformance: player may import the standard library, internal/protocol"},
		},
		{
			name: "a room of similar name", pkg: "player", imports: []string{"internal/tracery"},
			want: []string{"internal/tracery: player may import"},
		},
		{
			name: "below a room", pkg: "internal/protocol/wire", imports: []string{"internal/zmq"},
			want: []string{"internal/protocol/wire imports " + module + "/internal/zmq: internal/protocol may import"},
		},
		{
			name: "another's module", pkg: "internal/pack", imports: []string{"=github.com/google/go-cmp/cmp"},
			want: []string{"go-cmp/cmp: internal/pack may import the standard library only"},
		},
		{
			name: "the top folder", pkg: "internal/pack", imports: []string{"=" + module},
			want: []string{"standard library only"},
		},
		{name: "cgo", pkg: "cmd/vllm-vcr", imports: []string{"=C"}, want: []string{"without cgo"}},
		{
			name: "testenv in code", pkg: "cmd/vllm-vcr", imports: []string{"internal/testenv"},
			want: []string{"only tests may import it"},
		},
		{name: "testenv in tests", pkg: "internal/pack", tests: []string{"internal/testenv", "player"}},
		{
			name: "a command", pkg: "conformance", imports: []string{"cmd/vllm-vcr"}, tests: []string{"cmd/vllm-vcr"},
			want: []string{"a test of", "nothing may import a command"},
		},
		{name: "a room without a rule", pkg: "internal/misc", want: []string{"add its room to the table"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := offences(goPackage{
				ImportPath:   module + "/" + test.pkg,
				Imports:      fullPaths(test.imports),
				XTestImports: fullPaths(test.tests),
			})
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %d complaints", got, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %q, want it to contain %q", got[i], want)
				}
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
