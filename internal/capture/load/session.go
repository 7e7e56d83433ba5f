package load

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/compat"
)

// The frontends that a session can ask for.
const (
	Rust   = "rust"   // vllm-rs
	Python = "python" // the API server of the engine's own environment
)

// A Session is one life of an engine, or of several ranks, behind a frontend.
type Session struct {
	Name string `toml:"-"`
	// Summary is what the session is for, in a sentence.
	Summary string `toml:"summary"`
	// Frontend is Rust unless given.
	Frontend string `toml:"frontend"`
	// Model is one that [Session.Prepare] makes of the folder of the tiny model: tiny (as it is), moe or vision.
	Model string `toml:"model"`
	// Ranks are the engines of the group, Clients the API servers before them; 1 unless given. Only Python has several clients.
	Ranks   int `toml:"ranks"`
	Clients int `toml:"clients"`
	// KVEvents lets the engine publish them, and the tap subscribe.
	KVEvents bool `toml:"kv_events"`
	// Peer starts a second engine with a frontend of its own, with the same options and no tap: what the recorded engine sends KV
	// caches to, and receives them from.
	Peer bool `toml:"peer"`
	// Calls lets the Python frontend take POST /call with the name of a method and its arguments: vLLM's client of the engine
	// makes calls that no route of the API server makes.
	Calls bool `toml:"calls"`
	// Packages are what the engines need besides their release, as lines of a requirements file with the sha256 of each wheel.
	Packages []string `toml:"packages"`
	// Engine are options of the engine, FrontendOptions of the frontend, and Both of the engine and of a Python frontend, which
	// reads the engine's configuration too. Env is the environment of both.
	Engine          map[string]any    `toml:"engine"`
	FrontendOptions map[string]any    `toml:"frontend_options"`
	Both            map[string]any    `toml:"both"`
	Env             map[string]string `toml:"env"`
	// Since has the first line of an option or a variable that not every line knows, Until the last.
	Since map[string]string `toml:"since"`
	Until map[string]string `toml:"until"`
	// Without has the lines between these whose engine dies of an option.
	Without map[string][]string `toml:"without"`
	// MayDie says that the engine of some lines dies of the last request: that is a part of the session.
	MayDie bool `toml:"may_die"`
	// Requests are the requests, see [RunSession].
	Requests string `toml:"requests"`

	script []command
}

