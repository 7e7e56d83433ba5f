package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// ClientMessage is one message for a client's output socket: the msgpack frame
// and its auxiliary buffers.
type ClientMessage [][]byte

// CoordinatorMessage is one message for the data-parallel coordinator. It is a
// type of its own because a wave field on a client socket ends a Rust frontend.
type CoordinatorMessage [][]byte

// EngineDead is the single frame that an engine sends to every output socket
// when it dies. It is not msgpack (vllm/v1/engine/core.py ENGINE_CORE_DEAD).
const EngineDead = "ENGINE_CORE_DEAD"

// headroom is the space kept before the outputs, whose count is known last:
// array header (3), engine index (9), outputs header (5).
const headroom = 17

// Batch collects what one engine step says to one client: one EngineCoreOutputs
// envelope. It is reused step after step and allocates nothing once warm.
type Batch struct {
	// WeightVersion is sent by lines that have the field (0.32 and later);
	// a real engine starts with "default".
	WeightVersion string

	codec    *Codec
	engine   int
	buf      []byte // headroom, then the encoded outputs
	count    int
	finished []string
	aux      [][]byte
	frames   ClientMessage
}

// NewBatch returns an empty batch for the engine of the given index.
func (c *Codec) NewBatch(engineIndex int) *Batch {
	b := &Batch{codec: c, engine: engineIndex, WeightVersion: "default"}
	b.Reset()
	return b
}

// Reset empties the batch. Frames returned by Finish are no longer valid.
func (b *Batch) Reset() {
	if cap(b.buf) < headroom {
		b.buf = make([]byte, headroom, 4096)
	}
	b.buf, b.count = b.buf[:headroom], 0
	b.finished, b.aux, b.frames = b.finished[:0], b.aux[:0], b.frames[:0]
}

// Len returns the number of outputs added.
func (b *Batch) Len() int { return b.count }

// Add appends one output of a request. On error nothing was added.
func (b *Batch) Add(s *Stream, o *Output) error {
	if err := s.check(o); err != nil {
		return fmt.Errorf("request %s: %w", s.id, err)
	}
	out := append(b.buf, s.head...)
	out = pack.AppendUint32s(out, o.Tokens)
	if o.plain() {
		n := len(out)
		out = append(out, b.codec.output.plain...)
		if o.Finish != Unfinished {
			out[n+b.codec.output.finishAt] = byte(o.Finish - 1)
		}
	} else {
		out = b.appendFields(out, o)
	}
	b.buf = out
	b.count++
	s.started = true
	s.finished = o.Finish != Unfinished
	return nil
}

// ReportFinished names a request in finished_requests. A real engine leaves
// the list nil except when it refuses a request or shuts down; a frontend
// fails a request named before its finishing output, so name it in the same
// envelope.
func (b *Batch) ReportFinished(id string) { b.finished = append(b.finished, id) }

// plain tells whether every field but tokens and finish_reason is at its
// default.
func (o *Output) plain() bool {
	return o.Logprobs == nil && o.PromptLogprobs == nil && o.PromptScores == nil && o.Pooling == nil && o.Events == nil && o.Prefill == nil &&
		!o.HasStopToken && o.StopString == "" && o.KVTransfer == nil && o.Error == nil
}

func (b *Batch) appendFields(out []byte, o *Output) []byte {
	l := &b.codec.output
	for i := 2; i < len(l.ops); i++ {
		switch l.ops[i] {
		case outLogprobs:
			out = b.appendLogprobs(out, o.Logprobs, numpyTypes, l.sampled)
		case outPromptLogprobs:
			out = b.appendLogprobs(out, o.PromptLogprobs, torchTypes, l.prompt)
		case outPromptScores:
			out = b.appendFloats(out, o.PromptScores)
		case outPooling:
			out = b.appendFloats(out, o.Pooling)
		case outFinish:
			out = appendFinish(out, o.Finish)
		case outStopReason:
			out = appendStopReason(out, o)
		case outEvents:
			out = b.codec.appendEvents(out, o.Events)
		case outKVTransfer:
			out = appendRawOrNil(out, o.KVTransfer)
		case outPrefill:
			out = appendMapOrNil(out, b.codec.prefill, o.Prefill)
		case outError:
			out = appendMapOrNil(out, b.codec.failure, o.Error)
		default:
			out = append(out, l.consts[i]...)
		}
	}
	return out
}

func appendFinish(b []byte, f FinishReason) []byte {
	if f == Unfinished {
		return pack.AppendNil(b)
	}
	return append(b, byte(f-1))
}

func appendStopReason(b []byte, o *Output) []byte {
	switch {
	case o.HasStopToken:
		return pack.AppendInt(b, o.StopToken)
	case o.StopString != "":
		return pack.AppendString(b, o.StopString)
	}
	return pack.AppendNil(b)
}

// appendEvents writes EngineCoreEvent maps: Python accepts no other form.
func (c *Codec) appendEvents(b []byte, events []Event) []byte {
	if events == nil {
		return pack.AppendNil(b)
	}
	b = pack.AppendArrayHeader(b, len(events))
	for i := range events {
		b = appendMap(b, c.event, &events[i])
	}
	return b
}

func appendRawOrNil(b, raw []byte) []byte {
	if raw == nil {
		return pack.AppendNil(b)
	}
	return append(b, raw...)
}

// Finish closes the envelope. stats may be nil; timestamp is in seconds of a
// monotonic clock. The frames are valid until the batch is used again. A batch
// with nothing to say is [ErrEmptyBatch].
func (b *Batch) Finish(stats *SchedulerStats, timestamp float64) (ClientMessage, error) {
	if b.count == 0 && stats == nil && len(b.finished) == 0 {
		return nil, ErrEmptyBatch
	}
	var head [headroom]byte
	h := pack.AppendArrayHeader(head[:0], len(b.codec.envelope.ops))
	h = pack.AppendInt(h, int64(b.engine))
	h = pack.AppendArrayHeader(h, b.count)
	start, end := headroom-len(h), len(b.buf)
	copy(b.buf[start:], h)
	frame := b.codec.appendEnvelopeTail(b.buf, envelopeTail{
		stats: stats, timestamp: timestamp, finished: b.finished, weightVersion: b.WeightVersion,
	})
	b.buf = frame[:end] // without the tail: a second Finish writes its own
	b.frames = append(append(b.frames[:0], frame[start:]), b.aux...)
	return b.frames, nil
}
