package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// goldenAddOptions are the flags of golden add.
type goldenAddOptions struct {
	req    conformance.Registration
	compat string
	seed   int64
	s3     s3Options
	json   bool
}

func newGoldenAddCommand(env *environment) *cobra.Command {
	var opts goldenAddOptions
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Register a recorded trace as a golden",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("seed") {
				opts.req.Seed = &opts.seed
			}
			return runGoldenAdd(cmd.Context(), env, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.req.Trace, "trace", "", "trace `FILE` that vllm-vcr record wrote, .jsonl or .jsonl.gz; required")
	flags.StringVar(&opts.req.Line, "line", "", "vLLM `LINE` of the engine, such as 0.33 or v0.33.0; required")
	flags.StringVar(&opts.req.ID, "id", "", "`ID` of the golden, unique in its line; required")
	required(flags, "trace", "line", "id")
	oneOf(flags, (*string)(&opts.req.Role), "role", manifest.Fidelity, "what conform checks with the golden: fidelity, schema, wire, frames or nixl",
		manifest.Fidelity, manifest.Schema, manifest.Wire, manifest.Frames, manifest.NIXL)
	flags.StringVar(&opts.req.Workload, "workload", "", "`NAME` of the requests that were sent (default the id)")
	flags.StringVar(&opts.req.Scenario, "scenario", "", "`NAME` of the engine options, such as baseline or nocache (default that of the golden it replaces)")
	flags.Int64Var(&opts.seed, "seed", 0, "seed of the load generator (default that of the golden it replaces)")
	flags.BoolVar(&opts.req.AllowPatchDrift, "allow-patch-drift", false, "accept a trace of another patch release than the line's tag in compat.toml")
	flags.BoolVar(&opts.req.DryRun, "dry-run", false, "check and replay, but write nothing")
	grouped(flags, "Golden")
	flags.StringSliceVar(&opts.req.Others, "other-engines", nil, "`FILES` with the raw messages of the other engines of the session")
	flags.StringVar(&opts.req.Facts.GPU, "gpu", "", "`NAME` of the GPU type, cpu for none, if the raw messages do not say it")
	flags.StringVar(&opts.req.Facts.Model, "model", "", "`NAME` of the model, if the raw messages do not say it")
	flags.StringVar(&opts.req.Facts.VLLMTag, "vllm-version", "", "vLLM `VERSION` of the engine, such as v0.33.0, if the raw messages do not say it")
	flags.StringVar(&opts.req.Facts.EngineConfig, "engine-config", "", "flags of the engine as `KEY=VALUE;KEY=VALUE`, if the raw messages do not say them")
	grouped(flags, "For --role wire, frames and nixl")
	flags.StringVar(&opts.compat, "compat", "", compatUsage)
	flags.StringVar(&opts.req.Manifest, "manifest", "", editedUsage)
	flags.StringVar(&opts.req.Goldens, "goldens", vcr.GoldensPath, "`FOLDER` to store the golden in; bucket_path of the manifest is a path in it")
	flags.StringVar(&opts.req.Upload, "upload", "", uploadUsage)
	grouped(flags, "Files")
	opts.s3.addFlags(flags)
	common(flags, "trace", "line", "id", "role", "scenario", "seed", "dry-run", "manifest", "goldens", "upload")
	addJSONFlag(flags, &opts.json)
	return cmd
}

func runGoldenAdd(ctx context.Context, env *environment, opts goldenAddOptions) error {
	if err := opts.s3.resolve(); err != nil {
		return err
	}
	opts.req.Facts.VLLMTag = tagOf(opts.req.Facts.VLLMTag)
	opts.req.S3 = opts.s3.Options
	matrix, diagnostics := loadCompat(opts.compat)
	if err := refuse(env, matrix.File, diagnostics); err != nil {
		return err
	}
	opts.req.Matrix, opts.req.Manifest = matrix, cmp.Or(opts.req.Manifest, env.getenv("CONFORMANCE_MANIFEST"), vcr.ManifestPath)
	opts.req.Log, opts.req.Progress = env.log, func(r conformance.Result) { logResult(env, r) }
	done, err := conformance.Register(ctx, opts.req)
	if err != nil {
		return printRefusal(ctx, env, opts, done, err)
	}
	for _, w := range done.Warnings {
		env.printErr(w)
	}
	return printResult(env, opts.json, registeredResult(opts.req, done, nil), func(w io.Writer) error { return printRegistered(w, opts.req, done) })
}

// printRefusal returns why nothing was registered: each problem is a line.
func printRefusal(ctx context.Context, env *environment, opts goldenAddOptions, done conformance.Registered, err error) error {
	var refusal *conformance.RegistrationError
	if !errors.As(err, &refusal) {
		return err
	}
	if opts.json {
		if err := jsonout.Write(env.stdout, registeredResult(opts.req, done, refusal)); err != nil {
			return err
		}
	} else if done.Report != nil && done.Report.ExitCode != conformance.ExitOK {
		for _, r := range done.Report.Results {
			for _, failure := range r.Failures {
				fmt.Fprintf(env.stdout, "%s %s: %s\n", strings.ToUpper(string(r.Verdict)), r.Case.Name(), safetext.Line(string(failure.Code)+" "+failure.Message))
				env.code = cmp.Or(env.code, string(failure.Code))
			}
		}
		fmt.Fprintln(env.stdout, report.Verdict(report.New(done.Report, report.Meta{})))
	}
	for _, p := range refusal.Problems {
		fmt.Fprintf(env.stderr, "vllm-vcr: error: %s\n", safetext.Line(p.Error()))
	}
	if ctx.Err() != nil {
		return infra(errors.New("interrupted: nothing was registered"))
	}
	return exitError{refusal.ExitCode, errReported}
}

