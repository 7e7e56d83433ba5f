package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// CommandEngine starts an engine under test by a command: [CommandEngine.Engine]
// is the [Engine] of a [Runner]. Every session has a process of its own, in a
// process group of its own, which ends with the session: by SIGTERM, and by
// SIGKILL after Grace. What it writes is kept as far as a report needs it.
type CommandEngine struct {
	// Template is the command: words as a shell splits them, quotes and backslashes
	// included, but no shell runs. These placeholders are replaced within words:
	//
	//	{handshake}       address to dial, tcp://127.0.0.1:PORT
	//	{handshake_host}  its host
	//	{handshake_port}  its port
	//	{input_address}   socket to register at and to receive requests from, for an engine without a handshake
	//	{output_address}  socket to send outputs to, likewise
	//	{trace}           file with the recording to play, .jsonl.gz
	//	{match}           how a request finds its record: index or prefix
	//	{line}            line to be: 0.33
	//	{tag}             release to be: v0.33.0
	//	{index}           index of the engine, which its identity is made of
	Template string
	// Grace is the time between SIGTERM and SIGKILL, default [DefaultGrace].
	Grace time.Duration
	// PassEnv names variables of the environment that the engine gets although they look like secrets: it gets the
	// others that do not.
	PassEnv []string
}

// DefaultGrace is how long an engine may take to end: a CPU engine of vLLM on a busy
// machine needs a dozen seconds.
const DefaultGrace = 30 * time.Second

// ReplayTimeouts are for engines that play recordings: they load no model, and their answers are there.
func ReplayTimeouts() Timeouts {
	return Timeouts{Connect: time.Minute, Idle: time.Minute, GiveUp: true, Golden: 10 * time.Minute}
}

// EngineTimeouts are for engines that load a model, and that prepare themselves at
// the first request of a kind: a CPU engine of vLLM needs a minute to start and half
// a minute for its first log-probabilities.
func EngineTimeouts() Timeouts {
	return Timeouts{Connect: 10 * time.Minute, Stuck: time.Minute, Idle: 2 * time.Minute, GiveUp: true, Golden: 10 * time.Minute}
}

// Matches are the ways in which the engine can be asked to find the record of a
// request: one that is not told how, by {match}, is taken to go by the index in
// the request's id.
func (c CommandEngine) Matches() []player.Match {
	if c.names("match") {
		return []player.Match{player.MatchIndex, player.MatchPrefix}
	}
	return []player.Match{player.MatchIndex}
}

// Check refuses a command that the cases of a suite cannot use.
func (c CommandEngine) Check(suite Suite) error {
	words, err := splitWords(c.Template)
	if err != nil {
		return fmt.Errorf("engine command: %w", err)
	}
	if len(words) == 0 {
		return errors.New("engine command: it is empty")
	}
	if err := checkPlaceholders(words, enginePlaceholders); err != nil {
		return fmt.Errorf("engine command: %w", err)
	}
	handshake, addresses := c.names("handshake", "handshake_port"), c.names("input_address")
	switch {
	case addresses != c.names("output_address"):
		return errors.New("engine command: it has only one of {input_address} and {output_address}: an engine needs both")
	case addresses && handshake:
		return errors.New("engine command: it has a handshake and {input_address}: an engine makes a handshake or is given the addresses")
	case !addresses && !handshake:
		return errors.New("engine command: it has neither {handshake} nor {handshake_port} nor {input_address}, so the engine cannot know where to connect")
	}
	for _, name := range []string{"trace", "match"} {
		if suite != SuiteReplay && suite != SuiteGenerated && c.names(name) {
			return fmt.Errorf("engine command: {%s} is of the replay suite: an engine under the %s suite has no recording to play", name, suite)
		}
	}
	return nil
}

// Engine makes a process that plays what the options say.
func (c CommandEngine) Engine(opt player.Options) (Subject, error) {
	if opt.Clock != nil {
		return nil, ErrNotStepped // a process has a time of its own
	}
	suite := SuiteReplay
	if opt.Trace == nil {
		suite = SuiteLive
	}
	if err := c.Check(suite); err != nil {
		return nil, err
	}
	words, err := splitWords(c.Template)
	if err != nil {
		return nil, err
	}
	return &commandSubject{words: words, names: c.names, opt: opt, grace: cmp.Or(c.Grace, DefaultGrace), passEnv: c.PassEnv, started: make(chan struct{})}, nil
}

type commandSubject struct {
	words   []string
	names   func(placeholders ...string) bool
	opt     player.Options
	grace   time.Duration
	passEnv []string
	started chan struct{} // closed when there is a process
	process *process.Process
}

