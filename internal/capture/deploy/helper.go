package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
)

// Program is the name of the helper, without the suffix of an executable.
const Program = "vllm-vcr-cluster"

// requestVariable names the file of the request in the environment of the helper.
const requestVariable = "VLLM_VCR_CLUSTER_REQUEST"

// A Command is what the helper is to do.
type HelperCommand string

// The commands.
const (
	Submit     HelperCommand = "submit"
	Status     HelperCommand = "status"
	Fetch      HelperCommand = "fetch"
	Clean      HelperCommand = "clean"
	RunTargets HelperCommand = "run"
)

// A Request is a command line as vllm-vcr read it.
type HelperRequest struct {
	Command   HelperCommand
	Program   string // path of vllm-vcr, which prints the credential of a GitHub job
	Verbose   bool
	LogFormat string // text or json
	JSON      bool   // the result of status and fetch is printed as JSON
	Cluster   Cluster
	// RunID is the name of the run; of status and clean it may be empty, which means all.
	RunID string

	// Patterns select targets by name, of status and clean; none means all.
	Patterns []string

	// Targets are those of submit, fetch and run, and Jobs what their Jobs have in common but for the name of the run and the
	// namespace.
	Targets   []target.Target
	Jobs      Run
	Admission time.Duration // how long a Job may wait for quota
	Work      string        // recordings come to RunID/LINE/ID below it
	FailFast  bool
	// Accept says how recordings are registered; nil if they are not.
	Accept *Accept
}

// Cluster says which cluster it is, and as which user to talk to it.
type Cluster struct {
	Kubeconfig, Context, Namespace string
	Server, CAFile, TokenAudience  string
}

// Accept are the options of [capture.Accept].
type Accept struct {
	CompatFile                string // name of the compat matrix
	Compat                    []byte // its text
	Manifest, Goldens, Upload string
	S3                        s3store.Options
	RunURL                    string
	// Profiles is a folder of wire profiles that the binary does not have, or empty. All files of it are profiles, or only
	// those that have the name of a line, as 0.34.json.
	Profiles    string
	AllProfiles bool
}

// Call has the helper at path carry out a request. On Unix it returns only if the helper cannot be started; elsewhere it
// returns the exit code of the helper.
func Call(path string, args []string, request HelperRequest) (code int, err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	file, err := os.CreateTemp("", Program+"-*.json")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name()) // unless the helper has taken over, which removes it
	_, err = file.Write(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	return start(path, args, append(os.Environ(), requestVariable+"="+file.Name()))
}

// ErrNoRequest is the error of a helper that was not started by vllm-vcr.
var ErrNoRequest = errors.New("there is no request on stdin: this program is started by `vllm-vcr capture`, see vllm-vcr capture --help")

// Receive reads the request that this process was started with, and removes its file.
func Receive() (HelperRequest, error) {
	path := os.Getenv(requestVariable)
	if path == "" {
		return HelperRequest{}, ErrNoRequest
	}
	os.Unsetenv(requestVariable)
	text, err := os.ReadFile(path)
	if err != nil {
		return HelperRequest{}, err
	}
	os.Remove(path)
	var request HelperRequest
	if err := json.Unmarshal(text, &request); err != nil {
		return HelperRequest{}, fmt.Errorf("%s: %w", path, err)
	}
	return request, nil
}
