package protocol

import (
	"encoding/json"
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// A Value is a value of a message, and what the profile of its line declares for the place where it is: a struct whose fields have
// names although the wire has positions, an enumeration, a tensor. All that looks into a message without being sure of its form
// does so by values: the invariants, the self-test that changes messages, coverage, and the difference of two messages.
//
// [Codec.Read] and [ViewOf] give the outermost value of a message, [Value.Field], [Value.At] and [Value.Parts] those within it, and
// [Value.Walk] all of them. [Value.Int] and the like read it, [Value.Tensor] and [Value.Decode] too; [Value.Set] writes the message
// with another value in its place. [Value.Path] is where it is, as failures print it:
// EngineCoreOutputs.outputs[0].prefill_stats.num_prompt_tokens.
//
// Field and At return a value in any case. One that is not in the message is absent: it has a path, and no kind; reading it gives
// nothing. So a chain of fields needs no check between them.
//
// The types are those by which [Codec.CheckOutputs] and its like check messages. A value that does not have its declared type is
// read as one of any type. What is written, and what is read into a Go struct, has its names by the tags of that struct: see
// [SchedulerStats].
type Value struct {
	m      *View
	at     int    // its node; of an absent value that of what it is missing in
	absent string // the name of an absent value, "[3]" for an element
}

// A View is a message that values look into. It opens arrays and maps when somebody looks into them, and keeps its memory for the next
// message. Its values are valid until then.
type View struct {
	rules   *rules
	root    string
	payload []byte
	aux     [][]byte
	nodes   []node
}

// node is a value that was looked at. Its key, of a map, is just before it.
type node struct {
	of           shape
	begin, end   int32
	parent       int32
	index        int32 // of a field that is declared, -1 for a key that is not; else of an element
	key          int32 // bytes
	first, count int32 // the values within; first is 0 before they were looked at
}

// Read begins to look into a message. aux are the frames after its payload, which hold tensors. A message that is not well formed
// has the values up to there.
func (c *Codec) Read(m *View, kind MessageKind, payload []byte, aux ...[]byte) Value {
	return c.read(m, kind.Name, c.rules().roots[kind.Name], payload, aux...)
}

func (c *Codec) read(m *View, root string, of shape, payload []byte, aux ...[]byte) Value {
	m.rules, m.root, m.payload, m.aux, m.nodes = c.rules(), root, payload, aux, m.nodes[:0]
	m.add(of, 0, len(payload), -1, 0, 0)
	return Value{m: m}
}

// ViewOf looks into bytes of which nothing is declared. Those that are not well formed are absent.
func ViewOf(raw []byte) Value {
	m := &View{payload: raw}
	if pack.Validate(raw) != nil {
		return Value{m: m, at: -1, absent: "value"}
	}
	m.add(anyShape{}, 0, len(raw), -1, 0, 0)
	return Value{m: m}
}

// add appends a node whose value has a declared type, which is settled: a union is the option that fits best.
func (m *View) add(of shape, begin, end, parent, index, key int) {
	cur := pack.NewCursor(m.payload[begin:end])
	kind := cur.Kind()
	switch declared := of.(type) {
	case unionShape:
		of = declared.choose(m, cur)
	case nestedShape:
		if kind != pack.Array {
			break
		}
		if n, _ := cur.ArrayLen(); n == 3 && cur.Kind() == pack.String {
			of = newTensor("torch.Tensor")
		}
	}
	if !of.takes(kind) {
		of = anyShape{}
	}
	m.nodes = append(m.nodes, node{of: of, begin: int32(begin), end: int32(end), parent: int32(parent), index: int32(index), key: int32(key)})
}

// choose returns the option that a value is meant to be: the only one of its kind, or the one that has the fewest mismatches.
func (s unionShape) choose(m *View, cur pack.Cursor) shape {
	var best shape = anyShape{}
	options, kind := 0, cur.Kind()
	for _, o := range s.options {
		if o.takes(kind) {
			best = o
			options++
		}
	}
	if options > 1 {
		fewest := math.MaxInt
		for _, o := range s.options {
			if !o.takes(kind) {
				continue
			}
			x := &examination{rules: m.rules, cur: cur, aux: m.aux}
			if o.check(x); len(x.found) < fewest {
				best, fewest = o, len(x.found)
			}
		}
	}
	if u, is := best.(unionShape); is {
		return u.choose(m, cur)
	}
	return best
}

// open finds the values within an array or a map.
func (m *View) open(at int) (first, count int) {
	if n := &m.nodes[at]; n.first > 0 {
		return int(n.first), int(n.count)
	}
	n, of := m.nodes[at], m.nodes[at].of
	first = len(m.nodes)
	cur := pack.NewCursor(m.payload[:n.end])
	cur.Seek(int(n.begin))
	length, err := 0, error(nil)
	isMap := cur.Kind() == pack.Map
	switch {
	case isMap:
		length, err = cur.MapLen()
	case cur.Kind() == pack.Array:
		length, err = cur.ArrayLen()
	default:
		return 0, 0
	}
	s, isStruct := of.(*structShape)
	d, isDict := of.(dictShape)
	for ; count < length && err == nil; count++ {
		before, index, declared := cur.Offset(), count, shape(anyShape{})
		if isMap {
			key, keyErr := cur.Raw()
			if isStruct && keyErr == nil {
				index = s.indexOf(key, count)
			}
		}
		switch {
		case isStruct && index >= 0 && index < len(s.types):
			declared = s.types[index]
		case isDict:
			declared = d.value
		case !isStruct && !isMap:
			declared = m.elementType(of, index, first)
		}
		begin := cur.Offset()
		if err = cur.Skip(); err == nil {
			m.add(declared, begin, cur.Offset(), at, index, begin-before)
		}
	}
	if err != nil {
		count = len(m.nodes) - first
	}
	m.nodes[at].first, m.nodes[at].count = int32(first), int32(count)
	return first, count
}

// indexOf is the field that a key names, which is next as a rule, or -1.
func (s *structShape) indexOf(key []byte, next int) int {
	cur := pack.NewCursor(key)
	name, err := cur.Str()
	if err != nil {
		return -1
	}
	if next < len(s.declared.Fields) && string(name) == s.declared.Fields[next].Name {
		return next
	}
	if i, known := s.index[string(name)]; known {
		return i
	}
	return -1
}

// elementType is the declared type of an element of what is not a struct. first is the node of the first element.
func (m *View) elementType(of shape, i, first int) shape {
	switch of := of.(type) {
	case listShape:
		return of.element
	case nestedShape:
		return of
	case tupleShape:
		if i < len(of.elements) {
			return of.elements[i]
		}
	case argumentsShape:
		if i < len(of.parameters) {
			return of.parameters[i].typ
		}
	case fieldShape:
		if i == 1 {
			return of.arguments(Value{m: m, at: first}.Text())
		}
	case callShape:
		if i == 3 {
			method := Value{m: m, at: first + 2}.Text()
			return argumentsShape{method, m.rules.methods[method]}
		}
	}
	return anyShape{}
}

func (v Value) node() *node { return &v.m.nodes[v.at] }

// IsAbsent reports whether the message does not have the value.
func (v Value) IsAbsent() bool { return v.m == nil || v.absent != "" }

// Given reports whether the message has the value, and it is not None.
func (v Value) Given() bool { return v.Kind() != pack.Nil && !v.IsAbsent() }

// Kind is that of the value; [pack.Invalid] of one that is absent.
func (v Value) Kind() pack.Kind {
	cur := v.cursor()
	return cur.Kind()
}

// Bytes are the value as the message has it, nil if it is absent. They begin at [Value.Offset] in the payload.
func (v Value) Bytes() []byte {
	if v.IsAbsent() {
		return nil
	}
	n := v.node()
	return v.m.payload[n.begin:n.end:n.end]
}

// Offset is where the value begins in the payload, in bytes.
func (v Value) Offset() int { return int(v.node().begin) }

// keyBytes are the key that a map has before the value.
func (v Value) keyBytes() []byte {
	n := v.node()
	return v.m.payload[n.begin-n.key : n.begin]
}

func (v Value) cursor() pack.Cursor { return pack.NewCursor(v.Bytes()) }

// Len is how many values an array has, or a map; 0 for other kinds.
func (v Value) Len() int {
	if v.IsAbsent() {
		return 0
	}
	_, count := v.m.open(v.at)
	return count
}

// At returns an element of an array, or the value of a map's pair, in their order.
func (v Value) At(i int) Value {
	if !v.IsAbsent() {
		if first, count := v.m.open(v.at); i < count {
			return Value{m: v.m, at: first + i}
		}
	}
	return v.missing("[" + strconv.Itoa(i) + "]")
}

// Parts are the elements of an array, or the values of a map.
func (v Value) Parts() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		for i := range v.Len() {
			if !yield(v.At(i)) {
				return
			}
		}
	}
}

