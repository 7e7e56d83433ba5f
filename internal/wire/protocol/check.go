package protocol

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Mismatch is one place where a message is not exactly what the line's profile
// declares. A lenient peer may decode it all the same; a strict one refuses it, or
// reads something else.
type Mismatch struct {
	// Path leads to the value: "EngineCoreRequest.sampling_params.stop_token_ids[3]".
	Path string
	// Expected is the declared type, as the Python source writes it, or says in
	// words what is wanted.
	Expected string
	// Actual is the value, cut after about 500 bytes, or says what is missing.
	Actual string
	// Offset is where the value begins in the message's MessagePack frame, in bytes.
	Offset int
	// Hint names lines whose profile explains the place, and, at the first mismatch
	// of a message, the lines whose layout the whole message has. Empty when there
	// are none.
	Hint string
	// Unknown tells that it is a map key which the line does not know, and which its
	// readers pass over.
	Unknown bool
}

// String says it all in a line.
func (m Mismatch) String() string {
	s := fmt.Sprintf("%s: expected %s, found %s (byte %d)", m.Path, m.Expected, m.Actual, m.Offset)
	if m.Hint != "" {
		s += ": " + m.Hint
	}
	return s
}

// maxMismatches bounds what is reported of one message.
const maxMismatches = 16

// CheckRequest tells where the payload of an ADD message is not an
// EngineCoreRequest of the line, in full length and with every value of its
// declared type. aux are the auxiliary frames behind the payload, which tensors
// refer to by number. No mismatch means that the line's engine decodes it as it was
// meant.
func (c *Codec) CheckRequest(payload []byte, aux ...[]byte) []Mismatch {
	return c.check("EngineCoreRequest", "EngineCoreRequest", payload, aux)
}

// CheckOutputs is [Codec.CheckRequest] for what an engine sends on an output
// socket, an EngineCoreOutputs or the frame [EngineDead].
func (c *Codec) CheckOutputs(frame []byte, aux ...[]byte) []Mismatch {
	if string(frame) == EngineDead {
		return nil
	}
	return c.check("EngineCoreOutputs", "EngineCoreOutputs", frame, aux)
}

// CheckReady is [Codec.CheckRequest] for a registration.
func (c *Codec) CheckReady(payload []byte) []Mismatch {
	return c.check("EngineCoreReadyResponse", "EngineCoreReadyResponse", payload, nil)
}

// CheckInit is [Codec.CheckRequest] for the frontend's answer to HELLO.
func (c *Codec) CheckInit(payload []byte) []Mismatch {
	return c.check("EngineHandshakeMetadata", "EngineHandshakeMetadata", payload, nil)
}

// CheckAbort is [Codec.CheckRequest] for the payload of an ABORT message.
func (c *Codec) CheckAbort(payload []byte) []Mismatch {
	return c.check("Abort", "list[str]", payload, nil)
}

// CheckUtility is [Codec.CheckRequest] for the payload of a UTILITY message: the
// method is one of the line's engine, and the arguments are as many and of the
// types that its signature takes.
func (c *Codec) CheckUtility(payload []byte, aux ...[]byte) []Mismatch {
	return c.check("UtilityCall", utilityCallType, payload, aux)
}

// CheckMessage checks whatever a frontend sends on an input socket: the frame
// with the request type, the payload, and auxiliary frames.
func (c *Codec) CheckMessage(frames [][]byte) []Mismatch {
	if len(frames) < 2 || len(frames[0]) != 1 {
		return []Mismatch{{
			Path: "message", Expected: "a frame of one byte, the request type, and a payload",
			Actual: fmt.Sprintf("%d frames, of %s bytes", len(frames), frameSizes(frames)),
		}}
	}
	payload, aux := frames[1], frames[2:]
	switch frames[0][0] {
	case TypeAdd:
		return c.CheckRequest(payload, aux...)
	case TypeAbort:
		return c.CheckAbort(payload)
	case TypeUtility:
		return c.CheckUtility(payload, aux...)
	}
	// A wave is started by a coordinator, on a socket of its own.
	return []Mismatch{{
		Path: "message.type", Expected: "00 (ADD), 01 (ABORT) or 03 (UTILITY)", Actual: fmt.Sprintf("%02x", frames[0][0]),
	}}
}

func frameSizes(frames [][]byte) string {
	var sizes []string
	for i, f := range frames {
		if i == 4 {
			sizes = append(sizes, "…")
			break
		}
		sizes = append(sizes, fmt.Sprint(len(f)))
	}
	return "[" + strings.Join(sizes, " ") + "]"
}

// check examines one message and, where it does not fit, looks for the lines it
// does fit.
func (c *Codec) check(root, annotation string, payload []byte, aux [][]byte) []Mismatch {
	if err := pack.Validate(payload); err != nil {
		return []Mismatch{{Path: root, Expected: "one well-formed message", Actual: err.Error()}}
	}
	found := c.rules().examine(root, annotation, payload, aux, c.others)
	if len(found) == 0 {
		return nil
	}
	var fits []string
	for _, other := range c.others() {
		if len(other.examine(root, annotation, payload, aux, nil)) == 0 {
			fits = append(fits, other.profile.Line)
		}
	}
	if len(fits) > 0 {
		found[0].hint("this is the layout of " + LineRanges(fits))
	}
	return found
}

func (m *Mismatch) hint(text string) {
	if m.Hint != "" {
		text = m.Hint + "; " + text
	}
	m.Hint = text
}
