package target

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

const (
	// longestName is what a cluster allows for the name of a Job, and for a label.
	longestName = 63
	// around is what stands around line and id in such a name, "capture-" and "-" and longestRun characters.
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
			"workload "+e.Workload.Name+" repeats a cassette of this machine, and a GPU's engine is in a pod, "+
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
		return "model " + t.Model.Key + " takes no images: one that does says multimodal = true"
	case t.Workload.Shape.Images > 0 && !t.Model.Multimodal:
		return fmt.Sprintf("workload %s sends images, and model %s takes none: one that does says multimodal = true",
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
