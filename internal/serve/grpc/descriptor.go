package grpc

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

var (
	//go:embed proto/vllm_engine.proto
	engineProto string
	//go:embed proto/common.proto
	commonProto string
	//go:embed proto/health.proto
	healthProto string
	//go:embed proto/reflection.proto
	reflectionProto string
)

// A file is a .proto file as reflection tells about it.
type file struct {
	name       string
	needs      []string // files that it imports
	symbols    []string // full names of what it declares
	services   []string
	descriptor []byte // a FileDescriptorProto
}

// files are those of all services. They are parsed when somebody asks.
var files = sync.OnceValue(func() []*file {
	p := &protoParser{types: map[string]uint64{}}
	for _, f := range []struct{ name, text string }{
		{"common.proto", commonProto},
		{"vllm_engine.proto", engineProto},
		{"grpc/health/v1/health.proto", healthProto},
		{"grpc/reflection/v1/reflection.proto", strings.ReplaceAll(reflectionProto, "VERSION", "v1")},
		{"grpc/reflection/v1alpha/reflection.proto", strings.ReplaceAll(reflectionProto, "VERSION", "v1alpha")},
	} {
		p.parse(f.name, f.text)
	}
	return p.files
})

// A protoParser reads .proto files: as much of their language as the files of this package use. It panics at anything else, as
// they are part of the program.
type protoParser struct {
	files []*file
	file  *file
	pkg   string
	types map[string]uint64 // typeMessage or typeEnum, by full name
	words []string
}

type (
	protoMessage struct {
		name, full string
		fields     []protoField
		oneofs     []string
		messages   []*protoMessage
		enums      []protoEnum
		reserved   []int
		isEntry    bool // of a map
	}
	protoField struct {
		name, kind string
		number     int
		label      uint64
		oneof      string
		optional   bool
	}
	protoEnum struct {
		name   string
		values []protoField
	}
	protoMethod struct {
		name, in, out         string
		streamsIn, streamsOut bool
	}
)

// Numbers of fields in descriptor.proto.
const (
	fileName, filePackage, fileNeeds, fileMessage, fileEnum, fileService, fileSyntax                     = 1, 2, 3, 4, 5, 6, 12
	messageName, messageField, messageNested, messageEnum, messageOptions, messageOneof, messageReserved = 1, 2, 3, 4, 7, 8, 9
	fieldName, fieldNumber, fieldLabel, fieldType, fieldTypeName, fieldOneof, fieldOptional              = 1, 3, 4, 5, 6, 9, 17
	methodName, methodIn, methodOut, methodStreamsIn, methodStreamsOut                                   = 1, 2, 3, 5, 6

	labelOptional, labelRepeated = 1, 3
	typeMessage, typeEnum        = 11, 14
)

