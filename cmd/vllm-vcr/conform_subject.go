package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/player"
)

// frontendStart is how long a frontend under test may take to serve.
const frontendStart = 5 * time.Minute

// subjectFlags say what is under test, and what is asked of it. Without any, it is
// the embedded player.
type subjectFlags struct {
	suite             string
	engineCommand     string
	engineAddress     string
	engineGrace       time.Duration
	frontendCommand   string
	frontendURL       string
	frontendHandshake string
	keepAlive         bool

	given *pflag.FlagSet // those of the command
}

func (s *subjectFlags) addFlags(flags *pflag.FlagSet) {
	s.given = flags
	flags.StringVar(&s.suite, "suite", "", "what to ask: replay (of an engine that plays recordings), live (of one that generates), frontend (default replay, or frontend when one is given)")
	flags.StringVar(&s.engineCommand, "engine-command", "", "engine under test, one process a case (live: a line); words as in a shell, which does not run; {handshake}, {handshake_host}, {handshake_port}, {trace}, {match}, {line}, {tag}, {index} are filled in")
	flags.StringVar(&s.engineAddress, "engine-address", "", "engine under test that somebody else starts: the address where it is awaited, tcp://HOST:PORT")
	flags.DurationVar(&s.engineGrace, "engine-grace", conformance.DefaultGrace, "time between SIGTERM and SIGKILL for --engine-command")
	flags.StringVar(&s.frontendCommand, "frontend-command", "", "frontend under test, one process a line; {handshake}, {handshake_host}, {handshake_port}, {http_port}, {line}, {model} are filled in")
	flags.StringVar(&s.frontendURL, "frontend-url", "", "HTTP side of the frontend under test (default http://127.0.0.1:{http_port} of --frontend-command)")
	flags.StringVar(&s.frontendHandshake, "frontend-handshake", "", "where a frontend that is already running, at --frontend-url, awaits its engine")
	flags.BoolVar(&s.keepAlive, "keep-alive", false, "for a debugger: no deadlines, say where each subject is, and keep the last one until interrupted")
}

func (s *subjectFlags) hasEngine() bool { return s.engineCommand != "" || s.engineAddress != "" }

func (s *subjectFlags) hasFrontend() bool {
	return s.frontendCommand != "" || s.frontendURL != "" || s.frontendHandshake != ""
}

// chosenSuite is the suite that was named, else the one that fits what is under test.
func (s *subjectFlags) chosenSuite() (conformance.Suite, error) {
	usual := conformance.SuiteReplay
	if s.hasFrontend() {
		usual = conformance.SuiteFrontend
	}
	suite, err := chooseOne("--suite", conformance.Suite(cmp.Or(s.suite, string(usual))), conformance.Suites()...)
	switch {
	case err != nil:
		return "", err
	case s.engineCommand != "" && s.engineAddress != "":
		return "", errors.New("--engine-command and --engine-address: want one of the two")
	case s.hasEngine() && s.hasFrontend():
		return "", errors.New("an engine and a frontend under test: want one of the two, the other side is ours")
	case suite == conformance.SuiteFrontend && !s.hasFrontend():
		return "", errors.New("--suite frontend needs a frontend: --frontend-command, or --frontend-url with --frontend-handshake")
	case suite != conformance.SuiteFrontend && s.hasFrontend():
		return "", fmt.Errorf("--suite %s is for an engine under test, but a frontend is given", suite)
	case s.given.Changed("engine-grace") && s.engineCommand == "":
		return "", errors.New("--engine-grace is for --engine-command, which is not given")
	case s.engineGrace <= 0:
		return "", fmt.Errorf("--engine-grace %v: want more than 0", s.engineGrace)
	}
	return suite, nil
}

// checkMatches refuses to ask an engine for what it is not told.
func (s *subjectFlags) checkMatches(asked []player.Match) error {
	if s.engineCommand == "" {
		return nil
	}
	for _, m := range asked {
		if !slices.Contains(s.command().Matches(), m) {
			return fmt.Errorf("--match %s: the engine command has no {match}, so the engine is not told to find its records that way", m)
		}
	}
	return nil
}

