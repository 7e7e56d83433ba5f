package vcr_test

import (
	"archive/zip"
	"bytes"
	"flag"
	"io/fs"
	"os"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
)

var update = flag.Bool("update", false, "rewrite docs/pages.zip")

// pages are the documents that are in the binary, sorted by their names.
var pages = []string{
	"conforming", "engine-author", "findings", "frontend-author", "glossary", "goldens", "playing", "recording", "router-author",
	"troubleshooting",
}

// TestPages: the packed pages are those of docs/. A test compares them, and not the build, as the build runs no program.
func TestPages(t *testing.T) {
	var b bytes.Buffer
	packed := zip.NewWriter(&b)
	stale := false
	for _, name := range pages {
		path := "docs/" + name + ".md"
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fs.ReadFile(vcr.Pages(), path)
		stale = stale || err != nil || !bytes.Equal(got, want)
		if w, err := packed.Create(path); err != nil {
			t.Fatal(err)
		} else if _, err := w.Write(want); err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err := fs.Glob(vcr.Pages(), "docs/*"); err != nil || len(names) != len(pages) {
		stale = true
	}
	switch {
	case stale && *update:
		if err := os.WriteFile("docs/pages.zip", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	case stale:
		t.Error("docs/pages.zip does not have the pages as they are in docs/: go test . -run TestPages -update")
	}
}
