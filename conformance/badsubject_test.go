package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// saboteur is a token source that answers some requests wrongly.
type saboteur struct {
	player.Source
	sabotage func(r *player.Request, s *player.Script) error
}

func (s saboteur) Script(r *player.Request) (player.Script, error) {
	script, err := s.Source.Script(r)
	if err != nil {
		return script, err
	}
	script.Tokens, script.Chunks = slices.Clone(script.Tokens), slices.Clone(script.Chunks)
	return script, s.sabotage(r, &script)
}

// sabotaged makes players whose scripts are tampered with.
func sabotaged(sabotage func(r *player.Request, s *player.Script) error) Engine {
	return func(opt player.Options) (Subject, error) {
		if opt.Source == nil {
			replay, err := player.NewReplay(opt.Trace, player.ReplayOptions{Match: opt.Replay.Match, Strict: true})
			if err != nil {
				return nil, err
			}
			opt.Source = saboteur{replay, sabotage}
		}
		return player.New(opt)
	}
}

// inRequest tampers with the script of one request.
func inRequest(id string, change func(*player.Script)) Engine {
	return sabotaged(func(r *player.Request, s *player.Script) error {
		if r.ID == id {
			change(s)
		}
		return nil
	})
}

// TestAllFailuresAreReported: one wrong stream does not hide another.
func TestAllFailuresAreReported(t *testing.T) {
	g := usualGolden(t)
	runner := Runner{Store: g, Engine: sabotaged(func(_ *player.Request, s *player.Script) error {
		s.Tokens[0]++
		return nil
	})}
	report := runner.Run(t.Context(), g.plan(t, Selection{Assertions: []Assertion{Fidelity}, Concurrency: []int{16}}))
	for _, r := range report.Results {
		if len(r.Failures) != g.Streams {
			t.Errorf("%s: %d failures, want one a stream", r.Case.Check(), len(r.Failures))
		}
		for i, f := range r.Failures {
			if f.Request != i || !strings.HasPrefix(f.Message, fmt.Sprintf("request %d (line ", i)) {
				t.Fatalf("failure %d is about request %d: %s", i, f.Request, f.Message)
			}
		}
	}
}

// mortal is a player that a request can kill.
type mortal struct {
	Subject
	die  chan error
	dead chan struct{}
}

func (m mortal) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.Subject.Run(ctx) }()
	select {
	case err := <-m.die:
		cancel()
		close(m.dead)
		<-ended
		return err
	case err := <-ended:
		return err
	}
}

// dyingAt makes players that end with an error when a request comes.
func dyingAt(id string, reason error) Engine {
	return func(opt player.Options) (Subject, error) {
		m := mortal{die: make(chan error), dead: make(chan struct{})}
		var err error
		m.Subject, err = sabotaged(func(r *player.Request, _ *player.Script) error {
			if r.ID == id {
				m.die <- reason
				<-m.dead
			}
			return nil
		})(opt)
		return m, err
	}
}

// runFunc is a function as a subject.
type runFunc func(context.Context) error

func (f runFunc) Run(ctx context.Context) error { return f(ctx) }

func runs(f runFunc) Engine {
	return func(player.Options) (Subject, error) { return f, nil }
}

// never is longer than any test runs: who waits for it is killed with all
// goroutines on show.
const never = 24 * time.Hour

// TestBrokenEngine is about engines that do not get to the end of a replay. The self-test has those that die or fall silent.
func TestBrokenEngine(t *testing.T) {
	tests := []struct {
		name    string
		subject Engine
		limit   time.Duration // for the golden
		exit    int
		says    []string
	}{
		{"ends at once", runs(func(context.Context) error { return nil }), never, ExitFail, []string{"engine: it ended while it was needed"}},
		{"cannot start", func(player.Options) (Subject, error) { return nil, errors.New("no such file") }, never, ExitFail, []string{"engine: no such file"}},
		{
			"dies in the first request", dyingAt("replay-0", errors.New("out of memory")), never, ExitFail,
			[]string{"engine: out of memory; ", " open: request 0 (line 7) after 0 of 24 tokens"},
		},
		{"is too slow for the golden", neverAnswers, 50 * time.Millisecond, ExitInfra, []string{"the case took longer than 50ms"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			report := g.judged(t, Runner{Timeouts: Timeouts{Connect: never, Idle: never, Golden: test.limit}, Engine: test.subject}, oneByOne)
			want := outcome{
				exit: test.exit, verdict: map[string]Verdict{"fidelity-index-1": Error},
				says: map[string][]string{"fidelity-index-1": test.says},
			}
			want.check(t, report)
		})
	}
}

