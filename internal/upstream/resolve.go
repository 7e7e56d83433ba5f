package upstream

import (
	"fmt"
	"slices"
	"strings"
)

// A reference is what a name means.
type reference struct {
	module   *module     // of vLLM that declares it
	name     string      // there
	def      *definition // nil if it is not of vLLM, or not found
	rest     string      // what is asked of it: "FINAL_ONLY" of RequestOutputKind.FINAL_ONLY
	external string      // dotted name elsewhere: "msgspec.Struct", "builtins.int"
	lost     string      // why it was not found, if so
	doubt    string      // why it may be another, if so
	later    string      // why it may become another when its module has run to the end, if so
}

// builtins are the names that need no import and may stand in annotations and class headers.
var builtins = []string{
	"object", "bool", "int", "float", "complex", "str", "bytes", "bytearray", "memoryview", "list", "tuple", "dict",
	"set", "frozenset", "type", "slice", "range", "None", "Exception", "BaseException",
}

// maxHops bounds how often a name is imported from one module to the next.
const maxHops = 16

// resolve finds what a dotted name means in a module. It follows imports and re-exports within vLLM.
func (l *library) resolve(m *module, dotted string) (reference, error) {
	return l.follow(m, dotted, route{stars: true})
}

// A route is how a name was followed until now.
type route struct {
	hops  int
	stars bool // what imports everything behind a definition is looked at
}

func (r route) next() route { return route{r.hops + 1, r.stars} }

func (l *library) follow(m *module, dotted string, way route) (reference, error) {
	if way.hops > maxHops {
		return reference{lost: "its imports lead in a circle"}, nil
	}
	head, rest, _ := strings.Cut(dotted, ".")
	d := m.defs[head]
	if d == nil {
		return l.followStars(m, dotted, way)
	}
	ref, err := reference{module: m, name: head, def: d, rest: rest}, error(nil)
	if d.kind == anImport {
		ref, err = l.followImport(m, d, rest, way)
		if d.again > 0 && ref.doubt == "" {
			ref.doubt = fmt.Sprintf("%s:%d imports it from elsewhere than line %d", m.path, d.statement.Line, d.again)
		}
	}
	if err != nil || ref.later != "" || !way.stars {
		return ref, err
	}
	ref.later, err = l.overridden(m, d, ref, dotted, way)
	return ref, err
}

// overridden says why an import of everything, behind a definition, may put another in its place.
func (l *library) overridden(m *module, d *definition, ref reference, dotted string, way route) (why string, err error) {
	for _, s := range m.stars {
		if s.statement.Start < d.statement.End {
			continue
		}
		if isOurs(s.from) {
			there, err := l.load(s.from)
			if err != nil {
				return "", err
			}
			if there != nil && there.broken == nil {
				other, err := l.follow(there, dotted, route{hops: way.hops + 1})
				if err != nil {
					return "", err
				}
				if other.lost != "" || other.def == ref.def && other.external == ref.external {
					continue
				}
			}
		}
		const format = "%s:%d imports everything from %s, which may have another"
		return fmt.Sprintf(format, m.path, s.statement.Line, s.from), nil
	}
	return "", nil
}

// followStars looks where the module imports everything from, last first, and among the names that Python knows.
func (l *library) followStars(m *module, dotted string, way route) (reference, error) {
	for _, s := range slices.Backward(m.stars) {
		from := s.from
		if !isOurs(from) {
			continue
		}
		there, err := l.load(from)
		if err != nil {
			return reference{}, err
		}
		if there == nil || there.broken != nil {
			return reference{lost: "it may come from " + from + ", which cannot be read"}, nil
		}
		if ref, err := l.follow(there, dotted, way.next()); err != nil || ref.def != nil || ref.external != "" {
			return ref, err
		}
	}
	if slices.Contains(builtins, dotted) {
		return reference{external: "builtins." + dotted}, nil
	}
	return reference{lost: m.path + " neither declares nor imports it" + m.excuse()}, nil
}

// excuse says what may have hidden a name.
func (m *module) excuse() string {
	if len(m.errors) > 0 {
		return " in what can be read of it: " + m.errors[0].Error()
	}
	return ""
}

func (l *library) followImport(m *module, d *definition, rest string, way route) (reference, error) {
	if !isOurs(d.module) {
		return reference{external: joinDots(d.module, d.name, rest)}, nil
	}
	if d.name == "" {
		return l.inModule(d.module, rest, way)
	}
	if d.module == m.name { // from . import name, in the package itself
		return l.inModule(joinDots(d.module, d.name), rest, way)
	}
	there, err := l.load(d.module)
	if err != nil {
		return reference{}, err
	}
	if there != nil && there.broken == nil {
		ref, err := l.follow(there, joinDots(d.name, rest), way.next())
		if err != nil || ref.lost == "" {
			return ref, err
		}
		// The name may be that of a module in the package.
		if below, err := l.load(joinDots(d.module, d.name)); err != nil || below != nil {
			found, err := l.inModule(joinDots(d.module, d.name), rest, way)
			return found, err
		}
		return ref, nil
	}
	return reference{lost: noModule(d.module, there)}, nil
}

// inModule finds a dotted name that starts in the module itself, or in one below it.
func (l *library) inModule(name, rest string, way route) (reference, error) {
	there, err := l.load(name)
	if err != nil {
		return reference{}, err
	}
	if rest == "" {
		return reference{lost: name + " is a module"}, nil
	}
	head, below, _ := strings.Cut(rest, ".")
	if there != nil && there.broken == nil && (there.defs[head] != nil || below == "") {
		return l.follow(there, rest, way.next())
	}
	if below == "" {
		return reference{lost: noModule(name, there)}, nil
	}
	return l.inModule(joinDots(name, head), below, way.next())
}

func noModule(name string, m *module) string {
	if m != nil {
		return m.path + " cannot be parsed: " + m.broken.Error()
	}
	return "there is no module " + name
}

func isOurs(module string) bool { return module == ours || strings.HasPrefix(module, ours+".") }

func joinDots(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, ".")
}
