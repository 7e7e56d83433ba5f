package trace

import (
	"strconv"
	"strings"
	"time"
)

// The directions of a [Message].
const (
	EngineToFrontend = "e2f"
	FrontendToEngine = "f2e"
)

// Message is one line of a frames file: a message as it was on the wire, or a
// note of something that happened to the links.
//
// A frames file is JSON Lines, gzipped if its name ends in ".gz". Its first line
// may be {"meta":{…}}, whatever its writer wants to be told by the file; others are
//
//	{"t":82375833164,"ch":"input0","dir":"f2e","frames":["AA==","3AAW…"]}
//	{"t":82375833164,"note":"the engine hung up"}
//
// with t in nanoseconds, frames in base64, and "rank" and "elided" where they are
// not zero. Unknown keys are skipped. The rules for lines, blanks, repeated keys
// and broken ends are those of a trace.
type Message struct {
	// At is when it passed, on the tap's clock.
	At time.Duration
	// Rank is the engine's index. Absent reads as 0.
	Rank int
	// Channel is handshake, input, output, coordinator_input or
	// coordinator_output, and Client the index that inputs and outputs carry.
	Channel string
	Client  int
	// Direction is EngineToFrontend or FrontendToEngine.
	Direction string
	// Frames are the message without its routing id; nil if none of it was kept.
	Frames [][]byte
	// Elided is how many bytes were left out.
	Elided int64
	// Note says what happened, in words. A note has no channel, direction or
	// frames.
	Note string
	// Line is the physical line, 1-based; 0 if it was not read.
	Line int
}

// channelOf splits "output3" into its name and index.
func channelOf(text string) (name string, client int, ok bool) {
	switch text {
	case "handshake", "coordinator_input", "coordinator_output":
		return text, 0, true
	}
	for _, name := range [...]string{"input", "output"} {
		digits, found := strings.CutPrefix(text, name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 16)
		return name, int(n), err == nil && strconv.FormatUint(n, 10) == digits
	}
	return "", 0, false
}
