package latency

import (
	"fmt"
	"math"
	"time"
)

// Knobs is a model that a person sets. Each duration is a mean; a deviation next
// to it lets it vary, clamped to 0.3 to 1.7 of the mean. Call [Knobs.Validate] first.
//
// The time to the first token occupies the engine. A step that computes prompts
// lasts at least as long as the longest of their TimeToFirstToken or PrefillOverhead,
// of which a chunk has the share that it has of the prompt's tokens that were not
// cached; to it is added the PrefillPerToken of all chunks of the step. Decodes of
// that step wait for it. A step with decodes lasts at least InterTokenLatency.
// What a client sees as the time to the first token is this and what the
// request waited for its turn.
type Knobs struct {
	// TimeToFirstToken is what the computation of any prompt takes. It excludes the
	// three Prefill knobs, by which that depends on the prompt.
	TimeToFirstToken, TimeToFirstTokenStdDev time.Duration
	// InterTokenLatency is what a step with decodes takes.
	InterTokenLatency, InterTokenLatencyStdDev time.Duration
	// PrefillOverhead is taken for each prompt, PrefillPerToken for each of its
	// tokens that was not cached. PrefillStdDev is that of their sum.
	PrefillOverhead, PrefillPerToken, PrefillStdDev time.Duration
	// TransferLatency is what the KV blocks of any prompt take to arrive. It
	// excludes TransferPerToken, by which that depends on the prompt's tokens.
	TransferLatency, TransferLatencyStdDev time.Duration
	TransferPerToken, TransferStdDev       time.Duration
	// LoadFactor is what all but transfers are multiplied by when as many requests
	// run as may run; with one running it is 1, and linear between. 0 means 1.
	LoadFactor float64
}

// A draw never leaves these parts of its mean, and a deviation of one fixed value
// is at most this part of it.
const (
	leastOfMean, maxOfMean = 0.3, 1.7
	maxDeviation           = 0.3
)

// A knob is one setting under its name on the command line.
type knob struct {
	name  string
	value time.Duration
}

func (k *Knobs) prefill() []knob {
	return []knob{
		{"prefill-overhead", k.PrefillOverhead},
		{"prefill-time-per-token", k.PrefillPerToken},
		{"prefill-time-std-dev", k.PrefillStdDev},
	}
}

func (k *Knobs) compute() []knob {
	return append([]knob{
		{"time-to-first-token", k.TimeToFirstToken},
		{"time-to-first-token-std-dev", k.TimeToFirstTokenStdDev},
		{"inter-token-latency", k.InterTokenLatency},
		{"inter-token-latency-std-dev", k.InterTokenLatencyStdDev},
	}, k.prefill()...)
}

func (k *Knobs) transfer() []knob {
	return []knob{
		{"kv-cache-transfer-latency", k.TransferLatency},
		{"kv-cache-transfer-latency-std-dev", k.TransferLatencyStdDev},
		{"kv-cache-transfer-time-per-token", k.TransferPerToken},
		{"kv-cache-transfer-time-std-dev", k.TransferStdDev},
	}
}

// Validate returns an error that names the first knob that cannot be as it is.
func (k *Knobs) Validate() error {
	for _, knob := range append(k.compute(), k.transfer()...) {
		if knob.value < 0 {
			return fmt.Errorf("%s is %v: a time cannot be negative", knob.name, knob.value)
		}
	}
	if err := k.validateFactor(); err != nil {
		return err
	}
	if err := k.validateDeviations(); err != nil {
		return err
	}
	return k.validateExclusions()
}

func (k *Knobs) validateFactor() error {
	// Not "< 1", which NaN is not.
	if f := k.LoadFactor; f != 0 && !(f >= 1 && !math.IsInf(f, 1)) {
		return fmt.Errorf("time-factor-under-load is %v: want at least 1", f)
	}
	return nil
}

func (k *Knobs) validateDeviations() error {
	for _, d := range []struct {
		name, of        string
		deviation, mean time.Duration
	}{
		{"time-to-first-token-std-dev", "time-to-first-token", k.TimeToFirstTokenStdDev, k.TimeToFirstToken},
		{"inter-token-latency-std-dev", "inter-token-latency", k.InterTokenLatencyStdDev, k.InterTokenLatency},
		{"kv-cache-transfer-latency-std-dev", "kv-cache-transfer-latency", k.TransferLatencyStdDev, k.TransferLatency},
	} {
		if most := nanoseconds(float64(d.mean) * maxDeviation); d.deviation > most {
			return fmt.Errorf("%s is %v: want at most %v, 30%% of %s", d.name, d.deviation, most, d.of)
		}
	}
	if k.PrefillStdDev > 0 && k.PrefillOverhead == 0 && k.PrefillPerToken == 0 {
		return fmt.Errorf("prefill-time-std-dev is %v, but neither prefill-overhead nor prefill-time-per-token is set",
			k.PrefillStdDev)
	}
	if k.TransferStdDev > 0 && k.TransferPerToken == 0 {
		return fmt.Errorf("kv-cache-transfer-time-std-dev is %v, but kv-cache-transfer-time-per-token is not set",
			k.TransferStdDev)
	}
	return nil
}

