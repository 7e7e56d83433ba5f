package drift

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/protocol"
)

// TestEngineProfiles: what records gets the profile of the line as this process knows it, learned ones included.
func TestEngineProfiles(t *testing.T) {
	p := profile(t, "0.33")
	p.Line, p.Version = "9.9", "9.9.0"
	if err := protocol.Learn(p); err != nil {
		t.Fatal(err)
	}
	for _, line := range []compat.Line{{Name: "9.9", Tag: "v9.9.0rc1"}, {Name: "0.27", Tag: "v0.27.1"}} {
		dir, err := Engine{Dir: t.TempDir()}.profiles(line)
		if err != nil {
			t.Fatal(err)
		}
		want, err := protocol.LoadProfile(line.Name)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != line.Name+".json" {
			t.Fatalf("%v, %v, want the profile of %s alone", entries, err, line.Name)
		}
		text, err := os.ReadFile(dir + "/" + entries[0].Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := protocol.ReadProfile(bytes.NewReader(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", line.Name, err, diff)
		}
	}
	if _, err := (Engine{Dir: t.TempDir()}).profiles(compat.Line{Name: "8.8", Tag: "v8.8.0"}); err == nil {
		t.Error("a line that nobody knows has a profile")
	}
}
