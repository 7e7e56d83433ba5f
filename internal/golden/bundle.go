package golden

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Members of a bundle, in the order of the file. The goldens follow, as sha256/<digest>.
const (
	sumsMember     = "SHA256SUMS"
	compatMember   = "compat.toml"
	manifestMember = "manifest.toml"
	goldenMembers  = "sha256/"
)

// maxText is the size that a member which is not a golden may have, in bytes.
const maxText = 64 << 20

// A Bundle is what a run needs, to be carried to where there is no network.
type Bundle struct {
	Compat, Manifest []byte
	// Goldens are those of the manifest. Which are of the same bytes are carried once.
	Goldens []Object
	// Fetch gives the bytes of a golden, as [Store.Fetch] does.
	Fetch func(Object) ([]byte, error)
}

// WriteBundle writes a bundle: one tar of regular files without times and owners, in the order of their names, so that
// the same content is the same bytes. It has
//
//	SHA256SUMS           of all others, as sha256sum -c wants it
//	compat.toml
//	manifest.toml
//	sha256/4ff18b97…     one golden
//
// Goldens go through it one after the other. They have 8 GiB at most, which is the format's limit.
func WriteBundle(w io.Writer, b Bundle) error {
	goldens := slices.Clone(b.Goldens)
	slices.SortFunc(goldens, func(x, y Object) int { return cmp.Compare(x.SHA256, y.SHA256) })
	goldens = slices.CompactFunc(goldens, func(x, y Object) bool { return x.SHA256 == y.SHA256 })
	var sums bytes.Buffer
	fmt.Fprintf(&sums, "%s  %s\n%s  %s\n", digest(b.Compat), compatMember, digest(b.Manifest), manifestMember)
	for _, g := range goldens {
		if err := validDigest(g.SHA256); err != nil {
			return &FetchError{Location: shown(g.Location), Err: err}
		}
		fmt.Fprintf(&sums, "%s  %s%s\n", g.SHA256, goldenMembers, g.SHA256)
	}
	t := tar.NewWriter(w)
	for _, m := range []struct {
		name string
		text []byte
	}{{sumsMember, sums.Bytes()}, {compatMember, b.Compat}, {manifestMember, b.Manifest}} {
		if err := writeMember(t, m.name, m.text); err != nil {
			return err
		}
	}
	for _, g := range goldens {
		if err := b.writeGolden(t, g); err != nil {
			return err
		}
	}
	return t.Close()
}

func (b Bundle) writeGolden(t *tar.Writer, g Object) error {
	data, err := b.Fetch(g)
	if err != nil {
		return err
	}
	return writeMember(t, goldenMembers+g.SHA256, data)
}

func writeMember(t *tar.Writer, name string, data []byte) error {
	err := t.WriteHeader(&tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644})
	if err == nil {
		_, err = t.Write(data)
	}
	if err != nil {
		return fmt.Errorf("bundle: %s: %w", name, err)
	}
	return nil
}

// A BundleFile is a bundle that was opened: what it holds, and where. Nothing of it stays open.
type BundleFile struct {
	Path    string
	members map[string]member
}

// A member is where the bytes of a file of the bundle are.
type member struct{ offset, size int64 }

// OpenBundle reads what a bundle holds, but not the goldens. What is not a bundle is an error, and so is one with anything
// in it that [WriteBundle] does not write: other names, names that occur twice, links, devices.
func OpenBundle(path string) (*BundleFile, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer f.Close()
	b := &BundleFile{Path: path, members: map[string]member{}}
	if err := b.index(f); err != nil {
		return nil, fmt.Errorf("bundle %s: %w", path, err)
	}
	return b, nil
}

// index walks over the headers.
func (b *BundleFile) index(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// The reader takes a header at a time out of the file and seeks over the rest.
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			return b.end(f)
		}
		if err != nil {
			return fmt.Errorf("not a whole tar: %w", err)
		}
		if err := b.acceptable(h); err != nil {
			return fmt.Errorf("member %q: %w", clip(safetext.Line(h.Name)), err)
		}
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if h.Size > info.Size()-offset {
			return fmt.Errorf("member %q: cut off", h.Name)
		}
		b.members[h.Name] = member{offset, h.Size}
	}
}

// acceptable says what is wrong with a member.
func (b *BundleFile) acceptable(h *tar.Header) error {
	_, twice := b.members[h.Name]
	golden, isGolden := strings.CutPrefix(h.Name, goldenMembers)
	isText := h.Name == sumsMember || h.Name == compatMember || h.Name == manifestMember
	switch {
	case h.Typeflag != tar.TypeReg:
		return errors.New("not a regular file")
	case len(h.PAXRecords) > 0:
		return errors.New("has extended attributes")
	case twice:
		return errors.New("occurs twice")
	case isGolden && validDigest(golden) == nil:
		return nil
	case !isText:
		return errors.New("does not belong into a bundle")
	case h.Size > maxText:
		return fmt.Errorf("has %d bytes, and may have %d", h.Size, maxText)
	}
	return nil
}

// end wants all texts, and nothing behind the end but what other tools fill the last block with.
func (b *BundleFile) end(f *os.File) error {
	for _, name := range []string{sumsMember, compatMember, manifestMember} {
		if _, ok := b.members[name]; !ok {
			return fmt.Errorf("it has no %s", name)
		}
	}
	const longestEnd = 1 << 20
	rest, err := readUpTo(f, longestEnd)
	if err == nil && (len(rest) > longestEnd || len(bytes.Trim(rest, "\x00")) > 0) {
		err = errors.New("there are bytes after its end")
	}
	return err
}

