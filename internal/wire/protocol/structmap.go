package protocol

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// A structType is a Go struct whose fields cross the wire in a map. The tag of a field, such as `wire:"num_running_reqs"`, is its
// key: the field is written if the line has it, and read back. These types of fields can have a tag: bool, int, float64, string,
// []int, []float64, []string, *string (nil is None), a struct with tags, a pointer to one (nil is None), a list of such, and a
// pointer that implements [wireAppender]. Only what is written has the tag `wire:"name,writeonly"`. None leaves a field as it is,
// but is an error for one with the tag `wire:"name,given"`.
type structType struct {
	fields []structField
	keys   map[string]int // index in fields
}

type structField struct {
	key              string
	offset           uintptr // in the Go struct
	kind             fieldKind
	typ              reflect.Type
	elem             reflect.Type // of a struct, of what a pointer leads to, and of an element
	writeOnly, given bool
}

type fieldKind uint8

const (
	boolField fieldKind = iota
	intField
	floatField
	stringField
	intsField
	floatsField
	stringsField
	optionalField
	nestedField
	pointerField
	listField
	appenderField
)

// A wireAppender writes itself in a way of its own. It is not read back.
type wireAppender interface {
	appendWire(b []byte, c *Codec) []byte
}

var plainFields = map[reflect.Type]fieldKind{
	reflect.TypeFor[bool](): boolField, reflect.TypeFor[int](): intField, reflect.TypeFor[float64](): floatField,
	reflect.TypeFor[string](): stringField, reflect.TypeFor[[]int](): intsField, reflect.TypeFor[[]float64](): floatsField,
	reflect.TypeFor[[]string](): stringsField, reflect.TypeFor[*string](): optionalField,
}

var structTypes sync.Map // reflect.Type to *structType

func structTypeOf(t reflect.Type) *structType {
	if known, ok := structTypes.Load(t); ok {
		return known.(*structType)
	}
	s := &structType{keys: map[string]int{}}
	for i := range t.NumField() {
		tag, has := t.Field(i).Tag.Lookup("wire")
		if !has {
			continue
		}
		key, option, _ := strings.Cut(tag, ",")
		of := t.Field(i).Type
		f := structField{key: key, offset: t.Field(i).Offset, typ: of, writeOnly: option == "writeonly", given: option == "given"}
		switch kind, plain := plainFields[of]; {
		case plain:
			f.kind = kind
		case of.Implements(reflect.TypeFor[wireAppender]()):
			f.kind = appenderField
		case of.Kind() == reflect.Struct:
			f.kind, f.elem = nestedField, of
		case of.Kind() == reflect.Pointer:
			f.kind, f.elem = pointerField, of.Elem()
		case of.Kind() == reflect.Slice:
			f.kind, f.elem = listField, of.Elem()
		default:
			panic(fmt.Sprintf("protocol: %s.%s: a field of type %s cannot have the tag wire", t, t.Field(i).Name, of))
		}
		s.keys[key] = len(s.fields)
		s.fields = append(s.fields, f)
	}
	structTypes.Store(t, s)
	return s
}

// A structLayout writes a Go struct as the line has it: runs of constant bytes (keys, and the defaults of what the Go struct does
// not have) with the values of fields between them.
type structLayout struct {
	steps []structStep
	end   []byte // after the last value
}

type structStep struct {
	before  []byte
	field   *structField
	derived func([]byte, unsafe.Pointer) []byte // instead of the field's own value
	elem    *structLayout
}

// derived are the values that follow from other fields of a struct, or are not sent as they are. They are given a pointer to it.
var derived = map[string]func([]byte, unsafe.Pointer) []byte{
	"PrefixCacheStats.hits_by_source": deriving(appendHitsBySource),
	"RequestError.message":            deriving(func(b []byte, e *RequestError) []byte { return pack.AppendString(b, errorText(e.Message)) }),
	"EngineCoreReadyResponse.kv_cache_size_tokens": deriving(func(b []byte, r *ReadyResponse) []byte {
		return pack.AppendInt(b, int64(r.NumGPUBlocks*r.BlockSize))
	}),
	"EngineCoreReadyResponse.kv_cache_max_concurrency": deriving(func(b []byte, r *ReadyResponse) []byte {
		return pack.AppendFloat64(b, float64(r.NumGPUBlocks*r.BlockSize)/float64(max(r.MaxModelLen, 1)))
	}),
	"EngineCoreReadyResponse.effective_attention_block_size": deriving(func(b []byte, r *ReadyResponse) []byte {
		return pack.AppendInt(b, int64(r.BlockSize))
	}),
}

