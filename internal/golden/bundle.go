package golden

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
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
	// Open gives the bytes of a golden, as [Store.Open] does.
	Open func(Object) (*File, error)
}

// WriteBundle writes a bundle: one tar of regular files without times and owners, in the order of their names, so that
// the same content is the same bytes. It has
//
//	SHA256SUMS           of all others, as sha256sum -c wants it
//	compat.toml
//	manifest.toml
//	sha256/4ff18b97…     one golden
//
// Goldens go through it one after the other, in constant memory. They have 8 GiB at most, which is the format's limit.
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
		if err := writeMember(t, m.name, int64(len(m.text)), bytes.NewReader(m.text)); err != nil {
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
	f, err := b.Open(g)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeMember(t, goldenMembers+g.SHA256, f.Size(), f)
}

func writeMember(t *tar.Writer, name string, size int64, r io.Reader) error {
	err := t.WriteHeader(&tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644})
	if err == nil {
		_, err = io.Copy(t, r)
	}
	if err != nil {
		return fmt.Errorf("bundle: %s: %w", name, err)
	}
	return nil
}
