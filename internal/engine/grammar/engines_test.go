package grammar_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// verdict is what an engine says of a constraint and its texts.
type verdict struct {
	Error   string   `json:"error"`
	Refused []string `json:"refused"`
	Texts   int      `json:"texts"`
}

// differs are the constraints of which an engine of vLLM refuses conforming texts, or
// that it cannot compile, with the reason. vLLM gives these to its other engine, or to
// nobody.
var differs = map[string]map[string]string{
	"xgrammar": {
		"large integers":              "it counts in 64 bits",
		"required without properties": "it writes required members only where they are declared",
		"pattern to be escaped":       "its patterns are of the escaped text",
		"definitions with odd names":  "it does not unescape references",
	},
	"guidance": {
		"large integers":       "it counts in 64 bits",
		"multiples":            "it takes no fraction that is a multiple of one",
		"array unique":         "unknown: uniqueItems",
		"array unique of enum": "unknown: uniqueItems",
		"array contains":       "unknown: contains",
		"not":                  "unknown: not",
		"one of":               "unknown: oneOf of branches that overlap",
		"dependent":            "unknown: dependentRequired",
		"if":                   "unknown: if",
		"property names":       "unknown: propertyNames",
		"formats":              "unknown: uri-reference",
		"as many as needed":    "unknown: minProperties of optional members",
		"ebnf over lines":      "its rules begin on the line of their names",
		"lark optional":        "its repetitions are of one number",
	},
}

// The engines that mask tokens in a real vLLM take the texts byte by byte, to the end.
func TestEnginesAccept(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases to ask, such as \"0.33.0 0.27.1\": .ci/peers engine installs them")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			python := filepath.Join(testenv.PeersDir(t), "engines", version, "bin", "python")
			asked := 0
			for name, engines := range ask(t, python) {
				for engine, v := range engines {
					reason, expected := differs[engine][name]
					if failed := v.Error != "" || len(v.Refused) > 0; failed != expected {
						t.Errorf("%s: %s: error %q, refused %d of %d: %.300q; expected: %v %s",
							name, engine, v.Error, len(v.Refused), v.Texts, v.Refused, expected, reason)
					}
					asked += v.Texts
				}
			}
			require.True(t, asked >= 1000, "only %d texts were looked at", asked)
			t.Logf("%d texts", asked)
		})
	}
}

func ask(t *testing.T, python string) map[string]map[string]verdict {
	t.Helper()
	var in bytes.Buffer
	names := map[string]bool{}
	for _, c := range constraints(t) {
		if c.Draft != 0 {
			continue // the engines know the newest draft
		}
		names[c.Name] = true
		l, err := grammar.Compile(work(t), c.constraint())
		must(t, err)
		line := map[string]any{
			"name": c.Name, "kind": c.Kind, "text": c.constraint().Text, "choices": c.Choices, "lark": c.Lark,
		}
		var texts []string
		for seed := range uint64(5) {
			for _, size := range []int{0, 16, 192} {
				texts = append(texts, text(t, l, seed, size))
			}
		}
		line["texts"] = texts
		must(t, json.NewEncoder(&in).Encode(line))
	}
	cmd := exec.Command(python, "testdata/accept.py")
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	must(t, err)
	verdicts := map[string]map[string]verdict{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var v struct {
			Name     string   `json:"name"`
			XGrammar *verdict `json:"xgrammar"`
			Guidance *verdict `json:"guidance"`
		}
		if err := d.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		verdicts[v.Name] = map[string]verdict{}
		if v.XGrammar != nil {
			verdicts[v.Name]["xgrammar"] = *v.XGrammar
		}
		if v.Guidance != nil {
			verdicts[v.Name]["guidance"] = *v.Guidance
		}
		delete(names, v.Name)
	}
	if diff := cmp.Diff(map[string]bool{}, names); diff != "" {
		t.Fatalf("not answered (-want +got):\n%s", diff)
	}
	return verdicts
}