func deriving[T any](value func([]byte, *T) []byte) func([]byte, unsafe.Pointer) []byte {
	return func(b []byte, of unsafe.Pointer) []byte { return value(b, (*T)(of)) }
}

// compileStruct lays out a struct of the line in its order. An optional field that the Go struct does not have is written with its
// default, as a real engine writes it.
func (c *Codec) compileStruct(name string, t reflect.Type) (*structLayout, error) {
	s, err := c.profile.needStruct(name, "map")
	if err != nil {
		return nil, err
	}
	of, l := structTypeOf(t), new(structLayout)
	run := pack.AppendMapHeader(nil, len(s.Fields))
	for _, f := range s.Fields {
		run = pack.AppendString(run, f.Name)
		i, known := of.keys[f.Name]
		step := structStep{before: run, derived: derived[name+"."+f.Name]}
		if step.derived == nil && !known {
			def, err := c.defaultOf(name, f)
			if err != nil {
				return nil, err
			}
			run = append(run, def...)
			continue
		}
		if step.derived == nil {
			step.field = &of.fields[i]
			if step.elem, err = c.compileElem(f.Type, step.field.elem); err != nil {
				return nil, err
			}
		}
		l.steps, run = append(l.steps, step), nil
	}
	l.end = run
	return l, nil
}

// compileElem lays out a struct within a field, which the declared type names. A dict has all keys of the Go struct.
func (c *Codec) compileElem(declared string, t reflect.Type) (*structLayout, error) {
	switch {
	case t == nil:
		return nil, nil
	case strings.HasPrefix(declared, "dict["):
		return allKeys(t), nil
	}
	return c.compileStruct(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(declared, " | None"), "list["), "]"), t)
}

// allKeys is the layout of a map that no line declares: it has the keys of the Go struct.
func allKeys(t reflect.Type) *structLayout {
	of, l := structTypeOf(t), new(structLayout)
	run := pack.AppendMapHeader(nil, len(of.fields))
	for i := range of.fields {
		step := structStep{before: pack.AppendString(run, of.fields[i].key), field: &of.fields[i]}
		if elem := of.fields[i].elem; elem != nil {
			step.elem = allKeys(elem)
		}
		l.steps, run = append(l.steps, step), nil
	}
	l.end = run
	return l
}

// appendStruct writes what a pointer leads to; nil is None. Fields are found by their offsets, because an
// engine writes its statistics in every step: by package reflect a step with one output takes half as long again.
func appendStruct[T any](b []byte, c *Codec, l *structLayout, v *T) []byte {
	if v == nil {
		return pack.AppendNil(b)
	}
	return l.append(b, c, unsafe.Pointer(v))
}

func (l *structLayout) append(b []byte, c *Codec, of unsafe.Pointer) []byte {
	for i := range l.steps {
		step := &l.steps[i]
		b = append(b, step.before...)
		if step.derived != nil {
			b = step.derived(b, of)
			continue
		}
		at := unsafe.Add(of, step.field.offset)
		switch step.field.kind {
		case intField:
			b = pack.AppendInt(b, int64(*(*int)(at)))
		case boolField:
			b = pack.AppendBool(b, *(*bool)(at))
		case floatField:
			b = pack.AppendFloat64(b, *(*float64)(at))
		case stringField:
			b = pack.AppendString(b, *(*string)(at))
		case intsField:
			b = appendInts(b, *(*[]int)(at))
		case floatsField:
			b = appendFloat64s(b, *(*[]float64)(at))
		case stringsField:
			b = appendStrings(b, *(*[]string)(at))
		case optionalField:
			b = appendOptional(b, *(**string)(at))
		case nestedField:
			b = step.elem.append(b, c, at)
		default:
			b = step.append(b, c, at)
		}
	}
	return append(b, l.end...)
}

