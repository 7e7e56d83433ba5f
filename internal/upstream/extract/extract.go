package extract

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/upstream/sources"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
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

// speakers are the modules that send and take messages.
var speakers = []string{coreModule, clientModule, utilsModule, coordinatorModule}

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

// likelyFiles are the files that the releases until 0.33 need, which are fetched together. What else is needed is fetched
// when it is: the list saves requests, and decides nothing.
var likelyFiles = []string{
	"vllm/_version.py", "vllm/v1/engine/__init__.py", "vllm/v1/engine/core.py", "vllm/v1/engine/core_client.py",
	"vllm/v1/engine/utils.py", "vllm/v1/engine/coordinator.py", "vllm/v1/serial_utils.py", "vllm/distributed/kv_events.py",
	"vllm/config/__init__.py", "vllm/config/kv_events.py", "vllm/config/utils.py", "vllm/sampling_params.py",
	"vllm/pooling_params.py", "vllm/lora/request.py", "vllm/multimodal/inputs.py", "vllm/outputs.py", "vllm/tasks.py",
	"vllm/v1/outputs.py", "vllm/v1/metrics/stats.py", "vllm/v1/metrics/perf.py", "vllm/v1/metrics/cache_hit_source.py",
	"vllm/v1/spec_decode/metrics.py", "vllm/compilation/cuda_graph.py", "vllm/v1/core/kv_cache_utils.py",
	"vllm/v1/core/sched/interface.py",
	"vllm/v1/metrics/loggers.py", "vllm/v1/metrics/buckets.py", "vllm/parser/metrics.py", "vllm/entrypoints/serve/dev/sleep/metrics.py",
	"vllm/entrypoints/rl/online/metrics.py", "vllm/entrypoints/speech_to_text/realtime/metrics.py",
	"vllm/v1/kv_hints/__init__.py", "vllm/v1/kv_hints/protocol.py", "vllm/v1/fault_tolerance/utils.py",
	"vllm/v1/fault_tolerance/engine_core_sentinel.py", "vllm/distributed/elastic_ep/external_elastic_ep.py",
}

// opaque are the classes that the wire carries, and whose form no declaration says: a hook of the encoder writes
// UtilityResult as [type information, result].
var opaque = []string{"UtilityResult"}

// An extractor reads one release. After a failure of the source, [library.err], its steps do no more harm than to note
// gaps that nobody sees.
type extractor struct {
	library
	profile *protocol.Profile
	gaps    []sources.Gap
	classes map[*definition]*class
	pending map[*definition][]sources.Gap // of classes that may not be of the wire
	reached map[*definition]bool
	taken   map[*definition]bool // constants
	queue   []wanted
	origin  map[string]string // place that a name of the profile was found at
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

// Extract reads the wire profile of a release from its Python sources: no code of it is run. The gaps say what of the
// wire could not be read; a profile with gaps is not to be trusted as a whole. The error is of the source: a request
// that failed, a version that nothing names.
func Extract(ctx context.Context, parser *pyast.Parser, source Source) (*protocol.Profile, []sources.Gap, error) {
	x := &extractor{
		library: library{
			ctx: ctx, parser: parser, source: source, texts: map[string][]byte{}, modules: map[string]*module{},
		},
		profile: &protocol.Profile{
			Messages: map[string]protocol.Message{}, Enums: map[string]protocol.Enum{},
			Constants: map[string]protocol.Constant{}, Utilities: map[string]protocol.Utility{},
			Structs: map[string]protocol.Struct{},
		},
		classes: map[*definition]*class{}, pending: map[*definition][]sources.Gap{}, reached: map[*definition]bool{},
		taken: map[*definition]bool{}, origin: map[string]string{},
	}
	x.fetch(likelyFiles...)
	for _, step := range []func(){
		x.version, x.rootStructs, x.declaredByEngine, x.decodedTypes, x.encoderCodes, x.eventMedia, x.utilities,
		x.messages, x.drain, x.changes, x.metrics,
	} {
		if x.err == nil {
			step()
		}
	}
	if x.err != nil {
		return nil, nil, x.err
	}
	slices.SortFunc(x.gaps, func(a, b sources.Gap) int {
		return cmp.Or(
			cmp.Compare(a.Module, b.Module), cmp.Compare(a.At, b.At),
			cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why),
		)
	})
	return x.profile, slices.Compact(x.gaps), nil
}

