package target

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func fail(t *tomlfile.Table, code, key, message, hint string) {
	t.Report(code, tomlfile.Error, key, message, hint)
}

func warn(t *tomlfile.Table, code, key, message, hint string) {
	t.Report(code, tomlfile.Warning, key, message, hint)
}

func names[T ~string](all []T) []string {
	var texts []string
	for _, one := range all {
		texts = append(texts, string(one))
	}
	return texts
}

// checkKnown complains of a name that is none of the known.
func checkKnown(t *tomlfile.Table, key, what, name string, known []string) bool {
	if slices.Contains(known, name) {
		return true
	}
	hint := "known are " + strings.Join(known, ", ")
	switch near, ok := tomlfile.Nearest(name, known); {
	case ok:
		hint = fmt.Sprintf("did you mean %q?", near)
	case len(known) == 0:
		hint = fmt.Sprintf("the file has no [%ss.%s]", what, clip(name))
	}
	fail(t, codeUnknown, key, fmt.Sprintf("%s %q is not known", what, clip(name)), hint)
	return false
}

// clip shortens a value for a message.
func clip(s string) string {
	const limit = 120
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return s
}

// image is a reference by digest: a manifest and a path, a tag, and the digest of the content.
var image = lazyregexp.New(`^(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9][a-z0-9._/-]*(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?@sha256:[0-9a-f]{64}$`)

func checkImage(t *tomlfile.Table, key, ref string) {
	switch {
	case ref == "" || image().MatchString(ref): // absent, or reported as missing
	case !strings.Contains(ref, "@"):
		fail(t, codeDigest, key, fmt.Sprintf("%s %q has no digest", key, clip(ref)),
			"write name:tag@sha256:…: a tag can be moved, a digest cannot")
	default:
		fail(t, codeDigest, key, fmt.Sprintf("%s %q is no image with a digest", key, clip(ref)),
			"write name:tag@sha256: and 64 lowercase hexadecimal digits")
	}
}

// checkLine checks the images of a line against what the matrix says of it.
func (r *reader) checkLine(t tomlfile.Keyed, i Images) {
	line, ok := r.matrix.ByName(t.Key)
	if !ok {
		warn(t.Table, codeLine, "", fmt.Sprintf("line %q is not in %s", clip(t.Key), r.matrix.File), r.nearLine(t.Key, "remove it"))
		return
	}
	parts := image().FindStringSubmatch(i.Engine)
	if parts == nil {
		return // reported already
	}
	tag := parts[1]
	if line.Name == compat.Nightly {
		checkNightly(t.Table, line, tag)
		return
	}
	// A build for one platform has a suffix: v0.33.0-x86_64.
	if tag != line.Tag && !strings.HasPrefix(tag, line.Tag+"-") {
		fail(t.Table, codeImageTag, "engine_image",
			fmt.Sprintf("engine_image has the tag %q, but %s stands for line %s", clip(tag), line.Tag, line.Name),
			"take the image of that release, with its digest")
	}
}

func checkNightly(t *tomlfile.Table, line compat.Line, tag string) {
	rev, ok := strings.CutPrefix(tag, compat.Nightly+"-")
	switch {
	case !ok || len(rev) < len(line.ProtocolRev) && len(rev) < 7:
		fail(t, codeNightly, "engine_image", fmt.Sprintf("engine_image has the tag %q, which does not name a commit", clip(tag)),
			"write name:nightly-COMMIT@sha256:…")
	case !strings.HasPrefix(rev, line.ProtocolRev) && !strings.HasPrefix(line.ProtocolRev, rev):
		fail(t, codeNightly, "engine_image", fmt.Sprintf("engine_image is of commit %s, but nightly is at %s", clip(rev), line.ProtocolRev),
			"take the image of that commit, or `vllm-vcr compat set --line nightly --rev "+clip(rev)+"`")
	}
}