// printRegistered prints what was checked and what was written.
func printRegistered(w io.Writer, req conformance.Registration, done conformance.Registered) error {
	g := done.Golden
	stored, edited := "stored already", "has the golden already"
	switch {
	case req.DryRun:
		stored = "not stored: dry run"
	case done.Stored:
		stored = "stored"
	}
	switch {
	case done.Changed && req.DryRun:
		edited = "not edited: dry run"
	case done.Changed && done.Replaced:
		edited = "golden replaced"
	case done.Changed:
		edited = "golden added"
	}
	content := fmt.Sprintf("%d records, %d streams, %d tokens", g.Records, g.Streams, g.Tokens)
	if g.Role.Raw() {
		content = fmt.Sprintf("%d messages", done.Messages)
	}
	lines := []string{
		fmt.Sprintf("golden %s/%s: %s of vLLM %s on %s, %s", g.Line, g.ID, g.Role, g.VLLMVersion, g.GPU, g.Model),
		fmt.Sprintf("checked: %s: %s", req.Trace, content),
		"conform: " + report.Verdict(report.New(done.Report, report.Meta{})),
		fmt.Sprintf("%s: %s, %d bytes, sha256 %s", done.Location, stored, g.Size, g.SHA256),
		fmt.Sprintf("%s: %s", req.Manifest, edited),
	}
	if done.Removed != "" {
		lines = append(lines, done.Removed+": removed")
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, safetext.Line(line)); err != nil {
			return err
		}
	}
	return nil
}

func newGoldenListCommand(env *environment) *cobra.Command {
	var path string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Print the goldens of the manifest",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			matrix, _ := loadCompat("") // only to leave lines out of the embedded manifest
			mf, err := manifestAt(env, path, matrix)
			if err != nil {
				return err
			}
			result := goldensJSON{schemaOf("golden-list"), mf.File, append([]manifest.Golden{}, mf.Goldens...)}
			return printResult(env, asJSON, result, func(w io.Writer) error {
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintln(tw, "LINE\tID\tROLE\tRECORDS\tTOKENS\tSIZE\tPATH")
				for _, g := range mf.Goldens {
					fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Line, g.ID, g.Role, orDash(int64(g.Records)), orDash(int64(g.Tokens)), orDash(g.Size), g.BucketPath)
				}
				return tw.Flush()
			})
		},
	}
	cmd.Flags().StringVar(&path, "manifest", "", manifestUsage)
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

// orDash is a count that the manifest may not have.
func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// exportOptions are the flags of golden export.
type exportOptions struct {
	fetch         fetchOptions
	out, modelOut string
	kvEvents      string
}

func newGoldenExportCommand(env *environment) *cobra.Command {
	var opts exportOptions
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a golden to a file, or the model of the goldens to a folder",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runGoldenExport(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.out, "output", "o", "", "trace `FILE` to write the golden to")
	flags.StringVar(&opts.modelOut, "model-out", "", "`FOLDER` to write the model to")
	flags.StringVar(&opts.kvEvents, "kv-events", "", "`FOLDER` to write messages of KV events to, a folder for each line: NAME.msgpack, and NAME.json with what it means")
	exclusive(flags, "output", "kv-events")
	grouped(flags, "Output")
	opts.fetch.addFlags(flags)
	common(flags, "output", "model-out", "kv-events")
	return cmd
}

func runGoldenExport(ctx context.Context, env *environment, opts exportOptions) error {
	if opts.out == "" && opts.modelOut == "" && opts.kvEvents == "" {
		return errors.New("neither --output nor --model-out nor --kv-events is given")
	}
	if opts.kvEvents != "" {
		if err := exportKVEvents(ctx, env, &opts); err != nil || opts.modelOut == "" {
			return err
		}
		opts.fetch.sel = conformance.Selection{}
	}
	if opts.out == "" && len(opts.fetch.sel.Lines)+len(opts.fetch.sel.Goldens) > 0 {
		return errors.New("--output is not given: want a file to write the golden to")
	}
	if opts.out != "" {
		if err := exportGolden(ctx, env, &opts); err != nil {
			return err
		}
	}
	if opts.modelOut == "" {
		return nil
	}
	if err := writeModel(opts.modelOut); err != nil {
		return infra(err)
	}
	_, err := fmt.Fprintf(env.stdout, "%s: the model\n", safetext.Line(filepath.ToSlash(opts.modelOut)))
	return err
}

func exportGolden(ctx context.Context, env *environment, opts *exportOptions) error {
	run, err := beginFetch(env, &opts.fetch)
	if err != nil {
		return err
	}
	if len(run.goldens) != 1 {
		return fmt.Errorf("%d goldens are selected: choose one with --line and --golden", len(run.goldens))
	}
	g := run.goldens[0]
	data, from, err := run.store.Fetch(ctx, g)
	if err != nil {
		return exitError{worseCode(conformance.ExitOK, err), fmt.Errorf("golden %s/%s: %w", g.Line, g.ID, err)}
	}
	if err := atomicfile.Write(opts.out, data, 0o644); err != nil {
		return infra(err)
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s/%s, %d bytes, from %s\n",
		safetext.Line(filepath.ToSlash(opts.out)), g.Line, g.ID, len(data), safetext.Line(from))
	return err
}

// writeModel writes the files of the model into a folder, which is made. Files of other names stay.
func writeModel(folder string) error {
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return atomicfile.Write(filepath.Join(folder, filepath.FromSlash(name)), text, 0o644)
	})
}
