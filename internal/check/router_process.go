package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
)

// RouterUnderTest says how to start a router before engines of the runner, or where one is running.
type RouterUnderTest struct {
	// Command is the command line, split into words as by a shell. Placeholders are replaced within words:
	//
	//	{port}        port on which the router listens, on 127.0.0.1; {metrics_port} and {health_port} are others
	//	{backends}    URLs of the engines; a word of its own becomes a word for each, within a word they are joined by commas
	//	{prefills}    the same of the first half of the engines, and {decodes} of the second half
	//	{address}, {number}  address of an engine and its number from 0, in a line of Config that is repeated for each
	//	{backend}     address HOST:PORT of the first engine
	//	{prefill}     address HOST:PORT of the first engine that computes prompts; {decode} of the first of the others
	//	{decode_port} its port
	//	{model}       name of the model
	//	{config}      path of a copy of Config, in which these placeholders are replaced, too
	//	{discovery}   path of a list of the engines, as llm-d's plugin file-discovery reads it
	//	{events_port} port of the KV events at the address of each engine
	//
	// Empty means that the router is running at URL, with the engines of Listen behind it.
	Command string
	// URL is where requests go, default http://127.0.0.1:{port}; grpc://HOST:PORT is an endpoint picker (Envoy's ext_proc).
	URL string
	// Config is a file that the router reads; empty for none.
	Config string
	// Headers are sent with each request, "NAME: VALUE" with placeholders.
	Headers []string
	// Listen is the address of the first engine, HOST:PORT; the others have the ports behind it. Empty for any.
	Listen string
	// Backends is how many engines there are.
	Backends int
	// PassEnv names variables of the environment that are passed although they look like secrets.
	PassEnv []string
	// Fleet starts engines, and returns their URLs and the name of their model.
	Fleet func(ctx context.Context, o FleetOptions) (urls []string, model string, stop func(), err error)
	// Launch, unless nil, starts a router in this process in the place of Command: before engines at addresses HOST:PORT, of which the
	// first prefills compute prompts only.
	Launch func(addresses []string, prefills int) *RouterProcess
	// LargeBody is the size of large bodies, in bytes; default 100 MB.
	LargeBody int64
	// Every has only each so many-th request of `conform http` sent; default each.
	Every int
	// Prefills says how many of the engines compute prompts only, for Launch.
	Prefills int
}

// FleetOptions are those of the engines behind a router.
type FleetOptions struct {
	Line     string
	Engines  int
	Events   int    // port of the KV events at the address of each engine; 0 for none
	Transfer string // --kv-transfer-config; empty for none
}

// FreePort is a port of which the next ones are free too, most likely: none that the system gives to others.
func FreePort() int { return 10_000 + rand.IntN(20_000) }

var routerPlaceholders = []string{
	"port", "metrics_port", "health_port", "backends", "backend", "prefills", "decodes", "address", "number", "prefill", "decode", "decode_port", "model", "config", "discovery", "events_port",
}

// Check refuses what no router can be started by or found at.
func (u RouterUnderTest) Check() error {
	words, err := splitWords(u.Command)
	if err != nil {
		return fmt.Errorf("router command: %w", err)
	}
	all := slices.Concat(words, u.Headers, []string{u.URL})
	if err := checkPlaceholders(all, routerPlaceholders); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	given, err := u.given()
	if err != nil {
		return err
	}
	if _, port, err := net.SplitHostPort(u.Listen); u.Listen != "" && (err != nil || port == "0" || port == "") {
		return fmt.Errorf("--router-backends %s: want HOST:PORT, where the first engine listens; the others have the ports behind it", u.Listen)
	}
	for _, h := range u.Headers {
		if name, _, ok := strings.Cut(h, ":"); !ok || name == "" {
			return fmt.Errorf("router: header %q: want NAME: VALUE", h)
		}
	}
	switch {
	case u.Command == "" && u.URL == "":
		return errors.New("--suite router needs a router: --router-command, or --router-url with --router-backends")
	case u.Command == "" && u.Listen == "":
		return errors.New("router: a running router must know its engines: give --router-backends HOST:PORT, where the first of them listens, and start the router with it and the ports behind it")
	case u.Command != "" && u.URL == "" && !hasPlaceholder(given, "port"):
		return errors.New("router command: it has no {port}, and no URL is given, so nobody knows where it listens: add {port}, or give --router-url")
	case u.Command != "" && u.Listen == "" && !hasPlaceholder(given, "backends", "backend", "prefills", "address", "prefill", "decode", "decode_port", "discovery"):
		return errors.New("router command: neither it nor --router-config has {backends}, {address} or {discovery}, so the router cannot know the engines")
	case hasPlaceholder(u.Command, "config") != (u.Config != ""):
		return errors.New("router: {config} in the command and --router-config need each other")
	}
	return nil
}

func (u RouterUnderTest) readConfig() (string, error) {
	if u.Config == "" {
		return "", nil
	}
	text, err := os.ReadFile(u.Config)
	if err != nil {
		return "", fmt.Errorf("--router-config: %w", err)
	}
	return string(text), nil
}

