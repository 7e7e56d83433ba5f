package protocol

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestWriteProfile: what is written is read again as it was, and the committed
// profiles are written so.
func TestWriteProfile(t *testing.T) {
	for _, line := range Lines() {
		p, err := LoadProfile(line)
		require.NoError(t, err)
		var text bytes.Buffer
		require.NoError(t, WriteProfile(&text, p))
		committed, _ := profileFiles.ReadFile("profiles/" + line + ".json")
		require.NoDiff(t, cmp.Diff(string(committed), text.String()), "profiles/%s.json (-committed +written)", line)
		again, err := ReadProfile(&text)
		require.NoError(t, err)
		require.NoDiff(t, cmp.Diff(p, again), "%s (-written +read)", line)
	}
}

// TestMetricsOfLines: every line has metrics, and a file with damaged ones is no profile.
func TestMetricsOfLines(t *testing.T) {
	for _, line := range Lines() {
		p, err := LoadProfile(line)
		require.NoError(t, err)
		if m := p.Metrics()["vllm:num_requests_running"]; m.Kind != "gauge" || len(m.Labels) != 2 || len(p.Metrics()) < 50 {
			t.Errorf("%s: %d metrics, %+v", line, len(p.Metrics()), m)
		}
		p.MetricText = json.RawMessage(`{"a":{"kind":1}}`)
		if err := WriteProfile(io.Discard, p); err == nil {
			t.Error("damaged metrics are written")
		}
	}
	_, err := ReadProfile(strings.NewReader(`{"line":"0.33","structs":{"A":{}},"metrics":{"a":{"sort":"gauge"}}}`))
	require.ErrorContains(t, err, "metrics: ")
}

// forget takes back what a test taught.
func forget(t *testing.T) {
	t.Cleanup(func() {
		learned.mu.Lock()
		defer learned.mu.Unlock()
		learned.texts = nil
	})
}

// future is a line that the build does not know: the newest with a field more.
func future(t *testing.T) *Profile {
	t.Helper()
	p := changed(t, Newest(), "EngineCoreOutput", func(s *Struct) {
		s.Fields = append(s.Fields, Field{Name: "mood", Type: "str | None"})
	})
	p.Line, p.Version = "0.99", "0.99.0"
	return p
}

func TestLearn(t *testing.T) {
	forget(t)
	require.NoError(t, Learn(future(t)))
	if Newest() != "0.99" || !HasProfile("v0.99.3") || Lines()[0] != "0.99" {
		t.Errorf("newest %s, lines %v: want 0.99", Newest(), Lines())
	}
	nightly, err := LoadProfile(Nightly)
	require.NoError(t, err)
	require.True(t, nightly.Version == "0.99.0" && nightly.Structs["EngineCoreOutput"].Index("mood") >= 0, "nightly is of %s, want what was learned", nightly.Version)
}

func TestLearnRefuses(t *testing.T) {
	forget(t)
	for _, test := range []struct {
		name   string
		change func(*Profile)
		want   string
	}{
		{"what no codec can write", func(p *Profile) { delete(p.Structs, "EngineCoreOutput") }, "no struct EngineCoreOutput"},
		{"another line's release", func(p *Profile) { p.Version = "0.98.0" }, `of line "0.99" is of release "0.98.0"`},
		{"no release", func(p *Profile) { p.Version = Nightly; p.Line = Nightly }, `is of release "nightly"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := future(t)
			test.change(p)
			require.ErrorContains(t, Learn(p), test.want)
			require.True(t, !HasProfile("0.99"), "it was learned")
		})
	}
}

func TestLearnAll(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, WriteProfile(&text, future(t)))
	whole := text.String()
	for _, test := range []struct{ name, file, text, want string }{
		{"whole", "0.99.json", whole, ""},
		{"none", "README", "", "it holds no profile"},
		{"of another name", "0.98.json", whole, "0.98.json holds the profile of line 0.99: want it in 0.99.json"},
		{"cut off", "0.99.json", whole[:len(whole)/2], "0.99.json: it cannot be read as a wire profile: unexpected EOF"},
		{"an unknown key", "0.99.json", strings.Replace(whole, `"commit"`, `"comit"`, 1), `0.99.json: it cannot be read as a wire profile: json: unknown field "comit"`},
		{"something behind", "0.99.json", whole + "garbage", "0.99.json: it cannot be read as a wire profile: something follows it"},
		{"no profile", "0.99.json", "{}", "0.99.json: it is not a wire profile"},
	} {
		t.Run(test.name, func(t *testing.T) {
			forget(t)
			err := LearnAll(fstest.MapFS{test.file: {Data: []byte(test.text)}})
			if test.want == "" {
				if err != nil || !HasProfile("0.99") {
					t.Errorf("got %v, known %v", err, HasProfile("0.99"))
				}
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}