// append writes what a pointer or a list leads to.
func (s *structStep) append(b []byte, c *Codec, at unsafe.Pointer) []byte {
	first := *(*unsafe.Pointer)(at) // a list begins with a pointer to its elements
	switch {
	case s.field.kind == listField:
		n := len(*(*[]struct{})(at))
		b = pack.AppendArrayHeader(b, n)
		for i := range n {
			b = s.elem.append(b, c, unsafe.Add(first, uintptr(i)*s.field.elem.Size()))
		}
		return b
	case first == nil:
		return pack.AppendNil(b)
	case s.field.kind == pointerField:
		return s.elem.append(b, c, first)
	}
	return reflect.NewAt(s.field.typ, at).Elem().Interface().(wireAppender).appendWire(b, c)
}

func appendFloat64s(b []byte, values []float64) []byte {
	b = pack.AppendArrayHeader(b, len(values))
	for _, v := range values {
		b = pack.AppendFloat64(b, v)
	}
	return b
}

// readStruct reads a map into what to leads to. Keys that it has no field for are skipped. A key that is there twice is an error, as
// it is to vllm-rs. Errors name the field.
func readStruct(cur *pack.Cursor, to any) error { return readMap(cur, reflect.ValueOf(to).Elem()) }

func readMap(cur *pack.Cursor, to reflect.Value) error {
	of := structTypeOf(to.Type())
	n, err := cur.MapLen()
	if err != nil {
		return err
	}
	var seen fieldSet
	for range n {
		key, err := cur.Str()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		i, known := of.keys[string(key)]
		switch {
		case !known:
			err = cur.Skip()
		case seen.has(i):
			err = errors.New("the key is there twice")
		case of.fields[i].writeOnly || of.fields[i].kind == appenderField:
			err = cur.Skip()
		case of.fields[i].given || !cur.Nil():
			err = read(cur, of.fields[i].of(to))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", safetext.Clip(string(key), 80), err)
		}
		if known {
			seen.add(i)
		}
	}
	return nil
}

// of is the field of a struct.
func (f *structField) of(v reflect.Value) reflect.Value {
	return reflect.NewAt(f.typ, unsafe.Add(v.Addr().UnsafePointer(), f.offset)).Elem()
}

func read(cur *pack.Cursor, to reflect.Value) (err error) {
	switch to := to.Addr().Interface().(type) {
	case *int:
		*to, err = smallInt(cur)
		return err
	case *bool:
		*to, err = cur.Bool()
		return err
	case *float64:
		*to, err = cur.Float()
		return err
	case *string:
		*to, err = cur.StrString()
		return err
	case *[]string:
		*to, err = readList(cur, (*pack.Cursor).StrString)
		return err
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return read(cur, to.Elem())
	case reflect.Slice:
		n, err := cur.ArrayLen()
		for ; n > 0 && err == nil; n-- {
			e := reflect.New(to.Type().Elem()).Elem()
			err = read(cur, e)
			to.Set(reflect.Append(to, e))
		}
		return err
	}
	return readMap(cur, to)
}

func readList[T any](cur *pack.Cursor, read func(*pack.Cursor) (T, error)) (all []T, err error) {
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		var v T
		if v, err = read(cur); err == nil {
			all = append(all, v)
		}
	}
	return all, err
}

// readWhole is readStruct for a message that is one map and nothing else.
func readWhole(payload []byte, to any) error {
	cur := pack.NewCursor(payload)
	if err := readStruct(&cur, to); err != nil {
		return err
	}
	if !cur.Done() {
		return fmt.Errorf("%d bytes after the message", len(payload)-cur.Offset())
	}
	return nil
}

// FieldOf returns a pointer to the field of a struct that has this key on the wire, nil if it has none: to a bool, an int, a
// float64, a string or a list of such, or to a struct, which is made if there was none; and the number of the field. of is a
// pointer, such as to a [SchedulerStats].
func FieldOf(of any, key []byte) (field any, number int) {
	v := reflect.ValueOf(of).Elem()
	t := structTypeOf(v.Type())
	i, known := t.keys[string(key)]
	if !known || t.fields[i].kind == appenderField || t.fields[i].kind == listField {
		return nil, 0
	}
	f := t.fields[i].of(v)
	if t.fields[i].kind != pointerField {
		return f.Addr().Interface(), i
	}
	if f.IsNil() {
		f.Set(reflect.New(t.fields[i].elem))
	}
	return f.Interface(), i
}
