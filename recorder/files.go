package recorder

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/trace"
)

// fileSet is the files of an observer. Each fails on its own: a failure is
// logged and kept, and ends that file only.
type fileSet struct {
	opt    Options
	counts *Counts
	log    *slog.Logger

	sinks  [3]*sink // by what
	trace  *trace.Writer
	steps  *trace.StepWriter
	frames *trace.FrameWriter

	ready   []byte // the registration, nil before
	version string // as the engine reported it
	line    string // whose codec is used

	mu     sync.Mutex
	failed error // all failures so far
	closed bool

	extra  map[string]json.RawMessage // scratch, as all below
	text   []byte
	stats  []byte
	msg    trace.Message
	stat   trace.StepStats
	places []string // where the finished files are

	tallied struct{ records, steps int } // lines that are in counts
}

// The places of sinks.
const (
	traceFile = iota
	stepsFile
	framesFile
)

// sink is one file and what it holds, in words.
type sink struct {
	file *File
	name string
	dead bool
}

func newFileSet(opt Options, sinks Sinks, counts *Counts, log *slog.Logger) *fileSet {
	c := &fileSet{opt: opt, counts: counts, log: log, extra: make(map[string]json.RawMessage)}
	if sinks.Trace != nil {
		c.sinks[traceFile] = &sink{file: sinks.Trace, name: "trace"}
	}
	if sinks.Steps != nil {
		c.sinks[stepsFile] = &sink{file: sinks.Steps, name: "step statistics file"}
		c.steps = trace.NewStepWriter(sinks.Steps, sinks.Steps.Gzip())
	}
	if sinks.Frames != nil {
		c.sinks[framesFile] = &sink{file: sinks.Frames, name: "frames file"}
		meta, err := json.Marshal(c.opt)
		if err == nil {
			c.frames, err = trace.NewFrameWriter(sinks.Frames, sinks.Frames.Gzip(), meta)
		}
		if err != nil {
			c.fail(framesFile, err)
		}
	}
	return c
}

// usable reports whether a file is wanted and has not failed.
func (c *fileSet) usable(i int) bool { return c.sinks[i] != nil && !c.sinks[i].dead }

// begin writes the meta line, unless it is there.
func (c *fileSet) begin() {
	if c.trace != nil || !c.usable(traceFile) {
		return
	}
	file := c.sinks[traceFile].file
	w, err := trace.NewWriter(file, file.Gzip(), c.meta())
	if err != nil {
		c.fail(traceFile, err)
		return
	}
	c.trace = w
}

// meta is the meta line: everything from which config_hash can be computed again
// is in it, and so is the line whose codec read the messages.
func (c *fileSet) meta() trace.Meta {
	source, blockSize := "tap", c.opt.BlockSize
	version, ready := validText(c.version), hex.EncodeToString(c.ready)
	hash := c.opt.ConfigHash
	if hash == "" {
		tag := c.opt.VLLMVersion
		tag = cmp.Or(tag, version)
		hash = trace.ConfigHash(c.opt.GPU, tag, c.opt.EngineConfig)
	}
	m := trace.Meta{
		Model: unlessEmpty(c.opt.Model), GPU: unlessEmpty(c.opt.GPU),
		Source: &source, BlockSize: &blockSize, ConfigHash: &hash,
		VLLMVersion: &version, ReadyResponseHex: &ready,
		VLLMTag: unlessEmpty(c.opt.VLLMVersion), EngineConfig: unlessEmpty(c.opt.EngineConfig),
		Extra: map[string]json.RawMessage{},
	}
	if n := c.opt.TP; n > 0 {
		tp := uint32(min(n, math.MaxUint32))
		m.TP = &tp
	}
	if n := uint64(c.opt.MaxNumSeqs); n > 0 {
		m.MaxNumSeqs = &n
	}
	for key, text := range map[string]string{"line": c.line, "recorder_version": c.opt.Recorder, "captured_at": c.opt.CapturedAt} {
		if text != "" {
			m.Extra[key] = pack.AppendJSONString(nil, text)
		}
	}
	return m
}

