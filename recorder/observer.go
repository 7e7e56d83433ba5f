package recorder

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// Options are what goes into a trace.
type Options struct {
	// RecordTokens writes output_token_ids, and stop reasons in words.
	RecordTokens bool `json:"record_tokens,omitempty"`
	// RecordPrompts writes prompt_token_ids, and whatever else of a request may
	// tell its content: cache_salt, stop strings, grammars, token biases.
	RecordPrompts bool `json:"record_prompts,omitempty"`
	// RecordAborted writes also requests that were aborted before their first token, or by
	// the engine.
	RecordAborted bool `json:"record_aborted,omitempty"`
	// BlockSize is the tokens per hashed prompt block; 0 is 16.
	BlockSize int `json:"block_size,omitempty"`
	// Model, GPU, TP (tensor-parallel size) and MaxNumSeqs (the engine's batch
	// cap) go into the meta line; the zero value leaves them out. GPU enters the
	// configuration hash.
	Model      string `json:"model,omitempty"`
	GPU        string `json:"gpu,omitempty"`
	TP         uint   `json:"tp,omitempty"`
	MaxNumSeqs uint   `json:"max_num_seqs,omitempty"`
	// VLLMVersion is the release's tag, such as v0.33.0. It enters the hash; if it
	// is empty, the version that the engine reports does.
	VLLMVersion string `json:"vllm_tag,omitempty"`
	// EngineConfig is the canonical list of the engine's flags, an input of the
	// hash. ConfigHash, if not empty, is written instead of a computed hash.
	EngineConfig string `json:"engine_config,omitempty"`
	ConfigHash   string `json:"config_hash,omitempty"`
	// Recorder is the version of this program.
	Recorder string `json:"recorder_version,omitempty"`
	// CapturedAt is when the recording began, in the form of RFC 3339.
	CapturedAt string `json:"captured_at,omitempty"`
	// Message, if not nil, is called with every message that is observed, in the order of an engine's messages, by one goroutine for each
	// engine. The message is valid during the call.
	Message func(m *trace.Message) `json:"-"`
}

// defaultBlockSize is the tokens per hashed block without [Options].BlockSize.
const defaultBlockSize = 16

// Sinks are the outputs of an observer, which closes them.
type Sinks struct {
	// Trace takes the trace, Steps the step statistics, Frames the raw messages;
	// nil if not wanted.
	Trace, Steps, Frames *File
}

// Observer turns the messages of one engine into a trace. Its methods belong
// to one goroutine, but for Err.
type Observer struct {
	opt    Options
	counts *Counts
	log    *slog.Logger
	logged map[string]int // by cause
	files  *fileSet

	rank   int           // of the last event
	events uint64        // so far
	now    time.Duration // of the event at hand, never before the last one's
	zero   time.Duration // the capture's zero, once started
	live   bool          // zero is set
	left   bool          // somebody has hung up

	codec    *protocol.Codec
	sampling *samplingWriter
	tracked  map[string]*request // in flight, by id
	finished finishedIDs
	clock    engineClock
	steps    uint64
	tokens   uint64

	in    protocol.Request // scratch, as all below
	out   protocol.Outputs
	gaps  recordGaps
	step  []*request
	ended []*request
	spare []*request
}

// NewObserver returns an observer that writes into sinks and adds to counts, of
// which nil makes new ones. What goes wrong is logged to log, nil for nowhere.
func NewObserver(opt Options, sinks Sinks, counts *Counts, log *slog.Logger) *Observer {
	counts = cmp.Or(counts, new(Counts))
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if opt.BlockSize <= 0 {
		opt.BlockSize = defaultBlockSize
	}
	return &Observer{
		opt: opt, counts: counts, log: log, logged: make(map[string]int),
		files:   newFileSet(opt, sinks, counts, log),
		tracked: make(map[string]*request),
		clock:   newEngineClock(),
	}
}

// Observe takes the next event, in the order in which messages passed. It never
// fails: what goes wrong is counted, logged, and kept for Close. The frames of
// ev are not used after it.
func (o *Observer) Observe(ev *Event) {
	o.events++
	o.rank = ev.Rank
	o.files.message(ev)
	if ev.At < o.now {
		o.counts.Clamped.Add(1)
	}
	o.now = max(o.now, ev.At)
	switch {
	case ev.Frames == nil:
		o.counts.TooLarge.Add(1)
		o.warn(ev, "a message too large to be observed", nil, "bytes", ev.Elided)
		if ev.Channel == Output {
			o.lose(ev, nil)
		}
	case ev.Channel == Input && ev.Direction == FromEngine:
		o.register(ev)
	case ev.Channel == Input:
		o.input(ev)
	case ev.Channel == Output && ev.Direction == FromEngine:
		o.answer(ev)
	}
	o.files.settle()
	for _, q := range o.ended {
		o.release(q)
	}
	o.ended = o.ended[:0]
}

