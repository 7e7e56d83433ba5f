package golden

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// aBundle is a bundle of two goldens, of which one is registered twice, from a store that has them.
func aBundle(t *testing.T) Bundle {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), content)
	write(t, filepath.Join(dir, "b"), noise(100_000))
	s := &Store{Dir: dir}
	return Bundle{
		Compat: []byte("compat\n"), Manifest: []byte("manifest\n"),
		Goldens: []Object{contentAt("a"), {Location: "b", SHA256: digest(noise(100_000))}, contentAt("a")},
		Fetch:   func(o Object) ([]byte, error) { return s.Fetch(t.Context(), o) },
	}
}

func writeBundle(t *testing.T, b Bundle) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, WriteBundle(&out, b))
	name := filepath.Join(t.TempDir(), "goldens.tar")
	write(t, name, out.Bytes())
	return name
}

func TestBundle(t *testing.T) {
	b := aBundle(t)
	name := writeBundle(t, b)
	file, err := OpenBundle(name)
	require.NoError(t, err)
	require.NoError(t, file.Verify(t.Context()))
	want := []string{digest(content), digest(noise(100_000))}
	slices.Sort(want)
	if got := file.Digests(); !slices.Equal(got, want) {
		t.Errorf("it holds %v, want %v", got, want)
	}
	if got, err := file.Compat(); err != nil || !bytes.Equal(got, b.Compat) {
		t.Errorf("compat.toml is %q, %v", got, err)
	}
	if got, err := file.Manifest(); err != nil || !bytes.Equal(got, b.Manifest) {
		t.Errorf("manifest.toml is %q, %v", got, err)
	}

	// The same content is the same bytes, in whatever order it comes.
	slices.Reverse(b.Goldens)
	first, err := os.ReadFile(name)
	require.NoError(t, err)
	if second, err := os.ReadFile(writeBundle(t, b)); err != nil || !bytes.Equal(first, second) {
		t.Errorf("the same bundle again is another file, %v", err)
	}
}

// Other tools can read it and check it.
func TestBundleForOtherTools(t *testing.T) {
	for _, tool := range []string{"tar", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here", tool)
		}
	}
	dir := t.TempDir()
	command := exec.Command("sh", "-c", `tar -xf "$1" && sha256sum -c SHA256SUMS && tar -tvf "$1" --full-time --utc`, "sh", writeBundle(t, aBundle(t)))
	command.Dir = dir
	out, err := command.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	require.Equal(t, strings.Count(string(out), ": OK\n"), 4, "sha256sum found files in order:\n%s", out)
	require.Equal(t, strings.Count(string(out), "1970-01-01 00:00:00"), 5, "members without a time:\n%s", out)
}

func TestBundleWriteFailures(t *testing.T) {
	b := aBundle(t)
	b.Goldens = append(b.Goldens, Object{Location: "none", SHA256: digest([]byte("none"))})
	err := WriteBundle(new(bytes.Buffer), b)
	wantFetchError(t, err, "golden none: ", "no such file")
	b.Goldens = []Object{{Location: "a", SHA256: "../../etc/passwd"}}
	wantFetchError(t, WriteBundle(new(bytes.Buffer), b), "golden a: ", "64 lowercase")
}

