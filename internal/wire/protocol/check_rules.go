package protocol

import (
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pytype"
)

// rules are a profile with its annotations read: what may stand where.
type rules struct {
	profile *Profile
	structs map[string]*structShape
	methods map[string][]parameter
	// unknown are the names in annotations that mean nothing to this package. A
	// value of such a type may be anything.
	unknown map[string]bool
}

// parameter is one of an engine method's, self left out.
type parameter struct {
	name     string
	typ      shape
	required bool
}

// newRules reads every annotation of a profile.
func newRules(p *Profile) *rules {
	r := &rules{profile: p, structs: map[string]*structShape{}, methods: map[string][]parameter{}, unknown: map[string]bool{}}
	for name, declared := range p.Structs {
		r.structs[name] = &structShape{name: name, declared: declared}
	}
	for _, s := range r.structs {
		for _, f := range s.declared.Fields {
			s.types = append(s.types, r.parse(f.Type))
		}
	}
	for name, u := range p.Utilities {
		r.methods[name] = r.parameters(u.Signature)
	}
	return r
}

// parameters reads a signature such as
// (self, level: int=1, mode: PauseMode='abort') -> None.
func (r *rules) parameters(signature string) (parameters []parameter) {
	for _, p := range pytype.ParseSignature(signature).Params {
		parameters = append(parameters, parameter{name: p.Name, typ: r.shape(p.Type), required: !p.Optional})
	}
	return parameters
}

// allRules reads the profiles of all lines, newest first.
func allRules() []*rules {
	var all []*rules
	for _, line := range Lines() {
		if p, err := LoadProfile(line); err == nil {
			all = append(all, newRules(p))
		}
	}
	return all
}

// lazyRules defers the reading of annotations to the first check: who only encodes
// and decodes does without.
func lazyRules(p *Profile) (own func() *rules, others func() []*rules) {
	own = sync.OnceValue(func() *rules { return newRules(p) })
	others = sync.OnceValue(func() []*rules {
		return slices.DeleteFunc(allRules(), func(r *rules) bool { return r.profile.Line == p.Line })
	})
	return own, others
}

// LineRanges writes lines, in any order, as ranges: "0.25, 0.28–0.33".
func LineRanges(lines []string) string {
	all := Lines()
	slices.Reverse(all)
	var ranges []string
	for i := 0; i < len(all); i++ {
		if !slices.Contains(lines, all[i]) {
			continue
		}
		from := i
		for i+1 < len(all) && slices.Contains(lines, all[i+1]) {
			i++
		}
		if from == i {
			ranges = append(ranges, all[i])
		} else {
			ranges = append(ranges, all[from]+"–"+all[i])
		}
	}
	return strings.Join(ranges, ", ")
}
