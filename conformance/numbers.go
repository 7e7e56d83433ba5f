package conformance

import "github.com/vllm-vcr/conformance/internal/wire/pack"

// integers reads the integers among the values of a map with text keys.
func integers(raw []byte) (map[string]int64, error) {
	values := map[string]int64{}
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	for ; err == nil && n > 0; n-- {
		var key string
		if key, err = cur.StrString(); err != nil {
			break
		}
		if cur.Kind() == pack.Int {
			values[key], err = cur.Int()
		} else {
			err = cur.Skip()
		}
	}
	return values, err
}

// floatOf reads a number out of a map with text keys, 0 when it is not there.
func floatOf(raw []byte, name string) float64 {
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	for ; err == nil && n > 0; n-- {
		var key string
		if key, err = cur.StrString(); err == nil && key == name {
			value, _ := cur.Float()
			return value
		}
		if err == nil {
			err = cur.Skip()
		}
	}
	return 0
}
