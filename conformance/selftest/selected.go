package selftest

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/conformance/expect"
)

// selected are the tasks that the patterns leave. A pattern that matches no case,
// and patterns that leave none, are an error: nothing played is nothing proved.
func (cfg *Config) selected(tasks []*task) ([]*task, error) {
	run, err := patterns("run", cfg.Run, tasks)
	if err != nil {
		return nil, err
	}
	skip, err := patterns("skip", cfg.Skip, tasks)
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(slices.Clone(tasks), func(t *task) bool {
		return len(run) > 0 && !t.matches(run) || t.matches(skip)
	})
	if len(left) == 0 {
		return nil, fmt.Errorf("self-test: run %q and skip %q leave no case", cfg.Run, cfg.Skip)
	}
	return left, nil
}

// patterns reads patterns, each of which matches a task.
func patterns(what string, texts []string, tasks []*task) ([]expect.Pattern, error) {
	var all []expect.Pattern
	for _, text := range texts {
		p, err := expect.ParsePattern(text)
		if err != nil {
			return nil, fmt.Errorf("self-test: %s: %w", what, err)
		}
		one := []expect.Pattern{p}
		if !slices.ContainsFunc(tasks, func(t *task) bool { return t.matches(one) }) {
			return nil, fmt.Errorf("self-test: %s: pattern %q matches no case", what, text)
		}
		all = append(all, p)
	}
	return all, nil
}

func (t *task) matches(patterns []expect.Pattern) bool {
	c := t.fault.in(t.scene.cases[0].Line)
	return slices.ContainsFunc(patterns, func(p expect.Pattern) bool { return p.Match(c.Name()) })
}
