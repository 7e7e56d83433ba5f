package upstream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/pyast"
)

// Modules that the wire is read from. Every other is found from these by its imports.
const (
	engineModule      = "vllm.v1.engine"
	coreModule        = "vllm.v1.engine.core"
	clientModule      = "vllm.v1.engine.core_client"
	utilsModule       = "vllm.v1.engine.utils"
	coordinatorModule = "vllm.v1.engine.coordinator"
	eventsModule      = "vllm.distributed.kv_events"
	serialModule      = "vllm.v1.serial_utils"
)

// roots are the messages themselves. A release without one of them is not read: that is a gap, never a removal.
var roots = []struct{ module, name string }{
	{engineModule, "EngineCoreRequest"},
	{engineModule, "EngineCoreOutputs"},
	{engineModule, "EngineCoreReadyResponse"},
	{engineModule, "EngineCoreRequestType"},
	{engineModule, "FinishReason"},
	{utilsModule, "EngineHandshakeMetadata"},
	{utilsModule, "EngineZmqAddresses"},
	{eventsModule, "KVEventBatch"},
	{eventsModule, "KVEventsConfig"}, // since 0.27 in the ready response; a publisher has always had these settings
}

// usual are the files that the releases until 0.33 need, which are fetched together. What else is needed is fetched
// when it is: the list saves requests, and decides nothing.
var usual = []string{
	"vllm/_version.py", "vllm/v1/engine/__init__.py", "vllm/v1/engine/core.py", "vllm/v1/engine/core_client.py",
	"vllm/v1/engine/utils.py", "vllm/v1/engine/coordinator.py", "vllm/v1/serial_utils.py", "vllm/distributed/kv_events.py",
	"vllm/config/__init__.py", "vllm/config/kv_events.py", "vllm/config/utils.py", "vllm/sampling_params.py",
	"vllm/pooling_params.py", "vllm/lora/request.py", "vllm/multimodal/inputs.py", "vllm/outputs.py", "vllm/tasks.py",
	"vllm/v1/outputs.py", "vllm/v1/metrics/stats.py", "vllm/v1/metrics/perf.py", "vllm/v1/metrics/cache_hit_source.py",
	"vllm/v1/spec_decode/metrics.py", "vllm/compilation/cuda_graph.py", "vllm/v1/core/kv_cache_utils.py",
	"vllm/v1/core/sched/interface.py",
	"vllm/v1/kv_hints/__init__.py", "vllm/v1/kv_hints/protocol.py", "vllm/v1/fault_tolerance/utils.py",
	"vllm/v1/fault_tolerance/engine_core_sentinel.py", "vllm/distributed/elastic_ep/external_elastic_ep.py",
}

// opaque are the classes that the wire carries, and that no declaration says the form of.
var opaque = map[string]string{
	"UtilityResult": "a hook of the encoder writes it, as [type information, result]",
}

// An extractor reads one release.
type extractor struct {
	library
	profile *protocol.Profile
	gaps    []Gap
	classes map[*definition]*class
	pending map[*definition][]Gap // of classes that may not be of the wire
	reached map[*definition]bool
	taken   map[*definition]bool // constants
	queue   []wanted
	origin  map[string]string // module that a name of the profile was found in
}

// A reason is the place that made something part of the wire.
type reason struct {
	module *module
	line   int
	what   string
}

// wanted is a name that is yet to be read.
type wanted struct {
	ref reference
	why reason
}

// Read is [Extract] with a parser of its own.
func Read(ctx context.Context, source Source) (*protocol.Profile, []Gap, error) {
	parser, err := pyast.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("parser of Python: %w", err)
	}
	defer parser.Close(context.WithoutCancel(ctx))
	return Extract(ctx, parser, source)
}

