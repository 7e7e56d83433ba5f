package selftest

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
)

// Fault is one thing wrong with an engine or a golden, and who must see it.
type Fault struct {
	// Name is the assertion of the fault's case.
	Name string
	// Says is a sentence about what is wrong.
	Says string

	red map[conformance.Assertion]want
	// layout is what the checks say besides when the engine is one with a time of its
	// own, whose messages are checked by the line's profile; nil when that makes no
	// difference.
	layout map[conformance.Assertion]want
	waits  deadline
	// fits chooses the stream that is hit, default target.fits; one that is nil is
	// for every stream.
	fits func(*target) bool
	// lacks says why the fault has nothing to show in a scene, "" if it has.
	lacks func(*scene) string

	// One of these, none in the control.
	wire  func(*scene) tamper                  // a new one for each engine that is started
	store func(*scene, stored) (stored, error) // what is stored in place of the golden
	// frames are the messages of a recorded session in place of those that it has.
	frames func([]trace.Message) []trace.Message
	// identity, unless nil, is what the input socket is dialed with.
	identity []byte
	// blames is set where the checks after a red one are not made.
	blames bool
	// suite, unless nil, is a fault in front of the suite live or frontend, in place of all above.
	suite *suiteFault
	// router, unless nil, is a fault of a router.
	router *routerFault
	// ownTime is set where only an engine with a time of its own goes through the session of recorded frames.
	ownTime bool
	// session, unless empty, is the golden whose recorded session has the frames; else that of role wire.
	session string
}

// deadline is the deadline that a fault of silence has to run into.
type deadline int

const (
	none    deadline = iota
	connect          // of the start
	idle             // between outputs
)

// want is what the first failure of a check must say.
type want struct {
	code conformance.Code
	// request and position are those of the failure, or anywhere.
	request, position int
	// inFrame demands the number of the message.
	inFrame bool
	// Parts of the failure's fields.
	path, expected, actual string
	distinct               bool // both values are there, whatever they are
	// says are parts of its message.
	says []string
	// alone is the place where only one request was open, -1 and -1 where several
	// were. Which are, and how far they came, is a matter of their order.
	alone *place
	// besides is set where it may be said after other things.
	besides bool
}

// place is how far a request had come.
type place struct{ request, position, tokens int }

// anywhere means a request or position that depends on the order of things.
const anywhere = -2

// someone is a request that depends on the recorded frames, but must be named.
const someone = -3

// about begins what is wanted of a failure about the target, or about no request.
func about(code conformance.Code, request, position int) want {
	w := want{code: code, request: request, position: position}
	if request >= 0 {
		w.says = append(w.says, fmt.Sprintf("request %d ", request))
	}
	return w
}

// nowhere is about no request.
func nowhere(code conformance.Code, says ...string) want {
	return want{code: code, request: -1, position: -1, says: says}
}

// compares demands both values, in the fields and in the message.
func (w want) compares(expected, actual string) want {
	w.expected, w.actual = expected, actual
	w.says = append(slices.Clone(w.says), expected, actual)
	return w
}

// in demands the path of a value.
func (w want) in(path string) want {
	w.path = path
	return w
}

// only expects one check to be red, in all its variants.
func only(check conformance.Assertion, w want) map[conformance.Assertion]want {
	return map[conformance.Assertion]want{check: w}
}

// and adds what another check must say.
func and(red map[conformance.Assertion]want, check conformance.Assertion, w want) map[conformance.Assertion]want {
	red[check] = w
	return red
}

// differing is what is wanted of the wire check, about no request.
func differing(code conformance.Code, path string) want {
	w := nowhere(code, "line ", path, ": expected ", ", got ").in(path)
	w.inFrame = true
	return w
}

// differingOutput is what is wanted of it about an output.
func differingOutput(code conformance.Code, path string) want {
	w := differing(code, path)
	w.request = someone
	w.says = append(w.says, "request ")
	return w
}

// layoutAt is what is wanted of the check by the line's profile, at a path.
func layoutAt(path string) want {
	w := nowhere(check.CodeLayout, path, ": expected ", ", found ").in(path)
	w.inFrame, w.distinct, w.besides = true, true, true
	return w
}

// layoutOf is what is wanted of it about an output of the target.
func (s *scene) layoutOf(path string) want {
	w := layoutAt(path)
	w.request = s.target.index
	return w
}

// started expects every check that starts an engine to be red.
func started(w want) map[conformance.Assertion]want {
	return map[conformance.Assertion]want{conformance.Schema: w, conformance.Fidelity: w, conformance.Wire: w}
}

// Faults are all faults, as they are played in a scene. The control is the first.
func (s *scene) faults() []Fault {
	all := []Fault{{Name: "no-fault", Says: "the engine passes through the tamperer, and nothing is wrong"}}
	for _, group := range [](func(*scene) []Fault){
		tokenFaults, outputFaults, streamFaults, chunkFaults, otherRequestFaults, layoutFaults, frameFaults,
		sessionFaults, ownTimeFaults, wireFaults, valueFaults, messageFaults, invariantFaults, handshakeFaults, registrationFaults, endFaults, goldenFaults,
	} {
		all = append(all, group(s)...)
	}
	return all
}
