package kvevents

import (
	"bytes"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A part is what one frame of a message holds.
type part uint8

const (
	partEmpty part = iota
	partTopic
	partSeq
	partPayload
	partEnd // stands where the number of a batch would, behind the last one
)

// partNames are the names that the profiles have for the frames. The identity of the
// asker is no frame of its own here: it says which connection is meant.
var partNames = map[string]part{
	"empty": partEmpty, "topic": partTopic, "seq": partSeq, "payload": partPayload, "buf": partPayload, "END_SEQ": partEnd,
}

const identityName = "client_id"

// endSeq is -1 in 8 bytes.
var endSeq = bytes.Repeat([]byte{0xff}, seqSize)

// partsOf returns the frames of a message that the line's engine writes by hand.
func partsOf(p *protocol.Profile, name string) ([]part, error) {
	m, ok := p.Messages[name]
	if !ok || m.Encoding != "frames" {
		return nil, fmt.Errorf("wire profile %s does not say what the frames of %q are", p.Line, name)
	}
	var parts []part
	for i, k := range m.Keys {
		if i == 0 && k.Name == identityName {
			continue
		}
		kind, known := partNames[k.Name]
		if !known {
			return nil, fmt.Errorf("wire profile %s: frame %d of %q is %s, which this build has no value for: teach internal/engine/kvevents",
				p.Line, i, name, k.Name)
		}
		parts = append(parts, kind)
	}
	return parts, nil
}

// seqSize is how many bytes the number of a batch has, big-endian.
const seqSize = 8

// A batch is a number and, behind it, what was said under it.
type batch []byte

// message arranges the parts of a batch, which it shares. The end has none.
func message(parts []part, topic []byte, b batch) zmq.Message {
	m := make(zmq.Message, len(parts))
	for i, kind := range parts {
		switch kind {
		case partTopic:
			m[i] = topic
		case partSeq:
			m[i] = b[:seqSize]
		case partPayload:
			m[i] = b[seqSize:]
		case partEnd:
			m[i] = endSeq
		default:
			m[i] = []byte{}
		}
	}
	return m
}
