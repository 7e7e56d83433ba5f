package wirediff

import (
	"fmt"
	"strings"
)

// Headline is a comparison in a line: the two releases and how many changes there are.
func (d *Diff) Headline() string {
	counts := fmt.Sprintf("%d breaking%s, %d compatible, %d informational",
		len(d.At(Breaking)), d.whom(), len(d.At(Compatible)), len(d.At(Informational)))
	switch {
	case len(d.Changes) == 0 && len(d.Gaps) == 0:
		counts = "nothing changed on the wire"
	case len(d.Gaps) > 0:
		counts += fmt.Sprintf("; %s could not be read", plural(len(d.Gaps), "part"))
	}
	return clean(fmt.Sprintf("vLLM %s → %s: %s", d.From.Version, d.To.Version, counts))
}

// whom says how many changes break each party.
func (d *Diff) whom() string {
	var parts []string
	for _, p := range []Party{Engines, Frontends, Taps} {
		if n := d.Breaking(p); n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", p, n))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// patterns say of each kind what happened; %b and %a stand for before and after.
var patterns = map[Kind]string{
	StructAdded: "new struct: %a", StructRemoved: "struct removed: %b", StructMoved: "declared elsewhere: %b → %a",
	StructEncoding: "encoding: %b → %a", StructOmitDefaults: "omits defaults: %b → %a", StructTag: "tag: %b → %a",
	FieldAdded: "added%p: %a", FieldRemoved: "removed%p: %b", FieldMoved: "moved: %b → %a",
	FieldRenamed: "renamed%p: %b → %a",
	FieldType:    "type%p: %b → %a", FieldDefault: "default%p: %b → %a", FieldRequired: "need%p: %b → %a",
	EnumAdded: "new enum: %a", EnumRemoved: "enum removed: %b", MemberAdded: "new member: %a",
	MemberRemoved: "member removed: %b",
	MemberRenamed: "member renamed: %b → %a", MemberValue: "value: %b → %a", ConstantAdded: "new constant: %a",
	ConstantRemoved: "constant removed: %b", ConstantValue: "value: %b → %a", UtilityAdded: "new method called: %a",
	UtilityRemoved: "method no longer called: %b", UtilityArguments: "arguments: %b → %a", UtilityResult: "result: %b → %a",
	UtilityCalls: "called with: %b → %a", MessageAdded: "new message: %a", MessageRemoved: "message removed: %b",
	MessageEncoding: "encoding: %b → %a", KeyAdded: "new%p: %a", KeyRemoved: "removed%p: %b",
	KeyOptional: "written%p: %b → %a",
}

// What says what happened to the subject: "added at 9: dict[str, Any] | None = None".
func (c Change) What() string {
	position := ""
	if c.Position != nil {
		position = fmt.Sprintf(" at %d", *c.Position)
	}
	parts := strings.NewReplacer("%b", orNone(clip(c.Before)), "%a", orNone(clip(c.After)), "%p", position)
	return parts.Replace(patterns[c.Kind])
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// place is where to read it, as FILE:LINE of RELEASE.
func (w Where) place() string {
	if w.Module == "" {
		return ""
	}
	if w.At > 0 {
		return fmt.Sprintf("%s:%d of %s", w.Module, w.At, w.Release)
	}
	return w.Module + " of " + w.Release
}

// wanted are the needs that are any.
func (n Needs) wanted() []string {
	var lines []string
	for _, p := range []struct{ who, what string }{{"player", n.Player}, {"recorder", n.Recorder}} {
		if p.what != "" && !strings.HasPrefix(p.what, "nothing: ") {
			lines = append(lines, "our "+p.who+": "+p.what)
		}
	}
	return lines
}
