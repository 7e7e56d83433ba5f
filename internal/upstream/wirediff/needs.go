package wirediff

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// frontendRefusesLonger reports whether vllm-rs of a line refuses an array of a struct that is longer than it knows,
// and fails every open request: seen of the released binaries. Python, and the rules of msgspec, take such an array.
func frontendRefusesLonger(structName, line string) bool {
	switch structName {
	case "EngineCoreOutputs":
		return true
	case "EngineCoreOutput":
		return protocol.RustRefusesLongerOutput.Holds(line)
	}
	return false
}

// caution returns where vllm-rs is stricter than what is declared, of changes that break nothing by the declaration.
func (c *comparison) caution(ch *Change) string {
	_, field, _ := strings.Cut(ch.Subject, ".")
	switch {
	case ch.Level != Compatible:
	case ch.Position == nil && frontendRefusesLonger(ch.Struct, c.a.Line): // a map
	case ch.Kind == FieldAdded && frontendRefusesLonger(ch.Struct, c.a.Line):
		return fmt.Sprintf("vllm-rs of %s refuses a longer %s, and all its requests fail: not before an engine of %s",
			c.from, ch.Struct, c.to)
	case ch.Kind == FieldRemoved && frontendRefusesLonger(ch.Struct, c.b.Line):
		return fmt.Sprintf("vllm-rs of %s refuses the longer %s of engines of %s, and all its requests fail", c.to, ch.Struct, c.from)
	case ch.Kind == FieldRemoved && slices.Contains(protocol.NeededKeys(ch.Struct), field):
		return fmt.Sprintf("vllm-rs requires the key although it has a default: the one of %s fails if it does too", c.from)
	}
	return ""
}

// readersOf are the kinds of readers of the older side that fail at a change, by its declaration.
func (c *comparison) readersOf(ch *Change) map[Reader]bool {
	way := c.routes.of(ch.Struct)
	fails := slices.ContainsFunc(ch.Breaks, func(p Party) bool { return p != Recorders })
	isLength := ch.Position != nil && (ch.Kind == FieldAdded || ch.Kind == FieldRemoved)
	all := map[Reader]bool{
		ReaderMsgspec: fails, ReaderStrict: fails || isLength, ReaderRecorder: slices.Contains(ch.Breaks, Recorders),
	}
	if way&toFrontend != 0 {
		all[ReaderRust] = slices.Contains(ch.Breaks, Frontends)
	}
	return all
}

// An answer is what the player knows of a method.
type answer struct {
	results []protocol.ResultKind // that it can give
	reads   int                   // leading arguments
}

func answers(reads int, results ...protocol.ResultKind) answer { return answer{results, reads} }

// answered are the methods that the player answers, in player/utilities.go.
var answered = map[string]answer{
	"get_supported_tasks":      answers(0, protocol.ResultStrings),
	"is_sleeping":              answers(0, protocol.ResultBool),
	"is_scheduler_paused":      answers(0, protocol.ResultBool),
	"sleep":                    answers(2, protocol.ResultNone),
	"wake_up":                  answers(1, protocol.ResultNone, protocol.ResultBool),
	"pause_scheduler":          answers(1, protocol.ResultNone),
	"pause_generation":         answers(1, protocol.ResultNone),
	"resume_scheduler":         answers(0, protocol.ResultNone),
	"release_kv_cache_memory":  answers(0, protocol.ResultNone),
	"reset_prefix_cache":       answers(1, protocol.ResultBool),
	"reset_mm_cache":           answers(0, protocol.ResultNone),
	"reset_encoder_cache":      answers(0, protocol.ResultNone),
	"profile":                  answers(0, protocol.ResultNone),
	"execute_dummy_batch":      answers(0, protocol.ResultNone),
	"get_weight_version":       answers(0, protocol.ResultStr),
	"set_weight_version":       answers(1, protocol.ResultNone),
	"add_lora":                 answers(1, protocol.ResultBool),
	"remove_lora":              answers(1, protocol.ResultBool),
	"pin_lora":                 answers(1, protocol.ResultBool),
	"list_loras":               answers(0, protocol.ResultInts),
	"collective_rpc":           answers(0, protocol.ResultList),
	"compute_weight_checksums": answers(0, protocol.ResultList),
}