// A store takes goldens out of a bundle by their digests alone, and reads no more of it than that.
func TestStoreTakesFromBundle(t *testing.T) {
	name := writeBundle(t, aBundle(t))
	tests := []struct {
		name, location, where string
		store                 Store
	}{
		{name: "path", location: "conformance/a.jsonl", store: Store{Bundle: name}, where: "bundle://" + name + "/conformance/a.jsonl"},
		{name: "S3", location: "s3://none/a.jsonl", store: Store{Bundle: name, Bucket: "s3://none"}, where: "bundle://" + name + "/none/a.jsonl"},
		{name: "as a bucket", location: "bundle://" + name + "/conformance/a.jsonl", store: Store{Bucket: "bundle://" + name}, where: "bundle://" + name + "/conformance/a.jsonl"},
		{name: "in upper case", location: "BUNDLE://" + name + "/a", store: Store{Bucket: "BUNDLE://" + name}, where: "bundle://" + name + "/a"},
		{name: "no location", store: Store{Bundle: name, Offline: true}, where: "bundle://" + name + "/sha256/" + digest(content)},
	}
	for i := range tests {
		test := &tests[i]
		t.Run(test.name, func(t *testing.T) {
			test.store.Cache = filepath.Join(t.TempDir(), "none")
			data, err := test.store.Fetch(t.Context(), contentAt(test.location))
			require.True(t, err == nil && bytes.Equal(data, content), "got %d bytes, %v", len(data), err)
			pulled := test.store.Pull(t.Context(), []Object{contentAt(test.location)})[0]
			require.True(t, pulled.Err == nil && pulled.From == test.where && !test.store.IsRemote(contentAt(test.location)), "it is %+v, want it from %s", pulled, test.where)
			_, err = test.store.Fetch(t.Context(), Object{Location: "other", SHA256: digest([]byte("other"))})
			if wantFetchError(t, err, "golden bundle://"+name, "has no sha256/"+digest([]byte("other")), "make the bundle with"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v is not fs.ErrNotExist", err)
			}
			if _, err := os.Stat(test.store.Cache); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something went into the cache: %v", err)
			}
		})
	}
}

func TestStoreVerifiesWhatIsInTheBundle(t *testing.T) {
	name := writeBundle(t, aBundle(t))
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	at := bytes.Index(data, content)
	data[at] ^= 1
	write(t, name, data)
	_, err = (&Store{Bundle: name}).Fetch(t.Context(), contentAt("a"))
	wantMismatch(t, err)

	file, err := OpenBundle(name)
	require.NoError(t, err)
	err = file.Verify(t.Context())
	require.ErrorContains(t, err, name+": sha256/"+digest(content)+": sha256 is ")
	_, err = (&Store{Bundle: name + "-none"}).Fetch(t.Context(), contentAt("a"))
	wantFetchError(t, err, "no such file")
}