// PrefillEngines is how many of the engines compute prompts only: half of them if the router is told which do.
func (u RouterUnderTest) PrefillEngines() int {
	if u.Knows("prefill", "prefills") {
		return u.Backends / 2
	}
	return u.Prefills
}

// Knows reports whether the router is given one of these placeholders.
func (u RouterUnderTest) Knows(placeholders ...string) bool {
	given, _ := u.given()
	return hasPlaceholder(given, placeholders...)
}

// given are the texts in which the router is given placeholders.
func (u RouterUnderTest) given() (string, error) {
	config, err := u.readConfig()
	return config + u.Command + strings.Join(u.Headers, " "), err
}

// RouterProcess is a router under test that was started, or found.
type RouterProcess struct {
	URL     string
	Headers [][2]string
	Stop    func()           // ends a router in this process; nil of another
	process *process.Process // nil if somebody else started it
	ports   []vllmrs.Port
	dir     string
}

// Start starts the router before engines at addresses HOST:PORT.
func (u RouterUnderTest) Start(addresses []string, model, discovery string, events int) (p *RouterProcess, err error) {
	p = &RouterProcess{}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	values := u.values(addresses, model, discovery, events)
	for _, name := range []string{"port", "metrics_port", "health_port"} {
		port, err := vllmrs.Reserve()
		if err != nil {
			return p, fmt.Errorf("reserve a port for the router: %w", err)
		}
		p.ports, values[name] = append(p.ports, port), strconv.Itoa(port.Number())
	}
	if err := p.writeConfig(u, addresses, values); err != nil {
		return p, err
	}
	p.URL = strings.TrimSuffix(fillPlaceholders(cmp.Or(u.URL, "http://127.0.0.1:{port}"), values), "/")
	for _, h := range u.Headers {
		name, value, _ := strings.Cut(fillPlaceholders(h, values), ":")
		p.Headers = append(p.Headers, [2]string{strings.TrimSpace(name), strings.TrimSpace(value)})
	}
	words, err := splitWords(u.Command)
	if err != nil || len(words) == 0 {
		return p, err
	}
	var args []string
	for _, word := range words {
		if list := strings.Trim(word, "{}"); slices.Contains([]string{"{backends}", "{prefills}", "{decodes}"}, word) {
			args = append(args, strings.Split(values[list], ",")...)
			continue
		}
		args = append(args, fillPlaceholders(word, values))
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = process.Environment(os.Environ(), process.WithoutSecrets(u.PassEnv...))
	p.process, err = process.Start(cmd, process.Options{Tail: frontendTail, Guarded: true})
	return p, err
}

func (u RouterUnderTest) values(addresses []string, model, discovery string, events int) map[string]string {
	urls := make([]string, len(addresses))
	for i, a := range addresses {
		urls[i] = "http://" + a
	}
	half := len(urls) / 2
	_, port, _ := strings.Cut(addresses[half], ":")
	return map[string]string{
		"backends": strings.Join(urls, ","), "prefills": strings.Join(urls[:half], ","), "decodes": strings.Join(urls[half:], ","),
		"backend": addresses[0], "prefill": addresses[0], "decode": addresses[half], "decode_port": port, "model": model, "discovery": discovery, "events_port": strconv.Itoa(events),
	}
}

// writeConfig writes the copy of the configuration.
func (p *RouterProcess) writeConfig(u RouterUnderTest, addresses []string, values map[string]string) error {
	text, err := u.readConfig()
	if err != nil || u.Config == "" {
		return err
	}
	if p.dir, err = os.MkdirTemp("", "vllm-vcr-router"); err != nil {
		return err
	}
	values["config"] = filepath.Join(p.dir, filepath.Base(u.Config))
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if !strings.Contains(line, "{address}") && !strings.Contains(line, "{number}") {
			lines = append(lines, fillKnown(line, values))
			continue
		}
		for n, a := range addresses {
			values["address"], values["number"] = a, strconv.Itoa(n)
			lines = append(lines, fillKnown(line, values))
		}
	}
	return os.WriteFile(values["config"], []byte(strings.Join(lines, "\n")), 0o600)
}

// fillKnown replaces the placeholders that have a value, and leaves other text in braces, which may belong to the file's own format.
func fillKnown(line string, values map[string]string) string {
	return placeholder().ReplaceAllStringFunc(line, func(found string) string {
		if value, known := values[found[1:len(found)-1]]; known {
			return value
		}
		return found
	})
}

// Done is closed when the process has ended; nil of a router that somebody else started.
func (p *RouterProcess) Done() <-chan struct{} {
	if p.process == nil {
		return nil
	}
	return p.process.Done()
}

// Said is what the router last wrote, to be shown.
func (p *RouterProcess) Said() string { return (&FrontendProcess{Process: p.process}).Said() }

// Close ends the process and its group.
func (p *RouterProcess) Close() {
	if p.Stop != nil {
		p.Stop()
	}
	if p.process != nil {
		_ = p.process.Stop(context.Background())
	}
	for _, port := range p.ports {
		port.Release()
	}
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}
