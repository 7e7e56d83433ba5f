package main

import (
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
	"slices"
	"strings"
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
	case "compare":
		return p.compareCommand(o)
	case "reproduce":
		return p.reproduceCommand(ctx, o)
	case "tag":
		return p.tagCommand(o)
	case "notes":
		return p.notesCommand(o)
	case "image-version":
		return p.imageVersionCommand(o)
	default:
		return p.movingTagsCommand(o, stdin)
	}
}

// arguments are how many each command takes beside its flags.
var arguments = map[string]int{
	"build": 0, "files": 0, "compare": 0, "reproduce": 0, "tag": 1, "notes": 1, "moving-tags": 1, "image-version": 2,
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
	log   io.Writer
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
	return &product{root: root, tools: filepath.Join(root, "tools"), name: "vllm-vcr", log: log}, nil
}

// versionOr returns the version that was asked for, else the one that the repository holds.
func (p *product) versionOr(asked string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	return p.committedVersion()
}

func (p *product) buildCommand(ctx context.Context, o options) error {
	version, err := p.versionOr(o.version)
	if err != nil {
		return err
	}
	return p.build(ctx, version, o.targets, p.path(o.out), nil)
}

// path puts the root before a path that is not absolute.
func (p *product) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(p.root, path)
}
