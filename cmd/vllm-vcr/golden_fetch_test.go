package main

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A bundle that holds a golden of which its manifest knows nothing was not made by golden bundle.
func TestGoldenVerifyFindsStowaway(t *testing.T) {
	dir := t.TempDir()
	whole, other := filepath.Join(dir, "whole.tar"), filepath.Join(dir, "other.tar")
	t.Chdir("../..")
	if code, stdout, stderr := runApp("golden", "bundle", "--line", "0.33", "--golden", "edge-s1", "--output", whole); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	stowAway(t, whole, other, []byte("stowaway"))
	for _, test := range []struct {
		file string
		code int
		want string
	}{
		{whole, 0, "1 goldens have the registered bytes"},
		{other, 1, fmt.Sprintf("its manifest has no golden of sha256 %x", sha256.Sum256([]byte("stowaway")))},
	} {
		code, stdout, stderr := runApp("golden", "verify", "--bundle", test.file)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", test.file, code, test.code, test.want, stdout, stderr)
		}
	}
}

// stowAway copies a bundle with one more golden, its sum included.
func stowAway(t *testing.T, from, to string, data []byte) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	name := fmt.Sprintf("sha256/%x", sha256.Sum256(data))
	w := tar.NewWriter(out)
	add := func(name string, data []byte) {
		err := w.WriteHeader(&tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		member, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		if h.Name == "SHA256SUMS" {
			member = fmt.Appendf(member, "%s  %s\n", name[len("sha256/"):], name)
		}
		add(h.Name, member)
	}
	add(name, data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
