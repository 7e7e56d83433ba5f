package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// ModelDir returns the absolute path of the tiny model directory that frontends are started with: configuration and a
// byte-level BPE tokenizer with a vocabulary of 2,048, no weights.
func ModelDir(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "testdata", "model", "tiny")
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatalf("tiny model directory: %v: restore it from the repository", err)
	}
	return dir
}

// moduleRoot walks up from the working directory, which the go command sets to the folder of the package under test.
func moduleRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module root: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the module root: no go.mod in %s or above", wd)
		}
	}
}

// Ports handed out by FreePort lie below those that Linux (32768) and macOS (49152) give to outgoing connections and to
// listeners on port 0, so that between FreePort and the peer's own listen only another FreePort could take one.
const (
	firstPort = 15000
	lastPort  = 31999
)

// FreePort returns a TCP port on 127.0.0.1 that nobody listens on, for a peer that must be told its port. Ask for it
// just before the peer is started: nothing reserves it.
func FreePort(t testing.TB) int {
	t.Helper()
	var err error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatalf("no free port on 127.0.0.1 between %d and %d in 100 tries: last: %v", firstPort, lastPort, err)
	return 0
}