// nearLine suggests the line that was meant.
func (r *reader) nearLine(name, otherwise string) string {
	var known []string
	for _, l := range r.matrix.Lines {
		known = append(known, l.Name)
	}
	_, isLine := compat.MinorLine(name) // it has left the matrix, or is too new for it
	if near, ok := tomlfile.Nearest(name, known); ok && !isLine {
		return fmt.Sprintf("did you mean %q? The matrix has %s", near, strings.Join(known, ", "))
	}
	return otherwise + "; the matrix has " + strings.Join(known, ", ")
}

// label is a name that an id can have, and an object of a cluster.
var label = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func checkName(t *tomlfile.Table, what, name string) {
	switch {
	case !label().MatchString(name):
		fail(t, codeName, "", fmt.Sprintf("%s %q cannot be part of an id", what, clip(name)), "use lower-case letters, digits and hyphens")
	case strings.HasPrefix(name, wirePrefix):
		fail(t, codeName, "", fmt.Sprintf("%s %q begins like the goldens of raw frames", what, clip(name)), "call it otherwise")
	}
}

// product is a kind of GPU: it is part of the place of a golden.
var product = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (r *reader) checkModel(t tomlfile.Keyed, m Model, tensor string) {
	checkName(t.Table, "model", t.Key)
	_, isFolder := m.Folder()
	switch {
	case m.GPU == "":
		fail(t.Table, codeMissingKey, "", "model "+t.Key+" has no gpu", `add gpu = "cpu", or the product, such as "H200"`)
	case !product().MatchString(m.GPU):
		fail(t.Table, codeMalformed, "gpu", fmt.Sprintf("gpu %q is no product", clip(m.GPU)), `write "cpu", or a name such as "H200"`)
	case m.OnCPU() && m.GPUs != 0:
		fail(t.Table, codeMalformed, "gpus", fmt.Sprintf("an engine on CPUs cannot have %d GPUs", m.GPUs), "remove gpus, or name the gpu")
	case !m.OnCPU() && strconv.Itoa(m.GPUs) != tensor:
		fail(t.Table, codeMalformed, "gpus", fmt.Sprintf("gpus is %d, but %s is %s", m.GPUs, optTensor, tensor), "make them equal")
	}
	if isFolder && !t.Has("served") {
		fail(t.Table, codeMissingKey, "source", "model "+t.Key+" is a folder and has no served", "add the name that goldens have of it")
	}
	checkPlain(t.Table, "source", m.Source)
	checkPlain(t.Table, "served", t.String("served"))
	checkResources(t.Table)
	if i := slices.IndexFunc(r.models, func(other Model) bool { return other.Prefix == "" }); i >= 0 && m.Prefix == "" {
		fail(t.Table, codeSameID, "unprefixed", "model "+r.models[i].Key+" is unprefixed already", "only one model can be")
	}
}

// checkPlain complains of what would end a value of engine_config.
func checkPlain(t *tomlfile.Table, key, value string) {
	ends := func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || strings.ContainsRune(";,=", r) }
	if strings.ContainsFunc(value, ends) || strings.HasPrefix(value, "-") {
		fail(t, codeMalformed, key, fmt.Sprintf("%s %q is no name", key, clip(value)),
			"leave out spaces, commas, semicolons and equals signs, and a hyphen at its beginning")
	}
}

func checkAdapter(t *tomlfile.Table, a Adapter) {
	checkPlain(t, a.Name, a.Name)
	checkPlain(t, a.Name, a.Source)
}

var (
	cores  = lazyregexp.New(`^[1-9][0-9]*(m|\.[0-9]+)?$`)
	memory = lazyregexp.New(`^[1-9][0-9]*(Mi|Gi|Ti)$`)
)

func checkResources(t *tomlfile.Table) {
	if v := t.String("cpu"); v != "" && !cores().MatchString(v) {
		fail(t, codeMalformed, "cpu", fmt.Sprintf("cpu %q is not a number of cores", clip(v)), `write cpu = "8"`)
	}
	if v := t.String("memory"); v != "" && !memory().MatchString(v) {
		fail(t, codeMalformed, "memory", fmt.Sprintf("memory %q is no size", clip(v)), `write memory = "64Gi"`)
	}
}

