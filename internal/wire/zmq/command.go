package zmq

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/go-zeromq/zmq4"
)

// Names of the metadata properties READY carries; names compare without case.
const (
	propertySocketType = "Socket-Type"
	propertyIdentity   = "Identity"
)

// splitCommand separates the name of a command from its data.
func splitCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil, fmt.Errorf("%w: command whose name does not fit its %d bytes", ErrProtocol, len(body))
	}
	end := 1 + int(body[0])
	return string(body[1:end]), body[end:], nil
}

// parseReady reads who the peer is from the first command of the handshake.
func parseReady(body []byte) (Peer, error) {
	name, data, err := splitCommand(body)
	switch {
	case err != nil:
		return Peer{}, err
	case name == zmq4.CmdError:
		return Peer{}, fmt.Errorf("%w: refused by the peer: %q", ErrProtocol, reason(data))
	case name != zmq4.CmdReady:
		return Peer{}, fmt.Errorf("%w: command %q, want READY", ErrProtocol, name)
	}
	return parseMetadata(data)
}

// reason is the text of an ERROR command: one length byte, then the text.
func reason(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return string(data[1:min(len(data), 1+int(data[0]))])
}

func parseMetadata(data []byte) (Peer, error) {
	var p Peer
	for rest := data; len(rest) > 0; {
		name, value, tail, ok := cutProperty(rest)
		if !ok {
			return p, fmt.Errorf("%w: READY metadata cut short at byte %d of %d", ErrProtocol, len(data)-len(rest), len(data))
		}
		switch {
		case strings.EqualFold(name, propertySocketType):
			p.Type = Type(value)
		case strings.EqualFold(name, propertyIdentity):
			p.Identity = value
		}
		rest = tail
	}
	if p.Type == "" {
		return p, fmt.Errorf("%w: READY names no socket type", ErrProtocol)
	}
	if len(p.Identity) > maxIdentity {
		return p, fmt.Errorf("%w: identity of %d bytes, at most %d are allowed", ErrProtocol, len(p.Identity), maxIdentity)
	}
	return p, nil
}

// cutProperty takes one property off data: the length of the name in one byte,
// the name, the length of the value in four, the value.
func cutProperty(data []byte) (name string, value, rest []byte, ok bool) {
	n := int(data[0])
	if len(data) < 1+n+4 {
		return "", nil, nil, false
	}
	name, data = string(data[1:1+n]), data[1+n:]
	size := uint64(binary.BigEndian.Uint32(data))
	if data = data[4:]; size > uint64(len(data)) {
		return "", nil, nil, false
	}
	return name, data[:size:size], data[size:], true
}

const (
	pingTTL    = 2  // bytes before the context of a PING
	maxContext = 16 // bytes of context a PONG returns
)

// pong is the answer to a command, or nil when it wants none.
// https://rfc.zeromq.org/spec/37/ "Heartbeat": a PONG returns the PING's context.
func pong(command []byte) ([]byte, error) {
	name, data, err := splitCommand(command)
	if err != nil || name != zmq4.CmdPing {
		return nil, err
	}
	if len(data) < pingTTL {
		return nil, fmt.Errorf("%w: PING without a time to live", ErrProtocol)
	}
	context := data[pingTTL:]
	if len(context) > maxContext {
		return nil, fmt.Errorf("%w: PING with %d bytes of context, at most %d are allowed", ErrProtocol, len(context), maxContext)
	}
	answer := append([]byte{byte(len(zmq4.CmdPong))}, zmq4.CmdPong...)
	return append(answer, context...), nil
}
