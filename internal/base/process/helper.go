package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Version is the version of this binary: the linked one, else that of its module, which names the commit that it was built of,
// else the commit alone: "devel-0123456789ab", with "-dirty" if files of the checkout had been changed. "(devel)" is a binary
// that has no commit, as that of `go run` and of a build in a linked worktree of git.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return devel
	}
	return moduleVersion(info)
}

const devel = "(devel)"

func moduleVersion(info *debug.BuildInfo) string {
	if info.Main.Version != "" && info.Main.Version != devel {
		return info.Main.Version
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return devel
	}
	version := "devel-" + revision[:min(12, len(revision))]
	if settings["vcs.modified"] == "true" {
		version += "-dirty"
	}
	return version
}

// FindHelper returns the path of a helper: a program in the archive of vllm-vcr that does what few of its users need, as its
// libraries would double the size and the start time of vllm-vcr. The name is without the suffix of an executable. The helper is
// looked for in the folder of this program, then on $PATH, and must have the same version. An error contains what needs it
// ("captures in a cluster need"), where FindHelper looked, and how to get the helper.
func FindHelper(ctx context.Context, name, need, version string) (string, error) {
	file := name
	if runtime.GOOS == "windows" {
		file += ".exe"
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program, which %s lies beside: %w", name, err)
	}
	folder := filepath.Dir(self)
	path := filepath.Join(folder, file)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		path, err = exec.LookPath(file)
		if err != nil {
			return "", fmt.Errorf("%s the program %s, which is neither in %s nor on PATH: %s", need, file, folder, howToGet(name, version))
		}
	}
	has, err := versionOf(ctx, path)
	if err != nil {
		return "", fmt.Errorf("%s does not tell its version: %w: %s", path, err, howToGet(name, version))
	}
	if strings.TrimPrefix(has, "v") != strings.TrimPrefix(version, "v") {
		return "", fmt.Errorf("%s is of version %s, but vllm-vcr of %s: %s", path, safetext.Line(has), version, howToGet(name, version))
	}
	return path, nil
}

// howToGet says where the helper of a version comes from.
func howToGet(name, version string) string {
	number := strings.TrimPrefix(version, "v")
	if number == "(devel)" || strings.ContainsAny(number, "-+") {
		return "build all programs in a checkout (go build -o bin/ ./cmd/...) and call bin/vllm-vcr"
	}
	return fmt.Sprintf("it is in the archive of vllm-vcr %s, or: go install github.com/vllm-vcr/conformance/cmd/%s@v%[1]s", number, name)
}

// versionTime bounds the question for the version.
const versionTime = 30 * time.Second

func versionOf(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version", "--short")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w %s", err, safetext.Clip(safetext.Line(strings.TrimSpace(stderr.String())), 200))
	}
	return strings.TrimSpace(stdout.String()), nil
}