var scalarTypes = map[string]uint64{
	"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}

func (p *protoParser) parse(name, text string) {
	p.file, p.words = &file{name: name}, nil
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		for _, mark := range []string{"{", "}", "=", ";", "<", ">", ",", "(", ")"} {
			line = strings.ReplaceAll(line, mark, " "+mark+" ")
		}
		p.words = append(p.words, strings.Fields(line)...)
	}
	b := AppendString(nil, fileName, name)
	var messages []*protoMessage
	var enums []protoEnum
	services := map[string][]protoMethod{}
	for len(p.words) > 0 {
		switch word := p.next(); word {
		case "syntax":
			p.want("=", `"proto3"`, ";")
		case "package":
			p.pkg = p.next()
			p.want(";")
			b = AppendString(b, filePackage, p.pkg)
		case "import":
			needed := strings.Trim(p.next(), `"`)
			p.want(";")
			p.file.needs = append(p.file.needs, needed)
			b = AppendString(b, fileNeeds, needed)
		case "message":
			messages = append(messages, p.message(p.pkg))
		case "enum":
			enums = append(enums, p.enum(p.pkg))
		case "service":
			name := p.next()
			p.file.services = append(p.file.services, p.pkg+"."+name)
			services[name] = p.service(p.pkg + "." + name)
		default:
			p.wrong(word)
		}
	}
	for _, m := range messages {
		b = AppendMessage(b, fileMessage, func(b []byte) []byte { return p.appendMessage(b, m) })
	}
	for _, e := range enums {
		b = AppendMessage(b, fileEnum, e.append)
	}
	for name, methods := range services {
		b = AppendMessage(b, fileService, func(b []byte) []byte {
			b = AppendString(b, 1, name)
			for _, m := range methods {
				b = AppendMessage(b, 2, func(b []byte) []byte {
					b = AppendString(AppendString(b, methodName, m.name), methodIn, "."+p.resolve(p.pkg, m.in))
					b = AppendString(b, methodOut, "."+p.resolve(p.pkg, m.out))
					return AppendBool(AppendBool(b, methodStreamsIn, m.streamsIn), methodStreamsOut, m.streamsOut)
				})
			}
			return b
		})
	}
	p.file.descriptor = AppendString(b, fileSyntax, "proto3")
	p.files = append(p.files, p.file)
}

func (p *protoParser) wrong(word string) {
	panic(fmt.Sprintf("%s: unexpected %q before %q", p.file.name, word, p.words[:min(len(p.words), 5)]))
}

