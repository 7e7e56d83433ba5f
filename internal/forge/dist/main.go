package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// Exit codes, see the comment of the package.
const (
	exitOK = iota
	exitDiffers
	exitUsage
	exitInfra
)

// errDiffers is a build that did not come out as it had to.
var errDiffers = errors.New("the bytes are others")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdin, stdout)
	var failed *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitUsage
	}
	fmt.Fprintln(stderr, "dist:", err)
	switch {
	case errors.Is(err, errDiffers):
		return exitDiffers
	case errors.As(err, &failed), errors.Is(err, exec.ErrNotFound):
		return exitInfra
	}
	return exitUsage
}

// An options is what the flags say.
type options struct {
	version, out string
	targets      []target
	shareCache   bool
	rest         []string // arguments that are no flags
}

func dispatch(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("want a command: one of %s", strings.Join(commands, ", "))
	}
	o, err := parseOptions(args[0], args[1:])
	if err != nil {
		return err
	}
	p, err := findProduct(ctx, stdout)
	if err != nil {
		return err
	}
	switch args[0] {
	case "build":
		return p.buildCommand(ctx, o)
	case "files":
		return p.filesCommand(ctx, o)
	case "check":
		return p.checkCommand(ctx)
	case "compare":
		return p.compareCommand(o)
	case "reproduce":
		return p.reproduceCommand(ctx, o)
	case "tag":
		released, err := p.releaseOf(ctx, o.rest[0])
		if err != nil {
			return err
		}
		_, err = p.notes(released)
		return err
	case "notes":
		notes, err := p.notes(o.rest[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, notes)
		return err
	case "image-version":
		return p.imageVersionCommand(ctx, o)
	default:
		return p.movingTagsCommand(o, stdin)
	}
}

// arguments are how many each command takes beside its flags.
var arguments = map[string]int{
	"build": 0, "files": 0, "check": 0, "compare": 0, "reproduce": 0, "tag": 1, "notes": 1, "moving-tags": 1, "image-version": 2,
}

var commands = slices.Sorted(maps.Keys(arguments))

func parseOptions(command string, args []string) (options, error) {
	want, ok := arguments[command]
	if !ok {
		return options{}, fmt.Errorf("no command %q: want one of %s", command, strings.Join(commands, ", "))
	}
	var o options
	var targets string
	flags := flag.NewFlagSet("dist "+command, flag.ContinueOnError)
	flags.StringVar(&o.version, "version", "", "of the release, for example 1.2.3; default that of release/VERSION")
	flags.StringVar(&o.out, "out", "dist", "folder of the archives, in the repository or absolute")
	flags.StringVar(&targets, "targets", "", "systems and architectures such as linux/amd64, by comma; default all")
	flags.BoolVar(&o.shareCache, "share-cache", false, "reproduce: build with the user's build cache, which is quicker")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	o.rest = flags.Args()
	if len(o.rest) != want {
		return options{}, fmt.Errorf("%s: got %d arguments, want %d", command, len(o.rest), want)
	}
	if o.version != "" {
		if _, err := parseVersion(o.version); err != nil {
			return options{}, err
		}
	}
	var err error
	o.targets, err = parseTargets(targets)
	return o, err
}

// A product is what is built, and where its source lies.
type product struct {
	root  string // folder of go.mod
	tools string // folder of the module that pins the writer of SBOMs
	name  string // of the binary, and of the folder in cmd
	// helpers are further binaries, which the first calls: all are in an archive.
	helpers []string
	// manual is the page of commands that the manual pages are made of, a path in the repository; empty for none.
	manual string
	// python is the folder of the package of Python, of which wheels are made; empty for none.
	python string
	log    io.Writer
}

