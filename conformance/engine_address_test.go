package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// elsewhere runs an engine that the runner has not started, and returns the address
// that it dials. The test ends when the engine has.
func elsewhere(t *testing.T, engine Engine, opt player.Options) string {
	t.Helper()
	opt.Handshake = fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
	subject, err := engine(opt)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- subject.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return opt.Handshake
}

// byIndex selects what an engine that has one recording can be asked.
var byIndex = Selection{Assertions: []Assertion{Schema, Fidelity}, Matches: []player.Match{player.MatchIndex}}

// TestAddress: an engine that somebody else started serves all cases, in one
// session: it could not come back for a second one.
func TestAddress(t *testing.T) {
	g := usualGolden(t)
	cases := g.plan(t, byIndex)
	address := elsewhere(t, Player, player.Options{VLLMVersion: "0.33", Trace: g.read(t), Replay: player.ReplayOptions{Strict: true}})
	require.NoError(t, CheckAddress(address, cases))
	runner := Runner{Store: g, Timeouts: patient(), Address: address, Subject: Description{Kind: "engine", Command: address}}
	report := runner.Run(t.Context(), cases)
	outcome{exit: ExitOK}.check(t, report)
	require.True(t, len(report.Results) == 3 && report.Subject.Command == address && report.Subject.Versions["0.33"] == "0.33.0", "%d results of %+v", len(report.Results), report.Subject)
}

func TestAddressLive(t *testing.T) {
	runner := liveRunner()
	runner.Timeouts = patient()
	runner.Address = elsewhere(t, Player, player.Options{VLLMVersion: "0.33"})
	report := runner.Run(t.Context(), livePlan(t, "0.33"))
	wantAllPass(t, report, map[Assertion]string{live.Shutdown: "somebody else runs the engine"})
}

// TestAddressLost: the case that sees the engine go says so, and those after it are
// skipped and name that case.
func TestAddressLost(t *testing.T) {
	g := usualGolden(t)
	runner := Runner{Store: g, Timeouts: patient()}
	runner.Address = elsewhere(t, dyingAt("replay-3", errors.New("out of memory")), player.Options{VLLMVersion: "0.33", Trace: g.read(t)})
	report := runner.Run(t.Context(), g.plan(t, byIndex))
	outcome{
		exit:    ExitFail,
		verdict: map[string]Verdict{"fidelity-index-1": Error, "fidelity-index-16": Skip},
		says: map[string][]string{
			// Whether its last word or its absence is seen first is up to the sockets.
			"fidelity-index-1":  {" open: request 3 (line "},
			"fidelity-index-16": {"not judged: the engine was lost in 0.33/multiturn-s7/fidelity-index-1: "},
		},
	}.check(t, report)
	if failures := report.Results[1].Failures; failures[len(failures)-1].Code != check.CodeEngineEnded {
		t.Errorf("code %s, want %s", failures[len(failures)-1].Code, check.CodeEngineEnded)
	}
}

// TestAddressNobody: nobody comes, one case waits and says so, and the others name it. Where every case is to be judged, the
// others say that the engine was lost.
func TestAddressNobody(t *testing.T) {
	g := usualGolden(t)
	runner := Runner{Store: g, Timeouts: Timeouts{Connect: 50 * time.Millisecond}, Address: fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))}
	waited := []string{"waiting for HELLO: ", "no handshake within 50ms"}
	named := []string{"not run: the subject did not answer in time in 0.33/multiturn-s7/schema"}
	outcome{
		exit:    ExitInfra,
		verdict: map[string]Verdict{"schema": Error, "fidelity-index-1": Skip, "fidelity-index-16": Skip},
		says:    map[string][]string{"schema": waited, "fidelity-index-1": named, "fidelity-index-16": named},
	}.check(t, runner.Run(t.Context(), g.plan(t, byIndex)))
	runner.EveryCase = true
	report := runner.Run(t.Context(), g.plan(t, byIndex))
	lost := []string{"the engine was lost before this case: ", "no handshake within 50ms"}
	outcome{
		exit:    ExitInfra,
		verdict: map[string]Verdict{"schema": Error, "fidelity-index-1": Error, "fidelity-index-16": Error},
		says:    map[string][]string{"schema": waited, "fidelity-index-1": lost, "fidelity-index-16": lost},
	}.check(t, report)
}

// TestAddressBrokenOff: a case that breaks off leaves nothing to the next one, which
// asks for the same again.
func TestAddressBrokenOff(t *testing.T) {
	g := usualGolden(t)
	var asked atomic.Int32
	engine := func(opt player.Options) (Subject, error) {
		opt.Timing.Pace = player.PaceRecorded
		return sabotaged(func(r *player.Request, s *player.Script) error {
			if s.FirstToken, s.Gaps = 0, nil; r.ID == "replay-5" && asked.Add(1) == 1 {
				s.Gaps = []time.Duration{never}
			}
			return nil
		})(opt)
	}
	runner := Runner{Store: g, Timeouts: Timeouts{Connect: time.Minute, Idle: 2 * time.Second, Golden: never}, EveryCase: true}
	runner.Address = elsewhere(t, engine, player.Options{VLLMVersion: "0.33", Trace: g.read(t)})
	report := runner.Run(t.Context(), g.plan(t, byIndex))
	outcome{
		exit:    ExitInfra,
		verdict: map[string]Verdict{"fidelity-index-1": Error},
		says:    map[string][]string{"fidelity-index-1": {"no output for 2s; 1 open: request 5 (line "}},
	}.check(t, report)
}