// Parse reads a session. Errors name the file and, where it is known, the line.
func Parse(name, file string, data []byte) (*Session, error) {
	s := &Session{Name: name, Frontend: Rust, Model: "tiny", Ranks: 1, Clients: 1}
	meta, err := toml.Decode(string(data), s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: the key %s is not known", file, unknown[0])
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s.script, err = parseScript(s.Requests)
	if err != nil {
		return nil, fmt.Errorf("%s: requests: %w", file, err)
	}
	if at := slices.IndexFunc(s.script, func(c command) bool { return c.peer }); at >= 0 && !s.Peer {
		return nil, fmt.Errorf("%s: requests: line %d: the session has no peer", file, s.script[at].line)
	}
	return s, nil
}

func (s *Session) check() error {
	switch {
	case s.Summary == "":
		return errors.New("summary is missing: say what the session is for")
	case s.Frontend != Rust && s.Frontend != Python:
		return fmt.Errorf("frontend %q: want %s or %s", s.Frontend, Rust, Python)
	case !slices.Contains(Models(), s.Model):
		return fmt.Errorf("model %q: want one of %s", s.Model, strings.Join(Models(), ", "))
	case s.Ranks < 1 || s.Clients < 1:
		return errors.New("ranks and clients: want 1 or more")
	case s.Clients > 1 && s.Frontend != Python:
		return errors.New("clients: only the Python frontend has several")
	case s.Calls && s.Frontend != Python:
		return errors.New("calls: only the Python frontend can be given the route")
	case s.Peer && (s.Ranks > 1 || s.KVEvents):
		return errors.New("peer: only of one engine that publishes no KV events")
	case slices.ContainsFunc(s.Packages, func(p string) bool { return !strings.Contains(p, " --hash=sha256:") }):
		return errors.New("packages: want NAME==VERSION --hash=sha256:…, so that a capture runs what was tried")
	case s.Frontend == Rust && len(s.Both) > 0:
		return errors.New("both: vllm-rs takes no option of the engine; write it in engine")
	}
	for _, lines := range []map[string]string{s.Since, s.Until} {
		for option, line := range lines {
			if _, ok := compat.MinorLine(line + ".0"); !ok {
				return fmt.Errorf("%s: %q is no line", option, line)
			}
			if !s.has(option) {
				return fmt.Errorf("since, until: the session has no option %s", option)
			}
		}
	}
	for option := range s.Without {
		if !s.has(option) {
			return fmt.Errorf("without: the session has no option %s", option)
		}
	}
	return nil
}

func (s *Session) has(option string) bool {
	for _, options := range []map[string]any{s.Engine, s.FrontendOptions, s.Both} {
		if _, ok := options[option]; ok {
			return true
		}
	}
	_, ok := s.Env[option]
	return ok
}

// Options are those of a kind that a line knows, as text; a list is one value for each word.
func (s *Session) options(line string, kinds ...map[string]any) map[string][]string {
	options := map[string][]string{}
	for _, kind := range kinds {
		for name, value := range kind {
			if !s.known(name, line) {
				continue
			}
			list, ok := value.([]any)
			if !ok {
				list = []any{value}
			}
			for _, v := range list {
				options[name] = append(options[name], fmt.Sprint(v))
			}
		}
	}
	return options
}

// known reports whether a line knows an option.
func (s *Session) known(name, line string) bool {
	if slices.Contains(s.Without[name], line) {
		return false
	}
	return (s.Since[name] == "" || compareLines(s.Since[name], line) <= 0) && (s.Until[name] == "" || compareLines(line, s.Until[name]) <= 0)
}

// compareLines compares 0.9 and 0.27 as versions are. What is not a number is newer than any.
func compareLines(a, b string) int {
	minor := func(line string) int {
		_, text, _ := strings.Cut(line, ".")
		n, err := strconv.Atoi(text)
		if err != nil {
			return 1 << 30
		}
		return n
	}
	return cmp.Compare(minor(a), minor(b))
}

// EngineOptions are the options of the engine in a line, beside those of its model.
func (s *Session) EngineOptions(line string) map[string]string {
	flat := map[string]string{}
	for name, values := range s.options(line, s.Engine, s.Both) {
		flat[name] = strings.Join(values, " ")
	}
	return flat
}

// EngineFlags and FrontendFlags are what is added to the command lines; $DIR is the folder of the session's material.
func (s *Session) EngineFlags(line, dir string) []string {
	return flags(s.options(line, s.Engine, s.Both), dir)
}

// FrontendFlags are those of the frontend, see EngineFlags.
func (s *Session) FrontendFlags(line, dir string) []string {
	return flags(s.options(line, s.FrontendOptions, s.Both), dir)
}

func flags(options map[string][]string, dir string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(options)) {
		flag := "--" + strings.ReplaceAll(name, "_", "-")
		switch values := options[name]; {
		case slices.Equal(values, []string{"true"}):
			all = append(all, flag)
		case slices.Equal(values, []string{"false"}):
			all = append(all, "--no-"+strings.TrimPrefix(flag, "--"))
		default:
			all = append(all, flag)
			for _, v := range values {
				all = append(all, strings.ReplaceAll(v, "$DIR", dir))
			}
		}
	}
	return all
}

// Environment is that of engine and frontend in a line, as NAME=value, sorted.
func (s *Session) Environment(line, dir string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if s.known(name, line) {
			all = append(all, name+"="+strings.ReplaceAll(s.Env[name], "$DIR", dir))
		}
	}
	return all
}
