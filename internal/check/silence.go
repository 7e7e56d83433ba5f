package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Wait says what is waited for while an engine sends nothing, and what can be found out then.
type Wait struct {
	// What is "an output of live-3". Open is a request that is not answered, nil if none is open.
	What  func() (what string, open *protocol.Request)
	First bool   // the engine has answered no request so far
	Quiet func() // called when nothing has come for a while; may be nil
	// Short, unless 0, is after how long a process that does nothing is given up, whether it has answered before or not, unless
	// there is a fixed time.
	Short time.Duration
}

// Parts of the time in which an engine may be silent.
const (
	maxPause  = 5 * time.Second // between two looks
	maxDoing  = 50              // a process that does nothing uses less than a fiftieth of a processor, and waits for one less than half of the time
	idleLooks = 2               // so many looks at a process that does nothing, and has answered nothing yet, end the wait
)

var errPause = errors.New("nothing has come yet")

// Next waits for a message of the engine, up to the session's limit of silence, and decodes it. Meanwhile the progress shows what is
// waited for. If the first request of all stays unanswered, it looks for the reason: see [Session.tryShorter].
func (s *Session) Next(ctx context.Context, e *Env, o *protocol.Outputs, w Wait) (aux [][]byte, err error) {
	whole := min(maxPause, s.Limits.Idle/4)
	if w.Short > 0 && s.Limits.GiveUp {
		whole = min(whole, w.Short/idleLooks)
	}
	pause := whole / 4 // to ask what a process has used takes milliseconds, so it is first asked when nothing comes
	idle, probed := 0, false
	ranBefore, starvedBefore, known := time.Duration(0), time.Duration(0), false
	for waited := pause; ; waited += pause {
		slice, stop := context.WithTimeoutCause(ctx, pause, errPause)
		aux, err = s.Front.Next(slice, s.client(), o)
		stop()
		if !errors.Is(err, errPause) || ctx.Err() != nil {
			return aux, err
		}
		ran, starved, isKnown := s.Busy()
		if known && ran-ranBefore < pause/maxDoing && starved-starvedBefore < pause/2 {
			idle++
		} else {
			idle = 0
		}
		ranBefore, starvedBefore, known, pause = ran, starved, isKnown, whole
		if w.Quiet != nil {
			w.Quiet()
		}
		what, open := w.What()
		e.await(fmt.Sprintf("%s, for %v of %v", what, waited.Round(time.Second), s.Limits.Idle))
		if w.First && open != nil && !probed && (idle > 0 && s.Limits.GiveUp || waited >= s.Limits.Idle) {
			probed = true
			if err := s.tryShorter(ctx, open); err != nil {
				return nil, err
			}
		}
		state := ""
		switch {
		case idle > 0:
			state = ": its process is alive and does nothing"
		case known:
			state = ": its process is alive and uses the processor"
		}
		// What computes an answer uses a processor; but an engine that has answered before may be a simulator that sleeps.
		if gaveUp := s.Limits.GiveUp && (w.First || w.Short > 0) && idle >= idleLooks; gaveUp || waited >= s.Limits.Idle {
			if gaveUp {
				state += " (--idle-timeout sets a fixed time instead)"
			}
			if probed {
				state += "; it answers the same request with fewer fields neither"
			}
			return nil, Infra(WithCode(CodeSilence, fmt.Errorf("no output for %v%s", waited, state)))
		}
	}
}

// client is the argument of [coreclient.Frontend.Next].
func (s *Session) client() int {
	if s.Front.Clients() > 1 {
		return coreclient.AnyClient
	}
	return 0
}

// await shows what an engine under test is waited for.
func (e *Env) await(what string) {
	if e.Step != nil {
		e.Step("waiting for " + what)
	}
}

// Busy is how long the engine's process has used processors, and waited for one, if that is known.
func (s *Session) Busy() (ran, starved time.Duration, known bool) {
	if command, ok := s.Owner().Subject.(*commandSubject); ok {
		return command.busy()
	}
	return 0, 0, false
}

// tryShorter sends the request once more for each older length of its array, and with the required fields only. Each line's
// request begins as that of the line before, and every released engine takes a shorter one. If an answer comes to one of
// them, the error says that the engine decodes strictly, and to what it answers.
func (s *Session) tryShorter(ctx context.Context, r *protocol.Request) error {
	lengths := shorterRequests(s.Front.Codec())
	whole := len(s.Front.Codec().Profile().Structs["EngineCoreRequest"].Fields)
	for _, l := range lengths {
		probe := *r
		probe.ID = l.id()
		probe.ExternalID = probe.ID
		payload, err := cut(s.Front.Codec().AppendRequest(nil, &probe), l.fields)
		if err == nil {
			err = s.Front.SubmitRaw(0, payload)
		}
		if err != nil {
			return nil // the silence is what is reported
		}
	}
	ctx, stop := s.patience()(ctx, maxPause/2, context.DeadlineExceeded)
	defer stop()
	for {
		frames, err := s.Front.NextRaw(ctx, 0)
		if err != nil {
			return nil
		}
		if len(frames) > 0 && bytes.Contains(frames[0], []byte(r.ID)) {
			return Infra(WithCode(CodeSilence, errors.New("the first answer came late, while the engine did nothing: --idle-timeout sets how long to wait")))
		}
		for _, l := range lengths {
			if len(frames) > 0 && bytes.Contains(frames[0], []byte(l.id())) {
				err := WithCode(CodeStrict, fmt.Errorf("the engine answers requests of %s, not of %d: it decodes strictly, where vLLM ignores fields behind those that it knows", l, whole))
				s.Lose(err)
				return AboutMessage(err, Failed("", "").Within(-1, "EngineCoreRequest").Compared(fmt.Sprintf("an answer to %d fields", whole), fmt.Sprintf("one to %d", l.fields)))
			}
		}
	}
}

// length is a number of fields of a request, and the lines that have it; none of the required ones only.
type length struct {
	fields int
	lines  []string
}

func (l length) id() string { return fmt.Sprintf("shorter-%d", l.fields) }

func (l length) String() string {
	text := safetext.Count(l.fields, "field")
	switch n := len(l.lines); n {
	case 0:
		return text + " (those that are required)"
	case 1:
		return text + " (" + l.lines[0] + ")"
	default:
		return fmt.Sprintf("%s (%s to %s)", text, l.lines[n-1], l.lines[0])
	}
}

// shorterRequests are the lengths below that of a line, the longest first.
func shorterRequests(codec *protocol.Codec) (all []length) {
	own := codec.Profile().Structs["EngineCoreRequest"].Fields
	for _, line := range protocol.Lines() {
		other, err := protocol.CodecFor(line)
		if err != nil {
			continue
		}
		n := len(other.Profile().Structs["EngineCoreRequest"].Fields)
		at := slices.IndexFunc(all, func(l length) bool { return l.fields == n })
		switch {
		case n >= len(own):
		case at < 0:
			all = append(all, length{n, []string{line}})
		default:
			all[at].lines = append(all[at].lines, line)
		}
	}
	required := len(own)
	for required > 0 && !own[required-1].Required {
		required--
	}
	return append(all, length{fields: required})
}

// cut leaves the first elements of an array.
func cut(array []byte, n int) ([]byte, error) {
	parts, err := pack.Elements(array)
	if err != nil || len(parts) < n {
		return nil, fmt.Errorf("%d elements of %d: %w", n, len(parts), errors.Join(err, errors.ErrUnsupported))
	}
	return pack.AppendArray(nil, parts[:n]...), nil
}
