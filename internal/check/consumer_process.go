package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// ConsumerUnderTest says how to start a program that reads the KV events of an engine and answers what it believes is cached.
type ConsumerUnderTest struct {
	// Command is the command line: words as a shell splits them, but no shell runs. These placeholders are replaced within words:
	//
	//	{endpoint}         where rank 0 publishes; rank N has the port plus N
	//	{replay_endpoint}  where rank 0 sends batches again; rank N has the port plus N
	//	{topic}            the first frame of each message
	//	{ranks}            how many ranks publish
	//	{line}             line of the engine: 0.33
	Command string
	// PassEnv names variables of the environment that the consumer gets although they look like secrets.
	PassEnv []string
	// Inside, unless nil, is a consumer in this process in place of a command. It returns when in ends.
	Inside func(ctx context.Context, at KVEndpoints, in io.Reader, out io.Writer)
}

// KVEndpoints are where an engine publishes KV events.
type KVEndpoints struct {
	Endpoint, Replay, Topic, Line string
	Ranks                         int
}

var consumerPlaceholders = []string{"endpoint", "replay_endpoint", "topic", "ranks", "line"}

// Check refuses a command that no consumer can be started by.
func (u ConsumerUnderTest) Check() error {
	words, err := splitWords(u.Command)
	if err == nil && !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(word, "{endpoint}") }) {
		err = errors.New("it has no {endpoint}, so the consumer cannot know where to subscribe")
	}
	if err == nil {
		err = checkPlaceholders(words, consumerPlaceholders)
	}
	if err != nil {
		return fmt.Errorf("consumer command: %w", err)
	}
	return nil
}

// ConsumerProcess is a consumer that was started.
type ConsumerProcess struct {
	process *process.Process // nil for one in this process
	in      io.WriteCloser
	lines   chan string // closed when it writes no more
	end     func()
}

// maxAnswer bounds a line of a consumer, in bytes.
const maxAnswer = 16 << 20

// Start starts the consumer.
func (u ConsumerUnderTest) Start(ctx context.Context, at KVEndpoints) (*ConsumerProcess, error) {
	out, write := io.Pipe()
	p := &ConsumerProcess{lines: make(chan string)}
	stopped := make(chan struct{})
	if u.Inside != nil {
		read, in := io.Pipe()
		ctx, cancel := context.WithCancel(ctx)
		p.in, p.end = in, cancel
		go func() {
			u.Inside(ctx, at, read, write)
			read.Close()
			write.Close()
		}()
	} else if err := p.start(u, at, write); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.lines)
		scanner := bufio.NewScanner(out)
		scanner.Buffer(nil, maxAnswer)
		for scanner.Scan() {
			select {
			case p.lines <- scanner.Text():
			case <-stopped:
			}
		}
		out.CloseWithError(scanner.Err())
	}()
	end := p.end
	p.end = func() {
		close(stopped)
		p.in.Close()
		end()
		for range p.lines { // until its output ends
		}
	}
	return p, nil
}

func (p *ConsumerProcess) start(u ConsumerUnderTest, at KVEndpoints, out *io.PipeWriter) error {
	words, err := splitWords(u.Command)
	if err != nil {
		return err
	}
	values := map[string]string{
		"endpoint": at.Endpoint, "replay_endpoint": at.Replay, "topic": at.Topic, "ranks": strconv.Itoa(at.Ranks), "line": at.Line,
	}
	for i := range words {
		words[i] = fillPlaceholders(words[i], values)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Env = out, process.Environment(os.Environ(), process.WithoutSecrets(u.PassEnv...))
	if p.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if p.process, err = process.Start(cmd, process.Options{Guarded: true}); err != nil {
		return Infra(WithCode(CodeStart, fmt.Errorf("consumer: %w", err)))
	}
	go func() {
		<-p.process.Done()
		out.Close()
	}()
	p.end = func() { _ = p.process.Stop(context.Background()) }
	return nil
}

// Send writes a line to the consumer. A consumer that has ended is noticed by Next.
func (p *ConsumerProcess) Send(line string) { _, _ = fmt.Fprintln(p.in, line) }

// Next returns the next line of the consumer. The error is [io.EOF] if it writes no more, else the cause of ctx's end.
func (p *ConsumerProcess) Next(ctx context.Context) (string, error) {
	select {
	case line, open := <-p.lines:
		if !open {
			return "", io.EOF
		}
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Patience is that of the process, and plain time for one in this process.
func (p *ConsumerProcess) Patience(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if p.process == nil {
		return context.WithTimeoutCause(ctx, d, cause)
	}
	return p.process.Patience(ctx, d, cause)
}

// Output is the last of what the consumer wrote to stderr, and how it ended if it has, to be shown after a message.
func (p *ConsumerProcess) Output() string {
	if p.process == nil {
		return ""
	}
	text := ""
	if exit := p.process.Exit(); exit != nil {
		text = ": " + exit.Status
	}
	if tail := safetext.Block(p.process.Tail()); tail != "" {
		text += "; the last of its stderr:\n" + tail
	}
	return text
}

// Close ends the consumer: its stdin ends, then it gets SIGTERM, and at last SIGKILL.
func (p *ConsumerProcess) Close() { p.end() }
