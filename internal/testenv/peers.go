package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Environment variables read here.
const (
	envPeers     = "VLLM_VCR_PEERS"         // absolute path of the folder of peers
	envRequire   = "VLLM_VCR_REQUIRE_PEERS" // an absent peer fails the test
	envFrontends = "VLLM_VCR_FRONTENDS"     // versions that FrontendVersions returns, separated by spaces
	envCI        = "CI"                     // as envRequire; set by every CI service
	envKube      = "VLLM_VCR_REQUIRE_KUBE"  // as envRequire, for Kubernetes, which the others do not require
	envSlow      = "VLLM_VCR_SLOW"          // runs what Slow marks
)

// oldFrontend is the oldest release whose frontend sends tensors in frames of their own.
const oldFrontend = "0.27.1"

// defaultFrontends are the vLLM releases that a CI run must have, newest first: those of the newest two lines of
// compat.toml, and oldFrontend. The script .ci/peers installs these, and those that tests name.
func defaultFrontends() ([]string, error) {
	root, err := ModuleRoot()
	if err != nil {
		return nil, err
	}
	matrix, err := os.ReadFile(filepath.Join(root, "compat.toml"))
	return newestTwo(matrix), err
}

var tagPattern = regexp.MustCompile(`(?m)^tag = "v([0-9.]+(?:\.post\d+)?)"`)

// newestTwo are the default frontends of a compat matrix, which has its newest line on top.
func newestTwo(matrix []byte) []string {
	var versions []string
	for _, match := range tagPattern.FindAllSubmatch(matrix, 2) {
		versions = append(versions, string(match[1]))
	}
	if !slices.Contains(versions, oldFrontend) {
		versions = append(versions, oldFrontend)
	}
	return versions
}

var releasePattern = regexp.MustCompile(`^\d+\.\d+\.\d+(\.post\d+)?$`)

// Python returns the path of an interpreter that has pyzmq and msgspec.
func Python(t testing.TB) string {
	t.Helper()
	dir := PeersDir(t)
	path, err := found(filepath.Join(dir, "python", "bin", "python"), "Python with pyzmq and msgspec", "python")
	settle(t, err)
	return path
}

// Zizmor returns the path of the program that finds unsafe workflows.
func Zizmor(t testing.TB) string {
	t.Helper()
	path, err := found(filepath.Join(PeersDir(t), "lint", "bin", "zizmor"), "zizmor", "lint")
	settle(t, err)
	return path
}

// NIXL returns the path of an interpreter that has nixl.
func NIXL(t testing.TB) string {
	t.Helper()
	dir := PeersDir(t)
	path, err := found(filepath.Join(dir, "nixl", "bin", "python"), "Python with nixl", "nixl")
	settle(t, err)
	return path
}

// Frontend returns the path of the vllm-rs binary of the given vLLM release, for example "0.33.0".
func Frontend(t testing.TB, version string) string {
	t.Helper()
	dir := PeersDir(t)
	path, err := findFrontend(dir, version)
	settle(t, err)
	return path
}

// Frontends returns the versions of all installed frontends, newest first. None at all counts as an absent peer.
func Frontends(t testing.TB) []string {
	t.Helper()
	dir := PeersDir(t)
	versions, err := listFrontends(dir)
	settle(t, err)
	return versions
}

// FrontendVersions returns the vLLM releases whose frontends tests are run against, installed or not: those of
// $VLLM_VCR_FRONTENDS, separated by spaces, by default the three of a CI run. It is never empty.
func FrontendVersions() []string {
	if versions := strings.Fields(os.Getenv(envFrontends)); len(versions) > 0 {
		return versions
	}
	versions, err := defaultFrontends()
	if err != nil {
		return []string{oldFrontend}
	}
	return versions
}

// absentError is a peer that is not installed.
type absentError struct {
	what, where string
	install     string // arguments of .ci/peers
}

func (e *absentError) Error() string {
	return fmt.Sprintf("no %s at %s: install it with: .ci/peers %s", e.what, e.where, e.install)
}

// settle is the policy of this package for a peer that was not found. It returns only if err is nil.
func settle(t testing.TB, err error) {
	t.Helper()
	settleUnless(t, err, required())
}

func settleUnless(t testing.TB, err error, required bool) {
	t.Helper()
	var absent *absentError
	switch {
	case err == nil:
	case errors.As(err, &absent) && !required:
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

func required() bool { return anySet(envCI, envRequire) }

// Slow marks a test that `go test ./...` has no time for, as it compiles releases, builds images, runs whole workflows or
// inflates gigabytes. VLLM_VCR_SLOW=1 runs it, and so do .ci/run and make test-slow.
func Slow(t testing.TB, why string) {
	t.Helper()
	if !anySet(envSlow) {
		t.Skipf("takes long, as it %s: make test-slow", why)
	}
}

// anySet reports whether one of the variables is set. A value that is not a boolean counts as true: some CI services set CI
// to their name.
func anySet(names ...string) bool {
	for _, name := range names {
		value := os.Getenv(name)
		set, err := strconv.ParseBool(value)
		if value != "" && (set || err != nil) {
			return true
		}
	}
	return false
}

// PeersDir is the folder that peers are installed in, an absolute path.
func PeersDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(envPeers); dir != "" {
		if !filepath.IsAbs(dir) {
			t.Fatalf("%s is %q: want an absolute path, as each test runs in its own folder", envPeers, dir)
		}
		return dir
	}
	// Not os.UserCacheDir: the script that installs follows this rule on every system.
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		require.NoErrorf(t, err, "find the folder of peers: set %s to its absolute path", envPeers)
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "vllm-vcr", "peers")
}

// found returns the path of a peer that is there.
func found(path, what, install string) (string, error) {
	if !executable(path) {
		return "", &absentError{what, path, install}
	}
	return path, nil
}

func findFrontend(dir, version string) (string, error) {
	if !releasePattern.MatchString(version) {
		return "", fmt.Errorf("frontend version %q: want a vLLM release such as 0.33.0", version)
	}
	return found(filepath.Join(dir, "frontends", version, "vllm-rs"), "frontend vllm-rs "+version, "frontend "+version)
}

func listFrontends(dir string) ([]string, error) {
	root := filepath.Join(dir, "frontends")
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list frontends: %w", err)
	}
	var versions []string
	for _, entry := range entries {
		if _, err := findFrontend(dir, entry.Name()); err == nil {
			versions = append(versions, entry.Name())
		}
	}
	if len(versions) == 0 {
		return nil, &absentError{what: "frontend vllm-rs", where: root, install: "frontend"}
	}
	slices.SortFunc(versions, func(a, b string) int { return slices.Compare(releaseNumbers(b), releaseNumbers(a)) })
	return versions, nil
}

var numberPattern = regexp.MustCompile(`\d+`)

func releaseNumbers(version string) []int {
	var numbers []int
	for _, digits := range numberPattern.FindAllString(version, -1) {
		n, _ := strconv.Atoi(digits) // beyond int it is the largest int, which sorts well enough
		numbers = append(numbers, n)
	}
	return numbers
}

// executable reports whether path is a file that can be run; a link whose target is gone is not.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
