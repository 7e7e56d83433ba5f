package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// tensorShape is an array or tensor, [dtype, shape, data] (vllm/v1/serial_utils.py).
type tensorShape struct {
	kindShape
	torch bool // else numpy
	// types are those of the elements, where a frontend does not take all; nil where it does.
	types []string
}

func newTensor(text string) tensorShape {
	return tensorShape{kindShape: kindShape{text, pack.Array}, torch: text == "torch.Tensor"}
}

func (s tensorShape) check(x *examination) {
	ahead := x.cur
	if n, _ := ahead.ArrayLen(); n != 3 {
		x.mismatch(s.text + ", [dtype, shape, data]")
		x.skip()
		return
	}
	x.cur = ahead
	item := s.checkType(x)
	size := item * x.elements()
	x.path = append(x.path, place{name: "data"})
	x.tensorData(size)
	x.path = x.path[:len(x.path)-1]
}

// checkType reads the element type and returns its size in bytes, 0 if it is none.
func (s tensorShape) checkType(x *examination) int {
	ahead := x.cur
	name, _ := ahead.StrString()
	size := numpySize(name)
	want := `the dtype of a numpy array, such as "<f4"`
	if s.torch {
		size, want = torchSizes[name], `the dtype of a torch tensor, such as "float32"`
	}
	if other := size > 0 && s.types != nil && !slices.Contains(s.types, name); other || size == 0 {
		if other {
			want = fmt.Sprintf("one of the dtypes %v", s.types)
		}
		x.path = append(x.path, place{name: "dtype"})
		x.mismatch(want)
		x.path = x.path[:len(x.path)-1]
	}
	x.skip()
	return size
}

// numpySize reads a type such as "<i8" or "|u1"; 0 if it is none.
func numpySize(name string) int {
	if len(name) < 3 || !strings.ContainsRune("<>|=", rune(name[0])) || !strings.ContainsRune("biufc", rune(name[1])) {
		return 0
	}
	size, err := strconv.Atoi(name[2:])
	if err != nil || size < 1 || size > 32 {
		return 0
	}
	return size
}

// torchSizes are the bytes of an element, by the name of its type without "torch.".
var torchSizes = map[string]int{
	"bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
	"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}

// maxElements bounds the product of a shape: no message holds more.
const maxElements = 1 << 40

// elements reads a shape and returns the product of its sizes, -1 if it has none.
func (x *examination) elements() int {
	start := x.cur
	x.skip()
	n, err := start.ArrayLen()
	if err != nil {
		n = 0
	}
	product := 1
	for range n {
		size, sizeErr := start.Int()
		if sizeErr != nil || size < 0 || size > maxElements/int64(max(product, 1)) {
			err = errNoShape
			break
		}
		product *= int(size)
	}
	if err == nil {
		return product
	}
	return -1
}

var errNoShape = errors.New("not a shape")

// tensorData checks that the bytes are there, and as many as type and shape say: in
// place, in an auxiliary frame that is named by its number, or in shared memory,
// where a map leads to.
func (x *examination) tensorData(size int) {
	start := x.cur
	x.skip()
	got := -1
	switch start.Kind() {
	case pack.Map:
		return
	case pack.Ext:
		ahead := start
		if code, data, err := ahead.Ext(); err == nil && code == ExtRawView {
			got = len(data)
		}
	case pack.Int:
		ahead := start
		if i, err := ahead.Int(); err == nil && i >= 1 && i <= int64(len(x.aux)) {
			got = len(x.aux[i-1])
		}
	}
	end := x.cur
	x.cur = start
	switch {
	case got < 0:
		x.mismatch(fmt.Sprintf("ext %d, or the number of one of %d auxiliary frames", ExtRawView, len(x.aux)))
	case size < 0:
		x.report("a shape, a list of sizes", "another")
	case size > 0 && got != size:
		x.report(safetext.Count(size, "byte")+" by dtype and shape", safetext.Count(got, "byte"))
	}
	x.cur = end
}

// nestedShape is what a multi-modal field holds: a tensor, a number, or a list of
// such (vllm/multimodal/inputs.py NestedTensors).
type nestedShape struct{}

func (nestedShape) String() string { return "NestedTensors" }

func (nestedShape) takes(k pack.Kind) bool {
	return k == pack.Array || k == pack.Int || k == pack.Float || k == pack.Nil
}

func (s nestedShape) check(x *examination) {
	ahead := x.cur
	n, err := ahead.ArrayLen()
	switch {
	case err != nil:
		x.skip()
	case n == 3 && ahead.Kind() == pack.String:
		newTensor("torch.Tensor").check(x)
	default:
		listShape{kindShape{s.String(), pack.Array}, s}.check(x)
	}
}

// fieldShape says how a multi-modal field is cut into items: [kind, arguments]
// (vllm/v1/serial_utils.py MMF_CLASS_TO_FACTORY).
type fieldShape struct{ batched, flat, shared shape }

func (fieldShape) String() string         { return "BaseMultiModalField" }
func (fieldShape) takes(k pack.Kind) bool { return k == pack.Array }

func (s fieldShape) check(x *examination) {
	ahead := x.cur
	n, _ := ahead.ArrayLen()
	kind, err := ahead.StrString()
	arguments := s.arguments(kind)
	if n != 2 || err != nil || arguments == (anyShape{}) {
		x.mismatch("[kind, arguments], the kind one of batched, flat, shared")
		x.skip()
		return
	}
	x.cur = ahead
	x.at(place{name: kind}, arguments)
}

// arguments are the types of the arguments of a kind; any, if there is no such kind.
func (s fieldShape) arguments(kind string) shape {
	switch kind {
	case "batched":
		return s.batched
	case "flat":
		return s.flat
	case "shared":
		return s.shared
	}
	return anyShape{}
}
