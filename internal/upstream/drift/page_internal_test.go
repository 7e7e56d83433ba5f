package drift

import (
	"bytes"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// TestPage: the HTML report of a check has the verdict, the release, the layers and what the sources declare, and what
// comes from outside is not markup.
func TestPage(t *testing.T) {
	build, err := compat.ParseBuild("0.33.0")
	require.NoError(t, err)
	r := Report{
		Subject: Subject{Build: build, Line: compat.Line{Name: "0.32"}}, Compat: "compat.toml",
		Result: Result{Outcome: Outcome{Verdict: Found}, Layers: []Layer{
			{Name: StaticLayer, Verdict: Found, Reason: "it has <b>changes</b>", Compared: "323 fields", Diff: wirediff.Compare(profile(t, "0.32"), profile(t, "0.33"))},
			{Name: LiveLayer, Verdict: Skipped, Reason: "not asked for"},
		}},
	}
	var b bytes.Buffer
	require.NoError(t, r.html(&b))
	for _, want := range []string{
		"<title>drift 0.33.0: found</title>", "<b>DRIFT: FOUND</b>", "<li>release: 0.33.0</li>",
		"<td><div>static</div></td><td><div>found</div></td><td><div>it has &lt;b&gt;changes&lt;/b&gt;</div></td><td><div>323 fields</div></td>", "<td><div>live</div></td><td><div>not run</div></td>",
		"What the sources declare otherwise", "<tr><td>breaking</td><td>pause_generation</td><td>new method called",
	} {
		require.Contains(t, b.String(), want)
	}
	if t.Failed() {
		t.Log(b.String())
	}
}
