package pypi_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// sources are members that lie in three places, with much between them that nobody asks for: 200 neighbours at the
// beginning, two almost neighbours in the middle, and some at the end.
func sources() (all map[string]string, wanted []string) {
	all = map[string]string{
		"big/1": noise(5 << 19), "big/2": noise(100 << 10), "big/3": noise(5 << 19), "big/4": noise(4 << 20), "e/last": "last", "big/5": noise(3 << 19),
		"big/1.py": noise(1000), "big/2.py": noise(2000),
	}
	for i := range 200 {
		all[fmt.Sprintf("a/%03d.py", i)] = noise(100 + i)
	}
	for name := range all {
		if strings.HasSuffix(name, ".py") || name == "e/last" {
			wanted = append(wanted, name)
		}
	}
	slices.Sort(wanted)
	return all, wanted
}

func pick(all map[string]string, wanted []string) map[string]string {
	picked := map[string]string{}
	for _, name := range wanted {
		picked[name] = all[name]
	}
	return picked
}

func texts(files map[string][]byte) map[string]string {
	got := map[string]string{}
	for name, data := range files {
		got[name] = string(data)
	}
	return got
}

// TestReadFiles: many members cost few requests, and no more bytes than lie about them.
func TestReadFiles(t *testing.T) {
	all, wanted := sources()
	server := wheelOf(t, all)
	wheel, err := at("http://x").OpenWheel(t.Context(), server.file(t))
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(slices.Sorted(maps.Keys(all)), wheel.Names()), "(-want +got)")
	before := wheel.Downloaded()
	got, err := wheel.ReadFiles(slices.Concat([]string{"b/none"}, wanted, wanted), 4000)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(pick(all, wanted), texts(got)), "(-want +got)")
	// The end, the neighbours, the middle; "e/last" is in the end.
	if cost := wheel.Downloaded() - before; server.number != 3 || cost > 512<<10 {
		t.Errorf("%d requests, %d bytes: %q", server.number, cost, server.ranges)
	}
	got, err = wheel.ReadFiles(wheel.Names(), 5<<20)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(all, texts(got)), "(-want +got)")
	if whole := int64(len(server.data)); wheel.Downloaded() > whole*3/2 || server.number > 15 {
		t.Errorf("%d requests, %d bytes of %d: %q", server.number, wheel.Downloaded(), whole, server.ranges)
	}
	// One that is too large is refused before anything is downloaded.
	number := server.number
	_, err = wheel.ReadFiles(wanted, 1999)
	checkError(t, err, "big/2.py has more than 1999 bytes", "/w.whl")
	if server.number != number {
		t.Errorf("%d requests for what cannot be had", server.number-number)
	}
}

// onDisk writes a wheel to a file.
func onDisk(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// TestOpenFile: a wheel on disk has the same members.
func TestOpenFile(t *testing.T) {
	all, wanted := sources()
	all["big/"] = "" // the folder
	const name = "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
	wheel, err := pypi.OpenFile(onDisk(t, name, wheelOf(t, all).data))
	require.NoError(t, err)
	got, err := wheel.ReadFiles(append(wanted, "none"), 4000)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(pick(all, wanted), texts(got)), "(-want +got)")
	if slices.Contains(wheel.Names(), "big/") || len(wheel.Names()) != len(all)-1 {
		t.Errorf("%d members", len(wheel.Names()))
	}
	if wheel.File.Name != name || wheel.Downloaded() != 0 {
		t.Errorf("file %+v, %d bytes downloaded", wheel.File, wheel.Downloaded())
	}
	require.NoError(t, wheel.Close())
	if _, err := wheel.ReadFile("a/000.py", 4000); err == nil {
		t.Error("a closed wheel is read")
	}
}

// TestBadWheels: what is not a wheel, or lies, is an error that says so and names the file.
func TestBadWheels(t *testing.T) {
	good := wheelOf(t, map[string]string{"big/a": "aaaa", "big/b": "bbbb"}).data
	damaged := func(damage func(data []byte)) []byte {
		data := slices.Clone(good)
		damage(data)
		return data
	}
	directory := bytes.Index(good, []byte("PK\x01\x02"))
	second := directory + 1 + bytes.Index(good[directory+1:], []byte("PK\x01\x02"))
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{name: "empty", want: "cannot be read as a wheel: zip: not a valid zip file"},
		{name: "cut short", data: good[:len(good)-30], want: "zip: not a valid zip file"},
		{name: "of something else", data: []byte("<html>"), want: "zip: not a valid zip file"},
		{name: "member outside", data: bytes.ReplaceAll(good, []byte("big/b"), []byte("../.b")), want: `its directory names "../.b", which is not a path in a wheel`},
		{name: "absolute member", data: bytes.ReplaceAll(good, []byte("big/b"), []byte("/bigb")), want: `its directory names "/bigb"`},
		{name: "member twice", data: bytes.ReplaceAll(good, []byte("big/b"), []byte("big/a")), want: "has big/a more than once"},
		{name: "larger than it says", data: damaged(func(d []byte) { d[directory+24] = 3 }), want: "big/a: "},
		{name: "smaller than it says", data: damaged(func(d []byte) { d[directory+24] = 5 }), want: "big/a: "},
		{name: "other bytes than it says", data: damaged(func(d []byte) { d[bytes.LastIndex(d, []byte("aaaa"))] = 'b' }), want: "big/a: "},
		{name: "another's place", data: damaged(func(d []byte) { copy(d[directory+42:directory+46], d[second+42:second+46]) }), want: "big/a: "},
		{name: "place beyond the end", data: damaged(func(d []byte) { binary.LittleEndian.PutUint32(d[directory+42:], 1<<30) }), want: "cannot be read as a wheel: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := onDisk(t, "w.whl", test.data)
			wheel, err := pypi.OpenFile(path)
			if err == nil {
				_, err = wheel.ReadFiles([]string{"big/a", "big/b"}, 100)
				_ = wheel.Close()
			}
			checkError(t, err, test.want, path)
			// The same bytes behind a URL.
			server := &wheelServer{data: append(slices.Clone(test.data), ""...), etag: `"one"`}
			f := server.file(t)
			if wheel, err = at("http://x").OpenWheel(t.Context(), f); err == nil {
				_, err = wheel.ReadFiles([]string{"big/a", "big/b"}, 100)
			}
			where, _, _ := strings.Cut(f.URL, "?")
			checkError(t, err, where)
		})
	}
}