// Compat returns the member compat.toml.
func (b *BundleFile) Compat() ([]byte, error) { return b.text(compatMember) }

// Manifest returns the member manifest.toml.
func (b *BundleFile) Manifest() ([]byte, error) { return b.text(manifestMember) }

func (b *BundleFile) text(name string) ([]byte, error) {
	in, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(in)
}

// Digests returns those of its goldens, sorted.
func (b *BundleFile) Digests() []string {
	var digests []string
	for name := range b.members {
		if digest, ok := strings.CutPrefix(name, goldenMembers); ok {
			digests = append(digests, digest)
		}
	}
	slices.Sort(digests)
	return digests
}

// A section is a member of a bundle that is being read.
type section struct {
	*io.SectionReader
	io.Closer
}

// open opens a member. It is fs.ErrNotExist if there is none.
func (b *BundleFile) open(name string) (*section, error) {
	m, ok := b.members[name]
	if !ok {
		return nil, fmt.Errorf("bundle %s has no %s: %w", b.Path, name, fs.ErrNotExist)
	}
	f, err := openRegular(b.Path)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return &section{io.NewSectionReader(f, m.offset, m.size), f}, nil
}

// Verify reads all of the bundle: every member has the sum that SHA256SUMS gives it, a golden also that of its name,
// and nothing is missing or has no sum.
func (b *BundleFile) Verify(ctx context.Context) error {
	sums, err := b.sums()
	if err != nil {
		return fmt.Errorf("bundle %s: %s: %w", b.Path, sumsMember, err)
	}
	var failures []error
	for _, name := range b.names() {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := b.verify(name, sums); err != nil {
			failures = append(failures, fmt.Errorf("bundle %s: %s: %w", b.Path, name, err))
		}
		delete(sums, name)
	}
	for name := range sums {
		failures = append(failures, fmt.Errorf("bundle %s: %s: the list of sums names it, but it is missing", b.Path, clip(safetext.Line(name))))
	}
	slices.SortStableFunc(failures, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	return errors.Join(failures...)
}

// names are those of all members that have a sum.
func (b *BundleFile) names() []string {
	var names []string
	for name := range b.members {
		if name != sumsMember {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (b *BundleFile) verify(name string, sums map[string]string) error {
	in, err := b.open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	got, _, err := digestOf(in)
	want, listed := sums[name]
	pinned, isGolden := strings.CutPrefix(name, goldenMembers)
	switch {
	case err != nil:
		return err
	case !listed:
		return errors.New("it has no sum")
	case got != want:
		return fmt.Errorf("sha256 is %s, want %s", got, clip(want))
	case isGolden && got != pinned:
		return fmt.Errorf("sha256 is %s, not that of its name", got)
	}
	return nil
}

// sums reads SHA256SUMS.
func (b *BundleFile) sums() (map[string]string, error) {
	text, err := b.text(sumsMember)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for lines, n := bufio.NewScanner(bytes.NewReader(text)), 1; lines.Scan(); n++ {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		_, twice := sums[name]
		if !ok || twice || validDigest(sum) != nil {
			return nil, fmt.Errorf("line %d: want a sha256, two spaces and a name that did not occur before", n)
		}
		sums[name] = sum
	}
	return sums, nil
}

// bundleCache holds what the bundle of a [Store] holds once it was looked at.
type bundleCache struct {
	mu   sync.Mutex
	file *BundleFile
}

// bundleFile is the path of the bundle that goldens are taken out of, or empty.
func (s *Store) bundleFile() string {
	scheme, file, _ := strings.Cut(s.Bucket, "://")
	if s.Bundle == "" && strings.EqualFold(scheme, "bundle") {
		return file
	}
	return s.Bundle
}

// Where is the location that the store shows for a golden: that of the registry, or the place in the bundle.
func (s *Store) Where(o Object) string {
	file := s.bundleFile()
	if file == "" {
		return o.Location
	}
	scheme, rest, hasScheme := strings.Cut(o.Location, "://")
	switch {
	case !hasScheme:
		rest = o.Location
	case strings.EqualFold(scheme, "bundle"):
		rest = strings.TrimPrefix(rest, file)
	}
	if rest = strings.TrimLeft(rest, "/"); rest == "" {
		rest = goldenMembers + o.SHA256
	}
	return "bundle://" + file + "/" + rest
}

// fromBundle takes a golden out of the bundle.
func (s *Store) fromBundle(ctx context.Context, p pin, path string, form form) (got, error) {
	if ctx.Err() != nil {
		return got{}, p.failed(context.Cause(ctx), 0)
	}
	in, err := s.openInBundle(path, p.sha256)
	if err != nil {
		e := &FetchError{Location: p.location, Err: err}
		if errors.Is(err, fs.ErrNotExist) {
			e.Hint = "make the bundle with this golden, or select those that are in it"
		}
		return got{}, e
	}
	return p.read(in, form)
}

func (s *Store) openInBundle(path, digest string) (*section, error) {
	s.bundle.mu.Lock()
	defer s.bundle.mu.Unlock()
	if s.bundle.file == nil {
		file, err := OpenBundle(path)
		if err != nil {
			return nil, err
		}
		s.bundle.file = file
	}
	return s.bundle.file.open(goldenMembers + digest)
}
