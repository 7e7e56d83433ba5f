package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// learned are the profiles that came at run time. They go before those of the
// build.
var learned taught

type taught struct {
	mu    sync.RWMutex
	texts map[string][]byte // by line
}

func (t *taught) text(line string) ([]byte, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	text, known := t.texts[line]
	return text, known
}

func (t *taught) lines() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.texts))
}

// Learn makes a profile that of its line, for all of the process, and in the
// place of the build's own if that has one. It refuses a profile that no codec
// can be compiled from.
func Learn(p *Profile) error {
	if line := LineOf(p.Version); line != p.Line || line == p.Version || p.Line == Nightly {
		return fmt.Errorf("wire profile of line %q is of release %q: want a release of the line", p.Line, p.Version)
	}
	if _, err := NewCodec(p); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := WriteProfile(&text, p); err != nil {
		return err
	}
	learned.mu.Lock()
	defer learned.mu.Unlock()
	if learned.texts == nil {
		learned.texts = map[string][]byte{}
	}
	learned.texts[p.Line] = text.Bytes()
	codecs.Clear()
	return nil
}

// LearnAll learns every profile of a folder: files LINE.json, as [WriteProfile]
// writes them. A folder without any is an error.
func LearnAll(folder fs.FS) error {
	names, err := fs.Glob(folder, "*.json")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("it holds no profile: want files such as 0.33.json")
	}
	slices.Sort(names)
	for _, name := range names {
		p, err := readProfile(folder, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if want := p.Line + ".json"; path.Base(name) != want {
			return fmt.Errorf("%s holds the profile of line %s: want it in %s", name, p.Line, want)
		}
		if err := Learn(p); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// LineFiles shows of a folder the files that have the name of a line's profile, such as 0.34.json: for a folder that may hold
// other JSON too.
func LineFiles(folder fs.FS) fs.FS { return lineFiles{folder} }

type lineFiles struct{ fs.FS }

var profileName = lazyregexp.New(`^[0-9]+\.[0-9]+\.json$`)

// ReadDir makes it an [fs.ReadDirFS].
func (f lineFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() || !profileName().MatchString(e.Name()) }), err
}

// readProfile refuses keys it does not know: a profile is written by this
// project alone, and what it says must not be lost.
func readProfile(folder fs.FS, name string) (*Profile, error) {
	file, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadProfile(file)
}
