// Package treesitter parses Python with tree-sitter and its Python grammar, compiled to WebAssembly and run by wazero. The program
// vllm-vcr-python is made of it: vllm-vcr has it parse files, see package pyast. The module is built by wasm/build from pinned
// sources, and cannot do anything: all that it imports is a function that returns whether to stop.
package treesitter

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/vllm-vcr/conformance/internal/base/program"
)

// Bounds on what is parsed, which package pyast documents.
const (
	maxSource = 1 << 20
	maxNodes  = 500_000

	maxMemory = 128 << 20 // of one instance of the module
	keepUnder = 64 << 20  // an instance that took more is not kept: its memory cannot shrink
	pageSize  = 64 << 10

	maxTime = time.Minute // for a file; the largest of vLLM takes 0.4 s

	recordSize = 20 // bytes, see wasm/pyast.c
)

var errTimeout = errors.New("it takes more than a minute, which no Python of this size does")

//go:embed wasm/python.wasm
var module []byte

// A Parser parses Python. It is safe for use by several goroutines, which then parse at the same time.
type Parser struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	symbols  []string
	fields   []string

	// timeout is for a file. Some text that is not Python takes time that grows with the square of its length.
	timeout time.Duration

	mu     sync.Mutex
	idle   []*instance
	closed bool
}

// An instance is the module with its memory. It parses one file at a time.
type instance struct {
	module                                  api.Module
	reserve, parse, nodes, records, release api.Function
}

// New makes a parser, which takes a few hundred milliseconds for the translation of the module to machine code. Close
// it after use.
func New(ctx context.Context) (*Parser, error) {
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(maxMemory / pageSize)
	p := &Parser{runtime: wazero.NewRuntimeWithConfig(ctx, config), timeout: maxTime}
	if err := p.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make the Python parser: %w", err), p.runtime.Close(ctx))
	}
	return p, nil
}

func (p *Parser) load(ctx context.Context) (err error) {
	_, err = p.runtime.NewHostModuleBuilder("env").NewFunctionBuilder().
		WithGoFunction(api.GoFunc(stop), []api.ValueType{api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32}).
		Export("stop").Instantiate(ctx)
	if err != nil {
		return err
	}
	if p.compiled, err = p.runtime.CompileModule(ctx, module); err != nil {
		return err
	}
	first, err := p.instantiate(ctx)
	if err != nil {
		return err
	}
	p.idle = append(p.idle, first)
	if p.symbols, err = first.names(ctx, "symbol_name"); err != nil {
		return err
	}
	p.fields, err = first.names(ctx, "field_name")
	return err
}

// stop is called by the module now and then, with the context of the call that parses, and returns whether to stop.
func stop(ctx context.Context, stack []uint64) {
	stack[0] = 0
	if ctx.Err() != nil {
		stack[0] = 1
	}
}

func (p *Parser) instantiate(ctx context.Context) (*instance, error) {
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize")
	m, err := p.runtime.InstantiateModule(ctx, p.compiled, config)
	if err != nil {
		return nil, err
	}
	return &instance{
		module:  m,
		reserve: m.ExportedFunction("reserve"),
		parse:   m.ExportedFunction("parse"),
		nodes:   m.ExportedFunction("nodes"),
		records: m.ExportedFunction("records"),
		release: m.ExportedFunction("release"),
	}, nil
}

// names reads a table of the module: its function returns a C string for each number from 0, and NULL beyond the last.
func (i *instance) names(ctx context.Context, function string) ([]string, error) {
	var names []string
	memory := i.module.Memory()
	for f := i.module.ExportedFunction(function); ; {
		at, err := call(ctx, f, uint64(len(names)))
		if err != nil {
			return nil, err
		}
		if at == 0 && len(names) > 0 { // field 0 is none and has no name either
			return names, nil
		}
		var name []byte
		if at != 0 {
			rest, _ := memory.Read(at, memory.Size()-at)
			name, _, _ = bytes.Cut(rest, []byte{0})
		}
		names = append(names, string(name))
	}
}

// Close frees all that the parser holds. Nothing may be parsing, and nothing can be parsed afterwards.
func (p *Parser) Close(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.idle = true, nil
	return p.runtime.Close(ctx)
}

// Grammar returns the names of what a record holds numbers of.
func (p *Parser) Grammar() (symbols, fields []string) { return p.symbols, p.fields }

// Parse returns the records of a file: see package pyast, which makes a tree of them. The first of them are nodes.
func (p *Parser) Parse(ctx context.Context, source []byte) (records []byte, nodes int, err error) {
	if err := checkText(source); err != nil {
		return nil, 0, err
	}
	i, err := p.take(ctx)
	if err != nil {
		return nil, 0, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, p.timeout, errTimeout)
	defer cancel()
	records, nodes, err = i.run(limited, source)
	if err != nil {
		return nil, 0, errors.Join(err, i.module.Close(context.WithoutCancel(ctx)))
	}
	return bytes.Clone(records), nodes, p.giveBack(ctx, i)
}

