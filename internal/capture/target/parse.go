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
