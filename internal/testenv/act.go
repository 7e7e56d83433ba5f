package testenv

import (
	"path/filepath"
	"testing"
)

// Act returns the path of act, which runs GitHub workflows on this machine.
func Act(t testing.TB) string {
	t.Helper()
	path, err := findAct(peersDir(t))
	settle(t, err)
	return path
}

func findAct(dir string) (string, error) {
	path := filepath.Join(dir, "bin", "act")
	if !executable(path) {
		return "", &absentError{what: "runner of GitHub workflows, act", where: path, install: "act"}
	}
	return path, nil
}
