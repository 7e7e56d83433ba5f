package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
)

// FrontendUnderTest says how to start a frontend that waits for one engine, or where
// one that somebody else has started is waiting.
type FrontendUnderTest struct {
	// Command is the command line: words as a shell splits them, quotes and
	// backslashes included, but no shell runs. These placeholders are replaced within
	// words:
	//
	//	{handshake}       address to listen on for the engine, tcp://127.0.0.1:PORT
	//	{handshake_host}  its host
	//	{handshake_port}  its port
	//	{input_address}   address to listen on for the requests of a frontend that makes no handshake
	//	{output_address}  and for the outputs of its engine
	//	{http_port}       port of the HTTP side, on 127.0.0.1
	//	{input_fd}        inherited socket that listens at {input_address}
	//	{output_fd}       and at {output_address}
	//	{http_fd}         and at {http_port}
	//	{line}            line of the engine: 0.33
	//	{model}           Model
	//
	// Empty means that the frontend is running: Handshake and URL then say where.
	Command string
	// URL is the base of the HTTP side, default http://127.0.0.1:{http_port}.
	URL string
	// Handshake is where a running frontend listens for its engine.
	Handshake string
	// Dir is the command's working directory, default that of the runner.
	Dir string
	// Env is added to the runner's environment, as "NAME=value", of which variables
	// that look like secrets are left out unless PassEnv names them.
	Env, PassEnv []string
	// Model replaces {model}: a directory with the model's configuration and
	// tokenizer.
	Model string
	// ReadyTimeout is how long the frontend may take to serve, from its start;
	// default Timeouts.Connect of the runner.
	ReadyTimeout time.Duration
}

// frontendPlaceholders are what the command and the URL can ask for.
var frontendPlaceholders = []string{
	"handshake", "handshake_host", "handshake_port", "input_address", "output_address", "http_port", "input_fd", "output_fd", "http_fd", "line", "model",
}

// names reports whether the command has one of the placeholders.
func (u FrontendUnderTest) names(names ...string) bool { return hasPlaceholder(u.Command, names...) }

// Check refuses what no frontend can be started by or found at, for the cases that
// were selected.
func (u FrontendUnderTest) Check(cases []Case) error {
	words, err := splitWords(u.Command)
	if err != nil {
		return fmt.Errorf("frontend command: %w", err)
	}
	if err := checkPlaceholders(append(words, u.URL), frontendPlaceholders); err != nil {
		return fmt.Errorf("frontend: %w", err)
	}
	if len(words) == 0 {
		return u.checkRunning(cases)
	}
	return u.checkCommand()
}

func (u FrontendUnderTest) checkCommand() error {
	switch {
	case u.Handshake != "":
		return errors.New("frontend: a handshake address is of a frontend that is running; a command is told one by {handshake}")
	case u.names("input_address", "input_fd") != u.names("output_address", "output_fd"):
		return errors.New("frontend command: it has only one of {input_address} and {output_address} (or {input_fd} and {output_fd}): a frontend needs both")
	case u.names("handshake", "handshake_port") && u.names("input_address", "input_fd"):
		return errors.New("frontend command: it has a handshake and {input_address}: a frontend makes a handshake or is given the addresses")
	case !u.names("handshake", "handshake_port", "input_address", "input_fd"):
		return errors.New("frontend command: it has neither {handshake} nor {handshake_port} nor {input_address}, so the frontend cannot know where to listen for the engine")
	case u.URL == "" && !u.names("http_port", "http_fd"):
		return errors.New("frontend command: it has no {http_port}, and no URL is given, so its HTTP side is unknown: add {http_port} to the command, or give --frontend-url")
	case u.names("model") && u.Model == "":
		return errors.New("frontend command: {model} needs a model")
	}
	return nil
}

func (u FrontendUnderTest) checkRunning(cases []Case) error {
	if u.URL == "" || u.Handshake == "" {
		return errors.New("frontend: one that is running needs its URL (--frontend-url) and the address where it waits for its engine (--frontend-handshake)")
	}
	if strings.Contains(u.URL, "{") {
		return fmt.Errorf("frontend URL %s: placeholders are of a command", u.URL)
	}
	if _, _, err := net.SplitHostPort(strings.TrimPrefix(u.Handshake, "tcp://")); err != nil || !strings.HasPrefix(u.Handshake, "tcp://") {
		return fmt.Errorf("frontend handshake address %q: want tcp://HOST:PORT", u.Handshake)
	}
	lines := map[string]bool{}
	for _, c := range cases {
		lines[c.Line.Name] = true
	}
	if len(lines) != 1 {
		return fmt.Errorf("frontend %s: a running frontend takes one engine, of one line; the selected cases are of %d lines: select one", u.URL, len(lines))
	}
	return nil
}

