package recorder

import "sync/atomic"

// Counts is what has happened so far. It may be read while observers and the
// tap add to it, and several observers may share one.
//
// Of the requests that were seen to arrive, Requests = Done + Aborted + Lost +
// InFlight at any time between two events.
type Counts struct {
	// Messages and Bytes are indexed by [Direction]. The tap adds to them.
	Messages, Bytes [2]atomic.Uint64

	// Engines is the engines that sent HELLO. The tap adds to it.
	Engines atomic.Uint64
	// Queued is the bytes of messages that were forwarded, or are about to be, and
	// wait to be observed. The tap keeps it.
	Queued atomic.Int64
	// InFlight is the requests between their ADD and their end.
	InFlight atomic.Int64
	// Requests is the ADDs that were taken as new requests.
	Requests atomic.Uint64
	// Done is the requests that the engine ended, Aborted those that the frontend
	// ended or the engine ended with the reason abort; Unrecorded of these are not
	// in the trace.
	Done, Aborted, Unrecorded atomic.Uint64
	// Lost is the requests left out of the trace because a message of theirs
	// could not be read.
	Lost atomic.Uint64
	// Tokens is the output tokens of requests in flight or ended.
	Tokens atomic.Uint64
	// Records and Steps are the lines written to traces and sidecars.
	Records, Steps atomic.Uint64

	// Unknown is the outputs for requests that never arrived here, Late those
	// for requests that had ended.
	Unknown, Late atomic.Uint64
	// Duplicates is the ADDs with the id of a request in flight.
	Duplicates atomic.Uint64
	// Undecodable is the messages that the line's codec refused, TooLarge those
	// that were too large to be observed.
	Undecodable, TooLarge atomic.Uint64
	// WrongEngine is the envelopes that name another engine than the event's.
	WrongEngine atomic.Uint64
	// Clamped is the events stamped before an earlier one.
	Clamped atomic.Uint64
	// Dead is the ENGINE_CORE_DEAD messages, Notes what the tap noted.
	Dead, Notes atomic.Uint64
	// Refused is the records and sidecar lines that their own writer refused.
	Refused atomic.Uint64
	// Stopped is how many outputs could not be written to the end.
	Stopped atomic.Uint64
}

// Stats is a copy of [Counts] at one moment; see there.
type Stats struct {
	Messages, Bytes                   [2]uint64
	Engines                           uint64
	Queued, InFlight                  int64
	Requests, Done, Aborted, Lost     uint64
	Unrecorded                        uint64
	Tokens, Records, Steps            uint64
	Unknown, Late, Duplicates         uint64
	Undecodable, TooLarge             uint64
	WrongEngine, Clamped, Dead, Notes uint64
	Refused, Stopped                  uint64
}

// Snapshot copies the counts. They are read one after the other, so while
// requests come and go they may be off by the events in between.
func (c *Counts) Snapshot() Stats {
	s := Stats{
		Engines: c.Engines.Load(), Queued: c.Queued.Load(), InFlight: c.InFlight.Load(),
		Requests: c.Requests.Load(), Done: c.Done.Load(), Aborted: c.Aborted.Load(), Unrecorded: c.Unrecorded.Load(), Lost: c.Lost.Load(),
		Tokens: c.Tokens.Load(), Records: c.Records.Load(), Steps: c.Steps.Load(),
		Unknown: c.Unknown.Load(), Late: c.Late.Load(), Duplicates: c.Duplicates.Load(),
		Undecodable: c.Undecodable.Load(), TooLarge: c.TooLarge.Load(),
		WrongEngine: c.WrongEngine.Load(), Clamped: c.Clamped.Load(), Dead: c.Dead.Load(), Notes: c.Notes.Load(),
		Refused: c.Refused.Load(), Stopped: c.Stopped.Load(),
	}
	for i := range s.Messages {
		s.Messages[i], s.Bytes[i] = c.Messages[i].Load(), c.Bytes[i].Load()
	}
	return s
}
