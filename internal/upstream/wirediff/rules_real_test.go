package wirediff_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// stricter are the cases in which a verdict is not about msgspec alone, and why.
var stricter = map[string]string{
	"renamed in a map":     "the value is lost, which nobody notices as the default takes its place",
	"omits defaults":       "programs that want every key, as the Rust frontend, fill nothing in",
	"required from now on": "msgspec writes the key in any case, and other writers may leave it out",
	"a tag":                "a reader needs the tag for a union, as events are of",
	"a new tag":            "a reader needs the tag for a union, as events are of",
}

// TestRulesAreThoseOfMsgspec: what is said to break readers or writers is what the
// real library refuses or misreads.
func TestRulesAreThoseOfMsgspec(t *testing.T) {
	var pairs []map[string]protocol.Struct
	for _, test := range structCases {
		pairs = append(pairs, map[string]protocol.Struct{"a": parseStruct(t, test.a), "b": parseStruct(t, test.b)})
	}
	input, err := json.Marshal(pairs)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), testenv.Python(t), "testdata/rules.py")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "%s", stderr.String())
	decoder := json.NewDecoder(bytes.NewReader(out))
	type failing struct{ Readers, Writers bool }
	for _, test := range structCases {
		var really failing
		require.NoError(t, decoder.Decode(&really))
		root := parseStruct(t, "array x:Part")
		a := profile("0.1", map[string]protocol.Struct{outputs: root, "Part": parseStruct(t, test.a)})
		b := profile("0.2", map[string]protocol.Struct{outputs: root, "Part": parseStruct(t, test.b)})
		var said failing
		for _, c := range wirediff.Compare(a, b).Changes {
			said.Readers = said.Readers || slices.Contains(c.Breaks, wirediff.Frontends)
			said.Writers = said.Writers || slices.Contains(c.Breaks, wirediff.Engines)
		}
		_, known := stricter[test.name]
		if diff := cmp.Diff(really, said); (diff != "") != known {
			t.Errorf("%s: known to differ: %v, msgspec -really +said:\n%s", test.name, known, diff)
		}
	}
}
