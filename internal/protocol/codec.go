package protocol

import "fmt"

// Codec reads and writes the messages of one line. It is immutable and safe
// for concurrent use.
type Codec struct {
	profile  *Profile
	request  []requestField
	envelope envelopeLayout
	output   outputLayout
	stats    []statsStep
	prefill  []prefillStep
	ready    []readyField
	sampling samplingLayout

	cacheFields int // of PrefixCacheStats: 7, or 8 with hits_by_source
	specFields  int // of SpecDecodingStats
}

// NewCodec compiles a profile. It fails when the profile asks for something
// this package does not know how to write: a new required field, for instance,
// must never be sent as a silent nil.
func NewCodec(p *Profile) (*Codec, error) {
	c := &Codec{profile: p}
	for _, compile := range []func() error{
		c.compileRequest, c.compileSampling, c.compileOutput, c.compileEnvelope,
		c.compileStats, c.compilePrefill, c.compileReady,
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

// unknownRequired is the error for a profile field that a newer release
// requires and this package has no value for.
func (c *Codec) unknownRequired(structName, field string) error {
	return fmt.Errorf("wire profile %s: %s.%s is required by the line's frontend and this build has no value for it",
		c.profile.Line, structName, field)
}