func (c *comparison) playerNeeds(ch *Change, canSpeakA bool) string {
	switch ch.group {
	case groupUtilities:
		return c.utilityNeeds(ch)
	case groupEnums:
		return c.memberNeeds(ch)
	case groupMessages:
		switch {
		case len(ch.Breaks) == 0:
			return "nothing: its code knows the keys of every line"
		case c.routes.of(ch.Struct) == events:
			return "nothing: the player publishes no KV events"
		}
		return "internal/wire/protocol/handshake.go has code for this message: add " + ch.Subject
	case groupConstants:
		if ch.Kind != ConstantAdded && slices.Contains(ch.Breaks, Frontends) {
			return "internal/wire/protocol has a constant for it: " + ch.Subject
		}
	case groupStructs:
		if ch.apply == nil || !canSpeakA {
			break
		}
		// A codec is compiled from A with this change alone, and with the structs that only B has.
		p := *c.a
		p.Line, p.Version = c.b.Line, c.b.Version
		p.Structs = map[string]protocol.Struct{}
		maps.Copy(p.Structs, c.b.Structs)
		maps.Copy(p.Structs, c.a.Structs)
		ch.apply(&p)
		if _, err := protocol.NewCodec(&p); err != nil {
			return err.Error()
		}
	}
	return FromProfile
}

// utilityNeeds returns what the player lacks of a method.
func (c *comparison) utilityNeeds(ch *Change) string {
	a, b := c.a.Utilities[ch.Subject], c.b.Utilities[ch.Subject]
	known, has := answered[ch.Subject]
	switch {
	case ch.Kind == UtilityRemoved:
		return FromProfile
	case !has:
		return fmt.Sprintf("player/utilities.go does not have %s: the player answers with a failure", ch.Subject)
	case b.Result != protocol.ResultAny && !slices.Contains(known.results, b.Result):
		return fmt.Sprintf("player/utilities.go answers %s with %s, and it must be %s", ch.Subject, known.results[0], b.Result)
	case ch.Kind == UtilityArguments:
		before, after := protocol.ParseSignature(a.Signature), protocol.ParseSignature(b.Signature)
		same := min(len(before.Params), len(after.Params)) >= known.reads && sameParameters(before, after, known.reads)
		for i := range known.reads {
			same = same && before.Params[i].Name == after.Params[i].Name
		}
		if !same {
			return fmt.Sprintf("player/utilities.go reads the first %s of %s by position",
				safetext.Count(known.reads, "argument"), ch.Subject)
		}
	}
	return FromProfile
}

// memberNeeds returns what of an enum is code and not profile.
func (c *comparison) memberNeeds(ch *Change) string {
	if ch.Level != Breaking || ch.Kind == MemberRemoved {
		return FromProfile
	}
	_, name, _ := strings.Cut(ch.Subject, ".")
	m, _ := member(c.b.Enums[ch.Struct], func(m protocol.Member) bool { return m.Name == name })
	var text string
	if json.Unmarshal(m.Value, &text) != nil {
		text = string(m.Value)
	}
	switch ch.Struct {
	case "EngineCoreRequestType":
		return fmt.Sprintf("internal/wire/protocol and the player know the bytes 0x00 to 0x03: add %s, %s", name, text)
	case "FinishReason":
		code, err := strconv.ParseInt(strings.TrimPrefix(text, "0x"), 16, 64)
		reason, unknown := protocol.FinishFromWire(code)
		if err == nil && unknown == nil && strings.EqualFold(reason.String(), name) {
			return FromProfile
		}
		return fmt.Sprintf("internal/wire/protocol refuses the finish reason %s: add the name %s to FinishReason", text, name)
	case "EngineCoreEventType", "RequestOutputKind":
		return "internal/wire/protocol has constants for the values: add " + name
	}
	return FromProfile
}

// recorderNeeds returns which of the fields that the recorder reads by name are concerned.
func (c *comparison) recorderNeeds(ch *Change) string {
	switch ch.group {
	case groupEnums:
		return c.memberNeeds(ch)
	case groupMessages:
		if len(ch.Breaks) > 0 && c.routes.of(ch.Struct) != events {
			return "internal/wire/protocol/handshake.go has code for this message: add " + ch.Subject
		}
		return forwarded
	case groupUtilities, groupConstants:
		return forwarded
	}
	_, field, _ := strings.Cut(ch.Subject, ".")
	if ch.Kind == FieldRenamed {
		field = ch.Before
	}
	if protocol.ReadsByName(ch.Struct, field) {
		switch ch.Kind {
		case FieldRemoved, FieldRenamed:
			return fmt.Sprintf("it reads %s.%s by this name, and does not find it", ch.Struct, field)
		case FieldType:
			return fmt.Sprintf("it reads %s.%s as %s", ch.Struct, field, ch.Before)
		}
	}
	return FromProfile
}

const forwarded = "nothing: it forwards fields that it does not read"
