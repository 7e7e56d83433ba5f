package target

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
)

const (
	// allLines stands for all lines of the window but the trackers.
	allLines = "*"
	// mostTargets is how many a file may ask for: each of them is minutes of an engine.
	mostTargets = 5000
)

// block is one [[target]]: all that its lists have in common.
type block struct {
	table     *tomlfile.Table
	lines     []string
	models    []string
	scenarios []string
	workloads []string
	seeds     []int64
	except    []*exception
	fit, wire bool
	oneSeed   string // why there is one
}

// exception is what a block does not ask for after all. An empty list stands for everything.
type exception struct {
	table                               *tomlfile.Table
	lines, models, scenarios, workloads []string
	seeds                               []int64
	used                                bool
}

func (x *exception) holds(t Target) bool {
	return in(x.lines, t.Line) && in(x.models, t.Model.Key) && in(x.scenarios, string(t.Scenario)) &&
		in(x.workloads, t.Workload.Name) && in(x.seeds, int64(t.Seed))
}

func in[T comparable](list []T, one T) bool { return len(list) == 0 || slices.Contains(list, one) }

func (r *reader) readBlock(t *tomlfile.Table) {
	b := &block{
		table: t, lines: t.Strings("lines"), models: t.Strings("models"), scenarios: t.Strings("scenarios"),
		workloads: t.Strings("workloads"), seeds: t.Ints("seeds"), fit: t.Bool("fit"), wire: t.Bool("wire"),
		oneSeed: t.String("single_seed"),
	}
	for _, x := range t.Tables("except") {
		b.except = append(b.except, &exception{
			table: x, lines: x.Strings("lines"), models: x.Strings("models"), scenarios: x.Strings("scenarios"),
			workloads: x.Strings("workloads"), seeds: x.Ints("seeds"),
		})
		x.Required("reason", codeExcept)
	}
	if !r.checkBlock(b) {
		return
	}
	r.blocks = append(r.blocks, b)
	if b.size() > mostTargets-len(r.targets) {
		if !r.full {
			fail(t, codeCount, "", fmt.Sprintf("the file asks for more than %d targets", mostTargets),
				"name fewer lines, models, scenarios, workloads or seeds")
		}
		r.full = true
		return
	}
	before := len(r.targets)
	r.expand(b)
	for _, x := range b.except {
		if !x.used {
			warn(x.table, codeExcept, "", "the exception excepts nothing", "remove it, if its line has left the window")
		}
	}
	if len(r.targets) == before {
		fail(t, codeCount, "", "[[target]] asks for nothing: everything is excepted, or compat.toml has no line but trackers",
			"remove it")
	}
}

// size is how many targets a block asks for, not counting exceptions and that "*" stands for several lines. What is more
// than mostTargets may be any number above that.
func (b *block) size() int {
	size := 1
	for _, n := range []int{len(b.lines), len(b.models), len(b.scenarios), len(b.workloads), len(b.seeds)} {
		if size *= n; size > mostTargets {
			break
		}
	}
	return size
}

// expand adds the targets that a block asks for.
func (r *reader) expand(b *block) {
	for _, line := range r.linesOf(b) {
		for _, model := range b.models {
			for _, scenario := range b.scenarios {
				for _, workload := range b.workloads {
					for _, seed := range b.seeds {
						r.add(b, r.target(b, line, model, scenario, workload, seed))
					}
				}
			}
		}
	}
}

// linesOf are the names of the lines that a block is about.
func (r *reader) linesOf(b *block) []string {
	if !slices.Contains(b.lines, allLines) {
		return b.lines
	}
	var names []string
	for _, l := range r.window.Lines {
		if !l.IsTracker() || slices.Contains(b.lines, l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

func (r *reader) target(b *block, line, model, scenario, workload string, seed int64) Target {
	known, _ := r.window.ByName(line)
	t := Target{
		Line: line, Tag: known.Tag, Scenario: Scenario(scenario), Seed: uint64(seed), Fit: b.fit, Wire: b.wire,
		Images: r.lines[line], Pos: b.table.Line(),
	}
	t.Model = r.models[slices.IndexFunc(r.models, func(m Model) bool { return m.Key == model })]
	t.Workload, _ = r.workload(workload)
	words := []string{t.Workload.Name}
	if variant := t.variant(); variant != "" {
		words = append(words, variant)
	}
	t.ID = t.Model.Prefix + strings.Join(append(words, "s"+strconv.FormatUint(t.Seed, 10)), "-")
	return t
}

// workload finds a workload of the file, or else a kind of load, which has the shape that it has.
func (r *reader) workload(name string) (Workload, bool) {
	if i := slices.IndexFunc(r.workloads, func(w Workload) bool { return w.Name == name }); i >= 0 {
		return r.workloads[i], true
	}
	kind := load.Workload(name)
	return Workload{Name: name, Kind: kind}, slices.Contains(load.Workloads(), kind)
}

func (r *reader) add(b *block, t Target) {
	for _, x := range b.except {
		if x.holds(t) {
			x.used = true
			return
		}
	}
	r.targets = append(r.targets, entry{t, b})
}
