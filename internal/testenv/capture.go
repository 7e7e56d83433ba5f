package testenv

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A Captured message is one of a real session between a released frontend and a released engine.
type Captured struct {
	At        int64    `json:"t"`      // ns on the clock of the tap
	Channel   string   `json:"ch"`     // handshake, input0 or output0
	Direction string   `json:"dir"`    // e2f: engine to frontend; f2e: frontend to engine
	Frames    [][]byte `json:"frames"` // base64 in the file
}

// Capture returns the messages of a session in testdata/captures, in the order in which they passed.
func Capture(t testing.TB, name string) []Captured {
	t.Helper()
	root, err := ModuleRoot()
	require.NoError(t, err)
	var messages []Captured
	GzipLines(t, filepath.Join(root, "testdata", "captures", name), func(line []byte) {
		var m Captured
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("%s: message %d: %v", name, len(messages), err)
		}
		messages = append(messages, m)
	})
	return messages
}

// Files are all files below a folder by name, with their contents.
func Files(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(data)
		return err
	})
	require.NoError(t, err)
	return files
}

// GzipLines calls f for each line of a gzipped file, however long it is.
func GzipLines(t testing.TB, path string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	zr, err := gzip.NewReader(file)
	require.NoError(t, err)
	r := bufio.NewReader(zr)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			f(line)
		}
		if err == io.EOF {
			return
		}
		require.NoError(t, err)
	}
}

// PlayerForEngine is a player for [EnginePeers]. It is the vllm-vcr of PATH.
const PlayerForEngine = "exec vllm-vcr play --frontend-handshake tcp://127.0.0.1:$port --vllm-version 0.33.0 " +
	"--vocab-size 2048 --max-model-len 4096 --instance-id 12345"

// EnginePeers is a folder of peers, for $VLLM_VCR_PEERS, with the real frontend of 0.33.0, and a shell script in place of
// its engine that has the port of its handshake as $port.
func EnginePeers(t testing.TB, engine string) string {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "engines", "0.33.0")
	site := filepath.Join(home, "lib", "python3.11", "site-packages")
	port := "#!/bin/sh\n" + `while [ $# -gt 1 ]; do [ "$1" != --data-parallel-rpc-port ] || port=$2; shift; done` + "\n"
	for path, text := range map[string]string{
		filepath.Join(home, "whole"):                                    "operations of none\n",
		filepath.Join(home, "packages"):                                 "a==1\nvllm==0.33.0+cpu\n",
		filepath.Join(home, "bin", "python"):                            port + engine + "\n",
		filepath.Join(site, "a-1.dist-info", "RECORD"):                  "",
		filepath.Join(site, "vllm-0.33.0+cpu.dist-info", "METADATA"):    "",
		filepath.Join(dir, "frontends", "0.33.0", "this folder is one"): "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		WriteProgram(t, path, text)
	}
	require.NoError(t, os.Symlink(Frontend(t, "0.33.0"), filepath.Join(dir, "frontends", "0.33.0", "vllm-rs")))
	return dir
}

// ModelDir returns the absolute path of the tiny model directory that frontends are started with: configuration and a
// byte-level BPE tokenizer with a vocabulary of 2,048, no weights.
func ModelDir(t testing.TB) string {
	t.Helper()
	root, err := ModuleRoot()
	require.NoError(t, err)
	dir := filepath.Join(root, "testdata", "model", "tiny")
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatalf("tiny model directory: %v: restore it from the repository", err)
	}
	return dir
}

// ModuleRoot walks up from the working directory, which the go command sets to the folder of the package under test.
func ModuleRoot() (string, error) {
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

// FreePort returns a TCP port on 127.0.0.1 that is free, for a peer that must be told its port. Ask for it
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
