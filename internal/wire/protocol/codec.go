package protocol

// Codec reads and writes the messages of one line. It is immutable and safe
// for concurrent use.
type Codec struct {
	profile  *Profile
	request  requestLayout
	lora     arrayLayout
	sampling samplingLayout
	envelope envelopeLayout
	utility  arrayLayout
	output   outputLayout
	event    []mapField[Event]
	failure  []mapField[RequestError] // empty before 0.33
	stats    []statsStep
	cache    []mapField[CacheStats]
	spec     []mapField[SpecDecodingStats]
	prefill  []mapField[PrefillStats]
	ready    []mapField[ReadyResponse]
	// rules are those of the profile, others those of all other lines.
	rules  func() *rules
	others func() []*rules
}

// NewCodec compiles a profile. It fails when the profile asks for something
// this package does not know how to write: a new required field, for instance,
// must never be sent as a silent nil.
func NewCodec(p *Profile) (*Codec, error) {
	c := &Codec{profile: p}
	c.rules, c.others = lazyRules(p)
	for _, compile := range []func() error{
		c.compileRequest, c.compileSampling, c.compileOutput, c.compileOutputParts, c.compileEnvelope,
		c.compileStats, c.compileReady, c.compileHandshake,
	} {
		if err := compile(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// CodecFor loads and compiles the profile of a line, release tag or tracker.
func CodecFor(line string) (*Codec, error) {
	p, err := LoadProfile(line)
	if err != nil {
		return nil, err
	}
	return NewCodec(p)
}

// Profile returns what the codec was compiled from.
func (c *Codec) Profile() *Profile { return c.profile }

// Line returns the line's name, such as "0.33".
func (c *Codec) Line() string { return c.profile.Line }

// HasRequestError tells whether an output of the line can carry a
// [RequestError]; before 0.33 a refused request has only its finish reason.
func (c *Codec) HasRequestError() bool { return c.output.hasError }