func checkWorkload(t tomlfile.Keyed, w Workload) {
	checkName(t.Table, "workload", t.Key)
	if w.Kind == "" || !checkKnown(t.Table, "kind", "kind of load", string(w.Kind), names(load.Workloads())) {
		return
	}
	if slices.Contains(load.Workloads(), load.Workload(t.Key)) && t.Key != string(w.Kind) {
		fail(t.Table, codeShape, "kind", fmt.Sprintf("workload %s is a load of kind %s", t.Key, w.Kind),
			"call it otherwise: "+t.Key+" is a kind itself")
	}
	var wrong *load.ShapeError
	if err := w.Shape.Check(w.Kind); errors.As(err, &wrong) {
		fail(t.Table, codeShape, wrong.Key, wrong.Key+": "+wrong.Reason, "")
	} else if err != nil {
		fail(t.Table, codeShape, "kind", err.Error(), "")
	}
}

// longestSeed keeps seeds within what every place that has one can hold.
const longestSeed = 1 << 53

// checkBlock reports whether the targets of a block can be made.
func (r *reader) checkBlock(b *block) bool {
	ok := true
	for _, list := range []struct {
		key  string
		size int
	}{
		{"lines", len(b.lines)},
		{"models", len(b.models)},
		{"scenarios", len(b.scenarios)},
		{"workloads", len(b.workloads)},
		{"seeds", len(b.seeds)},
	} {
		switch {
		case list.size > 0:
		case !b.table.Has(list.key):
			fail(b.table, codeMissingKey, list.key, "[[target]] has no "+list.key, "add "+list.key+" = […]")
			ok = false
		default: // empty, or of another type, which is reported
			fail(b.table, codeCount, list.key, "[[target]] asks for no "+list.key, "")
			ok = false
		}
	}
	for _, line := range b.lines {
		if _, known := r.matrix.ByName(line); !known && line != allLines {
			fail(b.table, codeLine, "lines", fmt.Sprintf("line %q is not in %s", clip(line), r.matrix.File), r.nearLine(line, "remove it"))
			ok = false
		}
	}
	for _, seed := range b.seeds {
		if seed < 0 || seed > longestSeed {
			fail(b.table, codeMalformed, "seeds", fmt.Sprintf("seed %d is no seed", seed), "write a number from 0 to 2^53")
			ok = false
		}
	}
	return r.checkNames(b.table, b.models, b.scenarios, b.workloads) && ok && r.checkExceptions(b)
}

// checkNames reports whether models, scenarios and workloads exist.
func (r *reader) checkNames(t *tomlfile.Table, models, scenarios, workloads []string) bool {
	var knownModels []string
	for _, m := range r.models {
		knownModels = append(knownModels, m.Key)
	}
	knownWorkloads := names(load.Workloads())
	for _, w := range r.workloads {
		if !slices.Contains(knownWorkloads, w.Name) {
			knownWorkloads = append(knownWorkloads, w.Name)
		}
	}
	ok := true
	for _, list := range []struct {
		key, what    string
		names, known []string
	}{
		{"models", "model", models, knownModels},
		{"scenarios", "scenario", scenarios, names(Scenarios())},
		{"workloads", "workload", workloads, knownWorkloads},
	} {
		for _, name := range list.names {
			ok = checkKnown(t, list.key, list.what, name, list.known) && ok
		}
	}
	return ok
}

func (r *reader) checkExceptions(b *block) bool {
	ok := true
	for _, x := range b.except {
		ok = r.checkNames(x.table, x.models, x.scenarios, x.workloads) && ok
	}
	return ok
}

const (
	// longestName is what a cluster allows for the name of a Job, and for a label.
	longestName = 63
	// around is what is around line and id in such a name, "capture-" and "-" and longestRun characters.
	around = len("capture-") + len("-") + longestRun
	// longestRun is the length of the longest id of a run that fits behind every target's name.
	longestRun = 13
)

