package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const profiles = "../profiles"

// TestProfilesAreCurrent fails when the committed profiles are not what the
// source says: after a change of either, run go generate in internal/protocol.
func TestProfilesAreCurrent(t *testing.T) {
	want, err := generate(source)
	if err != nil {
		t.Fatal(err)
	}
	got := readDir(t, profiles)
	for name, content := range want {
		if diff := cmp.Diff(string(content), string(got[name])); diff != "" {
			t.Errorf("profiles/%s is not what profilegen writes (-generated +committed):\n%s", name, diff)
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("profiles/%s has no line in lines.json.gz", name)
		}
	}
	if len(want) < 9 {
		t.Errorf("%d lines, want the nine from 0.25 to 0.33 at least", len(want))
	}
}

func TestRunWritesTheProfiles(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(readDir(t, profiles), readDir(t, dir)); diff != "" {
		t.Errorf("-committed +written:\n%s", diff)
	}
	if err := run(filepath.Join(dir, "absent")); err == nil {
		t.Error("no error for a folder that is not there")
	}
}

func TestGenerateRefusesABrokenSource(t *testing.T) {
	for _, test := range []struct {
		name string
		gz   []byte
	}{
		{"not gzip", []byte("{}")},
		{"cut off", source[:len(source)/2]},
		{"empty", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			files, err := generate(test.gz)
			if err == nil || !strings.Contains(err.Error(), "lines.json.gz") {
				t.Errorf("%d files, error %v, want one that names lines.json.gz", len(files), err)
			}
		})
	}
}

func TestResultKind(t *testing.T) {
	for _, test := range []struct{ name, signature, want string }{
		{"no annotation", "(self)", "none"},
		{"None", "(self) -> None", "none"},
		{"a future of nothing", "(self, level: int=1) -> None | Future", "none"},
		{"bool", "(self, lora_id: int) -> bool", "bool"},
		{"str", "(self) -> str", "str"},
		{"set of ids", "(self) -> set[int]", "ints"},
		{"tasks", "(self) -> tuple[SupportedTask, ...]", "strings"},
		{"list", "(self, method: str | Callable[..., _R]) -> list[_R]", "list"},
		{"something new", "(self) -> WeightInfo", "any"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := resultKind(test.signature); got != test.want {
				t.Errorf("%s: got %q, want %q", test.signature, got, test.want)
			}
		})
	}
}

func readDir(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = content
	}
	return files
}
