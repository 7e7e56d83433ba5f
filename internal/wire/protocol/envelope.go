package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// An envelopeField is how a field of EngineCoreOutputs after the first two is read and written.
type envelopeField struct {
	append func(b []byte, c *Codec, t *envelopeTail) []byte
	decode func(cur *pack.Cursor, o *Outputs) error
	needed bool // None is not a value of it
}

var envelopeFields = map[string]*envelopeField{
	"scheduler_stats": {
		append: func(b []byte, c *Codec, t *envelopeTail) []byte { return appendStruct(b, c, c.stats, t.stats) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) { o.SchedulerStats, err = cur.Raw(); return err },
	},
	"timestamp": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return pack.AppendFloat64(b, t.timestamp) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) { o.Timestamp, err = cur.Float(); return err },
		needed: true,
	},
	"utility_output": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return appendRawOrNil(b, t.utility) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) { o.Utility, err = decodeUtilityOutput(cur); return err },
	},
	"finished_requests": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return appendFinished(b, t.finished) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) {
			o.FinishedRequests, err = decodeIDs(cur, o.FinishedRequests)
			return err
		},
	},
	"wave_complete": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return appendWave(b, t.wave, t.waveComplete) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) { o.WaveComplete, err = smallInt(cur); return err },
	},
	"start_wave": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return appendWave(b, t.wave, t.startWave) },
		decode: func(cur *pack.Cursor, o *Outputs) (err error) { o.StartWave, err = smallInt(cur); return err },
	},
	"weight_version": {
		append: func(b []byte, _ *Codec, t *envelopeTail) []byte { return appendStringOrNil(b, t.weightVersion) },
		decode: func(cur *pack.Cursor, o *Outputs) error {
			version, err := cur.Str()
			if string(version) != o.version {
				o.version = string(version)
			}
			o.WeightVersion = o.version
			return err
		},
	},
}

// envelopeLayout is EngineCoreOutputs of a line; engine_index and outputs are
// always the first two fields.
type envelopeLayout struct {
	fields []*envelopeField // nil for those two, and for one that is always at its default
	consts [][]byte
}

func (c *Codec) compileEnvelope() error {
	s, err := c.profile.needStruct("EngineCoreOutputs", "array")
	if err != nil {
		return err
	}
	if s.Index("engine_index") != 0 || s.Index("outputs") != 1 {
		return fmt.Errorf("wire profile %s: EngineCoreOutputs does not begin with engine_index, outputs", c.profile.Line)
	}
	for i, f := range s.Fields {
		field := envelopeFields[f.Name]
		var def []byte
		if field == nil && i > 1 {
			if def, err = c.defaultOf("EngineCoreOutputs", f); err != nil {
				return err
			}
		}
		c.envelope.fields = append(c.envelope.fields, field)
		c.envelope.consts = append(c.envelope.consts, def)
	}
	c.utility, err = c.compileArray("UtilityOutput", "call_id", "failure_message", "result")
	return err
}

type envelopeTail struct {
	stats         *SchedulerStats
	timestamp     float64
	utility       []byte
	finished      []string
	waveComplete  int // -1 when absent, here and in startWave
	startWave     int
	weightVersion string
	wave          bool // waveComplete and startWave count
}

func (c *Codec) appendEnvelopeTail(b []byte, t *envelopeTail) []byte {
	for i, field := range c.envelope.fields[2:] {
		if field == nil {
			b = append(b, c.envelope.consts[i+2]...)
		} else {
			b = field.append(b, c, t)
		}
	}
	return b
}

func appendFinished(b []byte, ids []string) []byte {
	if len(ids) == 0 {
		return pack.AppendNil(b)
	}
	return appendStrings(b, ids)
}

func appendWave(b []byte, set bool, wave int) []byte {
	if !set || wave < 0 {
		return pack.AppendNil(b)
	}
	return pack.AppendInt(b, int64(wave))
}

func appendStringOrNil(b []byte, s string) []byte {
	if s == "" {
		return pack.AppendNil(b)
	}
	return pack.AppendString(b, s)
}

// envelopeHead is the beginning of an envelope without outputs.
func (c *Codec) envelopeHead(engineIndex int) []byte {
	b := pack.AppendArrayHeader(nil, len(c.envelope.fields))
	b = pack.AppendInt(b, int64(engineIndex))
	return pack.AppendArrayHeader(b, 0)
}

// Stats returns the envelope with the queue lengths for the coordinator.
func (c *Codec) Stats(engineIndex int, stats *SchedulerStats, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, &envelopeTail{stats: stats, timestamp: timestamp})}
}

// WaveComplete returns the envelope by which rank 0 reports to the coordinator that
// every rank is idle.
func (c *Codec) WaveComplete(engineIndex, wave int, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, &envelopeTail{
		timestamp: timestamp, wave: true, waveComplete: wave, startWave: -1,
	})}
}

// StartWave returns the envelope by which an engine asks the coordinator to
// start a wave. Since 0.33 only engines do.
func (c *Codec) StartWave(engineIndex, wave int, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, &envelopeTail{
		timestamp: timestamp, wave: true, waveComplete: -1, startWave: wave,
	})}
}
