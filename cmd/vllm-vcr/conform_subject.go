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

// subjectOptions say what is under test, and what is asked of it. Without any, it is
// the embedded player.
type subjectOptions struct {
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

func (opts *subjectOptions) addFlags(flags *pflag.FlagSet) {
	opts.given = flags
	flags.StringVar(&opts.suite, "suite", "", "what to ask: replay (of an engine that plays recordings), live (of one that generates), frontend (default replay, or frontend when one is given)")
	flags.StringVar(&opts.engineCommand, "engine-command", "", "engine under test, one process a case (live: a line); words as in a shell, which does not run; {handshake}, {handshake_host}, {handshake_port}, {trace}, {match}, {line}, {tag}, {index} are filled in")
	flags.StringVar(&opts.engineAddress, "engine-address", "", "engine under test that somebody else starts: the address where it is awaited, tcp://HOST:PORT")
	flags.DurationVar(&opts.engineGrace, "engine-grace", conformance.DefaultGrace, "time between SIGTERM and SIGKILL for --engine-command")
	flags.StringVar(&opts.frontendCommand, "frontend-command", "", "frontend under test, one process a line; {handshake}, {handshake_host}, {handshake_port}, {http_port}, {line}, {model} are filled in")
	flags.StringVar(&opts.frontendURL, "frontend-url", "", "HTTP side of the frontend under test (default http://127.0.0.1:{http_port} of --frontend-command)")
	flags.StringVar(&opts.frontendHandshake, "frontend-handshake", "", "where a frontend that is already running, at --frontend-url, awaits its engine")
	flags.BoolVar(&opts.keepAlive, "keep-alive", false, "for a debugger: no deadlines, say where each subject is, and keep the last one until interrupted")
}

func (opts *subjectOptions) hasEngine() bool {
	return opts.engineCommand != "" || opts.engineAddress != ""
}

func (opts *subjectOptions) hasFrontend() bool {
	return opts.frontendCommand != "" || opts.frontendURL != "" || opts.frontendHandshake != ""
}

// chosenSuite is the suite that was named, else the one that fits what is under test.
func (opts *subjectOptions) chosenSuite() (conformance.Suite, error) {
	usual := conformance.SuiteReplay
	if opts.hasFrontend() {
		usual = conformance.SuiteFrontend
	}
	suite, err := chooseOne("--suite", conformance.Suite(cmp.Or(opts.suite, string(usual))), conformance.Suites()...)
	switch {
	case err != nil:
		return "", err
	case opts.engineCommand != "" && opts.engineAddress != "":
		return "", errors.New("--engine-command and --engine-address: want one of the two")
	case opts.hasEngine() && opts.hasFrontend():
		return "", errors.New("an engine and a frontend under test: want one of the two, the other side is ours")
	case suite == conformance.SuiteFrontend && !opts.hasFrontend():
		return "", errors.New("--suite frontend needs a frontend: --frontend-command, or --frontend-url with --frontend-handshake")
	case suite != conformance.SuiteFrontend && opts.hasFrontend():
		return "", fmt.Errorf("--suite %s is for an engine under test, but a frontend is given", suite)
	case opts.given.Changed("engine-grace") && opts.engineCommand == "":
		return "", errors.New("--engine-grace is for --engine-command, which is not given")
	case opts.engineGrace <= 0:
		return "", fmt.Errorf("--engine-grace %v: want more than 0", opts.engineGrace)
	}
	return suite, nil
}

// checkMatches refuses to ask an engine for what it is not told.
func (opts *subjectOptions) checkMatches(asked []player.Match) error {
	if opts.engineCommand == "" {
		return nil
	}
	for _, m := range asked {
		if !slices.Contains(opts.command().Matches(), m) {
			return fmt.Errorf("--match %s: the engine command has no {match}, so the engine is not told to find its records that way", m)
		}
	}
	return nil
}

// matches are those that the engine under test can be asked for, nil when it is the
// player, which can do all.
func (opts *subjectOptions) matches() []player.Match {
	switch {
	case opts.engineCommand != "":
		return opts.command().Matches()
	case opts.engineAddress != "":
		return []player.Match{player.MatchIndex}
	}
	return nil
}

func (opts *subjectOptions) command() conformance.CommandEngine {
	return conformance.CommandEngine{Template: opts.engineCommand, Grace: opts.engineGrace}
}

// patient replaces the deadlines that were not set: engines load a model, and a
// frontend in Python takes minutes to import what it needs.
func (opts *subjectOptions) patient(t conformance.Timeouts) conformance.Timeouts {
	usual := t
	switch {
	case opts.hasEngine():
		usual = conformance.EngineTimeouts()
	case opts.hasFrontend():
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
		if !opts.given.Changed(limit.flag) {
			*limit.set = *limit.usual
		}
	}
	return t
}

// put makes the runner judge what the flags name.
func (opts *subjectOptions) put(env *environment, r *conformance.Runner, suite conformance.Suite, model string, cases []conformance.Case) error {
	r.Timeouts = opts.patient(r.Timeouts)
	r.Subject = conformance.Description{Kind: "player"}
	if opts.keepAlive {
		r.KeepAlive = func(at conformance.Attached) { logAttached(env, at) }
	}
	switch {
	case opts.engineCommand != "":
		command := opts.command()
		r.Engine, r.Subject = command.Engine, conformance.Description{Kind: "engine", Command: opts.engineCommand}
		return command.Check(suite)
	case opts.engineAddress != "":
		r.Address, r.Subject = opts.engineAddress, conformance.Description{Kind: "engine", Command: opts.engineAddress}
		return conformance.CheckAddress(opts.engineAddress, cases)
	case opts.hasFrontend():
		under := &conformance.FrontendUnderTest{
			Command: opts.frontendCommand, URL: opts.frontendURL, Handshake: opts.frontendHandshake, Model: model,
		}
		r.Frontend, r.Subject = under, conformance.Description{Kind: "frontend", Command: cmp.Or(opts.frontendCommand, opts.frontendURL)}
		return under.Check(cases)
	}
	return nil
}

// before says what a run waits for that somebody has to do.
func (opts *subjectOptions) before(env *environment) {
	if opts.engineAddress != "" {
		fmt.Fprintf(env.stderr, "waiting for an engine at %s\n", opts.engineAddress)
	}
}

// after says that a run which does not end by itself has nothing left to do.
func (opts *subjectOptions) after(env *environment, cases int) {
	if opts.keepAlive {
		fmt.Fprintf(env.stderr, "the results of all cases (%d) are there: interrupt (^C) for the report and the end of what is kept alive\n", cases)
	}
}

// logAttached tells a person where to attach.
func logAttached(env *environment, at conformance.Attached) {
	where := ""
	if at.URL != "" {
		where = ", HTTP at " + at.URL
	}
	if at.Pid != 0 {
		where += fmt.Sprintf(", process %d", at.Pid)
	}
	fmt.Fprintf(env.stderr, "handshake at %s%s\n", at.Handshake, where)
}

// flags are those that a command needs to judge the same subject again.
func (opts *subjectOptions) flags() []string {
	var flags []string
	for _, flag := range []struct{ name, value string }{
		{"--suite", opts.suite},
		{"--engine-command", opts.engineCommand},
		{"--engine-address", opts.engineAddress},
		{"--frontend-command", opts.frontendCommand},
		{"--frontend-url", opts.frontendURL},
		{"--frontend-handshake", opts.frontendHandshake},
	} {
		if flag.value != "" {
			flags = append(flags, flag.name, flag.value)
		}
	}
	if opts.engineCommand != "" && opts.engineGrace != conformance.DefaultGrace {
		flags = append(flags, "--engine-grace", opts.engineGrace.String())
	}
	return flags
}
