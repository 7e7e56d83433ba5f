package pyast

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Bounds on what is parsed. The largest file of vLLM has 320 kB, 48 thousand nodes and 36 levels.
const (
	// MaxSource is the most bytes that Parse reads. Each can cost 400 bytes of memory.
	MaxSource = 1 << 20
	// MaxNodes is the most nodes that a tree may have.
	MaxNodes = 500_000
	// MaxDepth is the most levels that a tree may have, so that functions that follow it may call themselves.
	MaxDepth = 10_000
)

// Program is the name of the program that parses Python, without the suffix of an executable.
const Program = "vllm-vcr-python"

// A Backend parses, in this process or in another: see package treesitter.
type Backend interface {
	// Grammar returns the names of what a record holds numbers of.
	Grammar() (symbols, fields []string)
	// Parse returns the records of a file. The first of them are nodes, in pre-order.
	Parse(ctx context.Context, source []byte) (records []byte, nodes int, err error)
	// Close frees all that the backend holds. Nothing may be parsing.
	Close(ctx context.Context) error
}

// A Parser reads Python source. It is safe for use by several goroutines.
type Parser struct {
	Backend
	grammar grammar
}

// A grammar has the names of what a record holds numbers of.
type grammar struct {
	symbols, fields []string
}

// A Starter makes a parser, which takes a few hundred milliseconds. Close it after use.
type Starter func(context.Context) (*Parser, error)

// New returns a parser that has a backend do its work. Close closes the backend; trees stay valid.
func New(b Backend) *Parser {
	symbols, fields := b.Grammar()
	return &Parser{b, grammar{symbols, fields}}
}

// Parse returns the syntax tree of a module. A syntax error is no failure: see [Tree.Errors]. It fails for what is no
// text of Python at all, that is not UTF-8 or with a NUL byte in it, for what exceeds [MaxSource], [MaxNodes], [MaxDepth],
// 128 MB of memory or a minute, and with the error of ctx if that ends first. The tree refers to source, which must not
// change.
func (p *Parser) Parse(ctx context.Context, source []byte) (*Tree, error) {
	records, nodes, err := p.Backend.Parse(ctx, source)
	if err != nil {
		return nil, err
	}
	if nodes < 1 || nodes > len(records)/recordSize || len(records) > MaxNodes*recordSize {
		return nil, fmt.Errorf("the Python parser returned %d nodes in %d bytes", nodes, len(records))
	}
	return p.grammar.tree(source, records, nodes)
}

// A process is the program that parses, as a child of this one.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	answer *json.Decoder
	stderr bytes.Buffer

	symbols, fields []string

	turn sync.Mutex // it parses one file at a time
}

// Start makes a parser of the program at a path. The program ends with ctx, or when the parser is closed.
func Start(ctx context.Context, program string) (*Parser, error) {
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Stderr, p.cmd.WaitDelay = &p.stderr, time.Second
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	p.answer = json.NewDecoder(bufio.NewReader(stdout))
	var grammar struct{ Symbols, Fields []string }
	if err := p.answer.Decode(&grammar); err != nil {
		return nil, p.failure(ctx, err)
	}
	p.symbols, p.fields = grammar.Symbols, grammar.Fields
	return New(p), nil
}

func (p *process) Grammar() (symbols, fields []string) { return p.symbols, p.fields }

// Parse sends a file to the program. If ctx ends before the answer, so does the program.
func (p *process) Parse(ctx context.Context, source []byte) ([]byte, int, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	var answer struct {
		Records []byte
		Nodes   int
		Error   string
	}
	err := json.NewEncoder(p.stdin).Encode(source)
	if err == nil {
		err = p.answer.Decode(&answer)
	}
	switch {
	case err != nil:
		return nil, 0, p.failure(ctx, err)
	case answer.Error != "":
		return nil, 0, errors.New(answer.Error)
	}
	return answer.Records, answer.Nodes, nil
}

// failure ends the program, and returns why it does not answer.
func (p *process) failure(ctx context.Context, err error) error {
	_ = p.cmd.Process.Kill()
	ended := p.cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if reason := strings.TrimSpace(p.stderr.String()); reason != "" {
		return fmt.Errorf("%s: %s", Program, safetext.Clip(safetext.Line(reason), 400))
	}
	return fmt.Errorf("%s does not answer: %w", Program, errors.Join(err, ended))
}

// Close ends the program, which parses nothing afterwards.
func (p *process) Close(context.Context) error {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Kill() // it has nothing to finish
	_ = p.cmd.Wait()
	return nil
}
