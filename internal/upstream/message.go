package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/pyast"
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
func (x *extractor) messages() error {
	readers := []struct {
		module string
		names  []string
		read   func(m *module) error
	}{
		{coreModule, []string{helloMessage, readyMessage}, x.handshakes},
		{utilsModule, []string{initMessage}, x.initKeys},
		{clientModule, []string{utilityMessage, loadMessage}, x.clientTuples},
		{eventsModule, []string{eventsMessage, replayMessage, replayEndMessage}, x.eventFrames},
		{coordinatorModule, []string{startWaveMessage, countsMessage}, x.coordination},
	}
	for _, r := range readers {
		m, err := x.need(r.module, "messages "+strings.Join(r.names, ", "))
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if err := r.read(m); err != nil {
			return err
		}
		for _, name := range r.names {
			if _, found := x.profile.Messages[name]; !found {
				x.gap(m, 0, "message "+name, "it is not to be found in the form that is known")
			}
		}
	}
	return nil
}

// message takes one. A second one of the same name must be the same.
func (x *extractor) message(m *module, n *pyast.Node, name, encoding string, keys []protocol.Key) {
	at := protocol.Place{Module: m.path, At: n.Line}
	if before, again := x.profile.Messages[name]; again {
		sameKey := func(a, b protocol.Key) bool { return a.Name == b.Name && a.Optional == b.Optional }
		if !slices.EqualFunc(before.Keys, keys, sameKey) {
			x.gapAt(m, n, "message "+name, fmt.Sprintf("it is written in another form than in line %d", before.At))
		}
		return
	}
	x.profile.Messages[name] = protocol.Message{Encoding: encoding, Place: at, Keys: keys}
}

// handshakes reads the dictionaries that an engine registers with: those whose key "status" has the value HELLO or
// READY.
func (x *extractor) handshakes(m *module) error {
	for n := range m.tree.Root.All() {
		if n.Kind != "dictionary" {
			continue
		}
		if status := dictStatus(m.tree, n); status == helloMessage || status == readyMessage {
			x.message(m, n, status, "map", x.dictKeys(m, n, "message "+status))
		}
	}
	return nil
}

func dictStatus(t *pyast.Tree, n *pyast.Node) string {
	for pair := range n.NamedChildren() {
		if key, err := pyast.Literal(t, pair.ByField("key")); err == nil && key == "status" {
			status, _ := pyast.Literal(t, pair.ByField("value"))
			text, _ := status.(string)
			return text
		}
	}
	return ""
}

// dictKeys are the keys of a dictionary, and those that are added to the variable that it is assigned to.
func (x *extractor) dictKeys(m *module, dict *pyast.Node, what string) []protocol.Key {
	var keys []protocol.Key
	for pair := range dict.NamedChildren() {
		value, err := pyast.Literal(m.tree, pair.ByField("key"))
		name, isText := value.(string)
		if pair.Kind != "pair" || err != nil || !isText {
			x.gapAt(m, pair, what, "a key is known only when it runs: "+shownArgument(m.tree, pair))
			continue
		}
		keys = append(keys, protocol.Key{Name: name, At: pair.Line})
	}
	if dict.Parent.Kind != "assignment" || dict.Parent.ByField("left").Kind != "identifier" {
		return keys
	}
	return append(keys, x.addedKeys(m, dict, m.tree.Text(dict.Parent.ByField("left")), what)...)
}

// addedKeys are those that the function sets on the variable: variable["key"] = value.
func (x *extractor) addedKeys(m *module, dict *pyast.Node, variable, what string) []protocol.Key {
	var keys []protocol.Key
	for n := range enclosingFunction(dict).ByField("body").All() {
		if changesDict(m.tree, n, variable) {
			x.gapAt(m, n, what, "its keys are changed by "+pyast.Canonical(m.tree, n))
		}
		left := n.ByField("left")
		if n.Kind != "assignment" && n.Kind != "augmented_assignment" || left == nil || left.Kind != "subscript" ||
			m.tree.Text(left.ByField("value")) != variable {
			continue
		}
		value, err := pyast.Literal(m.tree, left.ByField("subscript"))
		name, isText := value.(string)
		if err != nil || !isText {
			x.gapAt(m, n, what, "a key is known only when it runs: "+pyast.Canonical(m.tree, left))
			continue
		}
		keys = append(keys, protocol.Key{Name: name, Optional: isConditional(n, dict), At: n.Line})
	}
	return keys
}

// dictMethods change a dictionary.
var dictMethods = []string{"update", "pop", "clear", "setdefault", "popitem"}

// changesDict tells the ways to change a dictionary but for setting one key.
func changesDict(t *pyast.Tree, n *pyast.Node, variable string) bool {
	switch n.Kind {
	case "call":
		receiver, name, _ := strings.Cut(t.Text(n.ByField("function")), ".")
		return receiver == variable && slices.Contains(dictMethods, name)
	case "augmented_assignment":
		return t.Text(n.ByField("left")) == variable
	case "delete_statement":
		return strings.Contains(t.Text(n), variable+"[")
	}
	return false
}

