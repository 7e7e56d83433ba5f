package capture

import (
	"path/filepath"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
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
	CapturedAt  time.Time
	// Where is the place, for people: "cpu of this machine", "job capture-0-33-multiturn-s7-k3 in vllm-vcr".
	Where string
}

// in says that the files of a recording are in a folder.
func (rec *Recording) in(dir string) {
	rec.Dir = dir
	rec.Trace, rec.Steps = filepath.Join(dir, target.TraceFile), filepath.Join(dir, target.StepsFile)
	rec.Frames, rec.Requests = filepath.Join(dir, target.FramesFile), filepath.Join(dir, target.RequestsFile)
}
