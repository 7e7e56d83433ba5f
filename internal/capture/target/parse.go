package target

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
)

// A File is what is to be captured.
type File struct {
	Name string // path as given to Load
	// Targets are those of the newest line first, as the window has the lines, and each line's in the order of the file.
	Targets []Target
}

// Load reads a file of targets and checks it, alone and against the support window. The file is never nil; it is fit for
// use when no finding is an error.
func Load(path string, window *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	return read(tomlfile.Load(path, codes()), window)
}

// Parse is [Load] for text that is already in memory; name is the path that findings mention.
func Parse(name string, data []byte, window *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	return read(tomlfile.Parse(name, data, codes()), window)
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// reader reads one file. What blocks of targets refer to is known before the first of them is read.
type reader struct {
	window    *compat.Matrix
	root      string // the folder of the file, with slashes
	defaults  defaults
	lines     map[string]Images
	models    []Model
	workloads []Workload
	targets   []entry
	blocks    []*block
	notes     []*note
	full      bool // there are more than mostTargets
}

// defaults are what models and lines have that say nothing else.
type defaults struct {
	gpu, cpu, memory, tap string
	engine                map[string]string
}

// entry is a target with the block that asks for it.
type entry struct {
	Target
	block *block
}

func read(doc *tomlfile.Document, window *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	file := &File{Name: doc.Name()}
	if doc.Root() == nil {
		return file, doc.Diagnostics()
	}
	r := &reader{window: window, root: path.Dir(filepath.ToSlash(doc.Name())), lines: map[string]Images{}}
	r.readDefaults(doc.Root())
	r.readLines(doc.Root())
	for _, t := range doc.Root().Keyed("models") {
		r.readModel(t)
	}
	for _, t := range doc.Root().Keyed("workloads") {
		r.readWorkload(t)
	}
	for _, t := range doc.Root().Tables("target") {
		r.readBlock(t)
	}
	r.checkTargets()
	for _, e := range r.targets {
		file.Targets = append(file.Targets, e.Target)
	}
	place := map[string]int{}
	for i, l := range window.Lines {
		place[l.Name] = i
	}
	slices.SortStableFunc(file.Targets, func(a, b Target) int { return cmp.Compare(place[a.Line], place[b.Line]) })
	return file, doc.Diagnostics()
}

func (r *reader) readDefaults(root *tomlfile.Table) {
	t := root.Nested("defaults")
	if t == nil {
		return
	}
	r.defaults = defaults{
		gpu: t.String("gpu"), cpu: t.String("cpu"), memory: t.String("memory"), tap: t.String("tap_image"),
		engine: readOptions(t.Nested("engine"), ""),
	}
	checkResources(t)
	checkImage(t, "tap_image", r.defaults.tap)
}

func (r *reader) readLines(root *tomlfile.Table) {
	for _, t := range root.Keyed("lines") {
		i := Images{
			Engine:   t.Required("engine_image", codeMissingKey),
			Frontend: t.String("frontend_image"),
			Tap:      cmp.Or(t.String("tap_image"), r.defaults.tap),
		}
		if i.Tap == "" {
			fail(t.Table, codeMissingKey, "", "line "+t.Key+" has no tap_image", "add it here or to [defaults]: an image that has vllm-vcr")
		}
		checkImage(t.Table, "engine_image", i.Engine)
		checkImage(t.Table, "frontend_image", i.Frontend)
		checkImage(t.Table, "tap_image", t.String("tap_image"))
		r.checkLine(t, i)
		i.Frontend = cmp.Or(i.Frontend, i.Engine)
		r.lines[t.Key] = i
	}
}

func (r *reader) readModel(t tomlfile.Keyed) {
	m := Model{
		Key: t.Key, Source: t.Required("source", codeMissingKey), Served: t.String("served"), Prefix: t.Key + "-",
		GPU: cmp.Or(t.String("gpu"), r.defaults.gpu), CPU: cmp.Or(t.String("cpu"), r.defaults.cpu),
		Memory: cmp.Or(t.String("memory"), r.defaults.memory), GPUs: int(t.Int("gpus")),
		Engine: merged(r.defaults.engine, readOptions(t.Nested("engine"), "")), Multimodal: t.Bool("multimodal"),
		Scenarios: readScenarios(t.Table), Adapters: readAdapters(t.Table), Root: r.root,
	}
	if t.Bool("unprefixed") {
		m.Prefix = ""
	}
	m.Served = cmp.Or(m.Served, m.Source)
	tensor := cmp.Or(m.Engine[optTensor], "1")
	if !t.Has("gpus") && !m.OnCPU() {
		m.GPUs, _ = strconv.Atoi(tensor)
	}
	r.checkModel(t, m, tensor)
	r.models = append(r.models, m)
}

// merged are options, of which the later win.
func merged(all ...map[string]string) map[string]string {
	options := map[string]string{}
	for _, some := range all {
		for name, value := range some {
			options[name] = value
		}
	}
	return options
}

// readOptions reads options of the engine: of a scenario, or of the model in all of them.
func readOptions(t *tomlfile.Table, s Scenario) map[string]string {
	if t == nil {
		return nil
	}
	options := map[string]string{}
	for _, name := range t.Keys() {
		options[name] = t.Text(name)
		checkOption(t, name, options[name], s)
	}
	return options
}

func readScenarios(model *tomlfile.Table) map[Scenario]map[string]string {
	scenarios := map[Scenario]map[string]string{}
	for _, t := range model.Keyed("scenarios") {
		s := Scenario(t.Key)
		checkKnown(t.Table, "", "scenario", t.Key, names(Scenarios()))
		scenarios[s] = readOptions(t.Table, s)
	}
	return scenarios
}

func readAdapters(model *tomlfile.Table) []Adapter {
	t := model.Nested("adapters")
	if t == nil {
		return nil
	}
	var all []Adapter
	for _, name := range t.Keys() {
		a := Adapter{Name: name, Source: t.Required(name, codeMissingKey)}
		checkAdapter(t, a)
		all = append(all, a)
	}
	return all
}

func (r *reader) readWorkload(t tomlfile.Keyed) {
	w := Workload{Name: t.Key, Kind: load.Workload(t.Required("kind", codeMissingKey))}
	var ok bool
	if w.Shape, ok = readShape(t.Table); ok {
		checkWorkload(t, w)
	}
	w.Shape.Arrivals = r.fromHere(w.Shape.Arrivals)
	r.workloads = append(r.workloads, w)
}

// fromHere is the path of a file that the file of targets names from where it lies.
func (r *reader) fromHere(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return path.Join(r.root, filepath.ToSlash(name))
}

// readShape reads what a workload leaves open, as far as it can be: the second result is false when something was wrong.
func readShape(t *tomlfile.Table) (shape load.Shape, ok bool) {
	ok = true
	for _, f := range load.ShapeFields() {
		var value string
		if f.Kind == "ints" {
			value = strings.Trim(strings.ReplaceAll(fmt.Sprint(t.Ints(f.Key)), " ", ","), "[]")
		} else {
			value = t.Text(f.Key)
		}
		if !t.Has(f.Key) || t.Mistyped(f.Key) {
			continue
		}
		if err := shape.Set(f.Key, value); err != nil {
			fail(t, codeShape, f.Key, f.Key+" = "+err.Error(), "")
			ok = false
		}
	}
	return shape, ok
}

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
