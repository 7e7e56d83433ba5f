package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Facts is what the checks of a manifest need to know from elsewhere. A nil field
// is a fact that is not known; the rules that need it are then not checked.
type Facts struct {
	// Lines are the lines of compat.toml, by name.
	Lines map[string]Line
	// ConfigHash computes the fingerprint of an engine's configuration from its
	// GPU, its tag and its canonical flags, as 64 lowercase hex digits.
	ConfigHash func(gpu, tag, engineConfig string) string
}

// Line is what a line of compat.toml means to its goldens.
type Line struct {
	Tag       string // such as "v0.33.0"; "nightly" for that tracker
	Validated bool   // failing goldens of the line fail the run
}

// checker collects the diagnostics of one [Policy.Check].
type checker struct {
	*Manifest
	Facts
	strict      bool
	diagnostics []Diagnostic
}

// Check checks a manifest against facts from outside its file: M008, M013, M016,
// M017, and the labels of M014. Its diagnostics come on top of those of [Load].
func (p Policy) Check(m *Manifest, facts Facts) []Diagnostic {
	c := checker{Manifest: m, Facts: facts, strict: p.Strict}
	for _, g := range m.Goldens {
		line, known := facts.Lines[g.Line]
		if facts.Lines != nil && !known && g.Line != "" {
			c.orphan(g)
		}
		if known {
			c.pathTag(g, line)
			c.recomputed(g, line)
		}
	}
	if facts.Lines != nil {
		c.labels()
		c.seeds()
	}
	tomlfile.Sort(c.diagnostics)
	return c.diagnostics
}

func (c *checker) report(code string, severity Severity, pos int, message, hint string) {
	c.diagnostics = append(c.diagnostics, Diagnostic{Code: code, Severity: severity, File: c.File, Line: pos, Message: message, Hint: hint})
}

func (c *checker) orphan(g Golden) {
	severity := Warning
	if c.strict {
		severity = Error
	}
	hint := "remove the golden, or add the line"
	if near, ok := tomlfile.Nearest(g.Line, c.lineNames()); ok && !strings.Contains(g.Line, ".") {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	c.report(codeOrphan, severity, g.Pos, fmt.Sprintf("golden %s is of line %q, which compat.toml does not have", g.ID, clip(g.Line)), hint)
}

func (c *checker) lineNames() []string { return slices.Sorted(maps.Keys(c.Lines)) }

// pathTag compares the first segment of the path that looks like a tag.
func (c *checker) pathTag(g Golden, line Line) {
	for _, segment := range strings.Split(g.BucketPath, "/") {
		if !isTag(segment) {
			continue
		}
		if segment != line.Tag {
			c.report(codePathTag, Warning, g.Pos, fmt.Sprintf("golden %s lies under %s, but line %s stands for %s", g.ID, segment, g.Line, line.Tag),
				"capture it again, or correct its line")
		}
		return
	}
}

// isTag reports whether a path segment is the tag of a release or of nightly.
func isTag(segment string) bool {
	return segment == "nightly" || len(segment) > 1 && segment[0] == 'v' && '0' <= segment[1] && segment[1] <= '9' && strings.Contains(segment, ".")
}

// recomputed checks the fingerprint of a golden that says what it was made of. The
// tag of a line may have moved since the capture, so the version that the engine
// reported will do as well; that the two differ is the matrix's concern.
func (c *checker) recomputed(g Golden, line Line) {
	if c.ConfigHash == nil || g.GPU == "" || g.EngineConfig == "" {
		return
	}
	want := c.ConfigHash(g.GPU, line.Tag, g.EngineConfig)
	if g.ConfigHash == want || g.VLLMVersion != "" && g.ConfigHash == c.ConfigHash(g.GPU, "v"+g.VLLMVersion, g.EngineConfig) {
		return
	}
	c.report(codeRecomputed, Error, g.Pos, fmt.Sprintf("golden %s has config_hash %s, but gpu %s, tag %s and its engine_config give %s",
		g.ID, clip(g.ConfigHash), g.GPU, line.Tag, want), "take all of them from the meta line of its trace")
}

func (c *checker) labels() {
	var labels []string
	for _, name := range c.lineNames() {
		labels = append(labels, strings.ToUpper(name))
	}
	for _, b := range c.Blocks {
		if slices.Contains(labels, b.Label) {
			continue
		}
		hint := "remove the markers, or add the line"
		if upper := strings.ToUpper(b.Label); slices.Contains(labels, upper) {
			hint = "write " + upper
		}
		c.report(codeBlock, Error, b.Begin, fmt.Sprintf("a block of %s, which is not a line of compat.toml", b.Label), hint)
	}
}

// seeds warns of a gate that rests on one seed: a capture can be unlucky.
func (c *checker) seeds() {
	for _, name := range c.lineNames() {
		if !c.Lines[name].Validated {
			continue
		}
		seeds, first := make(map[string]bool), 0
		for _, g := range c.ForLine(name) {
			if g.Role != Fidelity {
				continue
			}
			seeds[seedOf(g)] = true
			if first == 0 {
				first = g.Pos
			}
		}
		if len(seeds) == 1 {
			c.report(codeOneSeed, Warning, first, fmt.Sprintf("line %s is validated by goldens of a single seed", name), "capture another seed")
		}
	}
}

// seedOf names the seed of a golden. One that does not say is known by the end of
// its workload ("multiturn-s13"), else by the whole of it.
func seedOf(g Golden) string {
	if g.Seed != nil {
		return strconv.FormatInt(*g.Seed, 10)
	}
	if i := strings.LastIndex(g.Workload, "-s"); i >= 0 {
		if n, err := strconv.ParseUint(g.Workload[i+2:], 10, 63); err == nil {
			return strconv.FormatUint(n, 10)
		}
	}
	return g.Workload
}
