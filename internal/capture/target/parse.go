package target

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	// Targets are those of the newest line first, as the matrix has the lines, and each line's in the order of the file.
	Targets []Target
}

// Load reads a file of targets and checks it, alone and against the compat matrix. The file is never nil; it is fit for
// use when no finding is an error.
func Load(file string, matrix *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	beside := os.DirFS(filepath.Dir(file))
	return read(tomlfile.Load(file, codes()), beside, matrix)
}

// Parse is [Load] for text that is already in memory; name is the path that findings mention, and beside is the folder that
// has the sessions, or nil.
func Parse(name string, data []byte, beside fs.FS, matrix *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	return read(tomlfile.Parse(name, data, codes()), beside, matrix)
}

func codes() tomlfile.Codes {
	return tomlfile.Codes{
		Unreadable: codeUnreadable, Syntax: codeSyntax, UnknownKey: codeUnknownKey, WrongType: codeWrongType,
	}
}

// reader reads one file. What blocks of targets refer to is known before the first of them is read.
type reader struct {
	matrix    *compat.Matrix
	beside    fs.FS  // the folder of the file; nil if it lies in none
	root      string // its path, with slashes
	defaults  defaults
	lines     map[string]Images
	models    []Model
	workloads []Workload
	targets   []entry
	blocks    []*block
	notes     []*note
	full      bool // there are more than maxTargets
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

func read(doc *tomlfile.Document, beside fs.FS, matrix *compat.Matrix) (*File, []tomlfile.Diagnostic) {
	file := &File{Name: doc.Name()}
	if doc.Root() == nil {
		return file, doc.Diagnostics()
	}
	r := &reader{matrix: matrix, beside: beside, root: path.Dir(filepath.ToSlash(doc.Name())), lines: map[string]Images{}}
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
	for _, t := range doc.Root().Tables("session") {
		r.readSessions(t)
	}
	for _, e := range r.targets {
		file.Targets = append(file.Targets, e.Target)
	}
	place := map[string]int{}
	for i, l := range matrix.Lines {
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
	// allLines means all lines of the matrix but the trackers.
	allLines = "*"
	// maxTargets is how many a file may ask for: each of them is minutes of an engine.
	maxTargets = 5000
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

// exception is what a block does not ask for after all. An empty list means everything.
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
	if b.size() > maxTargets-len(r.targets) {
		if !r.full {
			fail(t, codeCount, "", fmt.Sprintf("the file asks for more than %d targets", maxTargets),
				"name fewer lines, models, scenarios, workloads or seeds")
		}
		r.full = true
		return
	}
	before := len(r.targets)
	r.expand(b)
	for _, x := range b.except {
		if !x.used {
			warn(x.table, codeExcept, "", "the exception excepts nothing", "remove it, if its line has left the matrix")
		}
	}
	if len(r.targets) == before {
		fail(t, codeCount, "", "[[target]] asks for nothing: everything is excepted, or compat.toml has no line but trackers",
			"remove it")
	}
}

// size is how many targets a block asks for, not counting exceptions and that "*" means several lines. What is more
// than maxTargets may be any number above that.
func (b *block) size() int {
	size := 1
	for _, n := range []int{len(b.lines), len(b.models), len(b.scenarios), len(b.workloads), len(b.seeds)} {
		if size *= n; size > maxTargets {
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
	for _, l := range r.matrix.Lines {
		if !l.IsTracker() || slices.Contains(b.lines, l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

func (r *reader) target(b *block, line, model, scenario, workload string, seed int64) Target {
	known, _ := r.matrix.ByName(line)
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

const (
	// sessionsFolder, beside the file of targets, has a file NAME.toml for each session.
	sessionsFolder = "sessions"
	// framesPrefix begins the ids of sessions, whose goldens are raw frames of both sides.
	framesPrefix = "frames-"
	// sessionSeed is the seed of all that is random in a session.
	sessionSeed = 1
)

// readSessions reads a [[session]]: sessions, for each of several lines.
func (r *reader) readSessions(t *tomlfile.Table) {
	b := &block{table: t, lines: t.Strings("lines")}
	model, sessions := t.Required("model", codeMissingKey), t.Strings("names")
	type except struct {
		table        *tomlfile.Table
		lines, names []string
		used         bool
	}
	var excepted []*except
	for _, x := range t.Tables("except") {
		x.Required("reason", codeExcept)
		excepted = append(excepted, &except{table: x, lines: x.Strings("lines"), names: x.Strings("names")})
	}
	at := slices.IndexFunc(r.models, func(m Model) bool { return m.Key == model })
	if !r.checkSessions(b, at, model, sessions) {
		return
	}
	for _, name := range sessions {
		asked, err := r.readSession(name)
		if err != nil {
			fail(t, codeSession, "names", fmt.Sprintf("session %s: %v", clip(name), err), "")
			continue
		}
		for _, line := range r.linesOf(b) {
			if i := slices.IndexFunc(excepted, func(x *except) bool { return in(x.lines, line) && in(x.names, name) }); i >= 0 {
				excepted[i].used = true
				continue
			}
			known, _ := r.matrix.ByName(line)
			one := Target{
				Line: line, Tag: known.Tag, ID: framesPrefix + name, Model: r.models[at], Scenario: Scenario(name),
				Workload: Workload{Name: "session"}, Seed: sessionSeed, Session: asked, Pos: t.Line(),
			}
			if i := slices.IndexFunc(r.targets, func(e entry) bool { return e.Name() == one.Name() }); i >= 0 {
				fail(t, codeSameID, "names", fmt.Sprintf("%s: asked for twice, first at line %d of this file", one.Name(), r.targets[i].Pos),
					"keep one of the two")
				continue
			}
			r.targets = append(r.targets, entry{one, b})
		}
	}
	for _, x := range excepted {
		if !x.used {
			warn(x.table, codeExcept, "", "the exception excepts nothing", "remove it, if its line has left the matrix")
		}
	}
}

// checkSessions reports whether the targets of a [[session]] can be made.
func (r *reader) checkSessions(b *block, model int, key string, sessions []string) bool {
	if len(b.lines) == 0 || len(sessions) == 0 {
		fail(b.table, codeMissingKey, "", "[[session]] wants lines and names", `add lines = ["*"] and names = […]`)
		return false
	}
	ok := true
	for _, line := range b.lines {
		if _, known := r.matrix.ByName(line); !known && line != allLines {
			fail(b.table, codeLine, "lines", fmt.Sprintf("line %q is not in %s", clip(line), r.matrix.File), r.nearLine(line, "remove it"))
			ok = false
		}
	}
	for _, name := range sessions {
		if !label().MatchString(name) {
			fail(b.table, codeName, "names", fmt.Sprintf("session %q cannot be part of an id", clip(name)), "use lower-case letters, digits and hyphens")
			ok = false
		}
	}
	switch {
	case key == "": // reported
		return false
	case model < 0:
		checkKnown(b.table, "model", "model", key, nil)
		return false
	case !r.models[model].OnCPU():
		fail(b.table, codeSession, "model", "model "+key+" needs a GPU, and sessions run on this machine", `name one with gpu = "cpu"`)
		return false
	}
	return ok
}

// readSession reads the file of a session.
func (r *reader) readSession(name string) (*load.Session, error) {
	file := path.Join(sessionsFolder, name+".toml")
	if r.beside == nil {
		return nil, errors.New("there is no folder that could have " + file)
	}
	data, err := fs.ReadFile(r.beside, file)
	if err != nil {
		return nil, err
	}
	return load.Parse(name, path.Join(r.root, file), data)
}
