package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vllm-vcr/conformance/conformance/expect"
)

// maxPatternFile bounds a file of patterns, in bytes.
const maxPatternFile = 1 << 20

// readPatterns reads the values of a flag that takes patterns: one that begins with @
// names a file that holds one a line, with # before comments. A pattern that cannot be
// read is an error that names its place.
func readPatterns(flag string, values []string) ([]string, error) {
	var patterns []string
	for _, value := range values {
		path, isFile := strings.CutPrefix(value, "@")
		if !isFile {
			if _, err := expect.ParsePattern(value); err != nil {
				return nil, fmt.Errorf("%s: %w", flag, err)
			}
			patterns = append(patterns, value)
			continue
		}
		more, err := patternFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		patterns = append(patterns, more...)
	}
	return patterns, nil
}

// patternFile reads a file of patterns. One without any is an error: it would select
// nothing, which a flag that is not given does not mean.
func patternFile(path string) ([]string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxPatternFile:
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxPatternFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var patterns []string
	var wrong []error
	for i, line := range strings.Split(string(data), "\n") {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if _, err := expect.ParsePattern(text); err != nil {
			wrong = append(wrong, fmt.Errorf("%s:%d: %w", path, i+1, err))
		}
		patterns = append(patterns, text)
	}
	if len(patterns) == 0 {
		return nil, fmt.Errorf("%s: has no pattern", path)
	}
	return patterns, errors.Join(wrong...)
}
