package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/expect"
	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/kube"
	"github.com/vllm-vcr/conformance/internal/capture/remote"
	"github.com/vllm-vcr/conformance/internal/report"
)

func (a *app) captureSubmitCommand() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "submit TARGET…",
		Short: "Submit captures to a cluster, and leave them there",
		Long: "Submit a Job for each target, as `capture render` prints it. Who takes them up within their --fetch-timeout is\n" +
			"`capture run` or `capture fetch` with the same --run-id.",
		Example: "  vllm-vcr capture submit '0.33/*' --run-id 17",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.captureSubmit(cmd.Context(), f, args) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (a *app) captureSubmit(ctx context.Context, f remoteFlags, args []string) error {
	targets, err := f.chosen(a, args)
	if err != nil {
		return err
	}
	client, err := f.cluster.connect(a)
	if err != nil {
		return err
	}
	id := f.run(a)
	jobs, err := f.jobs.jobs(targets, id, client.Namespace())
	if err != nil {
		return err
	}
	if err := remote.Preflight(ctx, client, f.jobs.run.Queue, jobs); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	failed := 0
	for i, job := range jobs {
		state, created, err := client.Submit(ctx, job)
		text := fmt.Sprintf("submitted: job %s of run %s", job.Name, id)
		switch {
		case err != nil:
			failed++
			text = fmt.Sprintf("failed: %v", err)
		case !created:
			text = fmt.Sprintf("there already: job %s of run %s is %s", job.Name, id, state.Phase)
		}
		if _, err := fmt.Fprintln(a.stdout, report.OneLine(targets[i].Name()+": "+text)); err != nil {
			return err
		}
	}
	if failed > 0 {
		return exitError{conformance.ExitInfra, fmt.Errorf("%d of %d targets were not submitted", failed, len(jobs))}
	}
	return nil
}

func (a *app) captureFetchCommand() *cobra.Command {
	var f remoteFlags
	var work string
	var admission time.Duration
	cmd := &cobra.Command{
		Use:   "fetch TARGET…",
		Short: "Bring the recordings of submitted captures home",
		Long: "Wait until the Jobs of a run are ready, fetch their files into RUN/LINE/ID below --work, and delete the Jobs. What\n" +
			"does not come home stays in the cluster, for another attempt. Nothing is registered: `capture run` with the same\n" +
			"--run-id and --work does that, without capturing anything again.",
		Example: "  vllm-vcr capture fetch '0.33/*' --run-id 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.run(a) != f.runID && a.orEnv("", "GITHUB_RUN_ID") == "" {
				return errors.New("--run-id is not given: `vllm-vcr capture status` shows what there is")
			}
			targets, err := f.chosen(a, args)
			if err != nil {
				return err
			}
			outcomes, err := f.remote(cmd.Context(), a, targets, work, remote.Options{KeepFailed: true, Budgets: f.budgets(admission)})
			if err != nil {
				return err
			}
			return a.printOutcomes(cmd.Context(), outcomes)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&work, "work", workPath, "where recordings come to, in a folder RUN/LINE/ID each")
	addAdmissionFlag(cmd.Flags(), &admission)
	return cmd
}

// submitted is a cluster that takes no more Jobs.
type submitted struct{ *cluster.Client }

func (s submitted) Submit(ctx context.Context, job *kube.Job) (cluster.State, bool, error) {
	state, err := s.Get(ctx, job.Name)
	if err == nil {
		return state, false, nil
	}
	return state, false, fmt.Errorf("%w: submit the target, or give the --run-id under which it was submitted", err)
}

func (a *app) captureStatusCommand() *cobra.Command {
	var f clusterFlags
	var runID string
	cmd := &cobra.Command{
		Use:   "status [TARGET…]",
		Short: "Print the captures that are in a cluster",
		Long:  "Print the Jobs of captures as a table: target, run, phase and since when, node, and why they are no further.",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := f.connect(a)
			if err != nil {
				return err
			}
			states, err := a.captures(cmd.Context(), client, runID, args)
			if err != nil {
				return err
			}
			return a.printStates(states)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&runID, "run-id", "", "only those of this run")
	return cmd
}

func (a *app) printStates(states []cluster.State) error {
	tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tRUN\tPHASE\tSINCE\tNODE\tWHY")
	for _, s := range states {
		since, node := "-", s.Node
		if !s.Since.IsZero() {
			since = s.Since.UTC().Format(time.RFC3339)
		}
		if node == "" {
			node = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", report.OneLine(s.Annotations[deploy.AnnotationTarget]),
			report.OneLine(s.Labels[deploy.LabelRun]), s.Phase, since, report.OneLine(node), report.OneLine(s.Why()))
	}
	return tw.Flush()
}

// captures are the Jobs of captures in the namespace: those of a run, unless that is empty, and of targets that patterns
// select, unless there are none.
func (a *app) captures(ctx context.Context, client *cluster.Client, runID string, patterns []string) ([]cluster.State, error) {
	texts, err := readPatterns("target", patterns)
	if err != nil {
		return nil, err
	}
	var wanted []expect.Pattern
	for _, text := range texts {
		pattern, err := targetPattern(text)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, pattern)
	}
	selector := "app.kubernetes.io/managed-by=vllm-vcr," + deploy.LabelRun
	if runID != "" {
		selector += "=" + runID
	}
	states, err := client.List(ctx, selector)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	return slices.DeleteFunc(states, func(s cluster.State) bool {
		name := s.Annotations[deploy.AnnotationTarget]
		matches := func(p expect.Pattern) bool { return p.Match(name) }
		return name == "" || len(wanted) > 0 && !slices.ContainsFunc(wanted, matches)
	}), nil
}

func (a *app) captureCleanCommand() *cobra.Command {
	var f clusterFlags
	var runID string
	var all bool
	cmd := &cobra.Command{
		Use:   "clean [TARGET…]",
		Short: "Delete captures from a cluster",
		Long: "Delete the Jobs of captures, and wait until their pods are gone: those of targets, of a run, or both. What nobody\n" +
			"fetched is lost. Jobs that are not this program's are never touched.",
		Example: "  vllm-vcr capture clean --run-id 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && runID == "" && !all {
				return errors.New("nothing is given: want targets, --run-id or --all")
			}
			client, err := f.connect(a)
			if err != nil {
				return err
			}
			states, err := a.captures(cmd.Context(), client, runID, args)
			if err != nil {
				return err
			}
			return a.deleteAll(cmd.Context(), client, states)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&runID, "run-id", "", "those of this run")
	cmd.Flags().BoolVar(&all, "all", false, "all of the namespace, of whatever run")
	return cmd
}

func (a *app) deleteAll(ctx context.Context, client *cluster.Client, states []cluster.State) error {
	failed := 0
	for _, s := range states {
		text := fmt.Sprintf("%s: job %s of run %s deleted", s.Annotations[deploy.AnnotationTarget], s.Name, s.Labels[deploy.LabelRun])
		if err := client.Delete(ctx, s.Name); err != nil {
			failed++
			text = fmt.Sprintf("%s: %v", s.Annotations[deploy.AnnotationTarget], err)
		}
		if _, err := fmt.Fprintln(a.stdout, report.OneLine(text)); err != nil {
			return err
		}
	}
	if failed > 0 {
		return exitError{conformance.ExitInfra, fmt.Errorf("%d of %d jobs could not be deleted", failed, len(states))}
	}
	return nil
}
