package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
)

// What --print-plan prints.
const (
	planCases    = "cases"
	planRequests = "requests"
)

// planOptions are the flags of conform about cases by their names: which to run, which
// are known to fail, and what to print instead of running any.
type planOptions struct {
	run, skip    []string
	expectations string
	update       bool
	list         bool
	printPlan    string
	explain      string
}

func (opts *planOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&opts.run, "run", nil, "run only the cases whose names match one of these patterns: * is any text within a component, ** any components; @FILE reads them from a file, one a line (default all)")
	flags.StringSliceVar(&opts.skip, "skip", nil, "leave out the cases whose names match one of these patterns; @FILE as with --run")
	flags.StringVar(&opts.expectations, "expectations", "", "what is known to fail (default ./"+vcr.ExpectationsPath+", else the one in the binary)")
	flags.BoolVar(&opts.update, "update-expectations", false, "after the run, add what failed to the file of expectations and remove what nothing needs any more")
	flags.BoolVar(&opts.list, "list", false, "print the selected cases as a table, and end")
	flags.StringVar(&opts.printPlan, "print-plan", "", "print the cases that would run, or the requests of each fidelity case with =requests, and end")
	flags.Lookup("print-plan").NoOptDefVal = planCases
	flags.StringVar(&opts.explain, "explain", "", "print what a finding's code means, such as F001, and end")
}

// sel completes a selection with the patterns.
func (opts *planOptions) sel(sel *conformance.Selection) (err error) {
	if opts.update && expectationsPath(opts.expectations) == "" {
		return errNoExpectations
	}
	switch opts.printPlan {
	case "true": // it was a flag without a value, and can be set in the environment
		opts.printPlan = planCases
	case "", "false":
		opts.printPlan = ""
	default:
		if _, err := chooseOne("--print-plan", opts.printPlan, planCases, planRequests); err != nil {
			return err
		}
	}
	if sel.Run, err = readPatterns("--run", opts.run); err != nil {
		return err
	}
	sel.Skip, err = readPatterns("--skip", opts.skip)
	return err
}

// prints tells whether something is printed instead of a run.
func (opts *planOptions) prints() bool { return opts.list || opts.printPlan != "" }

// check refuses flags that would be without effect, as something is printed instead of
// a run.
func (opts *planOptions) check(given *pflag.FlagSet) error {
	var printing []string
	for _, flag := range []struct {
		name string
		on   bool
	}{
		{"--explain", opts.explain != ""},
		{"--list", opts.list},
		{"--print-plan", opts.printPlan != "" && opts.printPlan != "false"},
	} {
		if flag.on {
			printing = append(printing, flag.name)
		}
	}
	if len(printing) > 1 {
		return fmt.Errorf("%s: want one of these", strings.Join(printing, " and "))
	}
	if len(printing) == 0 {
		return nil
	}
	for _, name := range []string{"json", "report-dir", "update-expectations", "keep-alive"} {
		if flag := given.Lookup(name); flag.Changed && flag.Value.String() != "false" {
			return fmt.Errorf("%s runs nothing, so it has no use for --%s", printing[0], name)
		}
	}
	return nil
}

// printPlanned prints what was asked for instead of a run.
func printPlanned(ctx context.Context, env *environment, opts *conformOptions, runner *conformance.Runner, cases []conformance.Case) (err error) {
	switch {
	case opts.plan.list:
		return conformance.List(env.stdout, cases)
	case opts.plan.printPlan == planCases:
		return printPlan(env, cases)
	}
	if runner.Store, err = openStore(env, &opts.store); err != nil {
		return err
	}
	if err := runner.Requests(ctx, env.stdout, cases); err != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("--print-plan=%s: %w", planRequests, err)}
	}
	return nil
}

// updateAfterRun brings the expectations up to date after a run, if that was asked for, and
// returns how the command ends: as the report said, unless that cannot be done.
func updateAfterRun(env *environment, opts *planOptions, r *conformance.Report, all []conformance.Case, reported error) error {
	if !opts.update {
		return reported
	}
	err := updateExpectations(env, opts.expectations, r, all)
	switch {
	case err == nil:
		return reported
	case reported == nil, errors.Is(reported, errReported):
		return exitError{cmp.Or(r.ExitCode, conformance.ExitUsage), err}
	}
	return errors.Join(reported, err)
}
