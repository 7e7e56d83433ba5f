package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Act returns the path of act, which runs GitHub workflows on this machine.
func Act(t testing.TB) string {
	t.Helper()
	path, err := findInstalled(PeersDir(t), "act", "act")
	settle(t, err)
	return path
}

// ImageTool returns the path of a program that the tests of images need: buildah, skopeo, jq or docker-registry.
func ImageTool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = findInstalled(PeersDir(t), name, "image")
	}
	settle(t, err)
	return path
}

// Absent ends a test for want of something that .ci/peers cannot install: it is skipped, or fails where peers are
// required.
func Absent(t testing.TB, why string) {
	t.Helper()
	if required() {
		t.Fatal(why)
	}
	t.Skip(why)
}

// findInstalled finds a program that .ci/peers puts into the folder of peers.
func findInstalled(dir, name, kind string) (string, error) {
	path := filepath.Join(dir, "bin", name)
	if !executable(path) {
		return "", &absentError{what: name, where: path, install: kind}
	}
	return path, nil
}
