package pyast

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Bounds on what is parsed. The largest file of vLLM has 320 kB, 48 thousand nodes and 36 levels.
const (
	// MaxSource is the most bytes that Parse reads. Each can cost 400 bytes of memory.
	MaxSource = 1 << 20
	// MaxNodes is the most nodes that a tree may have.
	MaxNodes = 500_000
	// MaxDepth is the most levels that a tree may have, so that functions that follow it may call themselves.
	MaxDepth = 10_000

	maxMemory = 128 << 20 // of one instance of the module
	keepUnder = 64 << 20  // an instance that took more is not kept: its memory cannot shrink
	pageSize  = 64 << 10

	maxTime = time.Minute // for a file; the largest of vLLM takes 0.4 s
)

var errTimeout = errors.New("it takes more than a minute, which no Python of this size does")

//go:embed wasm/python.wasm
var module []byte

// A Parser reads Python source. It is safe for use by several goroutines, which then parse at the same time.
type Parser struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	grammar  grammar

	// timeout is for a file. Some text that is not Python takes time that grows with the square of its length.
	timeout time.Duration

	mu     sync.Mutex
	idle   []*instance
	closed bool
}

// A grammar has the names of what a record holds numbers of.
type grammar struct {
	symbols, fields []string
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
	if p.grammar.symbols, err = first.names(ctx, "symbol_name"); err != nil {
		return err
	}
	p.grammar.fields, err = first.names(ctx, "field_name")
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

// Parse returns the syntax tree of a module. A syntax error is no failure: see [Tree.Errors]. It fails for what is no
// text of Python at all, that is not UTF-8 or with a NUL byte in it, for what exceeds [MaxSource], [MaxNodes], [MaxDepth],
// 128 MB of memory or a minute, and with the error of ctx if that ends first. The tree refers to source, which must not
// change.
func (p *Parser) Parse(ctx context.Context, source []byte) (*Tree, error) {
	if err := checkText(source); err != nil {
		return nil, err
	}
	i, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, p.timeout, errTimeout)
	defer cancel()
	records, nodes, err := i.run(limited, source)
	if err != nil {
		return nil, errors.Join(err, i.module.Close(context.WithoutCancel(ctx)))
	}
	tree, err := p.grammar.tree(source, records, nodes)
	if err := errors.Join(err, p.giveBack(ctx, i)); err != nil {
		return nil, err
	}
	return tree, nil
}

// checkText returns why source is no text of Python.
func checkText(source []byte) error {
	if len(source) > MaxSource {
		return fmt.Errorf("source of %d bytes: at most %d are read", len(source), MaxSource)
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
	if count > MaxNodes {
		return nil, 0, fmt.Errorf("the source has %d nodes: at most %d are read", count, MaxNodes)
	}
	records, ok := i.module.Memory().Read(at, count*recordSize)
	if !ok || of < 1 || of > count {
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