// TestGivesUp: once a subject hung or could not be started, its other cases are skipped with the name of that case, unless that
// was expected; and the run ends after as many failures as were allowed.
func TestGivesUp(t *testing.T) {
	hangs := runs(func(ctx context.Context) error { <-ctx.Done(); return nil })
	cannot := CommandEngine{Template: "/no/such/engine {handshake}"}.Engine
	refuses := func(player.Options) (Subject, error) { return nil, errors.New("no such option") }
	dies := runs(func(context.Context) error { return errors.New("out of memory") })
	soon := Timeouts{Connect: time.Millisecond, Idle: never, Golden: never}
	known := &Expectations{File: "e.toml", List: []Expectation{{
		Pattern: "0.33/multiturn-s7/schema", Outcome: Fail, Codes: []Code{check.CodeNoHandshake}, Reason: "slow", Issue: "#1", Pos: "e.toml:1",
	}}}
	tests := []struct {
		name   string
		runner Runner
		want   string // the verdicts, in order
		note   string // of the last case
		exit   int
	}{
		{"hangs", Runner{Engine: hangs, Timeouts: soon}, "pass error skip skip", "not run: the subject did not answer in time in 0.33/multiturn-s7/schema", ExitInfra},
		{"cannot be started", Runner{Engine: cannot, Timeouts: patient()}, "pass error skip skip", "not run: the subject could not be started in 0.33/multiturn-s7/schema", ExitInfra},
		{"refuses what it is to play", Runner{Engine: refuses, Timeouts: patient()}, "pass error error error", "", ExitFail},
		{"hangs, and every case is wanted", Runner{Engine: hangs, Timeouts: soon, EveryCase: true}, "pass error error error", "", ExitInfra},
		{"hangs as expected", Runner{Engine: hangs, Timeouts: soon, Expectations: known}, "pass xfail error skip", "not run: the subject did not answer in time in 0.33/multiturn-s7/fidelity-index-1", ExitInfra},
		{"dies, each process anew", Runner{Engine: dies, Timeouts: patient()}, "pass error error error", "", ExitFail},
		{"ends after two", Runner{Engine: dies, Timeouts: patient(), MaxFailures: 2}, "pass error error skip", "not run: the run ends after 2 failed cases, the last of which is 0.33/multiturn-s7/fidelity-index-1", ExitFail},
		{"ends after one", Runner{Engine: dies, Timeouts: patient(), MaxFailures: 1}, "pass error skip skip", "not run: the run ends after 1 failed case, the last of which is 0.33/multiturn-s7/schema", ExitFail},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			test.runner.Store = g
			report := test.runner.Run(t.Context(), g.plan(t, Selection{
				Assertions: []Assertion{Integrity, Schema, Fidelity}, Matches: []player.Match{player.MatchIndex},
			}))
			var verdicts []string
			for _, r := range report.Results {
				verdicts = append(verdicts, string(r.Verdict))
			}
			last := report.Results[len(report.Results)-1]
			if got := strings.Join(verdicts, " "); got != test.want || last.Note != test.note || report.ExitCode != test.exit {
				t.Errorf("%s, %q, exit code %d\nwant %s, %q, %d", got, last.Note, report.ExitCode, test.want, test.note, test.exit)
			}
		})
	}
}

// neverAnswers makes players that say the first token tomorrow.
func neverAnswers(opt player.Options) (Subject, error) {
	opt.Timing.Pace = player.PaceRecorded
	return sabotaged(func(_ *player.Request, s *player.Script) error {
		s.FirstToken = never
		return nil
	})(opt)
}

// TestBrokenOffReplayKeepsItsFailures: what the ended streams show is reported
// beside what broke the replay off.
func TestBrokenOffReplayKeepsItsFailures(t *testing.T) {
	g := usualGolden(t)
	report := g.judged(t, Runner{Engine: alteredAnd(dyingAt("replay-2", errors.New("out of memory")))}, oneByOne)
	r := report.Results[0]
	if r.Verdict != Fail || len(r.Failures) != 3 || r.Failures[0].Request != 0 || r.Failures[1].Request != 1 ||
		!strings.HasPrefix(r.Failures[2].Message, "engine: out of memory; ") ||
		!strings.Contains(r.Failures[2].Message, " open: request 2 (line 6) after 0 of 20 tokens") {
		t.Errorf("%s: %v", r.Verdict, r.Failures)
	}
}

// alteredAnd gives a subject a trace with other tokens than the golden's.
func alteredAnd(next Engine) Engine {
	return func(opt player.Options) (Subject, error) {
		altered := *opt.Trace
		altered.Records = slices.Clone(altered.Records)
		for i := range altered.Records {
			tokens := slices.Clone(altered.Records[i].OutputTokenIDs)
			tokens[0]++
			altered.Records[i].OutputTokenIDs = tokens
		}
		opt.Trace = &altered
		return next(opt)
	}
}

// TestGivesUpAtTheStart: an engine that ends before it has registered, whichever golden it is to play, is not started for each case
// of the line.
func TestGivesUpAtTheStart(t *testing.T) {
	dies := runs(func(context.Context) error { return errors.New("no module named msgspec") })
	matrix, mf := repository(t)
	cases, err := NewPlan(matrix, mf, Selection{
		Lines: []string{"0.33"}, Goldens: []string{"multiturn-s7", "edge-s1"}, Assertions: []Assertion{Schema, Fidelity}, Matches: []player.Match{player.MatchIndex},
	})
	require.NoError(t, err)
	runner := Runner{Store: NewStore(StoreOptions{Dir: "../testdata/goldens"}), Engine: dies, Timeouts: patient()}
	var verdicts []string
	report := runner.Run(t.Context(), cases)
	for _, r := range report.Results {
		verdicts = append(verdicts, string(r.Verdict))
	}
	last := report.Results[len(report.Results)-1].Note
	if got := strings.Join(verdicts, " "); got != "error error error error skip skip" || last != "not run: the subject ended before it had registered, also in 0.33/edge-s1/schema" {
		t.Errorf("%s, %q", got, last)
	}
}
