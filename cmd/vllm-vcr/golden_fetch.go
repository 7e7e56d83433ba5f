package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// fetchOptions are the flags of the commands that get goldens.
type fetchOptions struct {
	in           inputs
	store        storeOptions
	sel          conformance.Selection
	cacheKey     bool
	githubOutput bool
	out          string
	json         bool
}

func (opts *fetchOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&opts.sel.Lines, "line", nil, linesUsage)
	flags.StringSliceVar(&opts.sel.Goldens, "golden", nil, "goldens to select, by id (default all)")
	flags.DurationVar(&opts.store.Timeout, "golden-timeout", conformance.DefaultTimeouts().Golden, "maximum time to fetch a golden")
	above0(flags, "golden-timeout")
	grouped(flags, "Selection")
	opts.in.addFlags(flags)
	opts.store.addFlags(flags)
	common(flags, "line", "golden", "manifest", "goldens", "bucket", "bundle", "cache-dir", "offline")
}

func newGoldenPullCommand(env *environment) *cobra.Command {
	var opts fetchOptions
	cmd := &cobra.Command{
		Use:   "pull",
		Short: "Download goldens into the cache",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGoldenPull(cmd.Context(), env, opts) },
	}
	opts.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&opts.cacheKey, "cache-key", false, "print a key for the content of the cache, and download nothing")
	addJSONFlag(cmd.Flags(), &opts.json)
	exclusive(cmd.Flags(), "cache-key", "json")
	addOutputFlag(cmd.Flags(), &opts.githubOutput)
	grouped(cmd.Flags(), "Output")
	common(cmd.Flags(), "cache-key")
	return cmd
}

func newGoldenVerifyCommand(env *environment) *cobra.Command {
	var opts fetchOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the bytes of goldens with the manifest",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGoldenVerify(cmd.Context(), env, opts) },
	}
	opts.addFlags(cmd.Flags())
	addJSONFlag(cmd.Flags(), &opts.json)
	return cmd
}

func newGoldenBundleCommand(env *environment) *cobra.Command {
	var opts fetchOptions
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write goldens, compat.toml and the manifest into one file",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGoldenBundle(cmd.Context(), env, opts) },
	}
	opts.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&opts.out, "output", "o", "", "bundle `FILE` to write; required")
	required(cmd.Flags(), "output")
	grouped(cmd.Flags(), "Output")
	common(cmd.Flags(), "output")
	return cmd
}

// A fetch is the goldens that a command is about, and their store.
type fetch struct {
	goldens []manifest.Golden
	store   *conformance.RegisteredStore
	compat  []byte // the compat matrix, as it is written
}

// beginFetch reads the inputs and selects.
func beginFetch(env *environment, opts *fetchOptions) (*fetch, error) {
	if err := opts.store.resolve(env, &opts.in); err != nil {
		return nil, err
	}
	matrix, mf, err := loadInputs(env, &opts.in)
	if err != nil {
		return nil, err
	}
	var run fetch
	if run.goldens, err = opts.sel.Registered(matrix, mf); err != nil {
		return nil, err
	}
	if len(run.goldens) == 0 {
		return nil, exitError{conformance.ExitVacuous, fmt.Errorf("%s has no goldens of the selected lines", mf.File)}
	}
	if run.compat, err = opts.in.read(matrix.File); err != nil {
		return nil, err
	}
	run.store, err = openStore(env, &opts.store)
	return &run, err
}

func (r *fetch) objects() []golden.Object {
	var objects []golden.Object
	for _, g := range r.goldens {
		objects = append(objects, r.store.Object(g))
	}
	return objects
}

func runGoldenPull(ctx context.Context, env *environment, opts fetchOptions) error {
	run, err := beginFetch(env, &opts)
	if err != nil {
		return err
	}
	if opts.cacheKey {
		return printCacheKey(env, run, opts.githubOutput)
	}
	start := time.Now()
	pulled, err := pullGoldens(ctx, env, run, "golden-pull", opts.json)
	if err != nil || opts.json {
		return err
	}
	count := map[string]int{}
	var bytes int64
	for _, p := range pulled {
		state := fetchState(run, p)
		if count[state]++; state == "downloaded" {
			bytes += p.Bytes
		}
	}
	_, err = fmt.Fprintf(env.stdout, "%d goldens: %d downloaded, %d cached, %d on this machine; %d bytes in %s\n",
		len(pulled), count["downloaded"], count["cached"], count["local"], bytes, time.Since(start).Round(time.Millisecond))
	return err
}

