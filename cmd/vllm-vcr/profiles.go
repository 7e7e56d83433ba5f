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

// learnProfiles takes in the wire profiles of --profiles, or else those beside the support window that the command works
// with: a line that somebody's window has is a line that every command of theirs knows.
func (a *app) learnProfiles(cmd *cobra.Command) error {
	if a.profiles == "" {
		window := ""
		if flag := cmd.Flags().Lookup("compat"); flag != nil {
			window = flag.Value.String()
		}
		return a.learnBeside(cmp.Or(window, vcr.CompatPath))
	}
	a.profilesNamed = true
	info, err := os.Stat(a.profiles)
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err == nil {
		err = a.learnFolder(a.profiles, os.DirFS(a.profiles))
	}
	if err != nil {
		return fmt.Errorf("--%s %s: %w", profilesFlag, a.profiles, err)
	}
	return nil
}

// learnBeside takes in the profiles beside a support window, if it has any and no others were named.
func (a *app) learnBeside(window string) error {
	if a.profilesNamed || !exists(window) {
		return nil
	}
	return a.learnLines(filepath.Join(filepath.Dir(window), adopt.ProfilesPath))
}

// learnLines takes in the profiles of a folder that may have none, or be about something else.
func (a *app) learnLines(dir string) error {
	files := ofLinesOnly{os.DirFS(dir)}
	if names, err := fs.Glob(files, "*.json"); err != nil || len(names) == 0 {
		return err
	}
	if err := a.learnFolder(dir, files); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func (a *app) learnFolder(dir string, files fs.FS) (err error) {
	if err := protocol.LearnAll(files); err != nil {
		return err
	}
	a.profiles, err = filepath.Abs(dir)
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
