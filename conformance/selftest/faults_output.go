package selftest

import (
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
)

// outputFaults lose, repeat and delay a whole output in the middle of a stream.
func outputFaults(s *scene) []Fault {
	at, begin := s.target.chunkAt(s.target.middle())
	end := begin + s.target.chunks[at]
	behind := end + s.target.chunks[min(at+1, len(s.target.chunks)-1)]
	t := s.target.tokens
	return []Fault{
		{
			Name: "lost-output", Says: "an output is lost",
			red:  only(conformance.Fidelity, s.differs(slices.Concat(t[:begin], t[end:]))),
			wire: inMiddle((*spoken).take),
		},
		{
			Name: "repeated-output", Says: "an output comes twice",
			red:  only(conformance.Fidelity, s.differs(slices.Concat(t[:end], t[begin:]))),
			wire: inMiddle(func(o *spoken) { o.after = append(o.after, o.alone(o.node())) }),
		},
		{
			Name: "delayed-output", Says: "an output comes behind the one that follows it",
			red:  only(conformance.Fidelity, s.differs(slices.Concat(t[:begin], t[end:behind], t[begin:end], t[behind:]))),
			wire: delayed,
		},
	}
}

// take takes the output out of its message.
func (o *spoken) take() { o.root.items[1].items = slices.Delete(o.root.items[1].items, o.at, o.at+1) }

// delayed keeps the output in the middle of the target until the next has gone out.
func delayed(s *scene) tamper {
	var kept [][]byte
	return s.hit(func(o *spoken) {
		switch {
		case o.covers(s.target.middle()):
			kept = o.alone(o.node())
			o.take()
		case kept != nil:
			o.after, kept = append(o.after, kept), nil
		}
	})
}
