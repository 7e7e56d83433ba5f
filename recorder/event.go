package recorder

import "time"

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
)

// A Direction is who said something.
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
	// Channel and Client say on which link; Client is 0 where there is one only.
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