// findProduct returns the product whose repository the process runs in.
func findProduct(ctx context.Context, log io.Writer) (*product, error) {
	out, err := output(ctx, "", nil, "go", "env", "GOMOD")
	if err != nil {
		return nil, err
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == os.DevNull {
		return nil, errors.New("no go.mod here or above: run this in the repository")
	}
	root := filepath.Dir(file)
	return &product{root: root, tools: filepath.Join(root, "tools"), name: "vllm-vcr", helpers: []string{"vllm-vcr-cluster", "vllm-vcr-dataset"}, manual: "docs/cli.md", python: "python", log: log}, nil
}

func (p *product) buildCommand(ctx context.Context, o options) error {
	if o.version == "" {
		var err error
		if o.version, err = p.committedVersion(); err != nil {
			return err
		}
	}
	return p.build(ctx, o.version, o.targets, p.path(o.out), nil)
}

// path puts the root before a path that is not absolute.
func (p *product) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(p.root, path)
}

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
	tree, err := p.tree(ctx)
	if err != nil {
		return err
	}
	for _, file := range []struct{ name, text string }{
		{checksumsName, sums.String()}, {treeName, tree + "\n"}, {versionName, o.version + "\n"},
	} {
		if err := atomicfile.Write(p.path(filepath.Join("release", file.name)), []byte(file.text), 0o644); err != nil {
			return err
		}
	}
	return nil
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

// releaseOf returns the version of a tag, which is the committed one, of this very tree, on main.
func (p *product) releaseOf(ctx context.Context, tag string) (string, error) {
	released, err := p.committedVersion()
	if err != nil {
		return "", err
	}
	if tag != "v"+released {
		return "", fmt.Errorf("the tag is %q, but release/%s says %s: tag the commit that made it so",
			tag, versionName, released)
	}
	if err := p.requireTree(ctx); err != nil {
		return "", err
	}
	if _, err := output(ctx, p.root, nil, "git", "merge-base", "--is-ancestor", "HEAD", "refs/remotes/origin/main"); err != nil {
		return "", fmt.Errorf("the tag %s is not on main, or the history is not here: tag a commit that was reviewed and merged: %v", tag, err)
	}
	return released, nil
}

var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)

// imageVersionCommand prints of which kind the image of a ref is, and its version. A release is the newest one unless there
// is a tag of a newer one.
func (p *product) imageVersionCommand(ctx context.Context, o options) error {
	ref, commit := o.rest[0], o.rest[1]
	if !commitPattern.MatchString(commit) {
		return fmt.Errorf("commit %q: want 40 hex digits", commit)
	}
	kind, of := "main", "0.0.0-main.g"+commit[:12]
	if tag, ok := strings.CutPrefix(ref, "refs/tags/"); ok {
		released, err := p.releaseOf(ctx, tag)
		if err != nil {
			return err
		}
		tags, err := output(ctx, p.root, nil, "git", "tag", "--list", "v*")
		if err != nil {
			return err
		}
		kind, of = "release", released
		if v, _ := parseVersion(released); v.suffix == "" && len(newerReleases(v, strings.Fields(string(tags)))) == 0 {
			kind = "newest"
		}
	} else if ref != "refs/heads/main" {
		return fmt.Errorf("ref %q: images are built of refs/heads/main and of tags", ref)
	}
	_, err := fmt.Fprintf(p.log, "kind=%s\nversion=%s\n", kind, of)
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
	for _, other := range newerReleases(released, tags) {
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

// newerReleases returns the versions of the tags that are newer, without pre-releases and tags of another form.
func newerReleases(than version, tags []string) []version {
	var found []version
	for _, tag := range tags {
		text, ok := strings.CutPrefix(tag, "v")
		other, err := parseVersion(text)
		if ok && err == nil && other.suffix == "" && slices.CompareFunc(other.numbers[:], than.numbers[:], cmp.Compare[int]) > 0 {
			found = append(found, other)
		}
	}
	return found
}

// parseTargets reads a list such as linux/amd64,darwin/arm64. Nothing means all.
func parseTargets(list string) ([]target, error) {
	if list == "" {
		return allTargets, nil
	}
	var targets []target
	for name := range strings.SplitSeq(list, ",") {
		at := slices.IndexFunc(allTargets, func(t target) bool { return t.String() == name })
		if at < 0 {
			return nil, fmt.Errorf("no target %q: want some of %v, by comma", name, allTargets)
		}
		targets = append(targets, allTargets[at])
	}
	return targets, nil
}
