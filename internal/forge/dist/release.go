package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// A version is MAJOR.MINOR.PATCH, or that with a suffix such as -rc.1, which comes before it.
type version struct {
	numbers [3]int
	suffix  string
}

const number = `(0|[1-9]\d{0,5})`

var versionPattern = regexp.MustCompile(
	`^` + number + `\.` + number + `\.` + number + `(-[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)*)?$`)

func parseVersion(text string) (version, error) {
	fields := versionPattern.FindStringSubmatch(text)
	if fields == nil {
		return version{}, fmt.Errorf("version %q: want MAJOR.MINOR.PATCH such as 1.2.3, or 1.2.3-rc.1, without a v", text)
	}
	v := version{suffix: fields[4]}
	for i := range v.numbers {
		v.numbers[i], _ = strconv.Atoi(fields[i+1]) // six digits at most, says the pattern
	}
	return v, nil
}

// filesCommand builds a release and writes down, in release/, which it is and what its archives are.
func (p *product) filesCommand(ctx context.Context, o options) error {
	if o.version == "" {
		return errors.New("files: want -version 1.2.3")
	}
	if len(o.targets) != len(allTargets) {
		return errors.New("files: a release has all targets: leave -targets out")
	}
	if err := p.requireCommitted(ctx); err != nil {
		return err
	}
	if err := p.build(ctx, o.version, o.targets, p.path(o.out), nil); err != nil {
		return err
	}
	sums, err := sumArchives(p.path(o.out))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.path("release"), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(p.path(filepath.Join("release", checksumsName)), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	return atomicfile.Write(p.path(filepath.Join("release", versionName)), []byte(o.version+"\n"), 0o644)
}

// requireCommitted fails when something but release/ differs from the last commit: the digests would be of files that
// nobody else has.
func (p *product) requireCommitted(ctx context.Context) error {
	out, err := output(ctx, p.root, nil, "git", "status", "--porcelain", "--", ".", ":!release")
	if err != nil {
		return err
	}
	if len(out) > 0 {
		return fmt.Errorf("commit these first, as the digests are of what is built from a commit:\n%s", out)
	}
	return nil
}

// tagCommand checks a tag before anything is built from it.
func (p *product) tagCommand(o options) error {
	released, err := p.releaseOf(o.rest[0])
	if err != nil {
		return err
	}
	_, err = p.notes(released)
	return err
}

// releaseOf returns the version of a tag, which is the committed one.
func (p *product) releaseOf(tag string) (string, error) {
	released, err := p.committedVersion()
	if err != nil {
		return "", err
	}
	if tag != "v"+released {
		return "", fmt.Errorf("the tag is %q, but release/%s says %s: tag the commit that made it so",
			tag, versionName, released)
	}
	return released, nil
}

var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

// imageVersionCommand prints of which kind the image of a ref is, and its version.
func (p *product) imageVersionCommand(o options) error {
	ref, commit := o.rest[0], o.rest[1]
	if !commitPattern.MatchString(commit) {
		return fmt.Errorf("commit %q: want 40 hex digits", commit)
	}
	kind, of := "main", "0.0.0-main.g"+commit[:12]
	if tag, ok := strings.CutPrefix(ref, "refs/tags/"); ok {
		released, err := p.releaseOf(tag)
		if err != nil {
			return err
		}
		kind, of = "release", released
	} else if ref != "refs/heads/main" {
		return fmt.Errorf("ref %q: images are built of refs/heads/main and of tags", ref)
	}
	_, err := fmt.Fprintf(p.log, "kind=%s\nversion=%s\n", kind, of)
	return err
}

func (p *product) notesCommand(o options) error {
	notes, err := p.notes(o.rest[0])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.log, notes)
	return err
}

// notes is the section of the changelog about a version, without its heading.
func (p *product) notes(version string) (string, error) {
	path := p.path("CHANGELOG.md")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	heading := regexp.MustCompile(`^## \[?` + regexp.QuoteMeta(version) + `\]?( |$)`)
	var lines []string
	inside := false
	for line := range strings.SplitSeq(string(data), "\n") {
		if strings.HasPrefix(line, "## ") {
			inside = heading.MatchString(line)
		} else if inside {
			lines = append(lines, line)
		}
	}
	notes := strings.TrimSpace(strings.Join(lines, "\n"))
	if notes == "" {
		return "", fmt.Errorf("%s: no section %q, or nothing in it: say what the release changes", path, "## "+version)
	}
	return notes, nil
}

func (p *product) movingTagsCommand(o options, stdin io.Reader) error {
	released, err := parseVersion(o.rest[0])
	if err != nil {
		return err
	}
	var tags []string
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		tags = append(tags, lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("tags: %w", err)
	}
	for _, tag := range movingTags(released, tags) {
		if _, err := fmt.Fprintln(p.log, tag); err != nil {
			return err
		}
	}
	return nil
}

// movingTags returns the tags, of v1 and v1.2, whose newest release this one is. A patch of an older line leaves v1
// where it is, and a pre-release moves none.
func movingTags(released version, tags []string) []string {
	if released.suffix != "" {
		return nil
	}
	major, minor := true, true
	for _, tag := range tags {
		other, err := parseVersion(strings.TrimPrefix(tag, "v"))
		if err != nil || !strings.HasPrefix(tag, "v") || other.suffix != "" || !newer(other, released) {
			continue
		}
		major = major && other.numbers[0] != released.numbers[0]
		minor = minor && !slices.Equal(other.numbers[:2], released.numbers[:2])
	}
	var moving []string
	if major {
		moving = append(moving, fmt.Sprintf("v%d", released.numbers[0]))
	}
	if minor {
		moving = append(moving, fmt.Sprintf("v%d.%d", released.numbers[0], released.numbers[1]))
	}
	return moving
}

func newer(a, b version) bool {
	return slices.CompareFunc(a.numbers[:], b.numbers[:], cmp.Compare[int]) > 0
}