// checkText returns why source is no text of Python.
func checkText(source []byte) error {
	if len(source) > maxSource {
		return fmt.Errorf("source of %d bytes: at most %d are read", len(source), maxSource)
	}
	lineOf := func(at int) int { return bytes.Count(unixLines(source[:at]), []byte("\n")) + 1 }
	if at := bytes.IndexByte(source, 0); at >= 0 {
		return fmt.Errorf("line %d: a NUL byte, which Python source cannot hold", lineOf(at))
	}
	for at := 0; at < len(source); {
		r, size := utf8.DecodeRune(source[at:])
		if r == utf8.RuneError && size <= 1 {
			return fmt.Errorf("line %d: byte 0x%02x is not UTF-8", lineOf(at), source[at])
		}
		at += size
	}
	return nil
}

// take returns an instance that is not in use.
func (p *Parser) take(ctx context.Context) (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the Python parser is closed")
	}
	if last := len(p.idle) - 1; last >= 0 {
		i := p.idle[last]
		p.idle = p.idle[:last]
		return i, nil
	}
	return p.instantiate(ctx)
}

// giveBack keeps an instance for the next file if it is worth its memory.
func (p *Parser) giveBack(ctx context.Context, i *instance) error {
	if _, err := i.release.Call(ctx); err != nil {
		return i.failure(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= runtime.GOMAXPROCS(0) || i.module.Memory().Size() > keepUnder {
		return i.module.Close(ctx)
	}
	p.idle = append(p.idle, i)
	return nil
}

// run parses source and returns the records as they lie in the module's memory: they are valid until its next call. The
// first of them are nodes.
func (i *instance) run(ctx context.Context, source []byte) (records []byte, nodes int, err error) {
	at, err := call(ctx, i.reserve, uint64(len(source)))
	if err != nil {
		return nil, 0, i.failure(err)
	}
	if !i.module.Memory().Write(at, unixLines(source)) {
		return nil, 0, errors.New("the Python parser has no room for the source")
	}
	count, err := call(ctx, i.parse, uint64(len(source)))
	if err != nil {
		return nil, 0, i.failure(err)
	}
	if count == 0 {
		return nil, 0, fmt.Errorf("parse Python: %w", context.Cause(ctx))
	}
	of, err := call(ctx, i.nodes)
	if err == nil {
		at, err = call(ctx, i.records)
	}
	if err != nil {
		return nil, 0, i.failure(err)
	}
	if count > maxNodes {
		return nil, 0, fmt.Errorf("the source has %d nodes: at most %d are read", count, maxNodes)
	}
	records, ok := i.module.Memory().Read(at, count*recordSize)
	if !ok || of > count {
		return nil, 0, errors.New("the Python parser returned a tree outside its memory")
	}
	return records, int(of), nil
}

// call calls a function of one result.
func call(ctx context.Context, f api.Function, arguments ...uint64) (uint32, error) {
	results, err := f.Call(ctx, arguments...)
	if err != nil {
		return 0, err
	}
	return api.DecodeU32(results[0]), nil
}

// failure returns why the module ended, which it does when it gets no more memory, or finds its own state impossible.
func (i *instance) failure(err error) error {
	// Memory is asked for in steps: it may have ended well below the bound.
	if i.module.Memory().Size() > maxMemory/2 {
		return fmt.Errorf("the source needs more than %d MB of memory to be parsed", maxMemory>>20)
	}
	first, _, _ := strings.Cut(err.Error(), "\n") // what follows is a stack of the module
	return fmt.Errorf("the Python parser gave up: %s", first)
}

// unixLines returns source with the line ends that the parser knows, of the same length: a carriage return alone ends a
// line for Python, but not for the grammar.
func unixLines(source []byte) []byte {
	if bytes.IndexByte(source, '\r') < 0 {
		return source
	}
	out := bytes.Clone(source)
	for i, c := range out {
		if c == '\r' && (i+1 == len(out) || out[i+1] != '\n') {
			out[i] = '\n'
		}
	}
	return out
}

// Main is vllm-vcr-python: it parses the files that stdin has, see [Parser.Serve]. It returns the exit code. version is that
// which the linker set, if it did.
func Main(version string) int {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "version":
		fmt.Println(program.Version(version))
		return 0
	case len(os.Args) > 1:
		fmt.Fprintln(os.Stderr, "vllm-vcr-python: want no arguments: `vllm-vcr drift` starts this program")
		return 2
	}
	ctx := context.Background()
	p, err := New(ctx)
	if err == nil {
		err = p.Serve(ctx, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

// Serve writes the names of the grammar, and for each file of input its records: all as lines of JSON.
func (p *Parser) Serve(ctx context.Context, input io.Reader, output io.Writer) error {
	in, out := json.NewDecoder(input), json.NewEncoder(output)
	err := out.Encode(struct{ Symbols, Fields []string }{p.symbols, p.fields})
	for err == nil {
		var source []byte
		if err := in.Decode(&source); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var answer struct {
			Records []byte
			Nodes   int
			Error   string
		}
		var failed error
		if answer.Records, answer.Nodes, failed = p.Parse(ctx, source); failed != nil {
			answer.Error = failed.Error()
		}
		err = out.Encode(answer)
	}
	return err
}