func TestCheckAddress(t *testing.T) {
	g := usualGolden(t)
	good := g.plan(t, byIndex)
	second := append(g.plan(t, byIndex), g.plan(t, byIndex)...)
	second[0].Golden.ID = "other"
	older := append(g.plan(t, byIndex), olderGolden(t).plan(t, byIndex)...)
	schemaOnly := g.plan(t, byIndex)
	for i := range schemaOnly {
		schemaOnly[i].Golden.Role = manifest.Schema
	}
	real := g.plan(t, byIndex)
	real[1].Variant.Frontend.Binary = "vllm-rs"
	live := live.Cases(g.line, &manifest.Manifest{}, true)
	const address = "tcp://127.0.0.1:29550"
	tests := []struct {
		name, address string
		cases         []Case
		want          string
	}{
		{"good", address, good, ""},
		{"live", address, live, ""},
		{"skipped lines", address, append(g.plan(t, byIndex), Case{Line: compat.Line{Name: "nightly"}, Skip: "no goldens"}), ""},
		{"no scheme", "127.0.0.1:29550", good, "want tcp://HOST:PORT"},
		{"no port", "tcp://127.0.0.1", good, "want tcp://HOST:PORT"},
		{"a port by name", "tcp://127.0.0.1:http", good, "want tcp://HOST:PORT"},
		{"a port too high", "tcp://127.0.0.1:65536", good, "want tcp://HOST:PORT"},
		{"any port", "tcp://127.0.0.1:0", good, "want tcp://HOST:PORT"},
		{"a path", "ipc:///tmp/x", good, "want tcp://HOST:PORT"},
		{"any host", "tcp://*:29550", good, "want a host that the engine can connect to"},
		{"any address", "tcp://0.0.0.0:29550", good, "want a host that the engine can connect to"},
		{"no case", address, nil, "the selected cases are of 0"},
		{"two lines", address, older, "the selected cases are of 2: select one line"},
		{"two goldens", address, second, "the selection has 2 goldens of role fidelity: select that one"},
		{"no golden to replay", address, schemaOnly, "the selection has 0 goldens of role fidelity"},
		{"by prompt", address, g.plan(t, Selection{}), "0.33/multiturn-s7/fidelity-prefix-1 cannot be asked of it"},
		{"through a frontend", address, real, "starts a frontend of its own"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := CheckAddress(test.address, test.cases)
			require.ErrorText(t, err, test.want)
		})
	}
}

// alive reports whether there is such a process.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}

// awaited is a context that tells when somebody waits for its end.
type awaited struct {
	context.Context
	waits func()
}

func (a awaited) Done() <-chan struct{} {
	a.waits()
	return a.Context.Done()
}

// TestKeepAlive: each engine is announced with address and process, before it is
// asked anything, and the last one stays until the run is told to end.
func TestKeepAlive(t *testing.T) {
	tests := []struct {
		name   string
		cases  func(*subjectGolden) []Case
		engine func(*testing.T, string) CommandEngine
		starts int
	}{
		{"replay", func(g *subjectGolden) []Case { return g.plan(t, byIndex) }, mock, 3},
		{"live", func(*subjectGolden) []Case { return withoutGolden(livePlan(t, "0.33")) }, liveMock, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cases := test.cases(g)
			var seen []Attached
			runner := Runner{Store: g, Engine: test.engine(t, "").Engine, Timeouts: Timeouts{Connect: 1, Idle: 1, Golden: 1}}
			runner.KeepAlive = func(at Attached) {
				for _, before := range seen {
					require.True(t, !alive(before.Pid), "process %d is still there when the next one starts", before.Pid)
				}
				seen = append(seen, at)
			}
			var done, told atomic.Int32
			runner.Progress = func(Result) { done.Add(1) }
			report := runner.Run(awaited{ctx, func() {
				if int(done.Load()) < len(cases) || told.Add(1) > 1 {
					return
				}
				if last := seen[len(seen)-1].Pid; !alive(last) {
					t.Errorf("process %d is gone after the last case, or is about to go", last)
				}
				cancel()
			}}, cases)
			require.True(t, told.Load() != 0, "the run ended before it was told to")
			if test.name == "replay" {
				outcome{exit: ExitOK}.check(t, report)
			} else {
				wantAllPass(t, report, map[Assertion]string{live.Shutdown: "the engine is kept alive"})
			}
			if len(seen) != test.starts {
				t.Fatalf("%d engines announced, want %d", len(seen), test.starts)
			}
			for _, at := range seen {
				if !strings.HasPrefix(at.Handshake, "tcp://127.0.0.1:") || at.Pid == 0 || alive(at.Pid) {
					t.Errorf("announced %+v, alive after the run: %v", at, alive(at.Pid))
				}
			}
		})
	}
}

// TestKeepAliveOfTheLost: there is nothing to keep when the engine is gone.
func TestKeepAliveOfTheLost(t *testing.T) {
	g := usualGolden(t)
	announced := 0
	report := g.judged(t, Runner{Engine: mock(t, "dies-at-once").Engine, KeepAlive: func(Attached) { announced++ }}, Selection{Assertions: []Assertion{Schema}})
	outcome{exit: ExitFail, verdict: map[string]Verdict{"schema": Error}, says: map[string][]string{
		"schema": {"| ValueError: no such model"},
	}}.check(t, report)
	require.Equal(t, announced, 1, "engines announced")
}
