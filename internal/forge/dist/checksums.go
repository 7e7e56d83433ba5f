package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// Names in dist/ and in release/.
const (
	checksumsName = "checksums.txt"
	versionName   = "VERSION"
	treeName      = "TREE"
)

// A checksums holds lower-case hex SHA-256 digests by file name.
type checksums map[string]string

// String is the format of sha256sum, sorted by name.
func (c checksums) String() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&text, "%s  %s\n", c[name], name)
	}
	return text.String()
}

var checksumLine = regexp.MustCompile(`^([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+-]*)$`)

// readChecksums reads what [checksums.String] wrote.
func readChecksums(path string) (checksums, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sums := checksums{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		fields := checksumLine.FindStringSubmatch(lines.Text())
		if fields == nil {
			return nil, fmt.Errorf("%s:%d: want 64 lower-case hex digits, two spaces and a file name", path, number)
		}
		if _, twice := sums[fields[2]]; twice {
			return nil, fmt.Errorf("%s:%d: %s is listed twice", path, number, fields[2])
		}
		sums[fields[2]] = fields[1]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(sums) == 0 {
		return nil, fmt.Errorf("%s: it lists no file", path)
	}
	return sums, nil
}

// sumArchives digests the archives and wheels in a folder. None at all is an error.
func sumArchives(dir string) (checksums, error) {
	return sumFiles(dir, func(name string) bool {
		return strings.HasSuffix(name, archiveSuffix) || strings.HasSuffix(name, wheelSuffix)
	})
}

func sumFiles(dir string, wanted func(name string) bool) (checksums, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sums := checksums{}
	for _, file := range files {
		if file.IsDir() || !wanted(file.Name()) {
			continue
		}
		if sums[file.Name()], err = atomicfile.SHA256(filepath.Join(dir, file.Name())); err != nil {
			return nil, err
		}
	}
	if len(sums) == 0 {
		return nil, fmt.Errorf("nothing built in %s: run make dist", dir)
	}
	return sums, nil
}

// differences says, a line each, what got has otherwise than want. The names tell where each comes from.
func differences(want, got checksums, wantName, gotName string) []string {
	names := maps.Clone(want)
	maps.Copy(names, got)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, wanted := want[name]
		g, there := got[name]
		switch {
		case !there:
			lines = append(lines, fmt.Sprintf("%s: %s has it, %s has not", name, wantName, gotName))
		case !wanted:
			lines = append(lines, fmt.Sprintf("%s: %s has it, %s has not", name, gotName, wantName))
		case w != g:
			lines = append(lines, fmt.Sprintf("%s: %s %s, %s %s", name, wantName, w, gotName, g))
		}
	}
	return lines
}

// requireSame returns an error that wraps errDiffers and lists what differs.
func requireSame(want, got checksums, wantName, gotName string) error {
	if lines := differences(want, got, wantName, gotName); len(lines) > 0 {
		return fmt.Errorf("%w:\n  %s", errDiffers, strings.Join(lines, "\n  "))
	}
	return nil
}

// ofTargets reports whether an archive or a wheel is of one of the targets, or of none that there is.
func ofTargets(name string, targets []target) bool {
	of := func(t target) bool {
		return strings.HasSuffix(name, "_"+t.os+"_"+t.arch+archiveSuffix) || strings.HasSuffix(name, "-"+platforms[t]+wheelSuffix)
	}
	return slices.ContainsFunc(targets, of) || !slices.ContainsFunc(allTargets, of)
}

// committedVersion is that of release/VERSION.
func (p *product) committedVersion() (string, error) {
	path := p.path(filepath.Join("release", versionName))
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is missing: this commit is not a release, so give a version, "+
			"for example make dist VERSION=1.2.3", path)
	} else if err != nil {
		return "", err
	}
	version := strings.TrimSuffix(string(data), "\n")
	if _, err := parseVersion(version); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return version, nil
}

// tree returns the digest of what a release is made of: of the list, as sha256sum writes it and sorted by name, of all files
// that git knows but those in release/. Modes of files are not in it. scripts/install.sh computes the same without git, as an
// action's checkout has none.
func (p *product) tree(ctx context.Context) (string, error) {
	out, err := output(ctx, p.root, nil, "git", "ls-files", "-z", "--cached", "--", ".", ":!release")
	if err != nil {
		return "", err
	}
	sums := checksums{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if strings.ContainsAny(name, "\\\n\r\"'") {
			return "", fmt.Errorf("%q: scripts/install.sh cannot read such a name: rename the file", name)
		}
		sums[name], err = atomicfile.SHA256(filepath.Join(p.root, name))
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is deleted, but not committed as such", name)
		} else if err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256([]byte(sums.String()))
	return hex.EncodeToString(sum[:]), nil
}

// requireTree fails unless release/TREE names the tree that it lies in.
func (p *product) requireTree(ctx context.Context) error {
	path := p.path(filepath.Join("release", treeName))
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: make release-files VERSION=1.2.3 writes it", err)
	}
	is, err := p.tree(ctx)
	if err != nil {
		return err
	}
	if named := strings.TrimSpace(string(data)); named != is {
		return fmt.Errorf("%w: release/ is of the tree %.12q, and this is %.12q: this commit is not that release. "+
			"Remove release/ (git rm -r release), or release this tree (make release-files VERSION=1.2.3)", errDiffers, named, is)
	}
	return nil
}

// checkCommand fails when release/ describes another tree than the one that it lies in. Most commits have no release/.
func (p *product) checkCommand(ctx context.Context) error {
	if _, err := os.Stat(p.path("release")); errors.Is(err, fs.ErrNotExist) {
		_, err := fmt.Fprintln(p.log, "no release/: this commit is not a release")
		return err
	}
	version, err := p.committedVersion()
	if err != nil {
		return err
	}
	if _, err := readChecksums(p.path(filepath.Join("release", checksumsName))); err != nil {
		return err
	}
	if err := p.requireTree(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.log, "release/ is %s %s, of this tree\n", p.name, version)
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

// compareCommand compares the archives in dist/, and the list that lies there, with the committed digests.
func (p *product) compareCommand(o options) error {
	version, err := p.committedVersion()
	if err != nil {
		return err
	}
	committed, err := readChecksums(p.path(filepath.Join("release", checksumsName)))
	if err != nil {
		return err
	}
	maps.DeleteFunc(committed, func(name, _ string) bool { return !ofTargets(name, o.targets) })
	built, err := sumArchives(p.path(o.out))
	if err != nil {
		return err
	}
	if err := requireSame(committed, built, "committed", "built"); err != nil {
		return err
	}
	listed, err := readChecksums(filepath.Join(p.path(o.out), checksumsName))
	if err != nil {
		return err
	}
	if err := requireSame(built, listed, "built", "listed"); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.log, "%s %s: %d files have the committed digests\n", p.name, version, len(built))
	return err
}

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