// aTar is a tar of the given members.
func aTar(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range members {
		h := &members[i]
		text := h.Linkname // which stands for the content, of regular files
		if h.Typeflag == tar.TypeReg {
			h.Size, h.Linkname = int64(len(text)), ""
		}
		require.NoError(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			w.Write([]byte(text))
		}
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func file(name, text string) tar.Header {
	return tar.Header{Name: name, Linkname: text, Typeflag: tar.TypeReg, Mode: 0o644}
}

func TestHostileBundles(t *testing.T) {
	golden := file(goldenMembers+digest(content), string(content))
	sums := fmt.Sprintf("%s  compat.toml\n%s  manifest.toml\n", digest([]byte("c")), digest([]byte("m")))
	texts := []tar.Header{file(sumsMember, sums+digest(content)+"  "+golden.Name+"\n"), file(compatMember, "c"), file(manifestMember, "m")}
	with := func(more ...tar.Header) []byte { return aTar(t, append(slices.Clone(texts), more...)...) }
	extended := golden
	extended.PAXRecords, extended.Format = map[string]string{"VENDOR.key": "value"}, tar.FormatPAX
	whole := with(golden)
	tests := []struct {
		name string
		data []byte
		want string // of OpenBundle, or of Verify
	}{
		{name: "right", data: whole},
		{name: "padded as other tools do", data: append(slices.Clone(whole), make([]byte, 10240)...)},
		{name: "empty", want: "it has no SHA256SUMS"},
		{name: "no tar", data: bytes.Repeat([]byte("x"), 2000), want: "not a whole tar"},
		{name: "gzip", data: []byte{0x1f, 0x8b, 8, 0}, want: "not a whole tar"},
		{name: "no sums", data: aTar(t, file(compatMember, "c"), file(manifestMember, "m")), want: "it has no SHA256SUMS"},
		{name: "no manifest", data: aTar(t, texts[0], texts[1]), want: "it has no manifest.toml"},
		{name: "golden missing", data: with(), want: golden.Name + ": the list of sums names it, but it is missing"},
		{name: "golden without a sum", data: aTar(t, file(sumsMember, sums), texts[1], texts[2], golden), want: golden.Name + ": it has no sum"},
		{name: "another manifest", data: aTar(t, texts[0], texts[1], file(manifestMember, "n"), golden), want: "manifest.toml: sha256 is"},
		{
			name: "golden of another name", want: "not that of its name",
			data: aTar(t, file(sumsMember, sums+digest([]byte("x"))+"  "+golden.Name+"\n"), texts[1], texts[2], file(golden.Name, "x")),
		},
		{name: "bad sums", data: aTar(t, file(sumsMember, "x\n"), texts[1], texts[2], golden), want: "SHA256SUMS: line 1"},
		{name: "sums twice", data: aTar(t, file(sumsMember, sums+sums), texts[1], texts[2], golden), want: "SHA256SUMS: line 3"},
		{name: "twice", data: with(golden, golden), want: "occurs twice"},
		{name: "absolute", data: with(file("/etc/passwd", "x")), want: `"/etc/passwd": does not belong`},
		{name: "up", data: with(file("sha256/../../x", "x")), want: "does not belong"},
		{name: "another name", data: with(file("README", "x")), want: "does not belong"},
		{name: "no digest", data: with(file("sha256/abc", "x")), want: "does not belong"},
		{name: "a command in a name", data: with(file("x\n::error::y", "x")), want: `"x ::error::y": does not belong`},
		{name: "link", data: with(tar.Header{Name: golden.Name, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), want: "not a regular file"},
		{name: "hard link", data: with(tar.Header{Name: golden.Name, Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), want: "not a regular file"},
		{name: "device", data: with(tar.Header{Name: golden.Name, Typeflag: tar.TypeChar}), want: "not a regular file"},
		{name: "folder", data: with(tar.Header{Name: "sha256/", Typeflag: tar.TypeDir}), want: "not a regular file"},
		{name: "pipe", data: with(tar.Header{Name: golden.Name, Typeflag: tar.TypeFifo}), want: "not a regular file"},
		{name: "extended", data: with(extended), want: "has extended attributes"},
		{name: "large text", data: aTar(t, file(compatMember, strings.Repeat("c", maxText+1))), want: "may have 67108864"},
		{name: "cut in a header", data: whole[:100], want: "not a whole tar"},
		{name: "cut in a golden", data: whole[:bytes.Index(whole, content)+10], want: "cut off"},
		{name: "something behind", data: append(slices.Clone(whole), "more"...), want: "bytes after its end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "b.tar")
			write(t, name, test.data)
			b, err := OpenBundle(name)
			if err == nil {
				err = b.Verify(t.Context())
			}
			require.ErrorText(t, err, test.want)
			require.True(t, err == nil || (strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), "\n")), "the error does not name the file, or is of several lines: %v", err)
		})
	}
}

func FuzzOpenBundle(f *testing.F) {
	var out bytes.Buffer
	b := Bundle{Compat: []byte("c"), Manifest: []byte("m"), Goldens: []Object{contentAt("a")}}
	b.Fetch = func(Object) ([]byte, error) { return content, nil }
	require.NoError(f, WriteBundle(&out, b))
	f.Add(out.Bytes())
	f.Add(out.Bytes()[:3000])
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "b.tar")
		write(t, name, data)
		b, err := OpenBundle(name)
		if err != nil {
			return
		}
		verified := b.Verify(t.Context())
		for _, digest := range b.Digests() {
			got, err := (&Store{Bundle: name}).Fetch(t.Context(), Object{SHA256: digest})
			require.True(t, verified != nil || err == nil, "verified, but %v", err)
			require.True(t, err != nil || int64(len(got)) <= int64(len(data)), "%d bytes out of %d", len(got), len(data))
		}
	})
}
