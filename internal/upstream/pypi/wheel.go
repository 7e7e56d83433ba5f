package pypi

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A Wheel is an open wheel, of which members can be read. It is safe for use by several goroutines.
type Wheel struct {
	File File

	where   string               // as errors name it
	all     []*zip.File          // in the order of the directory
	members map[string]*zip.File // by name; nil for one that is there twice
	parts   *parts               // nil for a file on disk
	disk    *os.File             // nil for a URL
}

// OpenWheel reads the directory of a wheel by range requests; members are read when they are asked for, until ctx
// ends. The file may come from no index, and have a URL only: its size is that of the server then, and its name that
// of the URL. A server that has no range requests is asked for the whole file if that has at most 64 MiB and the
// index has its digest.
func (x *Index) OpenWheel(ctx context.Context, f File) (*Wheel, error) {
	u, err := url.Parse(f.URL)
	if err != nil {
		u = &url.URL{}
	}
	if err := checkURL(u); err != nil {
		return nil, fmt.Errorf("the URL of wheel %q is of no use: %w", f.Name, err)
	}
	f.Name = cmp.Or(f.Name, path.Base(u.Path))
	w := &Wheel{File: f, where: shown(u), parts: &parts{index: x, ctx: ctx, url: u, size: f.Size}}
	if err := w.parts.open(f); err != nil {
		return nil, err
	}
	if err := w.readDirectory(w.parts, w.parts.size); err != nil {
		return nil, err
	}
	return w, nil
}

// OpenFile opens a wheel on disk, which [Wheel.Close] closes. A path that is not a regular file is an error.
func OpenFile(path string) (*Wheel, error) {
	info, err := os.Stat(path) // before it is opened: a pipe would wait for its writer
	if err != nil {
		return nil, fmt.Errorf("wheel: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("wheel %s: it is not a regular file", path)
	}
	disk, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("wheel: %w", err)
	}
	w := &Wheel{File: File{Name: filepath.Base(path), Size: info.Size()}, where: path, disk: disk}
	if err := w.readDirectory(disk, info.Size()); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close closes a wheel on disk. One that is read by range requests has nothing to close.
func (w *Wheel) Close() error {
	if w.disk == nil {
		return nil
	}
	return w.disk.Close()
}

// readDirectory finds the members.
func (w *Wheel) readDirectory(r io.ReaderAt, size int64) error {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return w.unreadable(err)
	}
	w.all, w.members = archive.File, make(map[string]*zip.File, len(archive.File))
	for _, f := range archive.File {
		if !fs.ValidPath(strings.TrimSuffix(f.Name, "/")) {
			return w.unreadable(fmt.Errorf("its directory names %q, which is not a path in a wheel", f.Name))
		}
		if _, again := w.members[f.Name]; again {
			w.members[f.Name] = nil
			continue
		}
		w.members[f.Name] = f
	}
	return nil
}

