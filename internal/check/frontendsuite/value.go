package frontendsuite

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// carried returns the value that a request has at a path such as
// "sampling_params.temperature": with the default of the line where a map leaves it
// out, as JSON has it otherwise. false means that the line has no such field.
func carried(profile *protocol.Profile, payload []byte, path string) (value any, ok bool) {
	if pack.Validate(payload) != nil {
		return nil, false
	}
	name, key, nested := strings.Cut(path, ".")
	i := profile.Structs["EngineCoreRequest"].Index(name)
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if i < 0 || err != nil || i >= n {
		return nil, false
	}
	for range i {
		if cur.Skip() != nil {
			return nil, false
		}
	}
	value, err = plainValue(&cur)
	if !nested || err != nil {
		return value, err == nil
	}
	declared := profile.Structs["SamplingParams"]
	if i = declared.Index(key); i < 0 {
		return nil, false
	}
	if m, is := value.(map[string]any); is {
		if v, has := m[key]; has {
			return v, true
		}
	}
	var fallback any
	_ = json.Unmarshal(declared.Fields[i].Default, &fallback) // absent means nil
	return fallback, true
}

// plainValue reads a value as package json would: numbers as float64, maps by the
// text of their keys. What JSON does not have is its printed form.
func plainValue(cur *pack.Cursor) (any, error) {
	switch cur.Kind() {
	case pack.Nil:
		return nil, cur.Skip()
	case pack.Bool:
		return cur.Bool()
	case pack.Int, pack.Float:
		return cur.Float()
	case pack.String:
		return cur.StrString()
	case pack.Array:
		return plainList(cur)
	case pack.Map:
		return PlainMap(cur)
	}
	raw, err := cur.Raw()
	return pack.Format(raw), err
}

func plainList(cur *pack.Cursor) (any, error) {
	n, err := cur.ArrayLen()
	list := []any{}
	for range n {
		var v any
		if v, err = plainValue(cur); err != nil {
			break
		}
		list = append(list, v)
	}
	return list, err
}

func PlainMap(cur *pack.Cursor) (any, error) {
	n, err := cur.MapLen()
	m := map[string]any{}
	for range n {
		var key, value any
		if key, err = plainValue(cur); err == nil {
			value, err = plainValue(cur)
		}
		if err != nil {
			break
		}
		m[fmt.Sprint(key)] = value
	}
	return m, err
}

// sameCarried compares what HTTP asked for with what a request carries: a frontend
// may keep a float in 32 bits.
func sameCarried(want, got any) bool {
	if w, ok := number(want); ok {
		g, is := number(got)
		return is && (w == g || float32(w) == float32(g))
	}
	w, ok := want.([]any)
	g, is := got.([]any)
	if !ok || !is {
		return reflect.DeepEqual(want, got)
	}
	if len(w) != len(g) {
		return false
	}
	for i := range w {
		if !sameCarried(w[i], g[i]) {
			return false
		}
	}
	return true
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, !math.IsNaN(v)
	case int:
		return float64(v), true
	case uint32:
		return float64(v), true
	}
	return 0, false
}

// ListOf makes a list of values.
func ListOf(ids []uint32) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = float64(id)
	}
	return list
}