// Extract reads the wire profile of a release from its Python sources: no code of it is run. The gaps say what of the
// wire could not be read; a profile with gaps is not to be trusted as a whole. The error is of the source: a request
// that failed, a version that nothing tells.
func Extract(ctx context.Context, parser *pyast.Parser, source Source) (*protocol.Profile, []Gap, error) {
	x := &extractor{
		library: library{
			ctx: ctx, parser: parser, source: source, texts: map[string][]byte{}, modules: map[string]*module{},
		},
		profile: &protocol.Profile{
			Messages: map[string]protocol.Message{}, Enums: map[string]protocol.Enum{},
			Constants: map[string]protocol.Constant{}, Utilities: map[string]protocol.Utility{},
			Structs: map[string]protocol.Struct{},
		},
		classes: map[*definition]*class{}, pending: map[*definition][]Gap{}, reached: map[*definition]bool{},
		taken:  map[*definition]bool{},
		origin: map[string]string{},
	}
	steps := []func() error{
		func() error { return x.fetch(usual) },
		x.version, x.rootStructs, x.declaredByEngine, x.decodedTypes, x.encoderCodes, x.eventMedia, x.utilities,
		x.messages, x.drain, x.changes,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	return x.profile, sortedGaps(x.gaps), nil
}

func (x *extractor) gap(m *module, line int, what, why string) {
	path := ""
	if m != nil {
		path = m.path
	}
	x.gaps = append(x.gaps, Gap{Module: path, Line: line, What: what, Why: why})
}

func (x *extractor) gapAt(m *module, n *pyast.Node, what, why string) { x.gap(m, n.Line, what, why) }

// need returns a module that the wire cannot be read without; nil, and a gap, if it cannot be read.
func (x *extractor) need(name, what string) (*module, error) {
	m, err := x.load(name)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		x.gaps = append(x.gaps, Gap{
			What: what, Why: "there is no module " + name + ": it was renamed, moved, or this is no release of vLLM",
		})
		return nil, nil
	case m.broken != nil:
		x.gap(m, 0, what, "the module cannot be parsed: "+m.broken.Error())
		return nil, nil
	}
	return m, nil
}

// rootStructs reaches the roots, wherever the modules that name them have them from.
func (x *extractor) rootStructs() error {
	for _, root := range roots {
		what := "class " + root.name
		m, err := x.need(root.module, what)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		ref, err := x.resolve(m, root.name)
		if err != nil {
			return err
		}
		if ref.def == nil {
			x.gap(m, 0, what, cause(ref))
			continue
		}
		x.reach(ref, reason{m, ref.def.statement.Line, what})
	}
	return nil
}

// cause says why a name leads to nothing of vLLM.
func cause(ref reference) string {
	if ref.external != "" {
		return "it is " + ref.external + ", which is not of vLLM"
	}
	return ref.lost
}

