// Package pairs knows what becomes of a prefill engine and a decode engine of two lines that a router pairs, as in a rolling upgrade.
package pairs

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Outcome is what becomes of a request whose prompt was computed by the prefill engine.
type Outcome string

// Outcomes.
const (
	Works Outcome = "works" // the decode engine pulls the blocks
	// Refuses: the decode engine does not pull. The request ends with an error, or with kv_load_failure_policy "recompute" the decode
	// engine computes the prompt itself.
	Refuses Outcome = "refuses"
	// Breaks: it refuses, and the request for the handshake ends the side channel of the prefill engine, for other decode engines too.
	Breaks Outcome = "breaks"
	Hangs  Outcome = "hangs" // the request does not end
)

// A Pair is a prefill line and a decode line, both with their default configuration but for the check of the compatibility hash.
type Pair struct {
	Prefill  string  `toml:"prefill" json:"prefill"`
	Decode   string  `toml:"decode" json:"decode"`
	Checked  Outcome `toml:"checked" json:"checked"`   // by default
	Checks   string  `toml:"checks" json:"checks"`     // why
	Lenient  Outcome `toml:"lenient" json:"lenient"`   // if the decode engine has enforce_handshake_compat false
	Leniency string  `toml:"leniency" json:"leniency"` // why
	// Measured is how both were measured with real engines: their releases and the tokens. It is empty for a pair that follows from the
	// profiles of the lines.
	Measured string `toml:"measured" json:"measured,omitempty"`
}

// String is the pair as a sentence.
func (p Pair) String() string {
	text := fmt.Sprintf("prefill %s, decode %s: %s", p.Prefill, p.Decode, p.Checked)
	if p.Checks != "" {
		text += " (" + p.Checks + ")"
	}
	switch {
	case p.Lenient == p.Checked:
	case p.Lenient == Works && p.Measured == "":
		text += "; with enforce_handshake_compat false nothing in the handshake prevents it, which was not measured"
	default:
		text += fmt.Sprintf("; with enforce_handshake_compat false it %s", p.Lenient)
	}
	if p.Leniency != "" && p.Leniency != p.Checks {
		text += " (" + p.Leniency + ")"
	}
	return text
}

//go:embed pairs.toml
var measured string

// Table returns all pairs of lines whose profiles have the boundary of NIXL, by prefill and then decode line.
func Table() ([]Pair, error) {
	var file struct{ Pair []Pair }
	if _, err := toml.Decode(measured, &file); err != nil {
		return nil, fmt.Errorf("pairs.toml: %w", err)
	}
	var lines []*nixl.Line
	for _, name := range protocol.Lines() {
		if l, err := nixl.Load(name); err == nil {
			lines = append(lines, l)
		}
	}
	var all []Pair
	for _, prefill := range lines {
		for _, decode := range lines {
			at := slices.IndexFunc(file.Pair, func(p Pair) bool { return p.Prefill == prefill.Name && p.Decode == decode.Name })
			if at >= 0 {
				all = append(all, file.Pair[at])
			} else {
				all = append(all, Predict(prefill, decode))
			}
		}
	}
	return all, nil
}

// Predict says what follows from the profiles of two lines.
func Predict(prefill, decode *nixl.Line) Pair {
	p := Pair{Prefill: prefill.Name, Decode: decode.Name, Checked: Works, Lenient: Works}
	asks, answers := len(decode.Messages["handshake request"].Keys), len(prefill.Messages["handshake request"].Keys)
	switch missing := lacks(prefill, decode); {
	case asks != answers:
		p.Checked, p.Lenient = Breaks, Breaks
		p.Checks = fmt.Sprintf("the request for the handshake has %d values, and the prefill engine unpacks %d", asks, answers)
		p.Leniency = p.Checks
		return p
	case missing != "":
		p.Lenient, p.Leniency = Refuses, "the decode engine requires "+missing
	}
	if prefill.Release != decode.Release {
		p.Checked = Refuses
		p.Checks = fmt.Sprintf("the compatibility hash contains vllm_version, %s and %s", prefill.Release, decode.Release)
		if prefill.Version != decode.Version {
			p.Checks += fmt.Sprintf(", and nixl_connector_version, %d and %d", prefill.Version, decode.Version)
		}
	}
	return p
}

// lacks names what the decode line requires of the prefill line, and does not get.
func lacks(prefill, decode *nixl.Line) string {
	var missing []string
	for _, f := range decode.Structs["NixlAgentMetadata"].Fields {
		if f.Required && !slices.ContainsFunc(prefill.Structs["NixlAgentMetadata"].Fields, func(g protocol.Field) bool { return g.Name == f.Name }) {
			missing = append(missing, f.Name+" in NixlAgentMetadata")
		}
	}
	for _, k := range decode.Messages["kv_transfer_params read"].Keys {
		if !k.Optional && !slices.ContainsFunc(prefill.Messages["kv_transfer_params"].Keys, func(g protocol.Key) bool { return g.Name == k.Name }) {
			missing = append(missing, k.Name+" in kv_transfer_params")
		}
	}
	return strings.Join(missing, ", ")
}
