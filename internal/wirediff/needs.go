package wirediff

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// needs finds out what this project's programs need.
type needs struct {
	a, b *protocol.Profile
	// speaksA tells that this build has a codec for A, so that a change of it alone
	// can be tried.
	speaksA bool
}

func newNeeds(a, b *protocol.Profile) needs {
	_, err := protocol.NewCodec(a)
	return needs{a: a, b: b, speaksA: err == nil}
}

func (n needs) of(ch *Change) Needs {
	return Needs{Player: n.player(ch), Recorder: n.recorder(ch)}
}

// player tries the change alone: a codec is compiled from A with it.
func (n needs) player(ch *Change) string {
	switch {
	case ch.group == groupUtilities:
		return n.utility(ch)
	case ch.group == groupEnums:
		return n.member(ch)
	case ch.group == groupMessages:
		return n.message(ch)
	case ch.group == groupConstants && ch.Kind != ConstantAdded && slices.Contains(ch.Breaks, Frontends):
		return "internal/protocol has it as a constant: " + ch.Subject
	case ch.apply == nil || !n.speaksA:
		return FromProfile
	}
	if _, err := protocol.NewCodec(n.with(ch)); err != nil {
		return err.Error()
	}
	return FromProfile
}

// with is A with one change, and with the structs that only B has.
func (n needs) with(ch *Change) *protocol.Profile {
	p := *n.a
	p.Line, p.Version = n.b.Line, n.b.Version
	p.Structs = maps.Clone(n.a.Structs)
	for name, s := range n.b.Structs {
		if _, known := p.Structs[name]; !known {
			p.Structs[name] = s
		}
	}
	ch.apply(&p)
	return &p
}

// An answer is what the player knows of a method.
type answer struct {
	results []protocol.ResultKind // that it can give
	reads   int                   // leading arguments
}

// answered are the methods that the player answers, in player/utilities.go.
var answered = map[string]answer{
	"get_supported_tasks":      {results: []protocol.ResultKind{protocol.ResultStrings}},
	"is_sleeping":              {results: []protocol.ResultKind{protocol.ResultBool}},
	"is_scheduler_paused":      {results: []protocol.ResultKind{protocol.ResultBool}},
	"sleep":                    {results: []protocol.ResultKind{protocol.ResultNone}, reads: 2},
	"wake_up":                  {results: []protocol.ResultKind{protocol.ResultNone, protocol.ResultBool}, reads: 1},
	"pause_scheduler":          {results: []protocol.ResultKind{protocol.ResultNone}, reads: 1},
	"pause_generation":         {results: []protocol.ResultKind{protocol.ResultNone}, reads: 1},
	"resume_scheduler":         {results: []protocol.ResultKind{protocol.ResultNone}},
	"release_kv_cache_memory":  {results: []protocol.ResultKind{protocol.ResultNone}},
	"reset_prefix_cache":       {results: []protocol.ResultKind{protocol.ResultBool}, reads: 1},
	"reset_mm_cache":           {results: []protocol.ResultKind{protocol.ResultNone}},
	"reset_encoder_cache":      {results: []protocol.ResultKind{protocol.ResultNone}},
	"profile":                  {results: []protocol.ResultKind{protocol.ResultNone}},
	"execute_dummy_batch":      {results: []protocol.ResultKind{protocol.ResultNone}},
	"get_weight_version":       {results: []protocol.ResultKind{protocol.ResultStr}},
	"set_weight_version":       {results: []protocol.ResultKind{protocol.ResultNone}, reads: 1},
	"add_lora":                 {results: []protocol.ResultKind{protocol.ResultBool}, reads: 1},
	"remove_lora":              {results: []protocol.ResultKind{protocol.ResultBool}, reads: 1},
	"pin_lora":                 {results: []protocol.ResultKind{protocol.ResultBool}, reads: 1},
	"list_loras":               {results: []protocol.ResultKind{protocol.ResultInts}},
	"collective_rpc":           {results: []protocol.ResultKind{protocol.ResultList}},
	"compute_weight_checksums": {results: []protocol.ResultKind{protocol.ResultList}},
}

