package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// CheckHandshake refuses an address that no engine can be awaited at.
func CheckHandshake(address string) error {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://"))
	number, notNumber := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || !strings.HasPrefix(address, "tcp://") || notNumber != nil || number == 0:
		return fmt.Errorf("engine handshake %q: want tcp://HOST:PORT, the address that the engine connects to", address)
	case host == "" || host == "*" || host == "0.0.0.0" || host == "::":
		return fmt.Errorf("engine handshake %q: want a host that the engine can connect to: it also has to connect to other ports of this host", address)
	}
	return nil
}

// CheckAddress refuses an address that no engine can be awaited at, and cases that
// one engine, started by somebody else, cannot serve: it is of one line, and in
// the replay suite it has been given one recording.
func CheckAddress(address string, cases []Case) error {
	if err := CheckHandshake(address); err != nil {
		return err
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
			return fmt.Errorf("engine address %s: %s starts a frontend of its own: leave one of the two out", address, c.Name())
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

// Join waits at the address of the run for an engine that somebody else starts.
func (e *Env) Join(ctx context.Context, codec *protocol.Codec, opt player.Options) (*Session, error) {
	s, err := e.Listen(codec, e.Address)
	if err != nil {
		return nil, err
	}
	s.Remote = true
	s.Context, s.Cancel = context.WithCancelCause(ctx)
	e.announce(s)
	return e.accept(s, opt.VLLMVersion)
}

// sharing is the session that cases share, or why there is none.
type sharing struct {
	key     string
	session *Session
	err     error
	user    string // the case that used it last
	lostIn  string // the case that lost it, empty when it was lost between two
	state   any    // what the suite that opened the session keeps with it
}

// ShareEngine returns the session of the engine of a line that all cases of a suite use. The first case starts the engine, or waits for
// it at the address.
func (e *Env) ShareEngine(suite Suite, line compat.Line, codec *protocol.Codec) (*Session, error) {
	return e.Share(string(suite)+" "+line.Name, func() (*Session, error) {
		opt := player.Options{VLLMVersion: PlayedVersion(line)}
		if e.Address != "" {
			return e.Join(e.Context, codec, opt)
		}
		return e.Start(e.Context, codec, opt)
	})
}

// Share returns the session of a key, and opens it for the first case that asks.
// Once it is lost, or could not be opened, there is no other.
func (e *Env) Share(key string, open func() (*Session, error)) (*Session, error) {
	if e.sharing == nil || e.sharing.key != key {
		e.release()
		e.sharing = &sharing{key: key, user: e.Case}
		e.sharing.session, e.sharing.err = open()
		return e.sharing.session, e.sharing.err
	}
	if e.sharing.err != nil {
		e.sharing.lostIn = e.sharing.user
		return nil, e.lostBefore(e.sharing.err)
	}
	s := e.sharing.session
	if s.Lost != nil {
		e.sharing.lostIn = e.sharing.user
	} else if s.Context.Err() != nil {
		s.Lost = context.Cause(s.Context)
	}
	if s.Lost != nil {
		return nil, e.lostBefore(s.Lost)
	}
	e.sharing.user = e.Case
	return s, nil
}

// LostError is the error of a case that comes after the engine was lost.
type LostError struct {
	Reason string
	// In is the case that lost it, empty when it was lost between two.
	In string
}

func (e *LostError) Error() string { return "the engine was lost before this case: " + e.Reason }

func (e *Env) lostBefore(reason error) error {
	err := WithCode(CodeEngineSessionLost, &LostError{FirstLine(reason), e.sharing.lostIn})
	if infra := (InfraError{}); errors.As(reason, &infra) {
		return Infra(err)
	}
	return err
}

func (e *Env) release() {
	if e.sharing != nil && e.sharing.session != nil {
		e.sharing.session.Close()
	}
	e.sharing = nil
}

// During is what one case sees of a shared session: its waits end with the case,
// too.
func (s *Session) During(ctx context.Context) *Session {
	view := &Session{Front: s.Front, Engine: s.Engine, Subject: s.Subject, Limits: s.Limits, Shared: s}
	view.Context, view.Cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.Context, func() { view.Cancel(context.Cause(s.Context)) })
	return view
}

// State is what the suite that opened the shared session keeps with it.
func (e *Env) State() *any { return &e.sharing.state }