// Names returns the names of all members, sorted. They are paths within the wheel, with slashes.
func (w *Wheel) Names() []string {
	var names []string
	for name := range w.members {
		if !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// find returns a member; one that is not there is [fs.ErrNotExist].
func (w *Wheel) find(name string) (*zip.File, error) {
	f, found := w.members[name]
	switch {
	case !found:
		return nil, fmt.Errorf("%s holds no %s: %w", w.where, name, fs.ErrNotExist)
	case f == nil:
		return nil, fmt.Errorf("%s has %s more than once, so it is not known which one is meant", w.where, name)
	}
	return f, nil
}

// Open returns a member. Its end is an error unless it has the size and the CRC-32 that the directory says. A
// member that is not there is [fs.ErrNotExist].
func (w *Wheel) Open(name string) (io.ReadCloser, error) {
	f, err := w.find(name)
	if err != nil {
		return nil, err
	}
	r, err := f.Open()
	if err != nil {
		return nil, w.unreadable(err)
	}
	return &member{r, w, name}, nil
}

// Copy writes a member of at most limit bytes to dst. One that the directory says to be larger is refused before
// anything of it is downloaded, and of one that has more bytes than the directory says no more are written.
func (w *Wheel) Copy(dst io.Writer, name string, limit int64) error {
	f, err := w.find(name)
	if err != nil {
		return err
	}
	if f.UncompressedSize64 > uint64(max(limit, 0)) {
		return w.tooLarge(name, limit)
	}
	r, err := w.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(dst, r) // ends with an error before there is more than the directory says
	return err
}

// Save writes the whole wheel to dst. It is an error unless the bytes that were written have the sha256 that the index
// lists, or if the index lists none.
func (w *Wheel) Save(dst io.Writer) error {
	if w.parts == nil || w.File.SHA256 == "" {
		return fmt.Errorf("%s cannot be verified: no index lists a sha256 of it", w.where)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(dst, sum), io.NewSectionReader(w.parts, 0, w.parts.size)); err != nil {
		return w.unreadable(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != w.File.SHA256 {
		return fmt.Errorf("%s has sha256 %s, the index lists %s: it is not used", w.where, got, w.File.SHA256)
	}
	return nil
}

func (w *Wheel) tooLarge(name string, limit int64) error {
	return fmt.Errorf("%s: %s has more than %d bytes", w.where, name, limit)
}

// ReadFile returns a member of at most limit bytes.
func (w *Wheel) ReadFile(name string, limit int64) ([]byte, error) {
	var data bytes.Buffer
	if err := w.Copy(&data, name, limit); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// Downloaded is how many bytes of the wheel were downloaded until now.
func (w *Wheel) Downloaded() int64 {
	if w.parts == nil {
		return 0
	}
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	return w.parts.downloaded
}

// unreadable names the wheel in an error of its archive; that of a request names it already.
func (w *Wheel) unreadable(err error) error {
	var request *partError
	if errors.As(err, &request) {
		return request.error
	}
	return fmt.Errorf("%s cannot be read as a wheel: %w", w.where, err)
}

// A member names itself in the errors of reading it.
type member struct {
	io.ReadCloser
	wheel *Wheel
	name  string
}

func (m *member) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %w", m.name, m.wheel.unreadable(err))
	}
	return n, err
}

// ReadFiles returns those of several members of at most limit bytes each that are there, by name. They are read in the
// order in which they lie in the wheel, so that few requests fetch many.
func (w *Wheel) ReadFiles(names []string, limit int64) (map[string][]byte, error) {
	wanted := map[string]bool{}
	for _, name := range names {
		f, err := w.find(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case f.UncompressedSize64 > uint64(max(limit, 0)):
			return nil, w.tooLarge(name, limit)
		default:
			wanted[name] = true
		}
	}
	files := make(map[string][]byte, len(wanted))
	for _, f := range w.all {
		if wanted[f.Name] {
			data, err := w.ReadFile(f.Name, limit)
			if err != nil {
				return nil, err
			}
			files[f.Name] = data
		}
	}
	return files, nil
}

const maxMetadata = 4 << 20 // bytes

// Version returns the version that the wheel states in its METADATA, as [compat.Build] writes it. A wheel whose file
// name has another project or version is an error, as its content is not known.
func (w *Wheel) Version() (string, error) {
	var found []string
	for _, name := range w.Names() {
		folder, isMetadata := strings.CutSuffix(name, ".dist-info/METADATA")
		if isMetadata && !strings.Contains(folder, "/") {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s is not a wheel: it has %d members *.dist-info/METADATA, want 1", w.where, len(found))
	}
	text, err := w.ReadFile(found[0], maxMetadata)
	if err != nil {
		return "", err
	}
	var project, version string
	// A field of the head that goes on in the next line is none of these.
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && lines.Text() != ""; {
		switch key, value, _ := strings.Cut(lines.Text(), ":"); strings.ToLower(key) {
		case "name":
			project = strings.TrimSpace(value)
		case "version":
			version = strings.TrimSpace(value)
		}
	}
	if project == "" || version == "" {
		return "", fmt.Errorf("%s: %s names no project and version", w.where, found[0])
	}
	build, err := compat.ParseBuild(version)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", w.where, found[0], err)
	}
	if n, ok := parseWheelName(w.File.Name); ok {
		named, err := compat.ParseBuild(n.version)
		if err != nil || named != build || normalName(n.project) != normalName(project) {
			return "", fmt.Errorf("%s: its METADATA says that it is %q %s, its name %q %q", w.where, project, build, n.project, n.version)
		}
	}
	return build.String(), nil
}

const (
	versionFile = "vllm/_version.py"
	maxVersion  = 64 << 10 // bytes
	commitSize  = 9        // digits
)

// commitPattern is what the build of vLLM writes: __commit_id__ = commit_id = 'g4ba787ec9'.
var commitPattern = lazyregexp.New(`(?m)^__commit_id__ *(?:= *commit_id *)?= *['"]g([0-9a-f]+)['"]`)

// Commit returns the commit of vllm.git that a release was built from, as its wheel names it: nine hexadecimal
// digits. The wheels of a release are built from one commit, except that a later build of a wheel may be of
// another, and counts.
func (x *Index) Commit(ctx context.Context, r Release) (string, error) {
	file, err := r.choose("any platform", func(string) bool { return true })
	if err != nil {
		return "", err
	}
	wheel, err := x.OpenWheel(ctx, file)
	if err != nil {
		return "", err
	}
	return wheel.Commit()
}

// Commit returns the commit of vllm.git that the wheel was built from: nine hexadecimal digits.
func (w *Wheel) Commit() (string, error) {
	text, err := w.ReadFile(versionFile, maxVersion)
	if err != nil {
		return "", fmt.Errorf("commit of %s: %w", w.File.Name, err)
	}
	found := commitPattern().FindSubmatch(text)
	if found == nil || len(found[1]) < commitSize {
		return "", fmt.Errorf("commit of %s: %s names no commit of %d digits", w.File.Name, versionFile, commitSize)
	}
	return string(found[1][:commitSize]), nil
}
