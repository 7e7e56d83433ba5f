package drift

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
)

// A Tree is a repository with a compat matrix. Its paths begin with that of its folder.
type Tree struct {
	Compat   string // compat.toml
	Manifest string // of the goldens; there may be none yet
	Targets  string // what is captured; empty if the file in the binary counts
	Goldens  string // the folder that bucket paths are relative to
	Profiles string // the folder of wire profiles; there may be none yet
	Releases string // the folder of what may run of releases: that of the profiles, but in the repository of this program
}

// Release is the file of what may run of a release.
func (t Tree) Release(version string) string { return filepath.Join(t.Releases, version+".toml") }

// WithProfiles is the tree with another folder of profiles, and of what may run of releases.
func (t Tree) WithProfiles(dir string) Tree {
	t.Profiles, t.Releases = dir, dir
	return t
}

// ProfilesPath is the folder of wire profiles next to compat.toml, in a repository that has no code of its own for
// them.
const ProfilesPath = "profiles"

// embeddedProfiles is that of the repository of this program, which has them in its binary.
const embeddedProfiles = "internal/wire/protocol/profiles"

// FindTree finds what there is in a folder, where it usually is. Manifest, unless empty, is that of the goldens.
func FindTree(root, manifest string) Tree {
	in := func(path string) string { return filepath.Join(root, filepath.FromSlash(path)) }
	t := Tree{
		Compat: in("compat.toml"), Goldens: in("testdata/goldens"), Profiles: in(ProfilesPath),
		Manifest: cmp.Or(manifest, in("conformance/manifest.toml")),
	}
	t.Releases = t.Profiles
	if exists(in(embeddedProfiles)) {
		t.Profiles, t.Releases = in(embeddedProfiles), in(pinned.Folder)
	}
	if plain := in("manifest.toml"); manifest == "" && !exists(t.Manifest) && exists(plain) {
		t.Manifest = plain
	}
	if targets := in("capture/targets.toml"); exists(targets) {
		t.Targets = targets
	}
	return t
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Write puts all files in place, or none: what was written before a failure is put back as it was. The error names what
// could not be put back. If a file was changed since [PrepareAdoption], nothing is written.
func (p *AdoptPlan) Write() error {
	for _, f := range p.Files {
		now, err := readFile(f.Path)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, f.Before) || (now == nil) != (f.Before == nil) {
			return fmt.Errorf("%s was changed in the meantime, so nothing was written: run this again", f.Path)
		}
	}
	for i, f := range p.Files {
		if err := replace(f.Path, f.After); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", f.Path, err), restore(p.Files[:i]))
		}
	}
	return nil
}

// restore puts back what files were, the last first.
func restore(files []PlannedFile) error {
	var failed []error
	for _, f := range slices.Backward(files) {
		if err := replace(f.Path, f.Before); err != nil {
			failed = append(failed, fmt.Errorf("%s is changed, and could not be put back: %w", f.Path, err))
		}
	}
	return errors.Join(failed...)
}

// replace gives a file another content, so that there is always a whole one. For nil the file is removed.
func replace(path string, data []byte) error {
	switch {
	case data == nil:
		return os.Remove(path)
	case exists(path):
		return atomicfile.Replace(path, data)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o644)
}

// SetValidated sets in a compat matrix whether the goldens of a line are a gate, and returns the matrix as it is then.
func SetValidated(path, line string, validated bool) (*compat.Matrix, error) {
	text, matrix, err := compat.LoadText(path)
	if err != nil {
		return nil, err
	}
	lines, err := matrix.Set(compat.Change{Line: line, Validated: &validated})
	if err != nil {
		return nil, err
	}
	after, err := compat.Rewrite(path, text, lines)
	if err != nil {
		return nil, err
	}
	matrix, _ = compat.Parse(path, after)
	return matrix, atomicfile.Replace(path, after)
}
