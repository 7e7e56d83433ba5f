package testenv

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
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
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
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

// GzipLines calls f for each line of a gzipped file, however long it is.
func GzipLines(t testing.TB, path string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zr, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(zr)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			f(line)
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
