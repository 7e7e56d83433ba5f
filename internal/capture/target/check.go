package target

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
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

// image is a reference by digest: a registry and a path, a tag, and the digest of the content.
var image = regexp.MustCompile(`^(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9][a-z0-9._/-]*(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?@sha256:[0-9a-f]{64}$`)

func checkImage(t *tomlfile.Table, key, ref string) {
	switch {
	case ref == "" || image.MatchString(ref): // absent, or reported as missing
	case !strings.Contains(ref, "@"):
		fail(t, codeDigest, key, fmt.Sprintf("%s %q has no digest", key, clip(ref)),
			"write name:tag@sha256:…: a tag can be moved, a digest cannot")
	default:
		fail(t, codeDigest, key, fmt.Sprintf("%s %q is no image with a digest", key, clip(ref)),
			"write name:tag@sha256: and 64 lowercase hexadecimal digits")
	}
}

// checkLine checks the images of a line against what the window says of it.
func (r *reader) checkLine(t tomlfile.Keyed, i Images) {
	line, ok := r.window.ByName(t.Key)
	if !ok {
		warn(t.Table, codeLine, "", fmt.Sprintf("line %q is not in %s", clip(t.Key), r.window.File), r.nearLine(t.Key, "remove it"))
		return
	}
	parts := image.FindStringSubmatch(i.Engine)
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
		fail(t, codeNightly, "engine_image", fmt.Sprintf("engine_image has the tag %q, which tells no commit", clip(tag)),
			"write name:nightly-COMMIT@sha256:…")
	case !strings.HasPrefix(rev, line.ProtocolRev) && !strings.HasPrefix(line.ProtocolRev, rev):
		fail(t, codeNightly, "engine_image", fmt.Sprintf("engine_image is of commit %s, but nightly is at %s", clip(rev), line.ProtocolRev),
			"take the image of that commit, or `vllm-vcr compat set --line nightly --rev "+clip(rev)+"`")
	}
}

// nearLine suggests the line that was meant.
func (r *reader) nearLine(name, otherwise string) string {
	var known []string
	for _, l := range r.window.Lines {
		known = append(known, l.Name)
	}
	_, isLine := compat.MinorLine(name) // it has left the window, or is too new for it
	if near, ok := tomlfile.Nearest(name, known); ok && !isLine {
		return fmt.Sprintf("did you mean %q? The window has %s", near, strings.Join(known, ", "))
	}
	return otherwise + "; the window has " + strings.Join(known, ", ")
}

// label is a name that an id can have, and an object of a cluster.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func checkName(t *tomlfile.Table, what, name string) {
	switch {
	case !label.MatchString(name):
		fail(t, codeName, "", fmt.Sprintf("%s %q cannot be part of an id", what, clip(name)), "use lower-case letters, digits and hyphens")
	case strings.HasPrefix(name, wirePrefix):
		fail(t, codeName, "", fmt.Sprintf("%s %q begins like the goldens of raw frames", what, clip(name)), "call it otherwise")
	}
}

// product is a kind of GPU: it is part of the place of a golden.
var product = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (r *reader) checkModel(t tomlfile.Keyed, m Model, tensor string) {
	checkName(t.Table, "model", t.Key)
	_, isFolder := m.Folder()
	switch {
	case m.GPU == "":
		fail(t.Table, codeMissingKey, "", "model "+t.Key+" has no gpu", `add gpu = "cpu", or the product, such as "H200"`)
	case !product.MatchString(m.GPU):
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
	cores  = regexp.MustCompile(`^[1-9][0-9]*(m|\.[0-9]+)?$`)
	memory = regexp.MustCompile(`^[1-9][0-9]*(Mi|Gi|Ti)$`)
)

func checkResources(t *tomlfile.Table) {
	if v := t.String("cpu"); v != "" && !cores.MatchString(v) {
		fail(t, codeMalformed, "cpu", fmt.Sprintf("cpu %q is no number of cores", clip(v)), `write cpu = "8"`)
	}
	if v := t.String("memory"); v != "" && !memory.MatchString(v) {
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
		if _, known := r.window.ByName(line); !known && line != allLines {
			fail(b.table, codeLine, "lines", fmt.Sprintf("line %q is not in %s", clip(line), r.window.File), r.nearLine(line, "remove it"))
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