func (x *extractor) gap(m *module, line int, what, why string) {
	path := ""
	if m != nil {
		path = m.path
	}
	x.gaps = append(x.gaps, sources.Gap{Place: protocol.Place{Module: path, At: line}, What: what, Why: why})
}

func (x *extractor) gapAt(m *module, n *pyast.Node, what, why string) { x.gap(m, n.Line, what, why) }

// need returns a module that the wire cannot be read without; nil, and a gap, if it cannot be read.
func (x *extractor) need(name, what string) *module {
	m := x.load(name)
	switch {
	case m == nil:
		x.gap(nil, 0, what, "there is no module "+name+": it was renamed, moved, or this is not a release of vLLM")
	case m.broken != nil:
		x.gap(m, 0, what, "the module cannot be parsed: "+m.broken.Error())
		return nil
	}
	return m
}

// version sets what release the profile is of. vllm/_version.py, which a built release has, and the source must agree.
func (x *extractor) version() {
	version := x.versionText("__version__")
	named, err := x.source.Version()
	switch {
	case x.err != nil:
		return
	case err != nil:
		x.err = err
		return
	case version == "":
		version = named
	case named != "" && !sameRelease(version, named):
		x.err = fmt.Errorf("%s: it is of release %s, and its vllm/_version.py of %s: one of them is wrong",
			x.source.Where(), named, version)
		return
	}
	if version == "" {
		const why = "no vllm/_version.py and no dist-info names the release that it is of: give it with --vllm-version"
		x.err = fmt.Errorf("%s: %s", x.source.Where(), why)
		return
	}
	// A build for other hardware adds its name: "0.33.0+cpu" is 0.33.0. What a development version adds names its commit.
	if release, _, _ := strings.Cut(version, "+"); !strings.Contains(release, ".dev") {
		version = release
	}
	line := protocol.LineOf(version)
	if line == version {
		x.err = fmt.Errorf("%s: %q is not a version of vLLM: want one such as 0.33.0", x.source.Where(), version)
		return
	}
	x.profile.Line, x.profile.Version = line, version
	const commitDigits = 9
	commit := strings.TrimPrefix(x.versionText("__commit_id__"), "g")
	if len(commit) >= commitDigits && strings.Trim(commit, "0123456789abcdef") == "" {
		x.profile.Commit = commit[:commitDigits]
	}
}

