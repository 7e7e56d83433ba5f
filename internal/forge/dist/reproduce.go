package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// reproduceCommand builds the files of the repository in two folders and compares everything that came out.
func (p *product) reproduceCommand(ctx context.Context, o options) error {
	tmp, err := os.MkdirTemp("", "dist-reproduce-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	version := o.version
	if version == "" {
		version = "0.0.0"
	}
	// Paths of different length: one that got into a binary would move everything behind it.
	first, err := p.buildCopy(ctx, filepath.Join(tmp, "a"), version, o)
	if err != nil {
		return err
	}
	second, err := p.buildCopy(ctx, filepath.Join(tmp, "another", "and", "longer", "folder"), version, o)
	if err != nil {
		return err
	}
	if err := requireSame(first, second, "first", "second"); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.log, "reproducible: %d files are the same from two folders\n", len(first))
	return err
}

// buildCopy copies the source below a folder, builds it there, and returns the digests of the results.
func (p *product) buildCopy(ctx context.Context, dir, version string, o options) (checksums, error) {
	start := time.Now()
	clone := *p
	clone.root, clone.tools, clone.log = filepath.Join(dir, "source"), filepath.Join(dir, "source", "tools"), io.Discard
	if err := p.copySource(ctx, clone.root); err != nil {
		return nil, err
	}
	var env []string
	if !o.shareCache {
		env = []string{"GOCACHE=" + filepath.Join(dir, "cache")}
	}
	out := filepath.Join(dir, "dist")
	if err := clone.build(ctx, version, o.targets, out, env); err != nil {
		return nil, err
	}
	fmt.Fprintf(p.log, "built %v in %s: %.0f s\n", o.targets, clone.root, time.Since(start).Seconds())
	return sumFiles(out, func(string) bool { return true })
}

// copySource copies the files that git knows, and those that it would be told of, as they lie in the work tree.
func (p *product) copySource(ctx context.Context, to string) error {
	out, err := output(ctx, p.root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		err := copyFile(filepath.Join(p.root, name), filepath.Join(to, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // deleted, but not yet committed as such
			return err
		}
	}
	return nil
}

func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.Copy(dst, src)
	return err
}
