package replay

import "github.com/vllm-vcr/conformance/internal/wire/pack"

// wireHeard is a message of the engine under test.
type wireHeard struct {
	frames [][]byte
	Class  wireClass
	Call   uint64 // of an answer to a utility call
}

// Look tells a message's class by as little of it as possible: what else is wrong
// with it is for the comparison to say.
func (w *WireSession) Look(frames [][]byte) wireHeard {
	m := wireHeard{frames: frames, Class: wireOther}
	if len(frames) == 0 || pack.Validate(frames[0]) != nil {
		return m
	}
	cur := pack.NewCursor(frames[0])
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		m.see(i, w.utilityField, cur)
		err = cur.Skip()
	}
	return m
}

// see looks at field i of an EngineCoreOutputs.
func (m *wireHeard) see(i, utility int, value pack.Cursor) {
	switch {
	case i == 1 && value.Kind() == pack.Array:
		m.Class = wireIdle
		if outputs, err := value.ArrayLen(); err == nil && outputs > 0 {
			m.Class = WireStep
		}
	case i == utility && value.Kind() == pack.Array:
		m.Class = WireUtility
		if fields, err := value.ArrayLen(); err == nil && fields > 0 {
			m.Call, _ = value.Uint() // another kind is no call of ours
		}
	}
}
