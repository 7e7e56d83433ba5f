package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

func (a *app) captureListCommand() *cobra.Command {
	var f targetFlags
	var path, format string
	cmd := &cobra.Command{
		Use:   "list [TARGET…]",
		Short: "Print what is captured, and which goldens there are of it",
		Long: "Print the targets of the file as a table: name, GPU, model, scenario, workload, seed, the beginning of the\n" +
			"configuration hash, and that of the golden's digest. A golden that was captured from an engine configured\n" +
			"otherwise, or of another release, is marked with an exclamation mark: it is due to be captured again.\n\n" +
			"A target is LINE/ID, or an ID of whatever line; * stands for any text, and @FILE for the patterns in a file.",
		Example: "  vllm-vcr capture list --line 0.33\n  vllm-vcr capture list '*/multiturn-*' --format json",
		RunE: func(_ *cobra.Command, args []string) error {
			format, err := chooseOne("--format", format, "text", "json")
			if err != nil {
				return err
			}
			targets, err := f.resolve(a, args)
			if err != nil {
				return err
			}
			registered, err := a.registered(f, path)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.listTargetsJSON(targets, registered)
			}
			return a.listTargets(targets, registered)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&path, "manifest", "", "registry of goldens (default $CONFORMANCE_MANIFEST, ./"+vcr.ManifestPath+", else the one in the binary)")
	cmd.Flags().StringVar(&format, "format", "text", "text or json")
	return cmd
}

// registered are the goldens of the registry by line and id.
func (a *app) registered(f targetFlags, path string) (map[string]manifest.Golden, error) {
	window, _ := a.loadCompat(f.compat) // its findings are told already
	registry, findings := a.loadManifest(path, window)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return nil, fmt.Errorf("%s cannot be used as it is", registry.File)
	}
	goldens := map[string]manifest.Golden{}
	for _, g := range registry.Goldens {
		goldens[g.Line+"/"+g.ID] = g
	}
	return goldens, nil
}

// shortDigest is how much of a digest tables have: what names of files have of it.
const shortDigest = 12

func (a *app) listTargets(targets []target.Target, registered map[string]manifest.Golden) error {
	tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tGPU\tMODEL\tSCENARIO\tWORKLOAD\tSEED\tCONFIG\tGOLDEN")
	for _, t := range targets {
		use := ""
		if t.Fit {
			use = " (fit)"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", t.Name(), t.Model.GPU, report.OneLine(t.Model.Served),
			t.Scenario, t.Workload.Name+use, t.Seed, t.ConfigHash()[:shortDigest], goldenText(t, registered))
	}
	return tw.Flush()
}

// goldenText is the beginning of the digests of a target's goldens.
func goldenText(t target.Target, registered map[string]manifest.Golden) string {
	var parts []string
	for _, id := range goldenIDs(t) {
		g, ok := registered[t.Line+"/"+id]
		text := "-"
		if ok {
			text = g.SHA256[:shortDigest] // the registry was checked: it is a digest
		}
		if ok && g.ConfigHash != t.ConfigHash() {
			text += "!"
		}
		if id != t.ID {
			text = "wire " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// goldenIDs are the ids of the goldens that a target becomes.
func goldenIDs(t target.Target) []string {
	if t.Wire {
		return []string{t.ID, t.WireID()}
	}
	return []string{t.ID}
}

// listedTarget is a target in JSON.
type listedTarget struct {
	Name         string         `json:"name"`
	Line         string         `json:"line"`
	Tag          string         `json:"tag"`
	ID           string         `json:"id"`
	GPU          string         `json:"gpu"`
	Model        string         `json:"model"`
	Scenario     string         `json:"scenario"`
	Workload     string         `json:"workload"`
	Seed         uint64         `json:"seed"`
	Fit          bool           `json:"fit"`
	EngineImage  string         `json:"engine_image,omitempty"`
	EngineConfig string         `json:"engine_config"`
	ConfigHash   string         `json:"config_hash"`
	Goldens      []listedGolden `json:"goldens"`
}

// listedGolden is a golden that a target becomes. Without a digest there is none yet.
type listedGolden struct {
	ID         string `json:"id"`
	SHA256     string `json:"sha256,omitempty"`
	ConfigHash string `json:"config_hash,omitempty"`
}

func (a *app) listTargetsJSON(targets []target.Target, registered map[string]manifest.Golden) error {
	all := make([]listedTarget, len(targets))
	for i, t := range targets {
		all[i] = listedTarget{
			Name: t.Name(), Line: t.Line, Tag: t.Tag, ID: t.ID, GPU: t.Model.GPU, Model: t.Model.Served,
			Scenario: string(t.Scenario), Workload: t.Workload.Name, Seed: t.Seed, Fit: t.Fit, EngineImage: t.Images.Engine,
			EngineConfig: t.EngineConfig(), ConfigHash: t.ConfigHash(),
		}
		for _, id := range goldenIDs(t) {
			g := registered[t.Line+"/"+id]
			all[i].Goldens = append(all[i].Goldens, listedGolden{ID: id, SHA256: g.SHA256, ConfigHash: g.ConfigHash})
		}
	}
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(all)
}
