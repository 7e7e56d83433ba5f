package protocol

import "strings"

// FieldName names a position of an array-encoded struct for [pack.Diff], so
// that a difference reads EngineCoreOutputs.outputs[0].prefill_stats. The path
// is the one reached so far; an empty result means an ordinary array.
func (c *Codec) FieldName(path string, index int) string {
	s, ok := c.profile.Structs[c.structAt(path)]
	if !ok || s.Encoding != "array" || index >= len(s.Fields) {
		return ""
	}
	return s.Fields[index].Name
}

// structAt finds the struct that a path such as
// EngineCoreOutputs.outputs[0].new_logprobs leads to.
func (c *Codec) structAt(path string) string {
	parts := strings.Split(path, ".")
	current := parts[0]
	for _, part := range parts[1:] {
		name, indexed, isIndexed := strings.Cut(part, "[")
		s := c.profile.Structs[current]
		i := s.Index(name)
		if i < 0 {
			return ""
		}
		current = structOf(s.Fields[i].Type, isIndexed && indexed != "")
	}
	return current
}

// structOf takes the struct name out of a Python annotation: "X | None", or
// the element of "list[X]" when an element was selected.
func structOf(annotation string, element bool) string {
	name := strings.TrimSpace(strings.TrimSuffix(annotation, " | None"))
	inner, isList := strings.CutPrefix(name, "list[")
	if isList != element {
		return ""
	}
	return strings.TrimSuffix(inner, "]")
}