// TestOpenFails: what is no place of a wheel is refused. A URL is not shown, and no server gets a request.
func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	_, err := pypi.OpenFile(filepath.Join(dir, "none.whl"))
	checkError(t, err, "wheel", "none.whl: ")
	_, err = pypi.OpenFile(dir)
	checkError(t, err, "wheel "+dir+": it is not a regular file")
	for _, url := range []string{"", "w.whl", "file:///w.whl?hunter2", "ftp://user:hunter2@x/w.whl", "https:///w.whl", "http://%zz/hunter2"} {
		_, err := at("http://x").OpenWheel(t.Context(), pypi.File{URL: url})
		checkError(t, err, "is of no use: want https")
	}
}

// TestVersion reads what wheels say of themselves.
func TestVersion(t *testing.T) {
	const name = "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
	tests := []struct {
		name, file string
		members    map[string]string
		want       string // or "error: " and a part of it
	}{
		{name: "release", file: name, members: metadata("vllm", "0.33.0"), want: "0.33.0"},
		{name: "variant", file: "vllm-0.33.0+cpu-cp38-abi3-linux_x86_64.whl", members: metadata("VLLM", "0.33.0+CPU"), want: "0.33.0+cpu"},
		{name: "name of no wheel", file: "w.whl", members: metadata("vllm", "0.33.0"), want: "0.33.0"},
		{name: "folded, and a body", file: name, members: map[string]string{
			"vllm.dist-info/METADATA": "Name: vllm\r\nSummary: a\r\n Version: 1\r\nVersion: 0.33.0\r\n\r\nVersion: 2\r\n",
		}, want: "0.33.0"},
		{name: "another version", file: name, members: metadata("vllm", "0.32.0"), want: `error: its METADATA says that it is "vllm" 0.32.0, its name "vllm" "0.33.0"`},
		{name: "another variant", file: name, members: metadata("vllm", "0.33.0+cpu"), want: `error: its METADATA says that it is "vllm" 0.33.0+cpu`},
		{name: "another project", file: name, members: metadata("torch", "0.33.0"), want: `error: its METADATA says that it is "torch" 0.33.0, its name "vllm"`},
		{name: "no version", file: name, members: metadata("vllm", ""), want: "error: names no project and version"},
		{name: "odd version", file: name, members: metadata("vllm", "nightly"), want: `error: "nightly" is not a version`},
		{name: "no METADATA", file: name, members: map[string]string{"vllm/x.dist-info/METADATA": "x"}, want: "error: is not a wheel: it has 0 members"},
		{name: "two", file: name, members: map[string]string{"a.dist-info/METADATA": "x", "b.dist-info/METADATA": "x"}, want: "error: is not a wheel: it has 2 members"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := onDisk(t, test.file, wheelOf(t, test.members).data)
			wheel, err := pypi.OpenFile(path)
			require.NoError(t, err)
			t.Cleanup(func() { _ = wheel.Close() })
			got, err := wheel.Version()
			checkText(t, got, err, test.want, path)
		})
	}
}

func metadata(project, version string) map[string]string {
	return map[string]string{
		"vllm-0.33.0.dist-info/METADATA": "Metadata-Version: 2.4\nName: " + project + "\nVersion: " + version + "\n\nabout\n",
	}
}

// TestLyingSize: a limit that is what the directory says does not hide that the member has more bytes, and no more are
// written.
func TestLyingSize(t *testing.T) {
	data := wheelOf(t, map[string]string{"big/a": "aaaa"}).data
	data[bytes.Index(data, []byte("PK\x01\x02"))+24] = 3
	wheel, err := pypi.OpenFile(onDisk(t, "w.whl", data))
	require.NoError(t, err)
	t.Cleanup(func() { _ = wheel.Close() })
	var got bytes.Buffer
	checkError(t, wheel.Copy(&got, "big/a", 3), "big/a: ", "w.whl")
	if got.Len() > 3 {
		t.Errorf("wrote %d bytes", got.Len())
	}
}

// TestNegativePlace: a directory that says that a member lies before the wheel is refused, by a request.
func TestNegativePlace(t *testing.T) {
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	extra := append([]byte{1, 0, 8, 0}, bytes.Repeat([]byte{0xff}, 8)...) // of zip64: the place is -1
	for _, header := range []zip.FileHeader{{Name: "a", Extra: extra}, {Name: "b"}} {
		w, err := archive.CreateHeader(&header)
		require.NoError(t, err)
		_, _ = io.WriteString(w, noise(1<<20))
	}
	require.NoError(t, archive.Close())
	server := &wheelServer{data: data.Bytes()}
	place := bytes.Index(server.data, []byte("PK\x01\x02")) + 42
	copy(server.data[place:], "\xff\xff\xff\xff")
	wheel, err := at("http://x").OpenWheel(t.Context(), server.file(t))
	require.NoError(t, err)
	_, err = wheel.ReadFile("a", 1<<20)
	checkError(t, err, "cannot be read as a wheel: ")
	require.Equal(t, server.number, 1, "requests: %q", server.ranges)
}