// utility says what the player lacks of a method.
func (n needs) utility(ch *Change) string {
	u, called := n.b.Utilities[ch.Subject]
	known, has := answered[ch.Subject]
	switch {
	case !called:
		return FromProfile
	case !has:
		return fmt.Sprintf("player/utilities.go does not do %s: it answers with a failure, as an engine that cannot",
			ch.Subject)
	case u.Result != protocol.ResultAny && !slices.Contains(known.results, u.Result):
		return fmt.Sprintf("player/utilities.go answers %s with %s, and it must be %s",
			ch.Subject, known.results[0], u.Result)
	case ch.Kind == UtilityArguments && !n.sameParameters(ch.Subject, known.reads):
		return fmt.Sprintf("player/utilities.go reads the first %s of %s by position",
			plural(known.reads, "argument"), ch.Subject)
	}
	return FromProfile
}

// sameParameters tells whether the first parameters of a method are the same.
func (n needs) sameParameters(method string, count int) bool {
	a, b := parseSignature(n.a.Utilities[method].Signature), parseSignature(n.b.Utilities[method].Signature)
	for i := range count {
		if i >= len(a.params) || i >= len(b.params) || a.params[i].name != b.params[i].name ||
			!parameterType(a.params[i]).accepts(parameterType(b.params[i])) {
			return false
		}
	}
	return true
}

// member says what of an enum is code and not profile.
func (n needs) member(ch *Change) string {
	if ch.Level != Breaking || ch.Kind == MemberRemoved {
		return FromProfile
	}
	_, name, _ := strings.Cut(ch.Subject, ".")
	m, _ := memberNamed(n.b.Enums[ch.Struct], name)
	var text string
	if json.Unmarshal(m.Value, &text) != nil {
		text = string(m.Value)
	}
	switch code, err := strconv.ParseInt(strings.TrimPrefix(text, "0x"), 16, 64); {
	case ch.Struct == "EngineCoreRequestType":
		return fmt.Sprintf("internal/protocol and the player dispatch on the bytes 0x00 to 0x03: teach them %s, %s",
			name, text)
	case ch.Struct == "FinishReason" && err == nil && finishKnown(code, name):
		return FromProfile
	case ch.Struct == "FinishReason":
		return fmt.Sprintf("internal/protocol refuses the finish reason %s: teach FinishReason the name %s", text, name)
	case ch.Struct == "EngineCoreEventType", ch.Struct == "RequestOutputKind":
		return "internal/protocol has the values as constants: teach it " + name
	}
	return FromProfile
}

// finishKnown tells whether the build takes a code for the reason that has the name.
func finishKnown(code int64, name string) bool {
	reason, err := protocol.FinishFromWire(code)
	return err == nil && strings.EqualFold(reason.String(), name)
}

// message says what of a handshake is code and not profile.
func (n needs) message(ch *Change) string {
	if len(ch.Breaks) == 0 {
		return "nothing: it is written and read by the keys of every line"
	}
	if n.routesEvents(ch) {
		return "nothing: the player publishes no KV events"
	}
	return "internal/protocol/handshake.go writes and reads this message by itself: teach it " + ch.Subject
}

func (n needs) routesEvents(ch *Change) bool {
	return findRoutes(n.a, n.b).of(ch.Struct) == events
}

// recorder says which of the fields that are read by name are concerned.
func (n needs) recorder(ch *Change) string {
	switch {
	case ch.group == groupUtilities, ch.group == groupConstants:
		return "nothing: it forwards what it does not read"
	case ch.group == groupEnums:
		return n.member(ch)
	case ch.group == groupMessages && len(ch.Breaks) > 0 && !n.routesEvents(ch):
		return "internal/protocol/handshake.go reads this message by itself: teach it " + ch.Subject
	case ch.group == groupMessages:
		return "nothing: it forwards what it does not read"
	}
	_, field, _ := strings.Cut(ch.Subject, ".")
	if ch.Kind == FieldRenamed {
		field = ch.Before
	}
	if !protocol.ReadsByName(ch.Struct, field) {
		return FromProfile
	}
	switch ch.Kind {
	case FieldRemoved, FieldRenamed:
		return fmt.Sprintf("it reads %s.%s by this name, and finds none", ch.Struct, field)
	case FieldType:
		return fmt.Sprintf("it reads %s.%s as %s", ch.Struct, field, ch.Before)
	}
	return FromProfile
}