// declaredByEngine reaches what vllm.v1.engine declares, and what the modules of both sides take from it: it is the
// module of the wire.
func (x *extractor) declaredByEngine() error {
	engine, err := x.load(engineModule)
	if err != nil || engine == nil || engine.broken != nil {
		return err // the roots are gaps already
	}
	names := map[string]bool{}
	declaring, err := x.withStars(engine)
	if err != nil {
		return err
	}
	for _, m := range declaring {
		for name, d := range m.defs {
			if d.kind == aClass || d.kind == aValue {
				names[name] = true
			}
		}
	}
	for _, user := range []string{coreModule, clientModule, utilsModule, coordinatorModule} {
		m, err := x.need(user, "the messages that "+user+" sends and takes")
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		for _, d := range m.defs {
			if d.kind == anImport && d.module == engineModule {
				names[d.name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ref, err := x.resolve(engine, name)
		if err != nil {
			return err
		}
		if err := x.reachDeclared(ref); err != nil {
			return err
		}
	}
	return nil
}

// withStars are a module and those of vLLM that it imports everything from: it declares what they do.
func (x *extractor) withStars(m *module) ([]*module, error) {
	all := []*module{m}
	for _, s := range m.stars {
		if !isOurs(s.from) {
			continue
		}
		there, err := x.load(s.from)
		if err != nil {
			return nil, err
		}
		if there != nil && there.broken == nil {
			all = append(all, there)
		}
	}
	return all, nil
}

// reachDeclared reaches a name that nothing of the wire names, if it is of a kind that the wire has.
func (x *extractor) reachDeclared(ref reference) error {
	if ref.def == nil {
		return nil
	}
	if ref.def.kind == aClass {
		c, err := x.class(ref)
		if err != nil || c.kind == plainClass || c.kind == foreignClass || c.kind == containerClass {
			return err
		}
		x.reach(ref, reason{ref.module, ref.def.node.Line, "class " + ref.name})
	}
	if ref.def.kind == aValue {
		return x.constant(ref)
	}
	return nil
}

// reach takes a name into the profile.
func (x *extractor) reach(ref reference, why reason) {
	if doubt := cmp.Or(ref.doubt, ref.later); ref.def != nil && doubt != "" {
		x.gap(why.module, why.line, why.what, "which "+ref.name+" is meant cannot be read: "+doubt)
	}
	if ref.def == nil || x.reached[ref.def] {
		return
	}
	x.reached[ref.def] = true
	x.queue = append(x.queue, wanted{ref, why})
}

// drain reads what was reached, and what that reaches.
func (x *extractor) drain() error {
	for len(x.queue) > 0 {
		next := x.queue[0]
		x.queue = x.queue[1:]
		if err := x.read(next); err != nil {
			return err
		}
	}
	return nil
}

func (x *extractor) read(w wanted) error {
	switch w.ref.def.kind {
	case aClass:
		return x.readClass(w)
	case aValue:
		return x.readAlias(w)
	}
	x.gap(w.why.module, w.why.line, w.why.what, w.ref.name+" is a function: what it makes is known only when it runs")
	return nil
}

func (x *extractor) readClass(w wanted) error {
	c, err := x.class(w.ref)
	if err != nil {
		return err
	}
	if _, known := opaque[c.name]; known && c.kind == plainClass {
		return nil
	}
	x.gaps = append(x.gaps, x.pending[c.def]...)
	switch c.kind {
	case structClass, dataClass, tupleClass:
		return x.readStruct(c)
	case enumClass:
		x.takeEnum(c)
	case containerClass:
		return x.readContainer(c)
	case foreignClass:
		x.gapAt(c.module, c.def.node, "class "+c.name,
			fmt.Sprintf("its base %s is not of vLLM: what it adds is not known (%s)", c.foreign, w.why.what))
	default:
		if len(x.pending[c.def]) > 0 {
			return nil // that is why
		}
		x.gapAt(c.module, c.def.node, "class "+c.name,
			fmt.Sprintf("it has no fields that are declared: its form on the wire is not known (%s)", w.why.what))
	}
	return nil
}

// unique refuses a second meaning of a name: the profile knows structs by their names.
func (x *extractor) unique(c *class) bool {
	place := fmt.Sprintf("%s:%d", c.module.path, c.def.node.Line)
	if other, taken := x.origin[c.name]; taken && other != place {
		x.gapAt(c.module, c.def.node, "class "+c.name, "another class of the wire has its name: "+other)
		return false
	}
	x.origin[c.name] = place
	return true
}

func (x *extractor) takeEnum(c *class) {
	if x.unique(c) {
		x.profile.Enums[c.name] = protocol.Enum{Place: c.place(), Members: c.members.members}
	}
}

func (c *class) place() protocol.Place {
	return protocol.Place{Module: c.module.path, At: c.def.node.Line}
}

// readContainer reaches the types that a class derived from dict[K, V] holds.
func (x *extractor) readContainer(c *class) error {
	for _, argument := range c.args {
		if _, err := x.annotation(c.module, argument, "class "+c.name); err != nil {
			return err
		}
	}
	return nil
}

// readStruct takes a struct with its fields, the structs that it is derived from, and those that may stand in its
// place.
func (x *extractor) readStruct(c *class) error {
	for _, b := range c.bases {
		if b.kind == c.kind && !b.isABC {
			x.reachClass(b, c)
		}
	}
	if c.isABC {
		return x.reachDerived(c)
	}
	if !x.unique(c) {
		return nil
	}
	s := protocol.Struct{
		Encoding: c.encoding(), OmitDefaults: c.config["omit_defaults"] == true, Exact: c.kind == tupleClass,
		Tag: c.tag(), Place: c.place(),
	}
	for _, f := range c.fields {
		read, err := x.readField(c, f)
		if err != nil {
			return err
		}
		s.Fields = append(s.Fields, read)
	}
	x.profile.Structs[c.name] = s
	return nil
}

// reachClass reaches a class that another one, which is of the wire, makes part of it.
func (x *extractor) reachClass(c, because *class) {
	why := reason{because.module, because.def.node.Line, "class " + because.name}
	x.reach(reference{module: c.module, name: c.name, def: c.def}, why)
}

func (x *extractor) readField(c *class, f field) (protocol.Field, error) {
	what := c.name + "." + f.name
	text, err := x.annotation(f.module, f.annotation, what)
	if err != nil {
		return protocol.Field{}, err
	}
	p, err := x.preset(f.module, f.value)
	if err != nil {
		return protocol.Field{}, err
	}
	read := protocol.Field{Name: f.name, Type: text, Required: p.required, Default: p.value, At: f.line}
	if p.wireName != "" && c.kind == structClass {
		read.Name = p.wireName
	}
	if f.module != c.module {
		read.Module = f.module.path
	}
	return read, nil
}

// reachDerived reaches the classes of the same module that are derived from an abstract one, which is never written
// itself.
func (x *extractor) reachDerived(c *class) error {
	found := false
	for _, name := range slices.Sorted(maps.Keys(c.module.defs)) {
		d := c.module.defs[name]
		if d.kind != aClass || d == c.def {
			continue
		}
		derived, err := x.class(reference{module: c.module, name: name, def: d})
		if err != nil {
			return err
		}
		if !slices.Contains(derived.bases, c) {
			continue
		}
		found = true
		x.reachClass(derived, c)
	}
	if !found {
		x.gapAt(c.module, c.def.node, "class "+c.name, "it is abstract, and its module derives no class from it")
	}
	return nil
}

// version sets what release the profile is of.
func (x *extractor) version() error {
	version, commit, err := x.readVersion()
	if err != nil {
		return err
	}
	named, err := x.source.Version()
	if err != nil {
		return err
	}
	switch {
	case version == "":
		version = named
	case named != "" && !sameRelease(version, named):
		return fmt.Errorf("%s: it is of release %s, and its vllm/_version.py of %s: one of them is wrong", x.source.Where(), named, version)
	}
	if version == "" {
		const why = "no vllm/_version.py and no dist-info tells the release that it is of: name it by --version"
		return fmt.Errorf("%s: %s", x.source.Where(), why)
	}
	version = withoutVariant(version)
	line := protocol.LineOf(version)
	if line == version {
		return fmt.Errorf("%s: %q is no version of vLLM: want one such as 0.33.0", x.source.Where(), version)
	}
	x.profile.Line, x.profile.Version, x.profile.Commit = line, version, commit
	return nil
}

// withoutVariant leaves out what a build for other hardware adds: "0.33.0+cpu" is 0.33.0. That of a development version
// names its commit, and stays.
func withoutVariant(version string) string {
	release, _, _ := strings.Cut(version, "+")
	if strings.Contains(release, ".dev") {
		return version
	}
	return release
}

// sameRelease compares versions without what a build adds to them, which is not everywhere the same.
func sameRelease(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	one, errOne := compat.ParseBuild(a)
	other, errOther := compat.ParseBuild(b)
	if errOne != nil || errOther != nil {
		return a == b
	}
	return one == other
}

const commitDigits = 9

// readVersion reads vllm/_version.py, which a built release has.
func (x *extractor) readVersion() (version, commit string, err error) {
	m, err := x.load(ours + "._version")
	if err != nil || m == nil {
		return "", "", err
	}
	if m.broken != nil {
		return "", "", fmt.Errorf("%s: %s: %w", x.source.Where(), m.path, m.broken)
	}
	text := func(name string) string {
		if d := m.defs[name]; d != nil && d.kind == aValue {
			value, _ := pyast.Literal(m.tree, d.node)
			s, _ := value.(string)
			return s
		}
		return ""
	}
	commit = strings.TrimPrefix(text("__commit_id__"), "g")
	if len(commit) < commitDigits || strings.Trim(commit, "0123456789abcdef") != "" {
		return text("__version__"), "", nil
	}
	return text("__version__"), commit[:commitDigits], nil
}