// slug is the line and the id as names of a cluster's objects have them: "0-33-multiturn-s7". With a prefix of 8
// characters, a hyphen and a run's id of up to longestRun it makes 63 characters at most.
func (t Target) slug() string { return strings.ReplaceAll(t.Line, ".", "-") + "-" + t.ID }

// note is a finding about one or more targets of a block.
type note struct {
	block                    *block
	code, key, message, hint string
	severity                 tomlfile.Severity
	names                    []string
}

// note adds a finding about a target. What holds for several of a block is one finding.
func (r *reader) note(e entry, severity tomlfile.Severity, code, key, message, hint string) {
	for _, n := range r.notes {
		if n.block == e.block && n.code == code && n.message == message {
			n.names = append(n.names, e.Name())
			return
		}
	}
	r.notes = append(r.notes, &note{e.block, code, key, message, hint, severity, []string{e.Name()}})
}

// text names the first target and counts the others.
func (n *note) text() string {
	if len(n.names) == 1 {
		return n.names[0] + ": " + n.message
	}
	return fmt.Sprintf("%s and %d more of this [[target]]: %s", n.names[0], len(n.names)-1, n.message)
}

// checkTargets checks the targets, each and against each other.
func (r *reader) checkTargets() {
	first := map[string]entry{}
	for _, e := range r.targets {
		other, again := first[e.Name()]
		switch {
		case !again:
			first[e.Name()] = e
			r.check(e)
		case other.Fit != e.Fit:
			r.note(e, tomlfile.Error, codeFit, "fit", fmt.Sprintf("gates and is fitted to, see line %d of this file", other.Pos),
				"capture another seed for one of the two")
		default:
			r.note(e, tomlfile.Error, codeSameID, "", fmt.Sprintf("asked for twice, first at line %d of this file", other.Pos),
				"keep one of the two")
		}
	}
	r.checkSeeds()
	r.checkFits()
	for _, n := range r.notes {
		n.block.table.Report(n.code, n.severity, n.key, n.text(), n.hint)
	}
}

// check checks what a target shows on its own.
func (r *reader) check(e entry) {
	if len(e.slug()) > longestName-around {
		r.note(e, tomlfile.Error, codeName, "",
			fmt.Sprintf("too long for the name of a Job: line and id have more than %d characters", longestName-around),
			"give the model or the workload a shorter name")
	}
	if e.Images == (Images{}) && !e.Model.OnCPU() {
		r.note(e, tomlfile.Error, codeNoImages, "lines", fmt.Sprintf("a GPU needs images, and line %s has none", e.Line),
			fmt.Sprintf(`add [lines."%s"] with engine_image and tap_image`, e.Line))
	}
	if e.Workload.Kind == load.Arrivals && !e.Model.OnCPU() {
		r.note(e, tomlfile.Error, codeElsewhere, "workloads",
			"workload "+e.Workload.Name+" repeats a trace on this machine, and the engine of a GPU target is in a pod, "+
				"which has no such file",
			`ask it of a model with gpu = "cpu", and capture that with --local`)
	}
	if e.Fit && e.Wire {
		r.note(e, tomlfile.Error, codeFit, "wire", "fitted to, so that its frames cannot gate", "remove wire or fit")
	}
	if why := e.impossible(); why != "" {
		r.note(e, tomlfile.Error, codeImpossible, "scenarios", why, "")
	} else if e.Scenario == Multimodal && e.Workload.Shape.Images == 0 {
		r.note(e, tomlfile.Warning, codeImpossible, "workloads",
			"workload "+e.Workload.Name+" sends no image, so that the capture says nothing of images",
			"take one that has images = 1 or more")
	}
}

