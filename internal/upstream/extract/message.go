package extract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Names of the messages that have no struct.
const (
	helloMessage       = "HELLO"
	readyMessage       = "READY"
	initMessage        = "INIT.parallel_config"
	utilityMessage     = "UTILITY"
	eventsMessage      = "KV events"
	replayMessage      = "KV events replay"
	replayEndMessage   = "KV events replay end"
	startWaveMessage   = "START_DP_WAVE"
	countsMessage      = "coordinator counts"
	loadMessage        = "coordinator load"
	firstRequestNotice = "coordinator first request"
)

// messages reads those that have no struct. Each has a function, which notes the gaps of its own.
func (x *extractor) messages() {
	for _, r := range []struct {
		module string
		names  []string
		read   func(m *module)
	}{
		{coreModule, []string{helloMessage, readyMessage}, x.handshakes},
		{utilsModule, []string{initMessage}, x.initKeys},
		{clientModule, []string{utilityMessage, loadMessage}, x.clientTuples},
		{eventsModule, []string{eventsMessage, replayMessage, replayEndMessage}, x.eventFrames},
		{coordinatorModule, []string{startWaveMessage, countsMessage}, x.coordination},
	} {
		m := x.need(r.module, "messages "+strings.Join(r.names, ", "))
		if m == nil {
			continue
		}
		r.read(m)
		for _, name := range r.names {
			if _, found := x.profile.Messages[name]; !found {
				x.gap(m, 0, "message "+name, "it is not to be found in the form that is known")
			}
		}
	}
}

// message takes one. A second one of the same name must be the same.
func (x *extractor) message(m *module, n *pyast.Node, name, encoding string, keys []protocol.Key) {
	if before, again := x.profile.Messages[name]; again {
		sameKey := func(a, b protocol.Key) bool { return a.Name == b.Name && a.Optional == b.Optional }
		if !slices.EqualFunc(before.Keys, keys, sameKey) {
			x.gapAt(m, n, "message "+name, fmt.Sprintf("it is written in another form than in line %d", before.At))
		}
		return
	}
	x.profile.Messages[name] = protocol.Message{
		Encoding: encoding, Place: protocol.Place{Module: m.path, At: n.Line}, Keys: keys,
	}
}

// sequence takes a message of an array or of frames, whose parts have names.
func (x *extractor) sequence(m *module, n *pyast.Node, name, encoding string, parts []string) {
	var keys []protocol.Key
	for _, part := range parts {
		keys = append(keys, protocol.Key{Name: part, At: n.Line})
	}
	x.message(m, n, name, encoding, keys)
}

// handshakes reads the dictionaries that an engine registers with: those whose key "status" has the value HELLO or
// READY.
func (x *extractor) handshakes(m *module) {
	for n := range m.tree.Root.All() {
		if n.Kind != "dictionary" {
			continue
		}
		for pair := range n.NamedChildren() {
			if key, _ := textOf(pair.ByField("key")); key != "status" {
				continue
			}
			if status, _ := textOf(pair.ByField("value")); status == helloMessage || status == readyMessage {
				x.message(m, n, status, "map", x.dictKeys(m, n, "message "+status))
			}
			break
		}
	}
}

// textOf returns the value of an expression that is a string.
func textOf(n *pyast.Node) (value string, is bool) {
	literal, err := pyast.Literal(n)
	value, is = literal.(string)
	return value, is && err == nil
}

// key notes the name of a key, which is the text of an expression.
func (x *extractor) key(keys []protocol.Key, m *module, at, name *pyast.Node, what string) []protocol.Key {
	value, is := textOf(name)
	if !is {
		shown := at
		if at.Kind == "assignment" || at.Kind == "augmented_assignment" {
			shown = at.ByField("left")
		}
		x.gapAt(m, at, what, "a key is known only when it runs: "+shownArgument(shown))
		return keys
	}
	return append(keys, protocol.Key{Name: value, At: at.Line})
}

// dictKeys returns the keys of a dictionary, and those that its function sets on the variable that it is assigned to.
func (x *extractor) dictKeys(m *module, dict *pyast.Node, what string) []protocol.Key {
	var keys []protocol.Key
	for pair := range dict.NamedChildren() {
		keys = x.key(keys, m, pair, pair.ByField("key"), what)
	}
	target := dict.Parent.ByField("left")
	if dict.Parent.Kind != "assignment" || target.Kind != "identifier" {
		return keys
	}
	variable := target.Text()
	for n := range enclosingFunction(dict).ByField("body").All() {
		if changesDict(n, variable) {
			x.gapAt(m, n, what, "its keys are changed by "+pyast.Canonical(n))
		}
		left := n.ByField("left") // variable["key"] = value
		if n.Kind != "assignment" && n.Kind != "augmented_assignment" || left == nil || left.Kind != "subscript" ||
			left.ByField("value").Text() != variable {
			continue
		}
		before := len(keys)
		if keys = x.key(keys, m, n, left.ByField("subscript"), what); len(keys) > before {
			keys[before].Optional = isConditional(n, dict)
		}
	}
	return keys
}

