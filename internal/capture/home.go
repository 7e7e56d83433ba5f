package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// recordingFiles are what is fetched of a capture.
var recordingFiles = []string{
	target.TraceFile, target.StepsFile, target.FramesFile, target.LoadFile, target.RequestsFile,
}

// doneFile says in the folder of a recording that all of it is there, and what its files do not tell. It is written last.
const doneFile = "recording.json"

// done is the content of doneFile.
type done struct {
	Schema      string    `json:"schema"`
	Target      string    `json:"target"`
	ConfigHash  string    `json:"config_hash"`
	EngineImage string    `json:"engine_image"`
	CapturedAt  time.Time `json:"captured_at"`
	Where       string    `json:"where"`
}

const doneSchema = "vllm-vcr/recording/1"

// saveRecording reads what the files in dir say of a recording, and notes that all are there.
func saveRecording(dir string, rec *Recording) error {
	if err := fillRecording(dir, rec); err != nil {
		return err
	}
	text, err := json.MarshalIndent(done{
		doneSchema, rec.Target.Name(), rec.Target.ConfigHash(), rec.EngineImage, rec.CapturedAt, rec.Where,
	}, "", "  ")
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, doneFile+".next")
	if err := os.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, doneFile))
}

// loadRecording returns the recording of a target in dir, or nil if there is none that is whole.
func loadRecording(dir string, t target.Target) (*Recording, error) {
	path := filepath.Join(dir, doneFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var d done
	if err := json.Unmarshal(text, &d); err != nil || d.Schema != doneSchema {
		return nil, fmt.Errorf("%s: not the note of a recording: delete %s", path, dir)
	}
	if d.Target != t.Name() || d.ConfigHash != t.ConfigHash() {
		return nil, fmt.Errorf("%s: a recording of %q with configuration %q, not of the target as it is now: choose another run or delete %s",
			path, d.Target, d.ConfigHash, dir)
	}
	rec := &Recording{Target: t, EngineImage: d.EngineImage, CapturedAt: d.CapturedAt, Where: d.Where}
	return rec, fillRecording(dir, rec)
}

// fillRecording completes a recording by its files.
func fillRecording(dir string, rec *Recording) error {
	rec.in(dir)
	var err error
	rec.Load, err = load.ReadReport(filepath.Join(dir, target.LoadFile))
	return err
}

// ranImage is the engine's image under the name that the target has for it, with the digest of what ran: runtimes give
// an id such as "docker.io/vllm/vllm-openai@sha256:…", or the digest alone.
func ranImage(t target.Target, id string) string {
	at := strings.LastIndex(id, "sha256:")
	if at < 0 {
		return ""
	}
	name, _ := splitDigest(t.Images.Engine)
	return name + "@" + id[at:]
}
