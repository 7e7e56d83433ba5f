package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

type envelopeOp uint8

const (
	envConst envelopeOp = iota
	envStats
	envTimestamp
	envUtility
	envFinished
	envWaveComplete
	envStartWave
	envWeightVersion
)

var envelopeOps = map[string]envelopeOp{
	"scheduler_stats": envStats, "timestamp": envTimestamp, "utility_output": envUtility,
	"finished_requests": envFinished, "wave_complete": envWaveComplete, "start_wave": envStartWave,
	"weight_version": envWeightVersion,
}

// envelopeLayout is EngineCoreOutputs of a line; engine_index and outputs are
// always the first two fields.
type envelopeLayout struct {
	ops    []envelopeOp
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
	for _, f := range s.Fields {
		op, known := envelopeOps[f.Name]
		var def []byte
		if !known {
			if def, err = c.defaultOf("EngineCoreOutputs", f); err != nil {
				return err
			}
		}
		c.envelope.ops = append(c.envelope.ops, op)
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

func (c *Codec) appendEnvelopeTail(b []byte, t envelopeTail) []byte {
	for i := 2; i < len(c.envelope.ops); i++ {
		switch c.envelope.ops[i] {
		case envStats:
			b = appendStruct(b, c, c.stats, t.stats)
		case envTimestamp:
			b = pack.AppendFloat64(b, t.timestamp)
		case envUtility:
			b = appendRawOrNil(b, t.utility)
		case envFinished:
			b = appendFinished(b, t.finished)
		case envWaveComplete:
			b = appendWave(b, t.wave, t.waveComplete)
		case envStartWave:
			b = appendWave(b, t.wave, t.startWave)
		case envWeightVersion:
			b = appendStringOrNil(b, t.weightVersion)
		default:
			b = append(b, c.envelope.consts[i]...)
		}
	}
	return b
}

func appendFinished(b []byte, ids []string) []byte {
	if len(ids) == 0 {
		return pack.AppendNil(b)
	}
	b = pack.AppendArrayHeader(b, len(ids))
	for _, id := range ids {
		b = pack.AppendString(b, id)
	}
	return b
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
	b := pack.AppendArrayHeader(nil, len(c.envelope.ops))
	b = pack.AppendInt(b, int64(engineIndex))
	return pack.AppendArrayHeader(b, 0)
}

// Stats returns the envelope with the queue lengths for the coordinator.
func (c *Codec) Stats(engineIndex int, stats *SchedulerStats, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, envelopeTail{stats: stats, timestamp: timestamp})}
}

// WaveComplete returns the envelope by which rank 0 reports to the coordinator that
// every rank is idle.
func (c *Codec) WaveComplete(engineIndex, wave int, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, envelopeTail{
		timestamp: timestamp, wave: true, waveComplete: wave, startWave: -1,
	})}
}

// StartWave returns the envelope by which an engine asks the coordinator to
// start a wave. Since 0.33 only engines do.
func (c *Codec) StartWave(engineIndex, wave int, timestamp float64) CoordinatorMessage {
	b := c.envelopeHead(engineIndex)
	return CoordinatorMessage{c.appendEnvelopeTail(b, envelopeTail{
		timestamp: timestamp, wave: true, waveComplete: -1, startWave: wave,
	})}
}