func runGoldenVerify(ctx context.Context, env *environment, opts fetchOptions) error {
	run, err := beginFetch(env, &opts)
	if err != nil {
		return err
	}
	if opts.store.Bundle != "" {
		if err := run.verifyBundle(ctx, &opts); err != nil {
			return err
		}
	}
	pulled, err := pullGoldens(ctx, env, run, "golden-verify", opts.json)
	if err != nil || opts.json {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%d goldens have the registered bytes\n", len(pulled))
	return err
}

// verifyBundle reads all of a bundle. It has no goldens but those of its manifest.
func (r *fetch) verifyBundle(ctx context.Context, opts *fetchOptions) error {
	file, err := golden.OpenBundle(opts.store.Bundle)
	if err != nil {
		return err
	}
	if err := file.Verify(ctx); err != nil {
		return exitError{conformance.ExitFail, err}
	}
	if len(opts.sel.Lines)+len(opts.sel.Goldens) > 0 || opts.in.manifest != "" {
		return nil // the others may be those that are not meant
	}
	registered := map[string]bool{}
	for _, o := range r.objects() {
		registered[o.SHA256] = true
	}
	for _, digest := range file.Digests() {
		if !registered[digest] {
			return exitError{conformance.ExitFail, fmt.Errorf("bundle %s: its manifest has no golden of sha256 %s", opts.store.Bundle, digest)}
		}
	}
	return nil
}

// pullGoldens gets all goldens of a run and prints a line for each, or the JSON of the command.
func pullGoldens(ctx context.Context, env *environment, run *fetch, command string, asJSON bool) ([]golden.Pulled, error) {
	bar, _ := openBar(env, "goldens", make([]string, len(run.goldens)))
	pulled := make([]golden.Pulled, len(run.goldens))
	run.store.Bytes.PullEach(ctx, run.objects(), func(i int, p golden.Pulled) {
		pulled[i] = p
		bar.add(p.Err != nil)
	})
	bar.close()
	result := fetchedJSON{Schema: schemaOf(command), Goldens: make([]fetchedEntry, len(pulled))}
	for i, p := range pulled {
		result.ExitCode = worseCode(result.ExitCode, p.Err)
		g := run.goldens[i]
		result.Goldens[i] = fetchedEntry{g.Line, g.ID, p.SHA256, p.Bytes, fetchState(run, p), p.From, errorText(p.Err)}
	}
	result.OK = result.ExitCode == conformance.ExitOK
	err := printResult(env, asJSON, result, func(w io.Writer) error {
		from := map[string]string{"mismatch": "other bytes", "missing": "not fetched", "cached": "cached", "downloaded": "from ", "local": "at "}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, g := range result.Goldens {
			text := from[g.State]
			if g.State == "downloaded" || g.State == "local" {
				text += safetext.Line(g.From)
			}
			fmt.Fprintf(tw, "%s/%s\t%d\t%s\t%s\n", g.Line, g.ID, g.Bytes, g.SHA256[:12], text)
		}
		return tw.Flush()
	})
	if err != nil {
		return nil, err
	}
	for _, p := range pulled {
		if p.Err != nil {
			env.printErr(fmt.Sprintf("vllm-vcr: error: %v", p.Err))
		}
	}
	if !result.OK {
		return nil, exitError{result.ExitCode, errReported}
	}
	return pulled, nil
}

// worseCode returns the exit code of a run after one more golden: other bytes weigh more than a golden that could not be
// fetched.
func worseCode(code int, err error) int {
	switch {
	case err == nil || code == conformance.ExitFail:
		return code
	case errors.As(err, new(*golden.MismatchError)):
		return conformance.ExitFail
	}
	return conformance.ExitInfra
}

// printCacheKey prints a key for the content of the cache: the digests of all goldens that may come from the network.
func printCacheKey(env *environment, run *fetch, githubOutput bool) error {
	var digests []string
	for _, o := range run.objects() {
		if run.store.Bytes.IsRemote(o) {
			digests = append(digests, o.SHA256)
		}
	}
	slices.Sort(digests)
	key := ""
	if digests = slices.Compact(digests); len(digests) > 0 {
		key = fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(digests, "\n"))))
	}
	if githubOutput {
		if err := setOutputs(env, output{"cache-key", key}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(env.stdout, key)
	return err
}

func runGoldenBundle(ctx context.Context, env *environment, opts fetchOptions) error {
	run, err := beginFetch(env, &opts)
	if err != nil {
		return err
	}
	if _, err := pullGoldens(ctx, env, run, "", false); err != nil {
		return err
	}
	matrix, mf, err := conformance.NarrowInputs(run.compat, run.goldens)
	if err != nil {
		return err
	}
	bundle := golden.Bundle{Compat: matrix, Manifest: mf, Goldens: run.objects(), Fetch: func(o golden.Object) ([]byte, error) {
		return run.store.Bytes.Fetch(ctx, o)
	}}
	if err := atomicfile.WriteFunc(opts.out, 0o644, func(w io.Writer) error { return golden.WriteBundle(w, bundle) }); err != nil {
		return infra(err)
	}
	info, err := os.Stat(opts.out)
	if err != nil {
		return infra(err)
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %d goldens, %d bytes\n", safetext.Line(filepath.ToSlash(opts.out)), len(run.goldens), info.Size())
	return err
}
