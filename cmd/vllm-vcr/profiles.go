package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// profilesFlag names the folder of wire profiles that this build does not have.
const profilesFlag = "profiles"

// loadProfiles takes in the wire profiles of --profiles, or else those beside the support window that the command works
// with: a line that somebody's window has is a line that every command of theirs knows.
func loadProfiles(env *environment, cmd *cobra.Command) error {
	if env.profiles == "" {
		window := ""
		if flag := cmd.Flags().Lookup("compat"); flag != nil {
			window = flag.Value.String()
		}
		return loadProfilesBeside(env, cmp.Or(window, vcr.CompatPath))
	}
	env.profilesNamed = true
	info, err := os.Stat(env.profiles)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err == nil {
		err = loadProfileFolder(env, env.profiles, os.DirFS(env.profiles))
	}
	if err != nil {
		return fmt.Errorf("--%s %s: %w", profilesFlag, env.profiles, err)
	}
	return nil
}

// loadProfilesBeside takes in the profiles beside a support window, if it has any and no others were named.
func loadProfilesBeside(env *environment, window string) error {
	if env.profilesNamed || !exists(window) {
		return nil
	}
	return loadLineProfiles(env, filepath.Join(filepath.Dir(window), adopt.ProfilesPath))
}

// loadLineProfiles takes in the profiles of a folder that may have none, or be about something else.
func loadLineProfiles(env *environment, dir string) error {
	files := ofLinesOnly{os.DirFS(dir)}
	if names, err := fs.Glob(files, "*.json"); err != nil || len(names) == 0 {
		return err
	}
	if err := loadProfileFolder(env, dir, files); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func loadProfileFolder(env *environment, dir string, files fs.FS) (err error) {
	if err := protocol.LearnAll(files); err != nil {
		return err
	}
	env.profiles, err = filepath.Abs(dir)
	return err
}

// profileName is the name of a line's profile.
var profileName = regexp.MustCompile(`^[0-9]+\.[0-9]+\.json$`)

// ofLinesOnly shows of a folder the files that have the name of a line's profile.
type ofLinesOnly struct{ fs.FS }

// ReadDir makes it an [fs.ReadDirFS].
func (f ofLinesOnly) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() || !profileName.MatchString(e.Name()) }), err
}