func (k *Knobs) validateExclusions() error {
	for _, knob := range k.prefill() {
		if knob.value != 0 && k.TimeToFirstToken != 0 {
			return fmt.Errorf("%s has no effect together with time-to-first-token: set one of them", knob.name)
		}
	}
	if k.TransferLatency != 0 && k.TransferPerToken != 0 {
		return fmt.Errorf("kv-cache-transfer-time-per-token has no effect together with kv-cache-transfer-latency: set one of them")
	}
	return nil
}

// load is what a step's times are multiplied by.
func (k *Knobs) load(s *Step) float64 {
	if k.LoadFactor <= 1 || s.Limit <= 1 {
		return 1
	}
	return 1 + (k.LoadFactor-1)*float64(max(s.Running-1, 0))/float64(s.Limit-1)
}

// Duration implements [Model].
func (k *Knobs) Duration(s *Step) time.Duration {
	load := k.load(s)
	var fixed, perToken, decode float64
	for i := range s.Chunks {
		f, p := k.chunk(&s.Chunks[i], load)
		fixed = max(fixed, f)
		perToken += p
	}
	if pacer := pacerOf(s.Decodes); pacer != nil {
		z := pacer.Request.deviate(k.InterTokenLatencyStdDev, drawStep, pacer.Context)
		decode = clamped(float64(k.InterTokenLatency)*load, float64(k.InterTokenLatencyStdDev)*z)
	}
	return nanoseconds(max(decode, fixed+perToken))
}

// chunk is what a chunk takes: its share of what its prompt takes once, and that
// of its tokens.
func (k *Knobs) chunk(c *Chunk, load float64) (fixed, perToken float64) {
	r := c.Request
	share := float64(c.Tokens) / float64(r.uncached())
	if k.TimeToFirstToken != 0 {
		z := r.deviate(k.TimeToFirstTokenStdDev, drawFirst, 0)
		return share * clamped(float64(k.TimeToFirstToken)*load, float64(k.TimeToFirstTokenStdDev)*z), 0
	}
	once, each := float64(k.PrefillOverhead)*load, float64(k.PrefillPerToken)*load
	mean := once + each*float64(r.uncached())
	if mean == 0 {
		return 0, 0
	}
	z := r.deviate(k.PrefillStdDev, drawFirst, 0)
	part := clamped(mean, float64(k.PrefillStdDev)*z) / mean
	return part * share * once, part * each * float64(c.Tokens)
}

// Transfer implements [Model].
func (k *Knobs) Transfer(r *Request) time.Duration {
	mean, deviation := float64(k.TransferLatency), k.TransferLatencyStdDev
	if k.TransferLatency == 0 {
		mean, deviation = float64(k.TransferPerToken)*float64(r.Prompt), k.TransferStdDev
	}
	return nanoseconds(clamped(mean, float64(deviation)*r.deviate(deviation, drawTransfer, 0)))
}

// deviate is a standard normal number, drawn only if it matters.
func (r *Request) deviate(deviation time.Duration, p purpose, position int) float64 {
	if deviation == 0 {
		return 0
	}
	return r.normal(p, position)
}

// clamped is mean and a deviation from it, within what it may leave of the mean.
func clamped(mean, deviation float64) float64 {
	return min(max(mean+deviation, leastOfMean*mean), maxOfMean*mean)
}

// nanoseconds rounds to a whole one, within what a duration can be. It is 0 for what is not a
// number.
func nanoseconds(ns float64) time.Duration {
	switch {
	case ns >= math.MaxInt64:
		return math.MaxInt64
	case ns > 0:
		return time.Duration(math.Round(ns))
	}
	return 0
}

// pacerOf is the decode whose draw decides the time of a step: that with the
// longest prompt, then the largest context. The request's key decides the rest, as the
// order in the step must not.
func pacerOf(decodes []Decode) *Decode {
	var pacer *Decode
	for i := range decodes {
		if d := &decodes[i]; pacer == nil || d.paces(pacer) {
			pacer = d
		}
	}
	return pacer
}

func (d *Decode) paces(other *Decode) bool {
	if d.Request.Prompt != other.Request.Prompt {
		return d.Request.Prompt > other.Request.Prompt
	}
	if d.Context != other.Context {
		return d.Context > other.Context
	}
	return d.Request.key > other.Request.key
}
