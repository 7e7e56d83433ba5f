package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// realFrontends reads --frontend LINE=PATH.
func (opts *conformOptions) realFrontends(ctx context.Context) (map[string]conformance.RealFrontend, error) {
	if opts.model != "" && len(opts.frontends) == 0 && opts.subject.frontendCommand == "" {
		return nil, fmt.Errorf("--model is for --frontend or --frontend-command, of which none is given")
	}
	frontends := map[string]conformance.RealFrontend{}
	for _, value := range opts.frontends {
		line, path, named := strings.Cut(value, "=")
		if !named {
			line, path = "", value
		}
		if opts.model == "" {
			return nil, fmt.Errorf("--frontend needs --model, a directory with config.json and tokenizer.json")
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--frontend: %w", err)
		}
		if filepath.Base(path) == path {
			path = "." + string(filepath.Separator) + path // the file that is there, not one of $PATH
		}
		var err error
		if !named {
			if line, err = opts.frontendLine(ctx, path); err != nil {
				return nil, err
			}
		}
		if _, twice := frontends[line]; twice {
			return nil, fmt.Errorf("--frontend: line %s has two", line)
		}
		frontends[line] = conformance.RealFrontend{Binary: path, ModelDir: opts.model}
	}
	return frontends, nil
}

// frontendLine finds the line of a binary that is given without one: the line
// that --line names, else that of the release which the binary says it is.
func (opts *conformOptions) frontendLine(ctx context.Context, path string) (string, error) {
	if len(opts.sel.Lines) == 1 {
		return opts.sel.Lines[0], nil
	}
	version, err := vllmrs.Version(ctx, path)
	if err != nil {
		return "", fmt.Errorf("--frontend: %w; its line can be named: LINE=PATH", err)
	}
	return protocol.LineOf(version), nil
}

func (opts *conformOptions) selection(ctx context.Context) (sel conformance.Selection, err error) {
	sel = opts.sel
	if sel.Suite, err = opts.subject.chosenSuite(); err != nil {
		return sel, err
	}
	if sel.Frontends, err = opts.realFrontends(ctx); err != nil {
		return sel, err
	}
	if sel.Assertions, err = choose("--assertion", opts.assertions, conformance.AssertionsOf(sel.Suite)...); err != nil {
		return sel, err
	}
	if sel.Matches, err = choose("--match", opts.matches, player.MatchIndex, player.MatchPrefix); err != nil {
		return sel, err
	}
	if err = opts.subject.checkMatches(sel.Matches); err != nil {
		return sel, err
	}
	for _, n := range sel.Concurrency {
		if n < 1 {
			return sel, fmt.Errorf("--concurrency %d: want at least 1", n)
		}
	}
	if len(sel.Matches) == 0 && sel.Suite == conformance.SuiteReplay {
		sel.Matches = opts.subject.matches()
	}
	if err = opts.plan.sel(&sel); err != nil {
		return sel, err
	}
	sel.Enforce, err = chooseOne("--enforce", conformance.Enforce(opts.enforce),
		conformance.EnforceValidated, conformance.EnforceAll, conformance.EnforceNone)
	return sel, err
}

// choose converts words and refuses those that are not among the known ones.
func choose[T ~string](flag string, words []string, known ...T) ([]T, error) {
	var chosen []T
	for _, word := range words {
		one, err := chooseOne(flag, T(word), known...)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, one)
	}
	return chosen, nil
}

func chooseOne[T ~string](flag string, word T, known ...T) (T, error) {
	if !slices.Contains(known, word) {
		return "", fmt.Errorf("%s %q: want one of %v", flag, word, known)
	}
	return word, nil
}
