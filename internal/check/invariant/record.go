package invariant

import (
	"math"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// record is a struct of a message, read by name: one that goes over the wire as an array, or as a map.
type record struct {
	names  []string // of an array
	keys   [][]byte // of a map
	values [][]byte // nil for those that are nil
	told   int      // values that are neither nil nor 0
	next   int      // after the field that was found last: fields are mostly asked for in their order
}

func (r *record) begin(names []string) {
	r.names, r.keys, r.values, r.told, r.next = names, r.keys[:0], r.values[:0], 0, 0
}

// readArray reads a struct whose fields have these names, and reports whether there is one. What is longer is not of the line.
func (r *record) readArray(names []string, raw []byte) bool {
	cur := pack.NewCursor(raw)
	return r.takeArray(names, &cur)
}

// takeArray reads one that others may follow.
func (r *record) takeArray(names []string, cur *pack.Cursor) bool {
	r.begin(names)
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		if len(r.values) == len(names) {
			err = cur.Skip()
		} else {
			err = r.read(cur)
		}
	}
	return err == nil
}

// readMap reads a map with text keys, and reports whether there is one.
func (r *record) readMap(raw []byte) bool {
	if raw == nil { // as most are, so without the error that a cursor would make of it
		return false
	}
	cur := pack.NewCursor(raw)
	return r.takeMap(&cur)
}

// takeMap reads one that others may follow.
func (r *record) takeMap(cur *pack.Cursor) bool {
	r.begin(nil)
	n, err := cur.MapLen()
	for ; err == nil && n > 0; n-- {
		var key []byte
		if key, err = cur.Str(); err == nil {
			if err = r.read(cur); err == nil {
				r.keys = append(r.keys, key)
			}
		}
	}
	return err == nil
}

func (r *record) read(cur *pack.Cursor) error {
	var value []byte
	if !cur.Nil() {
		var err error
		if value, err = cur.Raw(); err != nil {
			return err
		}
		if len(value) > 1 || value[0] != 0 {
			r.told++
		}
	}
	r.values = append(r.values, value)
	return nil
}

// get returns the value of a field, nil if it is not there, or nil.
func (r *record) get(name string) []byte {
	at := r.find(name, r.next, len(r.values))
	if at < 0 {
		at = r.find(name, 0, r.next)
	}
	if at < 0 {
		return nil
	}
	r.next = at + 1
	return r.values[at]
}

// find returns the index of a field between two, -1 if it is not there.
func (r *record) find(name string, from, to int) int {
	if r.names != nil {
		for i, n := range r.names[from:to] {
			if n == name {
				return from + i
			}
		}
		return -1
	}
	for i, key := range r.keys[from:to] {
		if string(key) == name {
			return from + i
		}
	}
	return -1
}

// int reads an integer; of another kind there is none.
func (r *record) int(name string) (int64, bool) {
	raw := r.get(name)
	if raw == nil {
		return 0, false
	}
	cur := pack.NewCursor(raw)
	if cur.Kind() != pack.Int {
		return 0, false
	}
	v, err := cur.Int()
	if err != nil {
		return math.MaxInt64, true // beyond the range, and beyond any count
	}
	return v, true
}

// count reads an integer, 0 if there is none.
func (r *record) count(name string) int64 {
	v, _ := r.int(name)
	return v
}

func (r *record) float(name string) (float64, bool) {
	raw := r.get(name)
	if raw == nil {
		return 0, false
	}
	cur := pack.NewCursor(raw)
	v, err := cur.Float()
	return v, err == nil
}

func (r *record) ints(name string) (values []int64, ok bool) {
	raw := r.get(name)
	if raw == nil {
		return nil, false
	}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		var v int64
		if v, err = cur.Int(); err == nil {
			values = append(values, v)
		}
	}
	return values, err == nil
}

func sum(values []int64) (total int64) {
	for _, v := range values {
		total += v
	}
	return total
}