func (p *protoParser) next() string {
	if len(p.words) == 0 {
		p.wrong("the end")
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

func (p *protoParser) want(words ...string) {
	for _, want := range words {
		if got := p.next(); got != want {
			p.wrong(got)
		}
	}
}

func (p *protoParser) number() int {
	p.want("=")
	word := p.next()
	n, err := strconv.Atoi(word)
	if err != nil {
		p.wrong(word)
	}
	return n
}

// resolve returns the full name of a type that is named in a scope.
func (p *protoParser) resolve(scope, name string) string {
	for at := len(scope); at >= 0; at = strings.LastIndexByte(scope, '.') {
		scope = scope[:at]
		if _, ok := p.types[scope+"."+name]; ok {
			return scope + "." + name
		}
	}
	if _, ok := p.types[name]; !ok {
		p.wrong(name)
	}
	return name
}

func (p *protoParser) message(scope string) *protoMessage {
	m := &protoMessage{name: p.next()}
	m.full = scope + "." + m.name
	p.types[m.full] = typeMessage
	p.file.symbols = append(p.file.symbols, m.full)
	p.want("{")
	for word := p.next(); word != "}"; word = p.next() {
		switch word {
		case "message":
			m.messages = append(m.messages, p.message(m.full))
		case "enum":
			m.enums = append(m.enums, p.enum(m.full))
		case "reserved":
			for mark := ","; mark == ","; mark = p.next() {
				n, err := strconv.Atoi(p.next())
				if err != nil {
					p.wrong("reserved")
				}
				m.reserved = append(m.reserved, n)
			}
		case "oneof":
			name := p.next()
			m.oneofs = append(m.oneofs, name)
			p.want("{")
			for word := p.next(); word != "}"; word = p.next() {
				p.field(m, word, name)
			}
		default:
			p.field(m, word, "")
		}
	}
	for i, f := range m.fields { // behind all others, as the compiler of protobuf has them
		if f.optional {
			m.fields[i].oneof = "_" + f.name
			m.oneofs = append(m.oneofs, "_"+f.name)
		}
	}
	return m
}

func (p *protoParser) field(m *protoMessage, word, oneof string) {
	f := protoField{label: labelOptional, oneof: oneof}
	switch word {
	case "optional":
		f.optional, word = true, p.next()
	case "repeated":
		f.label, word = labelRepeated, p.next()
	case "map":
		p.want("<")
		key := protoField{name: "key", kind: p.next(), number: 1, label: labelOptional}
		p.want(",")
		value := protoField{name: "value", kind: p.next(), number: 2, label: labelOptional}
		p.want(">")
		f.label, f.name = labelRepeated, p.next()
		for part := range strings.SplitSeq(f.name, "_") {
			word = strings.TrimPrefix(word, "map") + strings.ToUpper(part[:1]) + part[1:]
		}
		word += "Entry"
		p.types[m.full+"."+word] = typeMessage
		m.messages = append(m.messages, &protoMessage{name: word, full: m.full + "." + word, fields: []protoField{key, value}, isEntry: true})
	}
	f.kind = word
	if f.name == "" {
		f.name = p.next()
	}
	f.number = p.number()
	p.want(";")
	m.fields = append(m.fields, f)
}

func (p *protoParser) enum(scope string) protoEnum {
	e := protoEnum{name: p.next()}
	p.types[scope+"."+e.name] = typeEnum
	p.file.symbols = append(p.file.symbols, scope+"."+e.name)
	p.want("{")
	for word := p.next(); word != "}"; word = p.next() {
		e.values = append(e.values, protoField{name: word, number: p.number()})
		p.want(";")
	}
	return e
}

func (p *protoParser) service(full string) (methods []protoMethod) {
	p.file.symbols = append(p.file.symbols, full)
	kind := func() (name string, streams bool) {
		p.want("(")
		if name = p.next(); name == "stream" {
			name, streams = p.next(), true
		}
		p.want(")")
		return name, streams
	}
	p.want("{")
	for word := p.next(); word != "}"; word = p.next() {
		m := protoMethod{name: p.next()}
		m.in, m.streamsIn = kind()
		p.want("returns")
		m.out, m.streamsOut = kind()
		p.want(";")
		methods = append(methods, m)
		p.file.symbols = append(p.file.symbols, full+"."+m.name)
	}
	return methods
}

func (p *protoParser) appendMessage(b []byte, m *protoMessage) []byte {
	b = AppendString(b, messageName, m.name)
	for _, f := range m.fields {
		b = AppendMessage(b, messageField, func(b []byte) []byte { return p.appendField(b, m, f) })
	}
	for _, nested := range m.messages {
		b = AppendMessage(b, messageNested, func(b []byte) []byte { return p.appendMessage(b, nested) })
	}
	for _, e := range m.enums {
		b = AppendMessage(b, messageEnum, e.append)
	}
	if m.isEntry {
		b = AppendMessage(b, messageOptions, func(b []byte) []byte { return AppendBool(b, 7, true) })
	}
	for _, name := range m.oneofs {
		b = AppendMessage(b, messageOneof, func(b []byte) []byte { return AppendString(b, 1, name) })
	}
	for _, n := range m.reserved {
		b = AppendMessage(b, messageReserved, func(b []byte) []byte { return AppendUint(AppendUint(b, 1, uint64(n)), 2, uint64(n+1)) })
	}
	return b
}

func (p *protoParser) appendField(b []byte, m *protoMessage, f protoField) []byte {
	b = AppendUint(AppendUint(AppendString(b, fieldName, f.name), fieldNumber, uint64(f.number)), fieldLabel, f.label)
	if kind, ok := scalarTypes[f.kind]; ok {
		b = AppendUint(b, fieldType, kind)
	} else {
		full := p.resolve(m.full, f.kind)
		b = AppendString(AppendUint(b, fieldType, p.types[full]), fieldTypeName, "."+full)
	}
	if i := slices.Index(m.oneofs, f.oneof); i >= 0 {
		b = AppendNumber(b, fieldOneof, uint64(i))
	}
	return AppendBool(b, fieldOptional, f.optional)
}

func (e protoEnum) append(b []byte) []byte {
	b = AppendString(b, 1, e.name)
	for _, v := range e.values {
		b = AppendMessage(b, 2, func(b []byte) []byte {
			b = AppendString(b, 1, v.name)
			return AppendNumber(b, 2, uint64(v.number))
		})
	}
	return b
}