func unlessEmpty(s string) *string {
	if s == "" {
		return nil
	}
	s = validText(s)
	return &s
}

// record writes a record, and what else is known of its request. It is on its way
// with the next settle.
func (c *fileSet) record(rec *trace.Record, q *request) {
	c.begin()
	if !c.usable(traceFile) {
		return
	}
	rec.Extra = c.extras(q)
	if err := c.trace.Gather(rec); err != nil {
		c.fail(traceFile, err)
	}
}

// settle lets the records reach the operating system.
func (c *fileSet) settle() {
	if c.trace == nil || !c.usable(traceFile) {
		return
	}
	if err := c.trace.Flush(); err != nil {
		c.fail(traceFile, err)
	}
	c.tally()
}

// tally counts the records and lines that are safe by now.
func (c *fileSet) tally() {
	if c.trace != nil {
		c.counts.Records.Add(uint64(c.trace.Records() - c.tallied.records))
		c.tallied.records = c.trace.Records()
	}
	if c.steps != nil {
		c.counts.Steps.Add(uint64(c.steps.Lines() - c.tallied.steps))
		c.tallied.steps = c.steps.Lines()
	}
}

// extras collects the keys of this recorder; their values are in c.text.
func (c *fileSet) extras(q *request) map[string]json.RawMessage {
	clear(c.extra)
	c.text = c.text[:0]
	c.textExtra("request_id", q.id)
	if len(q.extra.sampling) > 0 {
		c.extra["sampling_params"] = q.extra.sampling
	}
	if len(q.stop) > 0 {
		c.extra["stop_reason"] = q.stop
	}
	c.textExtra("lora_name", q.extra.lora)
	c.textExtra("cache_salt", q.extra.salt)
	c.intExtra("priority", q.extra.priority)
	c.intExtra("client_index", q.client)
	return c.extra
}

func (c *fileSet) textExtra(key, text string) {
	if text == "" {
		return
	}
	start := len(c.text)
	c.text = pack.AppendJSONString(c.text, text)
	c.extra[key] = c.text[start:len(c.text):len(c.text)]
}

func (c *fileSet) intExtra(key string, n int) {
	if n == 0 {
		return
	}
	start := len(c.text)
	c.text = fmt.Appendf(c.text, "%d", n)
	c.extra[key] = c.text[start:len(c.text):len(c.text)]
}

// step writes a line of the sidecar: the statistics of one message, ms after the
// capture's zero, with all keys that the engine sent.
func (c *fileSet) step(at float64, stats []byte) {
	if !c.usable(stepsFile) {
		return
	}
	cur := pack.NewCursor(stats)
	c.stats, _ = cur.AppendJSON(c.stats[:0]) // it is well formed
	c.stat.TsMs, c.stat.Raw = at, c.stats
	if err := c.steps.Gather(&c.stat); err != nil {
		c.fail(stepsFile, err)
	}
}

// fail logs what became of a file that could not be written on. What its writer
// only refused is counted, and the file goes on.
func (c *fileSet) fail(i int, err error) {
	s := c.sinks[i]
	var broken *trace.WriteError
	if !errors.As(err, &broken) {
		if c.counts.Refused.Add(1) <= maxLogged {
			c.log.Error("a line was left out of the "+s.name, "file", s.file.Name(), "cause", err)
		}
		return
	}
	s.dead = true
	s.file.truncate(broken.Bytes)
	c.counts.Stopped.Add(1)
	err = fmt.Errorf("the %s is incomplete, in %s: %w", s.name, s.file.Name(), err)
	c.log.Error("recording has stopped; messages are still forwarded", "output", s.name, "file", s.file.Name(),
		"safe_lines", broken.Records, "safe_bytes", broken.Bytes, "cause", broken.Err)
	c.keep(err)
}