// dictMethods change a dictionary.
var dictMethods = []string{"update", "pop", "clear", "setdefault", "popitem"}

// changesDict reports whether a node changes a dictionary otherwise than by setting one key.
func changesDict(n *pyast.Node, variable string) bool {
	switch n.Kind {
	case "call":
		receiver, name, _ := strings.Cut(n.ByField("function").Text(), ".")
		return receiver == variable && slices.Contains(dictMethods, name)
	case "augmented_assignment":
		return n.ByField("left").Text() == variable
	case "delete_statement":
		return strings.Contains(n.Text(), variable+"[")
	}
	return false
}

// conditions are the statements and clauses that do not always run what they hold.
var conditions = []string{
	"if_statement", "elif_clause", "else_clause", "for_statement", "while_statement", "except_clause", "match_statement",
}

// isConditional reports whether a statement runs only under a condition that another, of the same function, has not.
func isConditional(n, other *pyast.Node) bool {
	var outer []*pyast.Node
	for at := other.Parent; at != nil; at = at.Parent {
		outer = append(outer, at)
	}
	for at := n.Parent; at != nil && !slices.Contains(outer, at); at = at.Parent {
		if slices.Contains(conditions, at.Kind) {
			return true
		}
	}
	return false
}

// initKeys reads which settings a frontend sends to an engine, under a condition all of them: the names of a
// comprehension or the keys of a dictionary that is assigned to what it passes as parallel_config.
func (x *extractor) initKeys(m *module) {
	variable := parallelConfig(m.tree)
	switch {
	case variable == nil:
		x.gap(m, 0, "message "+initMessage, "nothing calls EngineHandshakeMetadata(parallel_config=…)")
		return
	case variable.Kind != "identifier":
		x.initValue(m, variable)
		return
	}
	for n := range enclosingFunction(variable).All() {
		right := n.ByField("right")
		if n.Kind == "assignment" && right != nil && n.ByField("left").Text() == variable.Text() && right.Text() != "{}" {
			x.initValue(m, right)
		}
	}
}

// parallelConfig returns what is passed as parallel_config, by the first call that passes it.
func parallelConfig(t *pyast.Tree) *pyast.Node {
	for n := range t.Root.All() {
		if n.Kind != "call" || n.ByField("function").Text() != "EngineHandshakeMetadata" {
			continue
		}
		for argument := range n.ByField("arguments").NamedChildren() {
			if argument.Kind == "keyword_argument" && argument.ByField("name").Text() == "parallel_config" {
				return argument.ByField("value")
			}
		}
	}
	return nil
}

func (x *extractor) initValue(m *module, n *pyast.Node) {
	const what = "message " + initMessage
	var keys []protocol.Key
	switch n.Kind {
	case "conditional_expression": // {…} if coordinated else {}
		for branch := range n.NamedChildren() {
			if strings.HasPrefix(branch.Kind, "dictionary") && branch.Text() != "{}" {
				x.initValue(m, branch)
			}
		}
		return
	case "dictionary":
		keys = x.dictKeys(m, n, what)
	case "dictionary_comprehension":
		for child := range n.NamedChildren() {
			if child.Kind != "for_in_clause" {
				continue
			}
			keys = nil
			names := child.ByField("right")
			if names == nil || names.Kind != "tuple" && names.Kind != "list" {
				x.gapAt(m, child, what, "its keys are known only when it runs: "+pyast.Canonical(names))
				continue
			}
			for name := range names.NamedChildren() {
				keys = x.key(keys, m, name, name, what)
			}
		}
	default:
		x.gapAt(m, n, what, "its keys are known only when it runs: "+pyast.Canonical(n))
		return
	}
	for i := range keys {
		keys[i].Optional = true
	}
	x.message(m, n, initMessage, "map", keys)
}

// clientTuples reads the arrays that a client sends and takes without a struct: a utility call is the tuple with the
// method's name that it encodes, and the load of the engines is what it takes apart as soon as it is decoded.
func (x *extractor) clientTuples(m *module) {
	for n := range m.tree.Root.All() {
		switch n.Kind {
		case "call":
			names, _ := encodedTuple(n)
			if slices.Contains(names, "call_id") && slices.Contains(names, "method") {
				x.sequence(m, n, utilityMessage, "array", names)
			}
		case "assignment":
			names, isTuple := elements(n.ByField("left"))
			if isTuple && isDecodeCall(n.ByField("right")) && slices.Contains(names, "counts") {
				x.sequence(m, n, loadMessage, "array", names)
			}
		}
	}
}