// conditions are the statements and clauses that do not always run what they hold.
var conditions = []string{
	"if_statement", "elif_clause", "else_clause", "for_statement", "while_statement", "except_clause", "match_statement",
}

// isConditional tells whether a statement runs only under a condition that another, of the same function, has not.
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

// initKeys reads which settings a frontend tells an engine, under a condition all of them: the names of a
// comprehension or the keys of a dictionary that is assigned to what it passes as parallel_config.
func (x *extractor) initKeys(m *module) error {
	const what = "message " + initMessage
	variable := keywordOf(m.tree, "EngineHandshakeMetadata", "parallel_config")
	if variable == nil {
		x.gap(m, 0, what, "nothing calls EngineHandshakeMetadata(parallel_config=…)")
		return nil
	}
	if variable.Kind != "identifier" {
		x.initValue(m, variable)
		return nil
	}
	for n := range enclosingFunction(variable).All() {
		left, right := n.ByField("left"), n.ByField("right")
		if n.Kind != "assignment" || right == nil || m.tree.Text(left) != m.tree.Text(variable) {
			continue
		}
		if m.tree.Text(right) != "{}" {
			x.initValue(m, right)
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
			if strings.HasPrefix(branch.Kind, "dictionary") && m.tree.Text(branch) != "{}" {
				x.initValue(m, branch)
			}
		}
		return
	case "dictionary":
		keys = x.dictKeys(m, n, what)
	case "dictionary_comprehension":
		for child := range n.NamedChildren() {
			if child.Kind == "for_in_clause" {
				keys = x.namesOf(m, child.ByField("right"), what)
			}
		}
	default:
		x.gapAt(m, n, what, "its keys are known only when it runs: "+pyast.Canonical(m.tree, n))
		return
	}
	for i := range keys {
		keys[i].Optional = true
	}
	x.message(m, n, initMessage, "map", keys)
}

// namesOf are the texts of a tuple or list.
func (x *extractor) namesOf(m *module, n *pyast.Node, what string) []protocol.Key {
	var keys []protocol.Key
	if n == nil || n.Kind != "tuple" && n.Kind != "list" {
		x.gapAt(m, n, what, "its keys are known only when it runs: "+pyast.Canonical(m.tree, n))
		return nil
	}
	for element := range n.NamedChildren() {
		value, err := pyast.Literal(m.tree, element)
		name, isText := value.(string)
		if err != nil || !isText {
			x.gapAt(m, element, what, "a key is known only when it runs: "+pyast.Canonical(m.tree, element))
			continue
		}
		keys = append(keys, protocol.Key{Name: name, At: element.Line})
	}
	return keys
}

// keywordOf is the value of a keyword in the first call of a function that has it.
func keywordOf(t *pyast.Tree, function, keyword string) *pyast.Node {
	for n := range t.Root.All() {
		if n.Kind != "call" || t.Text(n.ByField("function")) != function {
			continue
		}
		for argument := range n.ByField("arguments").NamedChildren() {
			if argument.Kind == "keyword_argument" && t.Text(argument.ByField("name")) == keyword {
				return argument.ByField("value")
			}
		}
	}
	return nil
}

// clientTuples reads the arrays that a client sends and takes without a struct: a utility call is the tuple with the
// method's name that it encodes, and the load of the engines is what it takes apart as soon as it is decoded.
func (x *extractor) clientTuples(m *module) error {
	for n := range m.tree.Root.All() {
		switch {
		case n.Kind == "call" && lastName(m.tree, n.ByField("function")) == "encode":
			names, isTuple := elements(m.tree, soleArgument(n))
			if isTuple && slices.Contains(names, "call_id") && slices.Contains(names, "method") {
				x.message(m, n, utilityMessage, "array", keysOf(names, n.Line))
			}
		case n.Kind == "assignment" && n.ByField("right") != nil && n.ByField("right").Kind == "call":
			if lastName(m.tree, n.ByField("right").ByField("function")) != "decode" {
				continue
			}
			if names, isTuple := elements(m.tree, n.ByField("left")); isTuple && slices.Contains(names, "counts") {
				x.message(m, n, loadMessage, "array", keysOf(names, n.Line))
			}
		}
	}
	return nil
}

// lastName is the last part of a dotted name.
func lastName(t *pyast.Tree, n *pyast.Node) string {
	text := t.Text(n)
	return text[strings.LastIndexByte(text, '.')+1:]
}

// soleArgument is the argument of a call with one.
func soleArgument(call *pyast.Node) *pyast.Node {
	var sole *pyast.Node
	for n := range call.ByField("arguments").NamedChildren() {
		if sole != nil {
			return nil
		}
		sole = n
	}
	return sole
}

// elements names those of a tuple, or of what one is taken apart to.
func elements(t *pyast.Tree, n *pyast.Node) (names []string, isTuple bool) {
	if n == nil {
		return nil, false
	}
	switch n.Kind {
	case "tuple", "list", "pattern_list", "tuple_pattern", "list_pattern", "expression_list":
		for child := range n.NamedChildren() {
			names = append(names, frameName(t, child))
		}
		return names, true
	}
	return nil, false
}

