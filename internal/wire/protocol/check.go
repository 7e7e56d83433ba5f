package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Mismatch is one place where a message is not exactly what the line's profile
// declares. A lenient peer may decode it all the same; a strict one refuses it, or
// reads something else.
type Mismatch struct {
	// Path leads to the value: "EngineCoreRequest.sampling_params.stop_token_ids[3]".
	Path string
	// Expected is the declared type, as the Python source writes it, or says in
	// words what is wanted.
	Expected string
	// Actual is the value, cut after about 500 bytes, or says what is missing.
	Actual string
	// Offset is where the value begins in the message's MessagePack frame, in bytes.
	Offset int
	// Hint names lines whose profile explains the place, and, at the first mismatch
	// of a message, the lines whose layout the whole message has. Empty when there
	// are none.
	Hint string
	// Fits are, at the first mismatch of a message, the lines whose layout the whole message
	// has, newest first.
	Fits []string
	// Unknown reports whether it is a map key which the line does not know, and which its
	// readers pass over.
	Unknown bool
}

// Difference is the place, what is expected there and what was found.
func (m Mismatch) Difference() string {
	return fmt.Sprintf("%s: expected %s, found %s", m.Path, m.Expected, m.Actual)
}

// String says it all in a line.
func (m Mismatch) String() string {
	s := fmt.Sprintf("%s (byte %d)", m.Difference(), m.Offset)
	if m.Hint != "" {
		s += ": " + m.Hint
	}
	return s
}

// maxMismatches bounds what is reported of one message.
const maxMismatches = 16

// CheckRequest returns where the payload of an ADD message is not an
// EngineCoreRequest of the line, in full length and with every value of its
// declared type. aux are the auxiliary frames behind the payload, which tensors
// refer to by number. No mismatch means that the line's engine decodes it as it was
// meant.
func (c *Codec) CheckRequest(payload []byte, aux ...[]byte) []Mismatch {
	return c.check(KindRequest, payload, aux)
}

// Undecodable returns why an engine of the line cannot decode the payload of an ADD message
// that is well formed, nil if it can. It passes over what msgspec does, and
// [Codec.CheckRequest] does not: fields that have a default and are not there, fields past
// those of the line, keys that it does not know or that come twice.
func (c *Codec) Undecodable(payload []byte, aux ...[]byte) error {
	r := c.rules()
	x, _ := r.spare.Get().(*examination)
	if x == nil {
		x = &examination{rules: r, decodes: true}
	}
	x.cur, x.aux, x.path, x.found = pack.NewCursor(payload), aux, append(x.path[:0], place{name: "EngineCoreRequest"}), nil
	x.value(r.structs["EngineCoreRequest"])
	found := x.found
	x.aux = nil
	r.spare.Put(x)
	if len(found) == 0 {
		return nil
	}
	return errors.New(found[0].String())
}

// CheckOutputs is [Codec.CheckRequest] for what an engine sends on an output
// socket, an EngineCoreOutputs or the frame [EngineDead].
func (c *Codec) CheckOutputs(frame []byte, aux ...[]byte) []Mismatch {
	if string(frame) == EngineDead {
		return nil
	}
	return c.check(KindOutputs, frame, aux)
}

// CheckReady is [Codec.CheckRequest] for a registration.
func (c *Codec) CheckReady(payload []byte) []Mismatch {
	return c.check(KindReady, payload, nil)
}

// CheckInit is [Codec.CheckRequest] for the frontend's answer to HELLO.
func (c *Codec) CheckInit(payload []byte) []Mismatch {
	return c.check(KindInit, payload, nil)
}

// RequiredBeyond returns the keys that frontends of other lines require of a registration and an
// engine of this line does not send, with the lines of all these frontends, newest first.
func (c *Codec) RequiredBeyond() (keys, lines []string) {
	own := c.profile.Structs["EngineCoreReadyResponse"]
	for _, other := range c.others() {
		requires := false
		for _, f := range other.profile.Structs["EngineCoreReadyResponse"].Fields {
			if !f.Required || own.Index(f.Name) >= 0 {
				continue
			}
			requires = true
			if !slices.Contains(keys, f.Name) {
				keys = append(keys, f.Name)
			}
		}
		if requires {
			lines = append(lines, other.profile.Line)
		}
	}
	return keys, lines
}