// FrontendProcess is a frontend under test that was started, or found.
type FrontendProcess struct {
	Handshake, URL string           // Handshake is empty of a frontend that was given Addresses
	Addresses      [2]string        // where it listens for requests and for outputs
	Process        *process.Process // nil if somebody else started it
	ports          []vllmrs.Port
}

// Start starts the frontend for a line.
func (u FrontendUnderTest) Start(line compat.Line) (*FrontendProcess, error) {
	p := &FrontendProcess{Handshake: u.Handshake, URL: u.URL}
	words, err := splitWords(u.Command)
	if err != nil || len(words) == 0 {
		return p, err
	}
	values := map[string]string{"handshake_host": "127.0.0.1", "line": line.Name, "model": u.Model}
	var inherited []*os.File
	defer func() {
		for _, f := range inherited {
			f.Close()
		}
	}()
	for _, socket := range []struct{ placeholder, address, fd string }{
		{"http_port", "", "http_fd"}, {"handshake_port", "handshake", ""}, {"", "input_address", "input_fd"}, {"", "output_address", "output_fd"},
	} {
		port, err := vllmrs.Reserve()
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("reserve a port for the frontend: %w", err)
		}
		p.ports = append(p.ports, port)
		number := strconv.Itoa(port.Number())
		values[socket.placeholder], values[socket.address] = number, "tcp://127.0.0.1:"+number
		if socket.fd != "" && u.names(socket.fd) {
			file, err := listening(number)
			if err != nil {
				p.Close()
				return nil, fmt.Errorf("listen for the frontend: %w", err)
			}
			inherited = append(inherited, file)
			values[socket.fd] = strconv.Itoa(2 + len(inherited)) // after those of any process
		}
	}
	if p.Handshake = values["handshake"]; !u.names("handshake", "handshake_port") {
		p.Handshake, p.Addresses = "", [2]string{values["input_address"], values["output_address"]}
	}
	p.URL = fillPlaceholders(cmp.Or(u.URL, "http://127.0.0.1:{http_port}"), values)
	for i := range words {
		words[i] = fillPlaceholders(words[i], values)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.ExtraFiles = inherited
	cmd.Dir, cmd.Env = u.Dir, process.Environment(os.Environ(), process.WithoutSecrets(u.PassEnv...), u.Env...)
	if p.Process, err = process.Start(cmd, process.Options{Tail: frontendTail, Guarded: true}); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// listening is a socket that listens at a port of 127.0.0.1, to be inherited.
func listening(port string) (*os.File, error) {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}

// frontendTail is how much of what a frontend writes is kept, in bytes.
const frontendTail = 64 << 10

// Done is closed when the process has ended; it is nil, and never ready, of a
// frontend that somebody else started.
func (p *FrontendProcess) Done() <-chan struct{} {
	if p.Process == nil {
		return nil
	}
	return p.Process.Done()
}

// Patience is that of the process, and plain time for a frontend that somebody else started.
func (p *FrontendProcess) Patience(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if p.Process == nil {
		return context.WithTimeoutCause(ctx, d, cause)
	}
	return p.Process.Patience(ctx, d, cause)
}

// Exit returns how the process ended.
func (p *FrontendProcess) Exit() error { return p.Process.Exit() }

// Said is what the frontend last wrote, to be shown.
func (p *FrontendProcess) Said() string {
	if p.Process == nil {
		return "it was started by somebody else, so its output is not known"
	}
	if text := safetext.Block(p.Process.Tail()); text != "" {
		return "the last of its output:\n" + text
	}
	return "without any output"
}

// Close ends the process and its group.
func (p *FrontendProcess) Close() {
	if p.Process != nil {
		_ = p.Process.Stop(context.Background())
	}
	for _, port := range p.ports {
		port.Release()
	}
}