// frameName is what a part of a message is called: the name that it is passed by, without what the language adds to it.
// One that is always empty is "empty".
func frameName(t *pyast.Tree, n *pyast.Node) string {
	switch n.Kind {
	case "call": // seq.to_bytes(8, "big")
		if function := n.ByField("function"); function.Kind == "attribute" {
			return frameName(t, function.ByField("object"))
		}
	case "string":
		if value, err := pyast.Literal(t, n); err == nil {
			if b, isBytes := value.([]byte); isBytes && len(b) == 0 {
				return "empty"
			}
		}
	case "identifier", "attribute":
		name := strings.TrimLeft(lastName(t, n), "_")
		return strings.TrimSuffix(name, "_bytes")
	}
	return pyast.Canonical(t, n)
}

func keysOf(names []string, line int) []protocol.Key {
	var keys []protocol.Key
	for _, name := range names {
		keys = append(keys, protocol.Key{Name: name, At: line})
	}
	return keys
}

// eventFrames reads the frames that the publisher of KV events sends: on its socket for subscribers, and on the one for
// replays, where the end of a replay has a number of its own.
func (x *extractor) eventFrames(m *module) error {
	const publisher, what = "ZmqEventPublisher", "messages of KV events"
	ref, err := x.resolve(m, publisher)
	if err != nil {
		return err
	}
	if ref.def == nil || ref.def.kind != aClass {
		x.gap(m, 0, "class "+publisher, cause(ref))
		return nil
	}
	t := ref.module.tree
	for n := range ref.def.node.All() {
		function := n.ByField("function")
		if n.Kind != "call" || lastName(t, function) != "send_multipart" {
			continue
		}
		names, isTuple := elements(t, soleArgument(n))
		if !isTuple {
			x.gapAt(ref.module, n, what, "the frames are known only when it runs: "+pyast.Canonical(t, n))
			continue
		}
		name := eventsMessage
		switch socket := frameName(t, function.ByField("object")); {
		case strings.Contains(socket, "replay") && slices.Contains(names, "END_SEQ"):
			name = replayEndMessage
		case strings.Contains(socket, "replay"):
			name = replayMessage
		case !strings.Contains(socket, "pub"):
			x.gapAt(ref.module, n, what, "it sends on a socket that is not known: "+socket)
			continue
		}
		x.message(ref.module, n, name, "frames", keysOf(names, n.Line))
	}
	return nil
}

// coordination reads what the coordinator of data-parallel engines sends and takes: the tuple of START_DP_WAVE, the
// counts that it keeps of an engine, and the notice of a first request, which frontends sent until 0.32.
func (x *extractor) coordination(m *module) error {
	t := m.tree
	counts := map[string]string{}
	var countsAt *pyast.Node
	for n := range t.Root.All() {
		switch {
		case n.Kind == "call" && lastName(t, n.ByField("function")) == "encode":
			names, isTuple := elements(t, soleArgument(n))
			if isTuple && enclosingName(t, n) == "_send_start_wave" {
				x.message(m, n, startWaveMessage, "array", keysOf(names, n.Line))
			}
		case n.Kind == "assignment":
			if names, isTuple := elements(t, n.ByField("left")); isTuple && isDecoded(t, n) {
				x.message(m, n, firstRequestNotice, "array", keysOf(names, n.Line))
			}
			if index, name, is := countOf(t, n); is {
				counts[index] = name
				countsAt = n
			}
		}
	}
	var names []string
	for i := range len(counts) {
		name, found := counts[fmt.Sprint(i)]
		if !found {
			x.gapAt(m, countsAt, "message "+countsMessage, fmt.Sprintf("nothing sets its element %d", i))
			return nil
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		x.message(m, countsAt, countsMessage, "array", keysOf(names, countsAt.Line))
	}
	return nil
}

func enclosingName(t *pyast.Tree, n *pyast.Node) string {
	if function := enclosingFunction(n); function != nil {
		return t.Text(function.ByField("name"))
	}
	return ""
}

// isDecoded tells whether an assignment takes apart a variable that was decoded in the same function.
func isDecoded(t *pyast.Tree, assignment *pyast.Node) bool {
	right, function := assignment.ByField("right"), enclosingFunction(assignment)
	if right == nil || right.Kind != "identifier" || function == nil {
		return false
	}
	for n := range function.All() {
		value := n.ByField("right")
		if n.Kind != "assignment" || value == nil || value.Kind != "call" || t.Text(n.ByField("left")) != t.Text(right) {
			continue
		}
		if lastName(t, value.ByField("function")) == "decode" {
			return true
		}
	}
	return false
}

// countOf reads stats[0] = scheduler_stats.num_waiting_reqs.
func countOf(t *pyast.Tree, n *pyast.Node) (index, name string, is bool) {
	left, right := n.ByField("left"), n.ByField("right")
	if left.Kind != "subscript" || right == nil || right.Kind != "attribute" ||
		t.Text(right.ByField("object")) != "scheduler_stats" {
		return "", "", false
	}
	subscript := left.ByField("subscript")
	return t.Text(subscript), t.Text(right.ByField("attribute")), subscript.Kind == "integer"
}
