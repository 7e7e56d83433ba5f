package recorder

import (
	"log/slog"
	"maps"
	"slices"
)

// mostLogged is how often a cause is logged one by one.
const mostLogged = 3

// undecodable counts and logs a message that could not be read.
func (o *Observer) undecodable(ev *Event, what string, err error, args ...any) {
	o.counts.Undecodable.Add(1)
	o.complain(ev, what+" could not be read; it was forwarded all the same", err, args...)
}

// complain logs the first few events of a cause. The message number counts the
// events of this observer from 1: line number + 1 of a frames file without notes.
func (o *Observer) complain(ev *Event, cause string, err error, args ...any) {
	o.logged[cause]++
	if o.logged[cause] > mostLogged {
		return
	}
	args = append(args, "channel", ev.Channel.String(), "client", ev.Client, "message", o.events)
	if err != nil {
		args = append(args, slog.Any("cause", err))
	}
	o.log.Warn(cause, args...)
}

// tellSuppressed logs how often what was not logged any more has happened.
func (o *Observer) tellSuppressed() {
	for _, cause := range slices.Sorted(maps.Keys(o.logged)) {
		if n := o.logged[cause]; n > mostLogged {
			o.log.Warn(cause, "times", n, "not_logged", n-mostLogged)
		}
	}
}