// Field returns the value of a struct's field, or that of a key of a map.
func (v Value) Field(name string) Value {
	if v.IsAbsent() {
		return v.missing(name)
	}
	first, count := v.m.open(v.at)
	nodes := v.m.nodes[first : first+count]
	if s, is := v.node().of.(*structShape); is {
		if i, declared := s.index[name]; declared {
			if i < count && int(nodes[i].index) == i {
				return Value{m: v.m, at: first + i}
			}
			if at := slices.IndexFunc(nodes, func(n node) bool { return int(n.index) == i }); at >= 0 {
				return Value{m: v.m, at: first + at}
			}
			return v.missing(name)
		}
	}
	for i := range count {
		part := Value{m: v.m, at: first + i}
		if key := pack.NewCursor(part.keyBytes()); key.Kind() == pack.String {
			if text, _ := key.Str(); string(text) == name {
				return part
			}
		}
	}
	return v.missing(name)
}

func (v Value) missing(name string) Value {
	if v.absent != "" {
		if name[0] != '[' {
			name = "." + name
		}
		name = v.absent + name
	}
	return Value{m: v.m, at: v.at, absent: name}
}

// Path is where the value is: the names of fields, keys, and elements from the message on.
func (v Value) Path() string {
	switch {
	case v.m == nil:
		return ""
	case v.absent != "" && v.at < 0:
		return v.absent
	case v.absent != "":
		path := Value{m: v.m, at: v.at}.Path()
		if v.absent[0] == '[' || path == "" {
			return path + v.absent
		}
		return path + "." + v.absent
	case v.at == 0:
		return v.m.root
	}
	path := Value{m: v.m, at: int(v.node().parent)}.Path()
	switch name := v.Name(); {
	case name == "":
		return path + "[" + strconv.Itoa(int(v.node().index)) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// Name is that of the field, key or argument; "" of an element.
func (v Value) Name() string {
	if v.absent != "" || v.at == 0 {
		return v.absent
	}
	n := v.node()
	if n.key > 0 {
		return keyText(v.keyBytes())
	}
	if f := v.Declared(); f != nil {
		return f.Name
	}
	switch of := v.m.nodes[n.parent].of.(type) {
	case tensorShape:
		if n.index < 3 {
			return [...]string{"dtype", "shape", "data"}[n.index]
		}
	case argumentsShape:
		if int(n.index) < len(of.parameters) {
			return of.parameters[n.index].name
		}
	case callShape:
		if arguments, is := n.of.(argumentsShape); is && arguments.parameters != nil {
			return arguments.method
		}
		if n.index < 4 {
			return [...]string{"client_index", "call_id", "method", "args"}[n.index]
		}
	}
	return ""
}

// Declared is the field of a struct that the value is of, nil if it is of none. It is the same for every message of the line.
func (v Value) Declared() *Field {
	if v.IsAbsent() || v.at == 0 {
		return nil
	}
	s, is := v.m.nodes[v.node().parent].of.(*structShape)
	if !is || v.node().index < 0 || int(v.node().index) >= len(s.declared.Fields) {
		return nil
	}
	return &s.declared.Fields[v.node().index]
}

// Key is the key that a map has for the value; absent for what is not of a map.
func (v Value) Key() Value {
	if v.IsAbsent() || v.node().key == 0 {
		return Value{}
	}
	n, of := *v.node(), shape(anyShape{})
	if d, is := v.m.nodes[n.parent].of.(dictShape); is {
		of = d.key
	}
	v.m.add(of, int(n.begin-n.key), int(n.begin), int(n.parent), -1, 0)
	return Value{m: v.m, at: len(v.m.nodes) - 1}
}

// Enum is the enumeration of the line that the value has a member of, and the member's name; "" for none.
func (v Value) Enum() (enum, member string) {
	if v.IsAbsent() {
		return "", ""
	}
	switch of := v.node().of.(type) {
	case enumShape, literalShape:
		enum = of.String()
	}
	for _, m := range v.m.rules.profile.Enums[enum].Members {
		var value any
		if json.Unmarshal(m.Value, &value) == nil && isPlain(v.Bytes(), value) {
			return enum, m.Name
		}
	}
	return "", ""
}

// IsTensor reports whether the value is declared as an array of numbers, and is three values.
func (v Value) IsTensor() bool {
	if v.IsAbsent() {
		return false
	}
	_, is := v.node().of.(tensorShape)
	return is && v.Len() == 3
}

// IsDefault reports whether the value says no more than that its field is there: it is the one that the field has where nothing
// sets it, or, where it must be set, None, 0, false, or empty.
func (v Value) IsDefault() bool {
	f := v.Declared()
	if f.Required {
		return slices.ContainsFunc(zeros, func(zero any) bool { return isPlain(v.Bytes(), zero) })
	}
	if len(f.Default) == 0 {
		return v.Kind() == pack.Nil
	}
	var want any
	return json.Unmarshal(f.Default, &want) == nil && isPlain(v.Bytes(), want)
}

// Walk calls f for the value and all within it, in the order of the bytes: each before what is in it, which is left out where f
// returns false.
func (v Value) Walk(f func(Value) bool) {
	if v.IsAbsent() || !f(v) {
		return
	}
	for part := range v.Parts() {
		part.Walk(f)
	}
}

// Set returns the payload of the message with other bytes in place of the value's.
func (v Value) Set(raw []byte) []byte {
	n := v.node()
	return slices.Concat(v.m.payload[:n.begin], raw, v.m.payload[n.end:])
}

// Int reads an integer; false for another kind. One beyond the range is the greatest there is.
func (v Value) Int() (int64, bool) {
	cur := v.cursor()
	if cur.Kind() != pack.Int {
		return 0, false
	}
	i, err := cur.Int()
	if err != nil {
		return math.MaxInt64, true
	}
	return i, true
}

// small reads a count or an index; false for anything else.
func (v Value) small() (int, bool) {
	cur := v.cursor()
	if cur.Kind() != pack.Int {
		return 0, false
	}
	i, err := smallInt(&cur)
	return i, err == nil
}

// Count is [Value.Int], 0 if there is none.
func (v Value) Count() int64 {
	i, _ := v.Int()
	return i
}

// Float reads a float or an integer; false for another kind.
func (v Value) Float() (float64, bool) {
	cur := v.cursor()
	if k := cur.Kind(); k != pack.Float && k != pack.Int {
		return 0, false
	}
	f, err := cur.Float()
	return f, err == nil
}

// Bool reads a bool; false for another kind.
func (v Value) Bool() (is, ok bool) {
	cur := v.cursor()
	if cur.Kind() != pack.Bool {
		return false, false
	}
	is, err := cur.Bool()
	return is, err == nil
}

// Text reads a str, "" for another kind.
func (v Value) Text() string {
	cur := v.cursor()
	if cur.Kind() != pack.String {
		return ""
	}
	s, _ := cur.StrString()
	return s
}

// Ints reads an array of integers; false for anything else.
func (v Value) Ints() (values []int64, ok bool) {
	cur := v.cursor()
	if cur.Kind() != pack.Array {
		return nil, false
	}
	values, err := readList(&cur, (*pack.Cursor).Int)
	return values, err == nil
}

// Tensor reads an array of numbers.
func (v Value) Tensor() (Array, error) {
	cur := v.cursor()
	return ReadTensor(&cur, v.m.aux)
}

// Decode reads a map into a struct with tags, such as [SchedulerStats].
func (v Value) Decode(to any) error {
	cur := v.cursor()
	return readStruct(&cur, to)
}

// zeros are the values that say nothing.
var zeros = []any{nil, false, "", 0.0, []any{}, map[string]any{}}

// isPlain reports whether a message is the value that package json has decoded.
func isPlain(raw []byte, want any) bool {
	cur := pack.NewCursor(raw)
	switch want := want.(type) {
	case nil:
		return cur.Nil()
	case bool:
		got, err := cur.Bool()
		return err == nil && got == want
	case string:
		got, err := cur.StrString()
		return err == nil && got == want
	case float64:
		got, err := cur.Float()
		return err == nil && (got == want || got == float64(float32(want)))
	case []any:
		n, err := cur.ArrayLen()
		return err == nil && n == 0 && len(want) == 0
	case map[string]any:
		n, err := cur.MapLen()
		return err == nil && n == 0 && len(want) == 0
	}
	return false
}