// register takes the first message of an engine on an input: its registration,
// the same on all of them, names the line.
func (o *Observer) register(ev *Event) {
	if o.files.ready != nil || len(ev.Frames) == 0 {
		return
	}
	payload := ev.Frames[0]
	ready, err := protocol.DecodeReady(payload)
	if err != nil {
		o.undecodable(ev, "the registration", err)
	}
	files := o.files
	if files.trace != nil {
		files.log.Warn("the engine registered after the trace had begun, so the meta line lacks its registration", "vllm_version", ready.VLLMVersion)
	}
	files.ready, files.version = append([]byte{}, payload...), ready.VLLMVersion
	o.chooseLine(ready.VLLMVersion)
	o.files.begin()
}

// chooseLine takes the codec of the line that the engine reports, of the one the
// user names if that is unknown, and else of the newest line there is.
func (o *Observer) chooseLine(reported string) {
	line := protocol.LineOf(reported)
	if !protocol.HasProfile(line) {
		line = protocol.LineOf(o.opt.VLLMVersion)
	}
	if !protocol.HasProfile(line) {
		line = protocol.Newest()
		o.log.Error("the engine's vLLM line is unknown: its messages are read as those of the newest known line, and may be misread",
			"reported", reported, "vllm_version", o.opt.VLLMVersion, "read_as", line, "known", protocol.Lines())
	}
	codec, err := protocol.CodecFor(line)
	if err != nil {
		o.log.Error("this version does not know the messages of the engine's line: requests are not recorded", "line", line, "cause", err)
		return
	}
	o.codec = codec
	o.sampling = newSamplingWriter(codec.Profile(), o.opt.RecordPrompts)
	o.files.line = codec.Line()
}

// known makes sure that there is a codec, for what comes before a registration.
func (o *Observer) known() bool {
	if o.codec == nil {
		o.chooseLine("")
	}
	return o.codec != nil
}

// input takes a message of a frontend.
func (o *Observer) input(ev *Event) {
	if len(ev.Frames) < 2 || len(ev.Frames[0]) != 1 {
		o.undecodable(ev, "a message of a frontend", errors.New("want a type of one byte and a payload"))
		return
	}
	switch kind := ev.Frames[0][0]; kind {
	case protocol.TypeAdd:
		if o.known() {
			o.add(ev)
		}
	case protocol.TypeAbort:
		o.abort(ev)
	case protocol.TypeStartDPWave, protocol.TypeUtility:
	default:
		o.undecodable(ev, "a message of a frontend", errors.New("unknown type"), "type", kind)
	}
}

// answer takes a message of an engine.
func (o *Observer) answer(ev *Event) {
	if len(ev.Frames) == 0 {
		o.undecodable(ev, "an answer", errors.New("it has no frames"))
		return
	}
	if o.known() {
		o.outputs(ev)
	}
}

// startClock sets the capture's zero: the engine's first request, or its first
// statistics should they come before.
func (o *Observer) startClock() {
	if !o.live {
		o.zero, o.live = o.now, true
	}
}

// sinceZero is a time on the capture's clock, in milliseconds.
func (o *Observer) sinceZero(t time.Duration) float64 { return ms(t - o.zero) }

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// A Channel is one of the links between an engine and its frontend.
type Channel uint8

// The channels, named as the files of raw frames name them. Inputs and outputs are
// counted by client index.
const (
	Handshake Channel = iota
	Input
	Output
	CoordinatorInput
	CoordinatorOutput
	KVEvents
)

// A Direction is the side that sent a message.
type Direction uint8

// The directions.
const (
	FromEngine Direction = iota
	FromFrontend
)

// An Event is one message that passed the tap.
type Event struct {
	// At is when the last byte of the message arrived, since the tap started.
	At time.Duration
	// Rank is the engine's index.
	Rank int
	// Channel and Client are the link; Client is 0 where there is one only.
	Channel   Channel
	Client    int
	Direction Direction
	// Frames are the message as it was on the wire, without the routing id. They are
	// valid until the call they are given to returns.
	Frames [][]byte
	// Elided is how many bytes the tap left out: whole frames behind the second,
	// which are empty then, or everything, if Frames is nil, because the message was
	// above the limit of what is observed.
	Elided int64
}

// maxLogged is how often a cause is logged one by one.
const maxLogged = 3

// undecodable counts and logs a message that could not be read.
func (o *Observer) undecodable(ev *Event, what string, err error, args ...any) {
	o.counts.Undecodable.Add(1)
	o.warn(ev, what+" could not be read; it was forwarded all the same", err, args...)
}

// warn logs the first few events of a cause. The message number counts the
// events of this observer from 1: line number + 1 of a frames file without notes.
func (o *Observer) warn(ev *Event, cause string, err error, args ...any) {
	o.logged[cause]++
	if o.logged[cause] > maxLogged {
		return
	}
	args = append(args, "channel", ev.Channel.String(), "client", ev.Client, "message", o.events)
	if err != nil {
		args = append(args, slog.Any("cause", err))
	}
	o.log.Warn(cause, args...)
}

// logSuppressed logs how often what was not logged any more has happened.
func (o *Observer) logSuppressed() {
	for _, cause := range slices.Sorted(maps.Keys(o.logged)) {
		if n := o.logged[cause]; n > maxLogged {
			o.log.Warn(cause, "times", n, "not_logged", n-maxLogged)
		}
	}
}
