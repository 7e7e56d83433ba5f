package adopt

import (
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/tomlfile"
)

// SetValidated says in a window whether the goldens of a line are a gate, and returns the window as it is then.
func SetValidated(path, line string, validated bool) (*compat.Matrix, error) {
	text, window, err := compat.LoadText(path)
	if err != nil {
		return nil, err
	}
	lines, err := window.Set(compat.Change{Line: line, Validated: &validated})
	if err != nil {
		return nil, err
	}
	after, err := compat.Rewrite(path, text, lines)
	if err != nil {
		return nil, err
	}
	window, _ = compat.Parse(path, after)
	return window, tomlfile.Replace(path, after)
}