// encodedTuple names the elements of a tuple that a call encodes.
func encodedTuple(call *pyast.Node) (names []string, is bool) {
	if lastName(call.ByField("function")) != "encode" {
		return nil, false
	}
	return elements(soleArgument(call))
}

func isDecodeCall(n *pyast.Node) bool {
	return n != nil && n.Kind == "call" && lastName(n.ByField("function")) == "decode"
}

// soleArgument returns the argument of a call with one, or nil.
func soleArgument(call *pyast.Node) *pyast.Node {
	if all := slices.Collect(call.ByField("arguments").NamedChildren()); len(all) == 1 {
		return all[0]
	}
	return nil
}

// elements names those of a tuple, or of what one is taken apart to.
func elements(n *pyast.Node) (names []string, isTuple bool) {
	if n == nil {
		return nil, false
	}
	switch n.Kind {
	case "tuple", "list", "pattern_list", "tuple_pattern", "list_pattern", "expression_list":
		for child := range n.NamedChildren() {
			names = append(names, frameName(child))
		}
		return names, true
	}
	return nil, false
}

// frameName returns what a part of a message is called: the name that it is passed by, without what the language adds to
// it. One that is always empty is "empty".
func frameName(n *pyast.Node) string {
	switch n.Kind {
	case "call": // seq.to_bytes(8, "big")
		if function := n.ByField("function"); function.Kind == "attribute" {
			return frameName(function.ByField("object"))
		}
	case "string":
		value, _ := pyast.Literal(n)
		if b, isBytes := value.([]byte); isBytes && len(b) == 0 {
			return "empty"
		}
	case "identifier", "attribute":
		return strings.TrimSuffix(strings.TrimLeft(lastName(n), "_"), "_bytes")
	}
	return pyast.Canonical(n)
}

// eventFrames reads the frames that the publisher of KV events sends: on its socket for subscribers, and on the one for
// replays, where the end of a replay has a number of its own.
func (x *extractor) eventFrames(m *module) {
	const publisher, what = "ZmqEventPublisher", "messages of KV events"
	ref := x.resolve(m, publisher)
	if ref.def == nil || ref.def.kind != aClass {
		x.gap(m, 0, "class "+publisher, ref.why())
		return
	}
	for n := range ref.def.node.All() {
		function := n.ByField("function")
		if n.Kind != "call" || lastName(function) != "send_multipart" {
			continue
		}
		names, isTuple := elements(soleArgument(n))
		if !isTuple {
			x.gapAt(ref.module, n, what, "the frames are known only when it runs: "+pyast.Canonical(n))
			continue
		}
		name := eventsMessage
		switch socket := frameName(function.ByField("object")); {
		case strings.Contains(socket, "replay") && slices.Contains(names, "END_SEQ"):
			name = replayEndMessage
		case strings.Contains(socket, "replay"):
			name = replayMessage
		case !strings.Contains(socket, "pub"):
			x.gapAt(ref.module, n, what, "it sends on a socket that is not known: "+socket)
			continue
		}
		x.sequence(ref.module, n, name, "frames", names)
	}
}

// coordination reads what the coordinator of data-parallel engines sends and takes: the tuple of START_DP_WAVE, the
// counts that it keeps of an engine, and the notice of a first request, which frontends sent until 0.32.
func (x *extractor) coordination(m *module) {
	counts := map[string]string{} // by index
	var countsAt *pyast.Node
	for n := range m.tree.Root.All() {
		left, right := n.ByField("left"), n.ByField("right")
		switch n.Kind {
		case "call":
			if names, is := encodedTuple(n); is && enclosingName(n) == "_send_start_wave" {
				x.sequence(m, n, startWaveMessage, "array", names)
			}
		case "assignment":
			if names, isTuple := elements(left); isTuple && isDecoded(right) {
				x.sequence(m, n, firstRequestNotice, "array", names)
			}
			// stats[0] = scheduler_stats.num_waiting_reqs
			index := left.ByField("subscript")
			if left.Kind == "subscript" && index.Kind == "integer" && right != nil && right.Kind == "attribute" &&
				right.ByField("object").Text() == "scheduler_stats" {
				counts[index.Text()] = right.ByField("attribute").Text()
				countsAt = n
			}
		}
	}
	var names []string
	for i := range len(counts) {
		name, found := counts[fmt.Sprint(i)]
		if !found {
			x.gapAt(m, countsAt, "message "+countsMessage, fmt.Sprintf("nothing sets its element %d", i))
			return
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		x.sequence(m, countsAt, countsMessage, "array", names)
	}
}

// isDecoded reports whether an expression is a variable that was decoded in the same function.
func isDecoded(variable *pyast.Node) bool {
	if variable == nil || variable.Kind != "identifier" {
		return false
	}
	for n := range enclosingFunction(variable).All() {
		if n.Kind == "assignment" && n.ByField("left").Text() == variable.Text() && isDecodeCall(n.ByField("right")) {
			return true
		}
	}
	return false
}