// matches are those that the engine under test can be asked for, nil when it is the
// player, which can do all.
func (s *subjectFlags) matches() []player.Match {
	switch {
	case s.engineCommand != "":
		return s.command().Matches()
	case s.engineAddress != "":
		return []player.Match{player.MatchIndex}
	}
	return nil
}

func (s *subjectFlags) command() conformance.CommandEngine {
	return conformance.CommandEngine{Template: s.engineCommand, Grace: s.engineGrace}
}

// patient replaces the deadlines that were not set: engines load a model, and a
// frontend in Python takes minutes to import what it needs.
func (s *subjectFlags) patient(t conformance.Timeouts) conformance.Timeouts {
	usual := t
	switch {
	case s.hasEngine():
		usual = conformance.EngineTimeouts()
	case s.hasFrontend():
		usual.Connect = frontendStart
	}
	for _, limit := range []struct {
		flag       string
		set, usual *time.Duration
	}{
		{"connect-timeout", &t.Connect, &usual.Connect},
		{"idle-timeout", &t.Idle, &usual.Idle},
		{"golden-timeout", &t.Golden, &usual.Golden},
	} {
		if !s.given.Changed(limit.flag) {
			*limit.set = *limit.usual
		}
	}
	return t
}

// put makes the runner judge what the flags name.
func (s *subjectFlags) put(a *app, r *conformance.Runner, suite conformance.Suite, model string, cases []conformance.Case) error {
	r.Timeouts = s.patient(r.Timeouts)
	r.Subject = conformance.Description{Kind: "player"}
	if s.keepAlive {
		r.KeepAlive = a.attached
	}
	switch {
	case s.engineCommand != "":
		command := s.command()
		r.Engine, r.Subject = command.Engine, conformance.Description{Kind: "engine", Command: s.engineCommand}
		return command.Check(suite)
	case s.engineAddress != "":
		r.Address, r.Subject = s.engineAddress, conformance.Description{Kind: "engine", Command: s.engineAddress}
		return conformance.CheckAddress(s.engineAddress, cases)
	case s.hasFrontend():
		under := &conformance.FrontendUnderTest{
			Command: s.frontendCommand, URL: s.frontendURL, Handshake: s.frontendHandshake, Model: model,
		}
		r.Frontend, r.Subject = under, conformance.Description{Kind: "frontend", Command: cmp.Or(s.frontendCommand, s.frontendURL)}
		return under.Check(cases)
	}
	return nil
}

// before says what a run waits for that somebody has to do.
func (s *subjectFlags) before(a *app) {
	if s.engineAddress != "" {
		fmt.Fprintf(a.stderr, "waiting for an engine at %s\n", s.engineAddress)
	}
}

// after says that a run which does not end by itself has nothing left to do.
func (s *subjectFlags) after(a *app, cases int) {
	if s.keepAlive {
		fmt.Fprintf(a.stderr, "the results of all cases (%d) are there: interrupt (^C) for the report and the end of what is kept alive\n", cases)
	}
}

// attached tells a person where to attach.
func (a *app) attached(at conformance.Attached) {
	where := ""
	if at.URL != "" {
		where = ", HTTP at " + at.URL
	}
	if at.Pid != 0 {
		where += fmt.Sprintf(", process %d", at.Pid)
	}
	fmt.Fprintf(a.stderr, "handshake at %s%s\n", at.Handshake, where)
}

// flags are those that a command needs to judge the same subject again.
func (s *subjectFlags) flags() []string {
	var flags []string
	for _, flag := range []struct{ name, value string }{
		{"--suite", s.suite},
		{"--engine-command", s.engineCommand},
		{"--engine-address", s.engineAddress},
		{"--frontend-command", s.frontendCommand},
		{"--frontend-url", s.frontendURL},
		{"--frontend-handshake", s.frontendHandshake},
	} {
		if flag.value != "" {
			flags = append(flags, flag.name, flag.value)
		}
	}
	if s.engineCommand != "" && s.engineGrace != conformance.DefaultGrace {
		flags = append(flags, "--engine-grace", s.engineGrace.String())
	}
	return flags
}