// Run starts the process and ends it with ctx. A process that ends before is an
// error that says how.
func (s *commandSubject) Run(ctx context.Context) error {
	words, tidy, err := s.command()
	if err != nil {
		return Infra(WithCode(CodeStart, err))
	}
	defer tidy()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = process.Environment(os.Environ(), process.WithoutSecrets(s.passEnv...))
	if s.process, err = process.Start(cmd, process.Options{Grace: s.grace, Guarded: true}); err != nil {
		return Infra(WithCode(CodeStart, err)) // there is nothing to judge
	}
	close(s.started)
	select {
	case <-s.process.Done():
		return s.process.Exit()
	case <-ctx.Done():
	}
	err = s.process.Stop(context.Background())
	if s.process.Killed() {
		s.opt.Log.Warn("the engine did not end by SIGTERM and was killed", "command", words, "grace", s.grace)
		return err
	}
	s.opt.Log.Info("the engine was stopped", "command", words, "how", s.process.Exit())
	return err
}

// command fills in the placeholders, for which it may write a file that tidy
// removes.
func (s *commandSubject) command() (words []string, tidy func(), err error) {
	values, err := placeholderValues(s.opt)
	if err != nil {
		return nil, nil, err
	}
	tidy = func() {}
	if s.names("trace") {
		dir, remove, err := process.MkdirTemp("vllm-vcr-engine-")
		if err != nil {
			return nil, nil, fmt.Errorf("write {trace}: %w", err)
		}
		tidy = remove
		values["trace"] = filepath.Join(dir, "trace.jsonl.gz")
		if err := writeTrace(values["trace"], s.opt.Trace); err != nil {
			tidy()
			return nil, nil, fmt.Errorf("write {trace}: %w", err)
		}
	}
	for _, word := range s.words {
		words = append(words, fillPlaceholders(word, values))
	}
	return words, tidy, nil
}

func writeTrace(path string, t *trace.Trace) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w, err := trace.NewWriter(file, true, t.Meta)
	for i := 0; err == nil && i < len(t.Records); i++ {
		err = w.Gather(&t.Records[i])
	}
	if err == nil {
		err = w.Close()
	}
	return errors.Join(err, file.Close())
}

// Pid is 0 until there is a process.
func (s *commandSubject) Pid() int {
	select {
	case <-s.started:
		return s.process.Pid()
	default:
		return 0
	}
}

// Patience is that of the process once there is one.
func (s *commandSubject) Patience(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	select {
	case <-s.started:
		return s.process.Patience(ctx, d, cause)
	case <-ctx.Done():
		return context.WithCancel(ctx)
	}
}

// watchIdle is that of the process, if there is one.
func (s *commandSubject) watchIdle(ctx context.Context, d time.Duration, idle func()) {
	select {
	case <-s.started:
		s.process.WatchIdle(ctx, d, idle)
	default:
	}
}

// busy is that of the process, if there is one.
func (s *commandSubject) busy() (ran, waited time.Duration, known bool) {
	select {
	case <-s.started:
		return s.process.Busy()
	default:
		return 0, 0, false
	}
}

// Started is closed when there is a process.
func (s *commandSubject) Started() <-chan struct{} { return s.started }

// Output is the last of what the process wrote, to be shown.
func (s *commandSubject) Output() string {
	select {
	case <-s.started:
		return safetext.Block(s.process.Tail())
	default:
		return ""
	}
}

// End returns how the process ended, nil while it runs, and whether force was needed.
func (s *commandSubject) End() (exit *process.ExitError, killed bool) {
	select {
	case <-s.started:
		return s.process.Exit(), s.process.Killed()
	default:
		return nil, false
	}
}

// OwnTime is true: a process has its own clock.
func (*commandSubject) OwnTime() bool { return true }

// placeholderValues are all but the trace.
func placeholderValues(opt player.Options) (map[string]string, error) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(opt.Handshake, "tcp://"))
	if err != nil {
		return nil, fmt.Errorf("handshake address %s: %w", opt.Handshake, err)
	}
	match := opt.Replay.Match
	if match == "" {
		match = player.MatchIndex
	}
	return map[string]string{
		"handshake": opt.Handshake, "handshake_host": host, "handshake_port": port, "match": string(match),
		"input_address": strings.Join(opt.InputAddresses, ","), "output_address": strings.Join(opt.OutputAddresses, ","),
		"line": protocol.LineOf(opt.VLLMVersion), "tag": opt.VLLMVersion, "index": strconv.Itoa(opt.EngineIndex),
	}, nil
}
