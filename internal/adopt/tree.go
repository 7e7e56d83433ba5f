package adopt

import (
	"cmp"
	"os"
	"path/filepath"
)

// A Tree is a repository with a support window. Its paths begin with that of its folder.
type Tree struct {
	Compat   string // compat.toml
	Manifest string // of the goldens; there may be none yet
	Targets  string // what is captured; empty if the file in the binary counts
	Goldens  string // the folder that bucket paths are relative to
	Profiles string // the folder of wire profiles; there may be none yet
}

// ProfilesPath is the folder of wire profiles beside compat.toml, in a repository that has no code of its own for them.
const ProfilesPath = "profiles"

// embeddedProfiles is that of the repository of this program, which has them in its binary.
const embeddedProfiles = "internal/protocol/profiles"

// FindTree finds what there is in a folder, where it usually is. Manifest, unless empty, is that of the goldens.
func FindTree(root, manifest string) Tree {
	in := func(path string) string { return filepath.Join(root, filepath.FromSlash(path)) }
	t := Tree{
		Compat: in("compat.toml"), Goldens: in("testdata/goldens"), Profiles: in(ProfilesPath),
		Manifest: cmp.Or(manifest, in("conformance/manifest.toml")),
	}
	if exists(in(embeddedProfiles)) {
		t.Profiles = in(embeddedProfiles)
	}
	if beside := in("manifest.toml"); manifest == "" && !exists(t.Manifest) && exists(beside) {
		t.Manifest = beside
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