// versionText returns what vllm/_version.py sets a name to; "" without one.
func (x *extractor) versionText(name string) string {
	m := x.load(ours + "._version")
	if m == nil {
		return ""
	}
	if m.broken != nil {
		x.err = fmt.Errorf("%s: %s: %w", x.source.Where(), m.path, m.broken)
		return ""
	}
	if d := m.defs[name]; d != nil && d.kind == aValue {
		value, _ := pyast.Literal(d.node)
		text, _ := value.(string)
		return text
	}
	return ""
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

// rootStructs reaches the roots, wherever the modules that name them have them from.
func (x *extractor) rootStructs() {
	for _, root := range roots {
		what := "class " + root.name
		m := x.need(root.module, what)
		if m == nil {
			continue
		}
		if ref := x.resolve(m, root.name); ref.def != nil {
			x.reach(ref, reason{m, ref.def.statement.Line, what})
		} else {
			x.gap(m, 0, what, ref.why())
		}
	}
}

// declaredByEngine reaches what vllm.v1.engine declares, and what the modules of both sides take from it: it is the
// module of the wire.
func (x *extractor) declaredByEngine() {
	engine := x.loadWhole(engineModule)
	if engine == nil {
		return // the roots are gaps already
	}
	declaring := []*module{engine}
	for _, s := range engine.stars { // what it imports everything from declares as it does
		if isOurs(s.from) {
			if there := x.loadWhole(s.from); there != nil {
				declaring = append(declaring, there)
			}
		}
	}
	names := map[string]bool{}
	for _, m := range declaring {
		for name, d := range m.defs {
			if d.kind == aClass || d.kind == aValue {
				names[name] = true
			}
		}
	}
	for _, speaker := range speakers {
		m := x.need(speaker, "the messages that "+speaker+" sends and takes")
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
		ref := x.resolve(engine, name)
		switch {
		case ref.def == nil:
		case ref.def.kind == aValue:
			x.constant(ref)
		case ref.def.kind == aClass:
			switch x.class(ref).kind {
			case plainClass, foreignClass, containerClass: // nothing of the wire names it
			default:
				x.reach(ref, reason{ref.module, ref.def.node.Line, "class " + ref.name})
			}
		}
	}
}

// decodedTypes reaches what both sides decode: the types that they pass to msgspec, or to the decoder of vLLM.
func (x *extractor) decodedTypes() {
	for _, name := range speakers {
		m := x.loadWhole(name)
		if m == nil {
			continue // a gap already
		}
		for n := range m.tree.Root.All() {
			if n.Kind != "call" {
				continue
			}
			decoded, function := decodedType(n), enclosingFunction(n)
			if head, _, _ := strings.Cut(decoded.Text(), "."); decoded == nil || isLocal(function, head) {
				continue // whoever calls this function, or what it looks at, names the type
			}
			a := &annotation{x: x, m: m, what: "what is decoded by " + pyast.Canonical(n), from: function}
			a.text(decoded)
		}
	}
}

// decodedType returns the argument of a call that names the type to decode to, or nil.
func decodedType(call *pyast.Node) *pyast.Node {
	function := call.ByField("function")
	last := lastName(function)
	var positional []*pyast.Node
	for n := range call.ByField("arguments").NamedChildren() {
		if n.Kind != "keyword_argument" {
			positional = append(positional, n)
			continue
		}
		decodes := last == "decode" || last == "convert" || last == "Decoder"
		if decodes && n.ByField("name").Text() == "type" {
			return n.ByField("value")
		}
	}
	switch {
	case (last == "MsgpackDecoder" || last == "Decoder") && len(positional) > 0:
		return positional[0]
	case function.Text() == "msgspec.convert" && len(positional) > 1:
		return positional[1]
	}
	return nil
}

// encoderCodes takes the extension types of MessagePack: what the encoder passes to msgpack.Ext.
func (x *extractor) encoderCodes() {
	const what = "extension types of MessagePack"
	m := x.need(serialModule, what)
	if m == nil {
		return
	}
	found := false
	for n := range m.tree.Root.All() {
		if n.Kind != "call" || !strings.HasSuffix(n.ByField("function").Text(), "msgpack.Ext") {
			continue
		}
		for code := range n.ByField("arguments").NamedChildren() {
			if ref := x.resolve(m, code.Text()); ref.def != nil && ref.def.kind == aValue {
				found = true
				x.constant(ref)
			} else {
				x.gapAt(m, n, what, "the type is no constant of a module: "+pyast.Canonical(code))
			}
			break // it is the first argument
		}
	}
	if !found {
		x.gap(m, 0, what, "nothing calls msgpack.Ext with a constant")
	}
}

// eventMedia takes the names of where a block may be, MEDIUM_GPU and its like.
func (x *extractor) eventMedia() {
	m := x.need(eventsModule, "media of KV cache events")
	if m == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(m.defs)) {
		if d := m.defs[name]; d.kind == aValue && strings.HasPrefix(name, "MEDIUM_") {
			x.constant(reference{module: m, name: name, def: d})
		}
	}
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
func (x *extractor) drain() {
	for len(x.queue) > 0 && x.err == nil {
		next := x.queue[0]
		x.queue = x.queue[1:]
		switch next.ref.def.kind {
		case aClass:
			x.readClass(x.class(next.ref), next.why.what)
		case aValue:
			x.readAlias(next)
		default:
			x.gap(next.why.module, next.why.line, next.why.what, next.ref.name+" is a function: what it makes is known only when it runs")
		}
	}
}

// readClass takes a class into the profile, because of something that is of the wire.
func (x *extractor) readClass(c *class, because string) {
	if slices.Contains(opaque, c.name) && c.kind == plainClass {
		return
	}
	what := "class " + c.name
	x.gaps = append(x.gaps, x.pending[c.def]...)
	switch c.kind {
	case structClass, dataClass, tupleClass:
		x.readStruct(c)
	case enumClass:
		if x.isUnique(c) {
			x.profile.Enums[c.name] = protocol.Enum{Place: c.place(), Members: c.members}
		}
	case containerClass:
		for _, argument := range c.args {
			x.annotation(c.module, argument, what)
		}
	case foreignClass:
		x.gapAt(c.module, c.def.node, what,
			fmt.Sprintf("its base class %s is not part of vLLM: the fields that it adds are not known (%s)", c.foreign, because))
	default:
		if len(x.pending[c.def]) == 0 { // else that is why
			x.gapAt(c.module, c.def.node, what,
				fmt.Sprintf("it has no fields that are declared: its form on the wire is not known (%s)", because))
		}
	}
}

// isUnique notes a second meaning of a name: the profile knows structs by their names.
func (x *extractor) isUnique(c *class) bool {
	place := fmt.Sprintf("%s:%d", c.module.path, c.def.node.Line)
	if other, taken := x.origin[c.name]; taken && other != place {
		x.gapAt(c.module, c.def.node, "class "+c.name, "another class of the wire has its name: "+other)
		return false
	}
	x.origin[c.name] = place
	return true
}

func (c *class) place() protocol.Place {
	return protocol.Place{Module: c.module.path, At: c.def.node.Line}
}

// readStruct takes a struct with its fields, and the structs that it is derived from. An abstract one is never written
// itself: the classes of its module that are derived from it are taken instead.
func (x *extractor) readStruct(c *class) {
	why := reason{c.module, c.def.node.Line, "class " + c.name}
	for _, b := range c.bases {
		if b.kind == c.kind && !b.isABC {
			x.reach(reference{module: b.module, name: b.name, def: b.def}, why)
		}
	}
	if c.isABC {
		found := false
		for _, name := range slices.Sorted(maps.Keys(c.module.defs)) {
			d := c.module.defs[name]
			ref := reference{module: c.module, name: name, def: d}
			if d.kind == aClass && d != c.def && slices.Contains(x.class(ref).bases, c) {
				found = true
				x.reach(ref, why)
			}
		}
		if !found {
			x.gapAt(c.module, c.def.node, "class "+c.name, "it is abstract, and its module derives no class from it")
		}
		return
	}
	if !x.isUnique(c) {
		return
	}
	s := protocol.Struct{
		Encoding: c.encoding(), OmitDefaults: c.config["omit_defaults"] == true, Exact: c.kind == tupleClass, Place: c.place(),
	}
	switch tag := c.config["tag"].(type) {
	case bool:
		if tag {
			s.Tag = c.name
		}
	case string:
		s.Tag = tag
	}
	for _, f := range c.fields {
		p := x.preset(f.module, f.value)
		read := protocol.Field{
			Name: f.name, Type: x.annotation(f.module, f.annotation, c.name+"."+f.name), Required: p.required, Default: p.value,
			At: f.line,
		}
		if p.wireName != "" && c.kind == structClass {
			read.Name = p.wireName
		}
		if f.module != c.module {
			read.Module = f.module.path
		}
		s.Fields = append(s.Fields, read)
	}
	x.profile.Structs[c.name] = s
}
