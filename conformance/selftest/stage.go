package selftest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// stage reads the goldens of lines.
type stage struct {
	cfg   *Config
	known map[string]*scene // by line and golden
}

// tasks are all faults of all lines, the control of each line first.
func (cfg *Config) tasks(ctx context.Context) ([]*task, error) {
	if cfg.runner == nil {
		cfg.runner = func(r conformance.Runner) runs { return &r }
	}
	cfg.Store = &kept{Store: cfg.Store, known: map[string]stored{}}
	lines, err := cfg.lines()
	if err != nil {
		return nil, err
	}
	st := &stage{cfg: cfg, known: map[string]*scene{}}
	var tasks []*task
	for i, line := range lines {
		donor := lines[(i+1)%len(lines)]
		if len(lines) == 1 {
			donor = cfg.otherLine(line)
		}
		more, err := st.tasks(ctx, line, donor)
		if err != nil {
			return nil, fmt.Errorf("self-test of line %s: %w", line.Name, err)
		}
		tasks = append(tasks, more...)
		if line.Name == rulesLine {
			rules, err := st.ruleTasks(ctx, line, more[0].scene.codec)
			if err != nil {
				return nil, fmt.Errorf("self-test of line %s: %w", line.Name, err)
			}
			tasks = append(tasks, rules...)
		}
		if i == 0 { // one line is enough: what differs between lines is the layout of messages
			for _, f := range append(cfg.suiteFaults(), cfg.routerFaults()...) {
				tasks = append(tasks, &task{fault: f, scene: more[0].scene})
			}
		}
	}
	return cfg.selected(tasks)
}

// lines are the selected ones, in the order of the matrix.
func (cfg *Config) lines() ([]compat.Line, error) {
	var playable []compat.Line
	for _, l := range cfg.Matrix.Lines {
		if len(cfg.goldens(l)) > 0 {
			playable = append(playable, l)
		}
	}
	asked := cfg.Lines
	if len(asked) == 0 {
		asked = cfg.linesOfRun(playable)
	}
	if len(asked) == 0 {
		return threeOf(playable)
	}
	selected := map[string]bool{}
	for _, name := range asked {
		found, err := cfg.Matrix.Select([]string{name})
		if err != nil {
			return nil, fmt.Errorf("self-test: %w", err)
		}
		line := found[0]
		if !slices.ContainsFunc(playable, func(l compat.Line) bool { return l.Name == line.Name }) {
			return nil, fmt.Errorf("self-test: line %s has no golden of role fidelity in %s", line.Name, cfg.Manifest.File)
		}
		selected[line.Name] = true
	}
	return slices.DeleteFunc(playable, func(l compat.Line) bool { return !selected[l.Name] }), nil
}

// linesOfRun are the lines that every pattern of Run begins with, none when one
// begins otherwise: a case is named by its line, so the name is enough to repeat it.
func (cfg *Config) linesOfRun(playable []compat.Line) []string {
	var names []string
	for _, pattern := range cfg.Run {
		first, _, _ := strings.Cut(pattern, "/")
		if !slices.ContainsFunc(playable, func(l compat.Line) bool { return l.Name == first }) {
			return nil
		}
		names = append(names, first)
	}
	return names
}

// threeOf are the first, the middle and the last.
func threeOf(lines []compat.Line) ([]compat.Line, error) {
	switch n := len(lines); {
	case n == 0:
		return nil, fmt.Errorf("self-test: no line has a golden of role fidelity")
	case n > 3:
		return []compat.Line{lines[0], lines[n/2], lines[n-1]}, nil
	}
	return lines, nil
}

// otherLine is any other line with goldens, the same line if there is none.
func (cfg *Config) otherLine(line compat.Line) compat.Line {
	for _, l := range cfg.Matrix.Lines {
		if l.Name != line.Name && len(cfg.goldens(l)) > 0 {
			return l
		}
	}
	return line
}

// plan lists the cases of a golden, but for prompts matched one at a time: a fault
// that neither this match nor this order of requests shows is one of both.
func (st *stage) plan(line compat.Line, g manifest.Golden) ([]conformance.Case, error) {
	cases, err := conformance.NewPlan(st.cfg.Matrix, st.cfg.Manifest, conformance.Selection{
		Lines: []string{line.Name}, Goldens: []string{g.ID}, Enforce: conformance.EnforceAll,
	})
	return slices.DeleteFunc(cases, func(c conformance.Case) bool {
		return c.Variant == conformance.Variant{Match: player.MatchPrefix, Concurrency: 1}
	}), err
}

// goldens are those of a line that can be replayed.
func (cfg *Config) goldens(line compat.Line) []manifest.Golden {
	return cfg.ofRole(line, manifest.Fidelity)
}