func (c *fileSet) keep(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

func (c *fileSet) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// flush lets the step statistics and the raw messages reach the operating system.
func (c *fileSet) flush() {
	if c.steps != nil && c.usable(stepsFile) {
		if err := c.steps.Flush(); err != nil {
			c.fail(stepsFile, err)
		}
		c.tally()
	}
	if c.frames == nil || !c.usable(framesFile) {
		return
	}
	if err := c.frames.Flush(); err != nil {
		c.fail(framesFile, err)
	}
}

// close ends each file, and returns all failures.
func (c *fileSet) close() error {
	if c.closed {
		return c.failure()
	}
	c.closed = true
	for i := range c.sinks {
		if place := c.finish(i); place != "" {
			c.places = append(c.places, place)
		}
	}
	return c.failure()
}

// finish writes a file's end and commits it, or leaves what there is of it.
func (c *fileSet) finish(i int) (where string) {
	c.end(i)
	s := c.sinks[i]
	switch {
	case s == nil:
		return ""
	case s.dead:
		s.file.Abandon()
		return ""
	}
	where, err := s.file.Commit(context.Background())
	if err != nil {
		c.counts.Stopped.Add(1)
		c.keep(fmt.Errorf("the %s: %w", s.name, err))
		c.log.Error("the "+s.name+" is not in its place", "cause", err)
		return ""
	}
	c.log.Info("the "+s.name+" is complete", "where", where)
	return where
}

// end writes the end of a file that has not failed.
func (c *fileSet) end(i int) {
	var end io.Closer
	switch i {
	case traceFile:
		c.begin()
		end = c.trace
	case stepsFile:
		end = c.steps
	case framesFile:
		end = c.frames
	}
	if !c.usable(i) {
		return
	}
	if err := end.Close(); err != nil {
		c.fail(i, err)
	}
	c.tally()
}

// stop ends the files where they are: they are readable, and not whole.
func (c *fileSet) stop(cause error) {
	for i, s := range c.sinks {
		if c.end(i); !c.usable(i) {
			continue
		}
		s.dead = true
		c.counts.Stopped.Add(1)
		c.keep(fmt.Errorf("the %s is incomplete, in %s: %w", s.name, s.file.Name(), cause))
	}
}

var channelNames = [...]string{"handshake", "input", "output", "coordinator_input", "coordinator_output", "kv_events"}

// String names the channel as files of raw frames do, without the client index.
func (c Channel) String() string {
	if int(c) >= len(channelNames) {
		return fmt.Sprintf("channel %d", c)
	}
	return channelNames[c]
}

// message writes an event to the frames file.
func (c *fileSet) message(ev *Event) {
	if c.frames == nil && c.opt.Message == nil {
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
	if c.opt.Message != nil {
		c.opt.Message(m)
	}
	m.Frames = nil
}

func (c *fileSet) raw(m *trace.Message) {
	if c.frames == nil || !c.usable(framesFile) {
		return
	}
	if err := c.frames.Write(m); err != nil {
		c.fail(framesFile, err)
	}
}

func validText(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// Close writes what ends the files, and puts them in their places. It returns
// everything that went wrong, with the names of what is left where a file is not
// whole. An upload is given as long as it takes.
func (o *Observer) Close() error {
	if n := len(o.tracked); n > 0 {
		o.log.Warn("requests were still in flight; they are not in the trace", "requests", n)
	}
	o.logSuppressed()
	return o.files.close()
}

// Flush hands everything to the operating system. Call it when no event waits:
// records are on their way when Observe returns, step statistics and raw messages
// are gathered.
func (o *Observer) Flush() { o.files.flush() }

// Stop ends the recording because of what happened elsewhere: cause is kept as if
// an output had failed, and the files are left under their temporary names.
// What is observed after it is counted, but not written.
func (o *Observer) Stop(cause error) { o.files.stop(cause) }

// Note records that the engine or its frontend has hung up.
func (o *Observer) Note(at time.Duration, what string) {
	o.left = true
	o.counts.Notes.Add(1)
	o.log.Warn(what, "at", at)
	o.files.raw(&trace.Message{At: max(at, 0), Rank: o.rank, Note: what})
}

// Err returns why an output could not be written on, nil while all are.
// It may be called at any time.
func (o *Observer) Err() error { return o.files.failure() }

// Files returns where the outputs lie that are whole, once Close has put them
// there: trace, step statistics, frames.
func (o *Observer) Files() []string { return o.files.places }
