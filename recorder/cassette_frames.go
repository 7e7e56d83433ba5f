package recorder

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

var channelNames = [...]string{"handshake", "input", "output", "coordinator_input", "coordinator_output"}

// String names the channel as files of raw frames do, without the client index.
func (c Channel) String() string {
	if int(c) >= len(channelNames) {
		return fmt.Sprintf("channel %d", c)
	}
	return channelNames[c]
}

// beginFrames writes the meta line of the frames file, from which a cassette can
// be derived again.
func (c *cassette) beginFrames(file *File) {
	meta, err := json.Marshal(c.opt)
	if err == nil {
		c.frames, err = trace.NewFrameWriter(file, file.Gzip(), meta)
	}
	if err != nil {
		c.fail(framesFile, err)
	}
}

// message writes an event to the frames file.
func (c *cassette) message(ev *Event) {
	if c.frames == nil {
		return
	}
	m := &c.msg
	*m = trace.Message{
		At: max(ev.At, 0), Rank: ev.Rank, Channel: ev.Channel.String(), Client: ev.Client,
		Direction: trace.EngineToFrontend, Frames: ev.Frames, Elided: ev.Elided,
	}
	if ev.Direction == FromFrontend {
		m.Direction = trace.FrontendToEngine
	}
	c.raw(m)
	m.Frames = nil
}

// note writes what the tap noted to the frames file.
func (c *cassette) note(rank int, at time.Duration, what string) {
	c.raw(&trace.Message{At: max(at, 0), Rank: rank, Note: what})
}

func (c *cassette) raw(m *trace.Message) {
	if c.frames == nil || !c.usable(framesFile) {
		return
	}
	if err := c.frames.Write(m); err != nil {
		c.fail(framesFile, err)
	}
}

// eventOf is the event of a line of a frames file; its frames are those of m.
func eventOf(m *trace.Message) Event {
	ev := Event{
		At: m.At, Rank: m.Rank, Client: m.Client, Direction: FromEngine,
		Frames: m.Frames, Elided: m.Elided,
	}
	for i, name := range channelNames {
		if name == m.Channel {
			ev.Channel = Channel(i)
		}
	}
	if m.Direction == trace.FrontendToEngine {
		ev.Direction = FromFrontend
	}
	return ev
}

func validText(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