// CheckAbort is [Codec.CheckRequest] for the payload of an ABORT message.
func (c *Codec) CheckAbort(payload []byte) []Mismatch {
	return c.check(KindAbort, payload, nil)
}

// CheckUtility is [Codec.CheckRequest] for the payload of a UTILITY message: the
// method is one of the line's engine, and the arguments are as many and of the
// types that its signature takes.
func (c *Codec) CheckUtility(payload []byte, aux ...[]byte) []Mismatch {
	return c.check(KindUtility, payload, aux)
}

// CheckMessage checks whatever a frontend sends on an input socket: the frame
// with the request type, the payload, and auxiliary frames.
func (c *Codec) CheckMessage(frames [][]byte) []Mismatch {
	if len(frames) < 2 || len(frames[0]) != 1 {
		return []Mismatch{{
			Path: "message", Expected: "a frame of one byte, the request type, and a payload",
			Actual: fmt.Sprintf("%d frames, of %s bytes", len(frames), frameSizes(frames)),
		}}
	}
	payload, aux := frames[1], frames[2:]
	switch frames[0][0] {
	case TypeAdd:
		return c.CheckRequest(payload, aux...)
	case TypeAbort:
		return c.CheckAbort(payload)
	case TypeUtility:
		return c.CheckUtility(payload, aux...)
	}
	// A wave is started by a coordinator, on a socket of its own.
	return []Mismatch{{
		Path: "message.type", Expected: "00 (ADD), 01 (ABORT) or 03 (UTILITY)", Actual: fmt.Sprintf("%02x", frames[0][0]),
	}}
}

func frameSizes(frames [][]byte) string {
	var sizes []string
	for i, f := range frames {
		if i == 4 {
			sizes = append(sizes, "…")
			break
		}
		sizes = append(sizes, fmt.Sprint(len(f)))
	}
	return "[" + strings.Join(sizes, " ") + "]"
}

// check examines one message and, where it does not fit, looks for the lines it
// does fit.
func (c *Codec) check(kind MessageKind, payload []byte, aux [][]byte) []Mismatch {
	if err := pack.Validate(payload); err != nil {
		return []Mismatch{{Path: kind.Name, Expected: "one well-formed message", Actual: err.Error()}}
	}
	found := c.rules().examine(kind, payload, aux, c.others)
	if len(found) == 0 {
		return nil
	}
	var fits []string
	for _, other := range c.others() {
		if len(other.examine(kind, payload, aux, nil)) == 0 {
			fits = append(fits, other.profile.Line)
		}
	}
	if len(fits) > 0 {
		found[0].Fits = fits
		found[0].hint("this is the layout of " + LineRanges(fits))
	}
	return found
}

func (m *Mismatch) hint(text string) {
	if m.Hint != "" {
		text = m.Hint + "; " + text
	}
	m.Hint = text
}

// A shape is what an annotation allows.
type shape interface {
	// String is the annotation.
	String() string
	// takes reports whether a value of the kind can be meant by it.
	takes(k pack.Kind) bool
	// check walks over the next value, which is well formed, and reports what is
	// wrong with it.
	check(x *examination)
}

// examination is one walk over one message. The bytes are well formed: [Codec.check]
// has seen to that, so that no read of a value of known kind fails.
type examination struct {
	rules  *rules
	cur    pack.Cursor
	aux    [][]byte
	path   []place
	found  []Mismatch
	others func() []*rules // for hints; nil asks for none
	// decodes passes over what msgspec does.
	decodes bool
	ids     []uint32 // scratch
}

// place is one step of a path: a field, or an index where the name is empty.
type place struct {
	name  string
	index int
}

// examine returns what is wrong with a well-formed message.
func (r *rules) examine(kind MessageKind, payload []byte, aux [][]byte, others func() []*rules) []Mismatch {
	x := &examination{rules: r, cur: pack.NewCursor(payload), aux: aux, path: []place{{name: kind.Name}}, others: others}
	x.value(r.roots[kind.Name])
	return x.found
}

