package pyclient

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// What is taken of a wheel, and bounds of it.
const (
	packageFolder = "vllm/"
	sourceSuffix  = ".py"
	clientFile    = "vllm/v1/engine/core_client.py"
	maxFile       = 16 << 20  // bytes
	maxTree       = 256 << 20 // bytes
	maxFiles      = 20_000
)

// Entries of the folder that a release has in the cache.
const (
	treeFolder  = "tree"  // what is put before the packages of an environment
	stateFolder = "state" // what the release itself wants to keep
	factsFile   = "facts.json"
)

// A Tree is the Python of a release on disk.
type Tree struct {
	Dir   string `json:"-"`     // absolute; the parent of the package's folder
	State string `json:"-"`     // a folder for what the release caches
	Wheel string `json:"wheel"` // name of the file that it was in
	// SHA256 is of all names and contents.
	SHA256     string `json:"sha256"`
	Files      int    `json:"files"`
	Bytes      int64  `json:"bytes"`
	Downloaded int64  `json:"-"` // bytes; 0 if it was in the cache
}

// A Wheel is where the Python files of a release are.
type Wheel struct {
	// Key names the wheel: by its sha256 if Sure is set. Otherwise it may be another one the next time.
	Key  string
	Sure bool
	// Open opens it, wherever it is: it is closed again.
	Open func(context.Context) (*pypi.Wheel, error)
	// Check refuses files by their digest; nil refuses none. It is asked before any of them is used, those of the cache
	// too.
	Check func(digest string) error
}

// Sources takes the Python files of package vllm out of a wheel, into a folder of cache that is named by the wheel's
// key. What is there already of a wheel that is sure is used again while it has its digest still, without opening the
// wheel.
func Sources(ctx context.Context, wheel Wheel, cache string, log *slog.Logger) (Tree, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return Tree{}, err
	}
	dir := filepath.Join(cache, "sources", wheel.Key)
	if wheel.Sure {
		tree, err := cached(dir)
		if err == nil && wheel.Check != nil {
			err = wheel.Check(tree.SHA256)
		}
		if err == nil {
			log.Info("sources from the cache", "folder", dir, "wheel", tree.Wheel, "files", tree.Files)
			return tree, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("sources in the cache are of no use, and are fetched again", "folder", dir, "error", err)
		}
	}
	opened, err := wheel.Open(ctx)
	if err != nil {
		return Tree{}, fmt.Errorf("python of the release: %w", err)
	}
	defer opened.Close()
	tree, err := fetch(opened, dir, wheel.Check)
	if err != nil {
		return Tree{}, fmt.Errorf("python of %s: %w", opened.File.Name, err)
	}
	log.Info("sources fetched", "folder", dir, "files", tree.Files, "bytes", tree.Bytes, "downloaded", tree.Downloaded)
	return tree, nil
}

// cached is the tree in a folder. An error of what should be there is none of absence.
func cached(dir string) (tree Tree, err error) {
	text, err := os.ReadFile(filepath.Join(dir, factsFile))
	if err != nil {
		return tree, err
	}
	if err := json.Unmarshal(text, &tree); err != nil {
		return tree, fmt.Errorf("%s: %w", factsFile, err)
	}
	tree.Dir, tree.State = filepath.Join(dir, treeFolder), filepath.Join(dir, stateFolder)
	digest, err := digestOf(tree.Dir)
	if err != nil {
		return tree, fmt.Errorf("cannot be read: %v", err)
	}
	if digest != tree.SHA256 {
		return tree, fmt.Errorf("its files have sha256 %s, want %s", digest, tree.SHA256)
	}
	return tree, nil
}

// digestOf is the digest of all files of a tree. What an interpreter has compiled of them would count as well: it is
// configured to write nothing there.
func digestOf(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", name)
		}
		data, err := os.ReadFile(path)
		if err == nil {
			addTo(sum, filepath.ToSlash(name), data)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// addTo adds a file to a digest of many.
func addTo(sum hash.Hash, name string, data []byte) {
	sum.Write([]byte(strconv.Quote(name) + " " + strconv.Itoa(len(data)) + "\n"))
	sum.Write(data)
}

// fetch makes the folder of a wheel: next to its place, so that it exists whole or not at all.
func fetch(wheel *pypi.Wheel, dir string, check func(digest string) error) (tree Tree, err error) {
	files, err := read(wheel)
	if err != nil {
		return tree, err
	}
	if _, found := files[clientFile]; !found {
		return tree, fmt.Errorf("it has no %s among its %d Python files: the client was moved, or this is not a wheel of vLLM",
			clientFile, len(files))
	}
	if check != nil {
		if err := check(digestOfFiles(files)); err != nil {
			return tree, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return tree, err
	}
	made, err := os.MkdirTemp(filepath.Dir(dir), ".new-*")
	if err != nil {
		return tree, err
	}
	defer os.RemoveAll(made) // after the rename there is nothing of that name
	tree = Tree{Wheel: wheel.File.Name, Files: len(files), Downloaded: wheel.Downloaded()}
	if err := tree.lay(files, filepath.Join(made, treeFolder)); err != nil {
		return tree, err
	}
	facts, err := json.Marshal(tree)
	if err != nil {
		return tree, err
	}
	if err := os.WriteFile(filepath.Join(made, factsFile), facts, 0o644); err != nil {
		return tree, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return tree, err
	}
	if err := os.Rename(made, dir); err != nil {
		// Another process may have been faster.
		if there, broken := cached(dir); broken == nil {
			return there, nil
		}
		return tree, err
	}
	tree.Dir, tree.State = filepath.Join(dir, treeFolder), filepath.Join(dir, stateFolder)
	return tree, nil
}

// read returns the Python files of a wheel.
func read(wheel *pypi.Wheel) (map[string][]byte, error) {
	var names []string
	for _, name := range wheel.Names() {
		ours := strings.HasPrefix(name, packageFolder) && strings.HasSuffix(name, sourceSuffix)
		if ours && filepath.IsLocal(filepath.FromSlash(name)) {
			names = append(names, name)
		}
	}
	if len(names) > maxFiles {
		return nil, fmt.Errorf("it has %d Python files, the limit is %d", len(names), maxFiles)
	}
	return wheel.ReadFiles(names, maxFile)
}

// Digest is that of the Python files in a wheel, with which a [Tree] of them must agree.
func Digest(wheel *pypi.Wheel) (string, error) {
	files, err := read(wheel)
	return digestOfFiles(files), err
}

func digestOfFiles(files map[string][]byte) string {
	sum := sha256.New()
	for _, name := range inOrder(files) {
		addTo(sum, name, files[name])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// lay writes the files below a folder, and notes what they are.
func (t *Tree) lay(files map[string][]byte, dir string) error {
	for name, data := range files {
		if t.Bytes += int64(len(data)); t.Bytes > maxTree {
			return fmt.Errorf("its Python files have more than %d bytes", maxTree)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	t.SHA256 = digestOfFiles(files)
	return nil
}

// inOrder are the names of files as a walk through their folders comes by: element by element.
func inOrder(files map[string][]byte) []string {
	return slices.SortedFunc(maps.Keys(files), func(a, b string) int {
		return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
	})
}
