package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/chart"
)

// compose is the topology that is no chart, but a file for Docker Compose.
const compose = "compose"

// deployTopologies are the names of the files in the chart.
func deployTopologies() (names []string) {
	files, err := fs.Glob(vcr.Files, path.Join(vcr.ChartPath, "topologies/*.yaml"))
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(path.Base(file), ".yaml"))
	}
	return names
}

// deployOptions are the flags of deploy render.
type deployOptions struct {
	release               chart.Release
	namespaceToo          bool
	values, set           []string
	trace, sha256, golden string
	folder                string
	format                chart.Format
}

func newDeployRenderCommand(env *environment) *cobra.Command {
	var opts deployOptions
	cmd := &cobra.Command{
		Use:   "render TOPOLOGY",
		Short: "Print the objects of a topology, for Kubernetes or for Docker Compose",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("want one topology of %s, got %d arguments", strings.Join(deployTopologies(), ", "), len(args))
			}
			return oneOfWords("topology", args[0], deployTopologies())
		},
		RunE: func(_ *cobra.Command, args []string) error { return opts.render(env, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.release.Name, "name", "", "`NAME` with which the names of the objects begin (default TOPOLOGY)")
	flags.StringVar(&opts.release.Namespace, "namespace", deploy.DefaultNamespace, "`NAMESPACE` of the objects")
	flags.BoolVar(&opts.namespaceToo, "create-namespace", false, "also print the namespace, whose pods must have the restricted security")
	flags.StringArrayVar(&opts.values, "values", nil, "YAML `FILE` with values; may be repeated, and a later one has precedence")
	flags.StringArrayVar(&opts.set, "set", nil, "`KEY=VALUE`, such as decode.replicas=3, with a YAML value; may be repeated. deploy/chart/defaults.yaml has all keys")
	flags.StringVar(&opts.trace, "trace", "", "answer requests with this trace, an s3://, https:// or hf:// `LOCATION` with --trace-sha256; same as --set trace.location")
	flags.StringVar(&opts.sha256, "trace-sha256", "", "sha256 `DIGEST` of --trace, without which servers refuse it")
	flags.StringVar(&opts.golden, "golden", "", "answer requests with this golden of the image, `LINE/ID`")
	needs(flags, "trace-sha256", "trace")
	exclusive(flags, "trace", "golden")
	grouped(flags, "Objects")
	flags.StringVarP(&opts.folder, "output", "o", "", "write a file for each object, and a kustomization.yaml, to this `FOLDER`, which is replaced as a whole (default print to stdout)")
	formatFlag(flags, (*string)(&opts.format), chart.YAML, "format on stdout: yaml or json", chart.Formats()...)
	exclusive(flags, "output", "format")
	grouped(flags, "Output")
	return cmd
}

func (opts *deployOptions) render(env *environment, topology string) error {
	if opts.release.Name == "" {
		opts.release.Name = topology
	}
	if v := buildVersion(); !strings.Contains(v, "devel") {
		opts.release.Version = v
	}
	values, err := opts.given()
	if err != nil {
		return err
	}
	files, err := fs.Sub(vcr.Files, vcr.ChartPath)
	if err != nil {
		return err
	}
	c, err := chart.Open(files)
	if err != nil {
		return err
	}
	values = append(values, map[string]any{"topology": topology})
	merged, err := c.Values(values...)
	if err != nil {
		return err
	}
	if topology == compose {
		if opts.folder != "" {
			return errors.New("--output is for Kubernetes: compose is one file, on stdout")
		}
		text, err := c.RenderFile("compose.yaml", opts.release, merged)
		if err != nil {
			return err
		}
		_, err = io.WriteString(env.stdout, text)
		return err
	}
	objects, err := c.Render(opts.release, merged)
	if err != nil {
		return err
	}
	if opts.namespaceToo {
		objects = append([]any{chart.Namespace(opts.release.Namespace)}, objects...)
	}
	if opts.folder != "" {
		return infra(chart.WriteFolder(opts.folder, objects))
	}
	return chart.Write(env.stdout, opts.format, objects...)
}

// given are the values of flags, the least important first.
func (opts *deployOptions) given() (all []map[string]any, err error) {
	for _, name := range opts.values {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--values: %w", err)
		}
		values, err := chart.ReadValues(name, text)
		if err != nil {
			return nil, fmt.Errorf("--values: %w", err)
		}
		all = append(all, values)
	}
	for _, text := range opts.set {
		values, err := chart.ParseSet(text)
		if err != nil {
			return nil, fmt.Errorf("--set %w", err)
		}
		all = append(all, values)
	}
	for key, value := range map[string]string{"location": opts.trace, "sha256": opts.sha256, "golden": opts.golden} {
		if value != "" {
			all = append(all, map[string]any{"trace": map[string]any{key: value}})
		}
	}
	return all, nil
}
