package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// CheckAddress refuses an address that no engine can be awaited at, and cases that
// one engine, started by somebody else, cannot serve: it is of one line, and in
// the replay suite it has been given one recording.
func CheckAddress(address string, cases []Case) error {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://"))
	number, notNumber := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || !strings.HasPrefix(address, "tcp://") || notNumber != nil || number == 0:
		return fmt.Errorf("engine address %q: want tcp://HOST:PORT, which the engine dials", address)
	case host == "" || host == "*" || host == "0.0.0.0" || host == "::":
		return fmt.Errorf("engine address %q: want a host that the engine can dial, as it is told of more ports there", address)
	}
	lines, goldens := map[string]bool{}, map[string]bool{}
	for _, c := range cases {
		if c.Skip != "" || c.Assertion == "" {
			continue
		}
		lines[c.Line.Name] = true
		if c.Suite != SuiteReplay {
			continue
		}
		if c.Golden.Role == manifest.Fidelity {
			goldens[c.Line.Name+"/"+c.Golden.ID] = true
		}
		if c.Variant.ThroughFrontend() {
			return fmt.Errorf("engine address %s: %s has a frontend of its own: leave one of the two out", address, c.Name())
		}
		if c.Assertion == Fidelity && c.Variant.Match == player.MatchPrefix {
			return fmt.Errorf("engine address %s: %s cannot be asked of it: it has the recording, not one with the prompts of this match; select match index", address, c.Name())
		}
	}
	if len(lines) != 1 {
		return fmt.Errorf("engine address %s: an engine is of one line, the selected cases are of %d: select one line", address, len(lines))
	}
	if cases[0].Suite == SuiteReplay && len(goldens) != 1 {
		return fmt.Errorf("engine address %s: the engine has been given one recording, the selection has %d goldens of role fidelity: select that one", address, len(goldens))
	}
	return nil
}

// dataAddress is where the sockets besides the handshake listen: any port of the
// same host.
func dataAddress(handshake string) string {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(handshake, "tcp://"))
	if handshake == "" || err != nil {
		return ""
	}
	return "tcp://" + net.JoinHostPort(host, "0")
}

// join waits at the runner's address for an engine that somebody else starts.
func (r *Runner) join(ctx context.Context, codec *protocol.Codec, opt player.Options) (*session, error) {
	s, err := r.listen(codec, r.Address)
	if err != nil {
		return nil, err
	}
	s.remote = true
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	r.announce(s)
	return r.accept(s, opt.VLLMVersion)
}

// sharing is the session that cases share, or why there is none.
type sharing struct {
	key     string
	session *session
	err     error
	live    *live // what the cases of the live suite know of each other
}

// share returns the session of a key, and opens it for the first case that asks.
// Once it is lost, or could not be opened, nobody gets another.
func (r *Runner) share(key string, open func() (*session, error)) (*session, error) {
	if r.sharing == nil || r.sharing.key != key {
		r.release()
		r.sharing = &sharing{key: key}
		r.sharing.session, r.sharing.err = open()
		return r.sharing.session, r.sharing.err
	}
	if r.sharing.err != nil {
		return nil, lostBefore(r.sharing.err)
	}
	s := r.sharing.session
	if s.lost == nil && s.ctx.Err() != nil {
		s.lost = context.Cause(s.ctx)
	}
	if s.lost != nil {
		return nil, lostBefore(s.lost)
	}
	return s, nil
}

// lostBefore is the error of a case that comes after the engine was lost. The
// reason is told once, by the case that saw it.
func lostBefore(reason error) error {
	first, _, _ := strings.Cut(reason.Error(), "\n")
	err := check.WithCode(check.CodeEngineSessionLost, fmt.Errorf("the engine was lost before this case: %s", first))
	if infra := (check.InfraError{}); errors.As(reason, &infra) {
		return check.Infra(err)
	}
	return err
}

// release ends the shared session.
func (r *Runner) release() {
	if r.sharing != nil && r.sharing.session != nil {
		r.sharing.session.close()
	}
	r.sharing = nil
}

// during is what one case sees of a shared session: its waits end with the case,
// too.
func (s *session) during(ctx context.Context) *session {
	view := &session{front: s.front, engine: s.engine, subject: s.subject, limits: s.limits, shared: s}
	view.ctx, view.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, func() { view.cancel(context.Cause(s.ctx)) })
	return view
}

// leave hands a shared session on. Requests that the case left open are aborted,
// and what the engine still says of them is taken off the wire.
func (s *session) leave() {
	s.cancel(context.Canceled)
	var open []string
	for id, st := range s.byID {
		if !st.ended() {
			open = append(open, id)
		}
	}
	if len(open) == 0 || s.shared.lost != nil {
		return
	}
	ctx, stop := context.WithTimeout(s.shared.ctx, s.limits.Idle)
	defer stop()
	err := s.front.Abort(0, open...)
	if err == nil {
		s.quiet = time.NewTimer(s.limits.Idle)
		err = s.barrier(ctx)
	}
	if err != nil {
		s.lose(fmt.Errorf("it did not come to rest after a case that broke off: %w", err))
	}
}