// ofRole are the goldens of a line with a role, the smallest first.
func (cfg *Config) ofRole(line compat.Line, role manifest.Role) []manifest.Golden {
	goldens := slices.DeleteFunc(slices.Clone(cfg.Manifest.ForLine(line.Name)), func(g manifest.Golden) bool {
		return g.Role != role
	})
	slices.SortStableFunc(goldens, func(a, b manifest.Golden) int {
		return cmp.Or(cmp.Compare(a.Tokens, b.Tokens), cmp.Compare(a.Size, b.Size))
	})
	return goldens
}

// tasks are the faults of a line.
func (st *stage) tasks(ctx context.Context, line, donor compat.Line) ([]*task, error) {
	usual, err := st.scene(ctx, line, (*target).fits)
	if err != nil {
		return nil, err
	}
	if usual == nil {
		return nil, fmt.Errorf("no golden has a stream of eight tokens or more that differ at its begin, in its middle and at its end")
	}
	if donor.Name != line.Name {
		if usual.donor, err = st.scene(ctx, donor, func(*target) bool { return true }); err != nil {
			return nil, err
		}
	}
	faults := usual.faults()
	if usual.framed, err = st.session(ctx, line); err != nil {
		return nil, err
	}
	usual.heard = asFrames(usual.framed)
	var tasks []*task
	for _, f := range faults {
		t := &task{fault: f, scene: usual}
		if err := st.fit(ctx, line, t); err != nil {
			return nil, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// ruleTasks are the faults in recorded sessions of a line, each of which a rule must find.
func (st *stage) ruleTasks(ctx context.Context, line compat.Line, codec *protocol.Codec) ([]*task, error) {
	scenes := map[string]*scene{}
	var tasks []*task
	for _, f := range slices.Concat(ruleFaults(codec), nixlFaults(codec)) {
		s := scenes[f.session]
		if s == nil {
			var err error
			if s, err = st.recorded(ctx, line, f.session); err != nil {
				return nil, err
			}
			s.codec, scenes[f.session] = codec, s
		}
		t := &task{fault: f, scene: s}
		if s.stored.data == nil {
			t.lacks = "the line has no golden " + f.session
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// recorded is a scene with the check of role frames alone, of the messages of a golden of role wire or frames; of role nixl it has the check nixl.
func (st *stage) recorded(ctx context.Context, line compat.Line, id string) (*scene, error) {
	s := &scene{cases: []conformance.Case{{Line: line, Suite: conformance.SuiteReplay, Assertion: conformance.Frames, Gating: true}}}
	goldens := st.cfg.Manifest.ForLine(line.Name)
	at := slices.IndexFunc(goldens, func(g manifest.Golden) bool { return g.ID == id && g.Role.Raw() })
	if at < 0 {
		return s, nil
	}
	s.stored.golden = goldens[at]
	var err error
	if s.stored.data, s.stored.location, err = st.cfg.Store.Fetch(ctx, goldens[at]); err != nil {
		return nil, err
	}
	if s.stored.golden.Role == manifest.NIXL {
		s.cases[0].Assertion = conformance.NIXL
	} else {
		s.stored.golden.Role = manifest.Frames
	}
	s.stored.location = strings.TrimSuffix(s.stored.location, ".gz") // so that nothing is compressed for a run
	if s.stored.data, err = inflate(s.stored.data); err != nil {
		return nil, err
	}
	s.stored = s.stored.register(s.stored.data)
	s.cases[0].Golden = s.stored.golden
	return s, nil
}

// asFrames makes a session of role wire one of role frames: its messages are as real, and nobody has to repeat them.
func asFrames(s session) session {
	if len(s.cases) == 0 {
		return session{}
	}
	heard := session{stored: s.stored}
	heard.golden.Role, heard.golden.ID = manifest.Frames, "frames-of-"+s.golden.ID
	c := s.cases[0]
	c.Golden, c.Assertion, c.Variant = heard.golden, conformance.Frames, conformance.Variant{}
	heard.cases = []conformance.Case{c}
	return heard
}

// fit finds the golden for a fault that needs a special stream, and says what a
// golden lacks to show it.
func (st *stage) fit(ctx context.Context, line compat.Line, t *task) error {
	if t.fault.fits != nil {
		s, err := st.scene(ctx, line, t.fault.fits)
		if err != nil {
			return err
		}
		if s == nil {
			t.lacks = "no golden of the line has a stream for it"
			return nil
		}
		t.scene = s
		for _, f := range s.faults() {
			if f.Name == t.fault.Name {
				t.fault = f
			}
		}
	}
	if t.fault.lacks != nil {
		t.lacks = t.fault.lacks(t.scene)
	}
	if t.lacks == "" && t.fault.red != nil && !slices.ContainsFunc(t.cases(), t.fault.concerns) {
		t.lacks = "no golden of the line is for the checks that would see it"
	}
	return nil
}

// scene is the smallest golden of a line that has a fitting stream, and that
// stream; nil if there is none.
func (st *stage) scene(ctx context.Context, line compat.Line, fits func(*target) bool) (*scene, error) {
	for _, g := range st.cfg.goldens(line) {
		s, err := st.read(ctx, line, g)
		if err != nil {
			return nil, err
		}
		for _, t := range targets(s.trace) {
			if fits(&t) {
				fitting := *s
				fitting.target = t
				return &fitting, nil
			}
		}
	}
	return nil, nil
}

// read fetches and reads a golden, once.
func (st *stage) read(ctx context.Context, line compat.Line, g manifest.Golden) (*scene, error) {
	name := line.Name + "/" + g.ID
	if s := st.known[name]; s != nil {
		return s, nil
	}
	s := &scene{}
	var err error
	if s.cases, err = st.plan(line, g); err != nil {
		return nil, err
	}
	s.stored.golden = g
	if s.stored.data, s.stored.location, err = st.cfg.Store.Fetch(ctx, g); err != nil {
		return nil, err
	}
	if s.trace, err = readTrace(s.stored); err != nil {
		return nil, err
	}
	if s.codec, err = check.CodecFor(line); err != nil {
		return nil, err
	}
	s.profile = s.codec.Profile()
	st.known[name] = s
	return s, nil
}

// selected are the tasks that the patterns leave. A pattern that matches no case,
// and patterns that leave none, are an error: nothing played is nothing proved.
func (cfg *Config) selected(tasks []*task) ([]*task, error) {
	run, err := patterns("run", cfg.Run, tasks)
	if err != nil {
		return nil, err
	}
	skip, err := patterns("skip", cfg.Skip, tasks)
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(slices.Clone(tasks), func(t *task) bool {
		return len(run) > 0 && !t.matches(run) || t.matches(skip)
	})
	if len(left) == 0 {
		return nil, fmt.Errorf("self-test: run %q and skip %q leave no case", cfg.Run, cfg.Skip)
	}
	return left, nil
}

// patterns reads patterns, each of which matches a task.
func patterns(what string, texts []string, tasks []*task) ([]conformance.Pattern, error) {
	var all []conformance.Pattern
	for _, text := range texts {
		p, err := conformance.ParsePattern(text)
		if err != nil {
			return nil, fmt.Errorf("self-test: %s: %w", what, err)
		}
		one := []conformance.Pattern{p}
		if !slices.ContainsFunc(tasks, func(t *task) bool { return t.matches(one) }) {
			return nil, fmt.Errorf("self-test: %s: pattern %q matches no case", what, text)
		}
		all = append(all, p)
	}
	return all, nil
}

func (t *task) matches(patterns []conformance.Pattern) bool {
	c := t.fault.in(t.scene.cases[0].Line)
	return slices.ContainsFunc(patterns, func(p conformance.Pattern) bool { return p.Match(c.Name()) })
}

// targets are the streams of a trace that faults may hit, those between two
// others, whose prompts can be matched.
func targets(t *trace.Trace) []target {
	var streams []*trace.Record
	var indexes []int
	for index, i := range trace.ReplaySubset(t.Records) {
		if t.Records[i].OutputTokenIDs != nil {
			streams, indexes = append(streams, &t.Records[i]), append(indexes, index)
		}
	}
	var all []target
	for i := 1; i+1 < len(streams); i++ {
		r := streams[i]
		if r.PromptTokens < trace.Or(t.Meta.BlockSize, 0) {
			continue
		}
		finish := r.FinishReason
		if finish == trace.FinishAbsent {
			finish = trace.FinishLength
		}
		all = append(all, target{
			index: indexes[i], previous: indexes[i-1], tokens: r.OutputTokenIDs, chunks: r.Chunks(),
			next: streams[i+1].OutputTokenIDs, finish: finish,
		})
	}
	return all
}

// fits reports whether every fault in tokens shows in the stream: the tokens on
// either side of the three places differ.
func (t *target) fits() bool {
	const least = 8
	if len(t.tokens) < least || len(t.chunks) < least/2 || slices.Equal(t.tokens, t.next) {
		return false
	}
	m, l := t.middle(), t.last()
	return t.tokens[0] != t.tokens[1] && t.tokens[m] != t.tokens[m+1] && t.tokens[l-1] != t.tokens[l]
}

// concerns reports whether a case must find something.
func (f *Fault) concerns(c conformance.Case) bool {
	_, mustSee := f.red[c.Assertion]
	return mustSee
}