// value checks the next value.
func (x *examination) value(s shape) {
	if k := x.cur.Kind(); !s.takes(k) {
		x.mismatch(s.String())
		x.skip()
		return
	}
	s.check(x)
}

// at checks the next value as a part of the current one.
func (x *examination) at(s place, part shape) {
	x.path = append(x.path, s)
	x.value(part)
	x.path = x.path[:len(x.path)-1]
}

// mismatch reports the next value, which stays unread.
func (x *examination) mismatch(expected string) *Mismatch {
	ahead := x.cur
	raw, _ := ahead.Raw()
	return x.report(expected, pack.Format(raw))
}

// report adds a mismatch at the current path. What is over the limit goes nowhere.
func (x *examination) report(expected, actual string) *Mismatch {
	m := Mismatch{Path: x.where(), Expected: expected, Actual: actual, Offset: x.cur.Offset()}
	if len(x.found) == maxMismatches {
		return &m
	}
	x.found = append(x.found, m)
	return &x.found[len(x.found)-1]
}

// missing reports that a value has no field of a name.
func (x *examination) missing(name, want string) {
	x.path = append(x.path, place{name: name})
	x.report(want, "missing")
	x.path = x.path[:len(x.path)-1]
}

func (x *examination) where() string {
	var b strings.Builder
	for i, s := range x.path {
		switch {
		case s.name == "":
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case i > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	return b.String()
}

func (x *examination) skip() { _ = x.cur.Skip() } // well formed

// str reads a str that is one, for msgspec refuses other bytes.
func (x *examination) str(expected string) (string, bool) {
	ahead := x.cur
	s, err := ahead.Str()
	if err != nil || !utf8.Valid(s) {
		x.mismatch(expected)
		x.skip()
		return "", false
	}
	x.cur = ahead
	return string(s), true
}

// linesWith lists the other lines for which f holds.
func (x *examination) linesWith(f func(*rules) bool) []string {
	if x.others == nil {
		return nil
	}
	var lines []string
	for _, r := range x.others() {
		if f(r) {
			lines = append(lines, r.profile.Line)
		}
	}
	return lines
}

// hintField names the other fields that other lines have at a position.
func (x *examination) hintField(m *Mismatch, structName, own string, index int) {
	if x.others == nil {
		return
	}
	var names []string
	lines := map[string][]string{}
	for _, r := range x.others() {
		s := r.profile.Structs[structName]
		if s.Encoding != "array" || index >= len(s.Fields) {
			continue
		}
		name := s.Fields[index].Name
		if name == own {
			continue
		}
		if lines[name] == nil {
			names = append(names, name)
		}
		lines[name] = append(lines[name], r.profile.Line)
	}
	for _, name := range names {
		m.hint(fmt.Sprintf("field %d is %s in %s", index, name, LineRanges(lines[name])))
	}
}

// callShape is the payload of a UTILITY message: [client_index, call_id, method,
// args] (vllm/v1/engine/core_client.py call_utility_async).
type callShape struct{}

func (callShape) String() string { return "[client_index, call_id, method, args]" }

func (callShape) takes(k pack.Kind) bool { return k == pack.Array }

func (s callShape) check(x *examination) {
	ahead := x.cur
	if n, _ := ahead.ArrayLen(); n != 4 {
		x.mismatch(s.String())
		x.skip()
		return
	}
	x.cur = ahead
	x.at(place{name: "client_index"}, plainTypes["int"])
	x.at(place{name: "call_id"}, plainTypes["int"])
	method := x.method()
	if parameters, known := x.rules.methods[method]; known && x.cur.Kind() == pack.Array {
		x.at(place{name: method}, argumentsShape{method, parameters})
	} else {
		x.at(place{name: "args"}, listShape{kindShape{"list of arguments", pack.Array}, anyShape{}})
	}
}

// CheckCall returns why an engine of the line fails a call before it does anything: it has no
// such method, the arguments are too few or too many, or one is not the struct that the
// method takes; values of other types it takes as they are (vllm/v1/engine/core.py
// _convert_msgspec_args).
func (c *Codec) CheckCall(call *UtilityCall) error {
	r := c.rules()
	parameters, known := r.methods[call.Method]
	if !known {
		return fmt.Errorf("'EngineCoreProc' object has no attribute '%s'", call.Method)
	}
	if len(call.Args) > len(parameters) {
		return fmt.Errorf("%s, and it takes %d", safetext.Count(len(call.Args), "argument"), len(parameters))
	}
	for i, p := range parameters {
		switch s, isStruct := p.typ.(*structShape); {
		case i >= len(call.Args) && p.required:
			return fmt.Errorf("EngineCoreProc.%s() missing 1 required positional argument: '%s'", call.Method, p.name)
		case i < len(call.Args) && isStruct:
			x := &examination{rules: r, cur: pack.NewCursor(call.Args[i]), path: []place{{name: p.name}}, decodes: true}
			if x.value(s); len(x.found) > 0 {
				return errors.New(x.found[0].String())
			}
		}
	}
	return nil
}

// method reads the name of a method that the line's engine has, else "".
func (x *examination) method() string {
	x.path = append(x.path, place{name: "method"})
	defer func() { x.path = x.path[:len(x.path)-1] }()
	at := x.cur.Offset()
	name, ok := x.str("str, the name of a method")
	if _, known := x.rules.methods[name]; !ok || known {
		return name
	}
	m := x.report("a method of the engine of line "+x.rules.profile.Line, fmt.Sprintf("%q", keyStep(name)))
	m.Offset = at
	if lines := x.linesWith(func(r *rules) bool { return r.methods[name] != nil }); len(lines) > 0 {
		m.hint("a method of " + LineRanges(lines))
	}
	return ""
}

// argumentsShape are the values that a method is called with. They are positional.
type argumentsShape struct {
	method     string
	parameters []parameter
}

func (s argumentsShape) String() string         { return "the arguments of " + s.method }
func (s argumentsShape) takes(k pack.Kind) bool { return k == pack.Array }

func (s argumentsShape) check(x *examination) {
	n, _ := x.cur.ArrayLen()
	required := len(s.parameters)
	if i := slices.IndexFunc(s.parameters, func(p parameter) bool { return !p.required }); i >= 0 {
		required = i
	}
	if n < required || n > len(s.parameters) {
		x.report(s.String()+x.rules.profile.Utilities[s.method].Signature, safetext.Count(n, "argument"))
	}
	for i := range n {
		if i < len(s.parameters) {
			x.at(place{name: s.parameters[i].name}, s.parameters[i].typ)
		} else {
			x.skip()
		}
	}
}

// rules are a profile with its annotations read: what may stand where.
type rules struct {
	profile *Profile
	structs map[string]*structShape
	methods map[string][]parameter
	roots   map[string]shape // of the kinds of message, by name
	// unknown are the names in annotations that mean nothing to this package. A
	// value of such a type may be anything.
	unknown map[string]bool
	spare   sync.Pool // of examinations
}

// parameter is one of an engine method's, self left out.
type parameter struct {
	name     string
	typ      shape
	required bool
}

// newRules reads every annotation of a profile.
func newRules(p *Profile) *rules {
	r := &rules{profile: p, structs: map[string]*structShape{}, methods: map[string][]parameter{}, roots: map[string]shape{}, unknown: map[string]bool{}}
	for name, declared := range p.Structs {
		s := &structShape{name: name, declared: declared, index: map[string]int{}}
		for i, f := range declared.Fields {
			s.index[f.Name] = i
		}
		r.structs[name] = s
	}
	for _, s := range r.structs {
		for _, f := range s.declared.Fields {
			s.types = append(s.types, r.parse(f.Type))
		}
	}
	r.narrow("EngineCoreOutputs")
	r.narrow("EngineCoreReadyResponse")
	for name, u := range p.Utilities {
		r.methods[name] = r.parameters(u.Signature)
	}
	for _, k := range messageKinds {
		if r.roots[k.Name] = r.parse(k.Type); r.unknown[k.Type] {
			delete(r.unknown, k.Type) // the line has no such message
		}
	}
	return r
}

// parameters reads a signature such as
// (self, level: int=1, mode: PauseMode='abort') -> None.
func (r *rules) parameters(signature string) (parameters []parameter) {
	for _, p := range ParseSignature(signature).Params {
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
