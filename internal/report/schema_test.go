package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/vllm-vcr/conformance/internal/check/replay"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// compile makes a JSON Schema ready. Formats, such as dates, are checked too.
func compile(t *testing.T, source []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(source))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("file:///schema.json", doc))
	schema, err := c.Compile("file:///schema.json")
	require.NoError(t, err)
	return schema
}

func validate(t *testing.T, schema *jsonschema.Schema, document []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	require.NoError(t, err)
	return schema.Validate(doc)
}

func TestDocumentsFollowSchema(t *testing.T) {
	schema := compile(t, Schema)
	for name, d := range runs() {
		require.NoErrorf(t, validate(t, schema, render(t, JSON, d)), "%s", name)
	}
	require.NoError(t, validate(t, schema, render(t, JSON, New(large(100), someRun()))))
}

// TestSchemaRefuses: the schema describes the document, and not just any.
func TestSchemaRefuses(t *testing.T) {
	schema := compile(t, Schema)
	good := string(render(t, JSON, runs()["wrong"]))
	for _, change := range [][2]string{
		{`"schema": "vllm-vcr/conformance/2"`, `"schema": "vllm-vcr/conformance/1"`},
		{`"exit_code": 1`, `"exit_code": 5`},
		{`"verdict": "fail"`, `"verdict": "bad"`},
		{`"code": "F001"`, `"code": "F1"`},
		{`"started": "2026-11-21T`, `"started": "yesterday T`},
		{`"tokens": 24`, `"tokens": -1`},
		{`"gating": true,`, ``},
		{`"reason": `, `"raison": `},
		{`"suite": "replay"`, `"suite": "other"`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("the document has no %s", change[0])
		}
		if validate(t, schema, []byte(bad)) == nil {
			t.Errorf("with %s it is still valid", change[1])
		}
	}
}

// TestSchemaKnowsAll: every verdict and suite that there is may be in a document.
func TestSchemaKnowsAll(t *testing.T) {
	schema := compile(t, Schema)
	for _, v := range conformance.Verdicts() {
		r := passed(goldenCase(newest, "a", conformance.Integrity), 0)
		r.Verdict = v
		d := New(conformance.NewReport([]conformance.Result{r}, 0), someRun())
		require.NoErrorf(t, validate(t, schema, render(t, JSON, d)), "%s", v)
	}
}

func sarifSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	packed, err := os.Open("testdata/sarif-schema-2.1.0.json.gz")
	require.NoError(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	require.NoError(t, err)
	source, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return compile(t, source)
}

func TestSARIFFollowsSchema(t *testing.T) {
	rules, err := os.ReadFile("testdata/github-sarif.json")
	require.NoError(t, err)
	embedded := allSortsOfWrong()
	for i := range embedded.Results {
		embedded.Results[i].Case.Entry = Embedded + "conformance/manifest.toml:14"
	}
	all := runs()
	all["embedded"] = New(embedded, Meta{AnnotateFile: ".github/workflows/ci.yml"})
	for by, schema := range map[string]*jsonschema.Schema{"the format": sarifSchema(t), "GitHub": compile(t, rules)} {
		for name, d := range all {
			require.NoErrorf(t, validate(t, schema, render(t, SARIF, d)), "%s, %s", by, name)
		}
		diff, err := os.ReadFile("../upstream/wirediff/testdata/fixture/diff.sarif.golden")
		require.NoError(t, err)
		require.NoErrorf(t, validate(t, schema, diff), "%s, drift diff", by)
		bad := bytes.Replace(render(t, SARIF, all["wrong"]), []byte(`"startLine": 14`), []byte(`"startLine": 0`), 1)
		require.True(t, validate(t, schema, bad) != nil, "%s accepts a line 0: it checks nothing", by)
	}
}

// sarifResult is a result as readers see it.
type sarifResult struct {
	SARIFResult
	Properties causeProperties `json:"properties"`
}

// readSARIF returns the results of a document by case and rule.
func readSARIF(t *testing.T, d *Document) map[string]sarifResult {
	t.Helper()
	var log struct {
		Runs []struct {
			Tool    struct{ Driver struct{ Rules []SARIFRule } }
			Results []sarifResult
		}
	}
	require.NoError(t, json.Unmarshal(render(t, SARIF, d), &log))
	results := map[string]sarifResult{}
	for _, r := range log.Runs[0].Results {
		key := r.Properties.Case + " " + r.RuleID
		for results[key].RuleID != "" { // several causes of a case and a code
			key += "+"
		}
		results[key] = r
		if rule := log.Runs[0].Tool.Driver.Rules[r.RuleIndex]; rule.ID != r.RuleID {
			t.Errorf("result of %s refers to rule %s", r.RuleID, rule.ID)
		}
	}
	return results
}

// TestFingerprints: they depend on the case, the code and the place, and on nothing else.
func TestFingerprints(t *testing.T) {
	first := allSortsOfWrong()
	first.Results[2].Failures[3].Code = replay.CodeCount // a second finding of the case
	again := allSortsOfWrong()
	again.Results[2].Failures[3].Code = replay.CodeCount
	again.Results[2].Failures[0].Message = "request 3: token 1 differs"
	again.Results[2].Location = "elsewhere"
	a, b := readSARIF(t, New(first, someRun())), readSARIF(t, New(again, Meta{}))
	seen := map[string]bool{}
	for key, r := range a {
		if b[key].RuleID == "" {
			continue // another message may be of another cause
		}
		print := r.Fingerprints["vllmVcrCause/v1"]
		if print == "" || print != b[key].Fingerprints["vllmVcrCause/v1"] {
			t.Errorf("%s: %q and %q", key, print, b[key].Fingerprints)
		}
		require.True(t, !seen[print], "%s has the fingerprint of another", key)
		seen[print] = true
	}
}
