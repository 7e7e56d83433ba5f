package load

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestSend(t *testing.T) {
	const text = "0123456789"
	sum := sha256.Sum256([]byte(text))
	d := Dir{t.TempDir()}
	put(t, d, "a.gz", text)
	put(t, d, "empty", "")
	var b bytes.Buffer
	require.NoError(t, d.Send(&b, "a.gz"))
	want := `{"file":"a.gz","size":10,"sha256":"` + hex.EncodeToString(sum[:]) + `"}` + "\n" + text
	require.NoDiff(t, cmp.Diff(want, b.String()), "sent (-want +got)")
	b.Reset()
	const nothing = `{"file":"empty","size":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}` + "\n"
	if err := d.Send(&b, "empty"); err != nil || b.String() != nothing {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestSendRefuses(t *testing.T) {
	outside := t.TempDir()
	put(t, Dir{outside}, "secret", "secret")
	d := Dir{t.TempDir()}
	put(t, d, "a", "0123456789")
	for name, target := range map[string]string{"out": outside + "/secret", "in": "a"} {
		require.NoError(t, os.Symlink(target, d.path(name)))
	}
	require.NoError(t, os.Mkdir(d.path("folder"), 0o777))
	tests := []struct {
		name, file string
		want       string
		usage      bool
	}{
		{name: "above", file: "../secret", want: "without a folder", usage: true},
		{name: "above alone", file: "..", want: "without a folder", usage: true},
		{name: "the folder", file: ".", want: "without a folder", usage: true},
		{name: "from the root", file: outside + "/secret", want: "without a folder", usage: true},
		{name: "backwards", file: `..\secret`, want: "without a folder", usage: true},
		{name: "no name", file: "", want: `file "": want the name`, usage: true},
		{name: "half a file", file: ".ready-1", want: "without a folder", usage: true},
		{name: "a link out of it", file: "out", want: "out is not a regular file", usage: true},
		{name: "a link within", file: "in", want: "in is not a regular file", usage: true},
		{name: "a folder in it", file: "folder", want: "folder is not a regular file", usage: true},
		{name: "absent", file: "b", want: "no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b bytes.Buffer
			err := d.Send(&b, test.file)
			require.True(t, err != nil && strings.Contains(err.Error(), test.want) && errors.Is(err, ErrUsage) == test.usage, "got %v, want %q", err, test.want)
			require.True(t, b.Len() == 0, "sent %q", b.String())
		})
	}
}

// meanwhile does something when the first bytes are sent.
type meanwhile struct {
	bytes.Buffer
	do func()
}

func (m *meanwhile) Write(p []byte) (int, error) {
	if m.do != nil {
		m.do()
		m.do = nil
	}
	return m.Buffer.Write(p)
}

// What changes while it is sent is not taken for whole, whichever part of it changes.
func TestSendNoticesChanges(t *testing.T) {
	const text = "0123456789"
	tests := []struct {
		name   string
		change func(t *testing.T, d Dir)
		want   string
	}{
		{"a byte", func(t *testing.T, d Dir) { put(t, d, "a", "0123456780") }, "a changed while it was uploaded: run the command again"},
		{"a byte, and its time is set back", func(t *testing.T, d Dir) {
			before, err := os.Stat(d.path("a"))
			put(t, d, "a", "0123456780")
			require.NoError(t, errors.Join(err, os.Chtimes(d.path("a"), before.ModTime(), before.ModTime())))
		}, "a changed while it was uploaded: run the command again"},
		{"longer", func(t *testing.T, d Dir) { put(t, d, "a", text+"x") }, "a changed while it was uploaded: run the command again"},
		{"shorter", func(t *testing.T, d Dir) { put(t, d, "a", text[:8]) }, "a changed while it was uploaded: run the command again"},
		{"swapped", func(t *testing.T, d Dir) {
			put(t, d, "b", text)
			require.NoError(t, os.Rename(d.path("b"), d.path("a")))
		}, "a changed while it was uploaded: run the command again"},
		{"gone", func(t *testing.T, d Dir) {
			require.NoError(t, os.Remove(d.path("a")))
		}, "a changed while it was uploaded: run the command again"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Dir{t.TempDir()}
			put(t, d, "a", text)
			err := d.Send(&meanwhile{do: func() { test.change(t, d) }}, "a")
			require.True(t, err != nil && err.Error() == test.want, "got %v, want %s", err, test.want)
		})
	}
}

// A receiver that goes away is an error.
func TestSendToNobody(t *testing.T) {
	d := Dir{t.TempDir()}
	put(t, d, "a", "0123456789")
	r, w := io.Pipe()
	r.Close()
	require.ErrorIs(t, d.Send(w, "a"), io.ErrClosedPipe)
}
