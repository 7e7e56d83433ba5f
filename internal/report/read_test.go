package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRoundTrip: what is read back is what was written, and is rendered equally.
func TestRoundTrip(t *testing.T) {
	for name, d := range runs() {
		again, err := Read(name, bytes.NewReader(render(t, JSON, d)))
		require.NoErrorf(t, err, "%s", name)
		require.NoDiff(t, cmp.Diff(d, again, cmpopts.IgnoreUnexported(Cause{})), "%s: -written +read", name)
		for _, r := range renderers {
			require.True(t, bytes.Equal(render(t, r.write, d), render(t, r.write, again)), "%s: %s is another when it was read back", name, r.name)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	good := string(render(t, JSON, runs()["wrong"]))
	tests := []struct{ name, old, new, want string }{
		{"another version", `conformance/2"`, `conformance/1"`, `r.json: schema "vllm-vcr/conformance/1", this vllm-vcr reads "vllm-vcr/conformance/2"`},
		{"no version", `"schema": "vllm-vcr/conformance/2",`, ``, "r.json is not a report: it has no schema"},
		{"an unknown key", `"reason": `, `"raison": `, `r.json: json: unknown field "raison"`},
		{"another kind", `"exit_code": 1`, `"exit_code": "1"`, "r.json: line 5: json: cannot unmarshal string"},
		{"an unknown verdict", `"verdict": "fail",` + "\n      \"gating\": true,\n      \"levels", `"verdict": "bad",` + "\n      \"gating\": true,\n      \"levels", `unknown verdict "bad"`},
		{"a case twice", `"name": "0.33/multiturn-s7/schema"`, `"name": "0.33/multiturn-s7/integrity"`, "case 0.33/multiturn-s7/integrity is listed twice"},
		{"a case of no line", `"line": "0.27",` + "\n      \"tag\": \"v0.27.1\",\n      \"gating", `"line": "0.28",` + "\n      \"tag\": \"v0.27.1\",\n      \"gating", "lines has no line 0.27"},
		{"a case without name", `"name": "0.33/multiturn-s7/schema"`, `"name": ""`, "cases[1] has no name"},
		{"other counts", `"error": 2`, `"error": 3`, "it is incomplete or was edited"},
		{"other tokens", `"tokens": 24`, `"tokens": 25`, "it is incomplete or was edited"},
		{"cut off", good[len(good)/2:], ``, "r.json is not a report: line "},
		{"more after it", "\n}\n", "\n}\n{}", "r.json is not a report: line "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bad := strings.Replace(good, test.old, test.new, 1)
			if bad == good {
				t.Fatalf("the document has no %q", test.old)
			}
			_, err := Read("r.json", strings.NewReader(bad))
			require.ErrorContains(t, err, test.want)
		})
	}
	for _, bad := range []string{"", "null", "[]", "7", "\x00", `{"schema":7}`} {
		if _, err := Read("r.json", strings.NewReader(bad)); err == nil || !strings.HasPrefix(err.Error(), "r.json") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, JSON(&b, New(allSortsOfWrong(), someRun())))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Read("fuzz", bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, r := range renderers {
			render(t, r.write, d)
		}
		if _, err := Read("again", bytes.NewReader(render(t, JSON, d))); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}