// impossible says why a scenario cannot be captured, or nothing.
func (t Target) impossible() string {
	switch {
	case t.Scenario == Multimodal && !t.Model.Multimodal:
		return "model " + t.Model.Key + " takes no images: a model that takes images has multimodal = true"
	case t.Workload.Shape.Images > 0 && !t.Model.Multimodal:
		return fmt.Sprintf("workload %s sends images, and model %s takes none: a model that takes images has multimodal = true",
			t.Workload.Name, t.Model.Key)
	case !enough(t.options()[optImages], t.Workload.Shape.Images):
		return fmt.Sprintf("workload %s sends %d images at a time, more than %s %s",
			t.Workload.Name, t.Workload.Shape.Images, optImages, t.options()[optImages])
	case t.Scenario == LoRA && len(t.Model.Adapters) == 0:
		return "model " + t.Model.Key + " has no adapters: add [models." + t.Model.Key + ".adapters]"
	case t.Scenario == LoRA && !enough(t.options()[optMaxLoRAs], len(t.Model.Adapters)):
		return fmt.Sprintf("%d adapters are more than %s %s", len(t.Model.Adapters), optMaxLoRAs, t.options()[optMaxLoRAs])
	case t.Scenario == LoRA && !protocol.RustServesAdapters.Holds(t.Tag):
		return fmt.Sprintf("the frontend of %s serves no adapters: those of line %s and newer do", t.Tag, protocol.RustServesAdapters.Since())
	case t.Scenario == Structured && t.options()[optGrammar] != defaultGrammar && !protocol.RustChoosesGrammar.Holds(t.Tag):
		return fmt.Sprintf("the frontend of %s knows only %s: those of line %s and newer take %s",
			t.Tag, defaultGrammar, protocol.RustChoosesGrammar.Since(), optGrammar)
	case t.Scenario == Structured && t.Workload.Kind != load.Edge:
		return fmt.Sprintf("workload %s asks for no structured output: one of kind %s does", t.Workload.Name, load.Edge)
	}
	return ""
}

// enough reports whether a limit allows so many. One that is not given, or malformed, which is reported, allows all.
func enough(most string, count int) bool {
	n, err := strconv.Atoi(most)
	return err != nil || n >= count
}

// group is what several seeds are captured of.
type group struct {
	line, model, workload string
	scenario              Scenario
}

func (t Target) group() group { return group{t.Line, t.Model.Key, t.Workload.Name, t.Scenario} }

// checkSeeds complains of what gates with one seed.
func (r *reader) checkSeeds() {
	seeds := map[group][]uint64{}
	for _, e := range r.targets {
		if g := e.group(); !e.Fit && !slices.Contains(seeds[g], e.Seed) {
			seeds[g] = append(seeds[g], e.Seed)
		}
	}
	lone := map[*block]bool{}
	for _, e := range r.targets {
		if e.Fit || len(seeds[e.group()]) > 1 {
			continue
		}
		if lone[e.block] = true; e.block.oneSeed == "" {
			r.note(e, tomlfile.Warning, codeOneSeed, "seeds", "gates with one seed, and one capture may be an anomaly",
				"add a seed, or say why not: single_seed = \"…\"")
		}
	}
	for _, b := range r.blocks {
		if b.oneSeed != "" && !lone[b] {
			warn(b.table, codeOneSeed, "single_seed", "nothing of this [[target]] gates with one seed", "remove single_seed")
		}
	}
}

// checkFits complains of fitting to the very requests that gate in another scenario.
func (r *reader) checkFits() {
	type asked struct {
		line, model, workload string
		seed                  uint64
	}
	gates := map[asked]entry{}
	for _, e := range r.targets {
		if !e.Fit {
			gates[asked{e.Line, e.Model.Key, e.Workload.Name, e.Seed}] = e
		}
	}
	for _, e := range r.targets {
		gate, ok := gates[asked{e.Line, e.Model.Key, e.Workload.Name, e.Seed}]
		if e.Fit && ok && gate.Scenario != e.Scenario {
			r.note(e, tomlfile.Warning, codeFit, "seeds",
				fmt.Sprintf("fitted to the requests that gate elsewhere, see line %d of this file", gate.Pos),
				"give what is fitted to a seed of its own")
		}
	}
}
