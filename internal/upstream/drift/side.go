package drift

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An UnknownLineError is about a line that this build has no profile of.
type UnknownLineError struct{ error }

var linePattern = lazyregexp.New(`^v?[0-9]+\.[0-9]+$`)

// IsLine reports whether a text is the name of a line, such as 0.33.
func IsLine(name string) bool { return linePattern().MatchString(name) }

// ReadSide reads one side of a comparison: a line of this build, a profile in a file NAME.json, or what [extract.Read] reads. An
// [UnknownLineError] and [extract.ErrNotNamed] are about the name.
func ReadSide(ctx context.Context, name, index string, log *slog.Logger) (wirediff.Source, error) {
	if IsLine(name) {
		p, err := protocol.LoadProfile(name)
		if err != nil {
			err = UnknownLineError{fmt.Errorf("%w: for another line give a release, such as %s.0", err, name)}
		}
		return wirediff.Source{Profile: p}, err
	}
	if strings.HasSuffix(name, ".json") {
		p, err := ReadProfile(name)
		if err != nil {
			return wirediff.Source{}, err
		}
		if err := checkProfile(p); err != nil {
			return wirediff.Source{}, fmt.Errorf("%s: %w", name, err)
		}
		return wirediff.Source{Profile: p}, nil
	}
	if protocol.HasProfile(name) {
		if p, err := protocol.LoadProfile(name); err == nil && p.Version == strings.TrimPrefix(name, "v") {
			return wirediff.Source{Profile: p}, nil
		}
	}
	got, err := extract.Read(ctx, extract.Request{Name: name, Index: index}, log)
	if err != nil {
		return wirediff.Source{}, err
	}
	return wirediff.Source{Profile: got.Profile, Gaps: Gaps(got.Profile, got.Gaps)}, nil
}

// ReadProfile reads a file that drift extract wrote.
func ReadProfile(path string) (*protocol.Profile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := protocol.ReadProfile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// checkProfile refuses a profile that no release has: a comparison with it would mean nothing.
func checkProfile(p *protocol.Profile) error {
	if line := protocol.LineOf(p.Version); line == p.Version || line != p.Line {
		return fmt.Errorf("its line is %q and its release is %q: want a release of the line", p.Line, p.Version)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Structs)) {
		s := p.Structs[name]
		if s.Encoding != "array" && s.Encoding != "map" {
			return fmt.Errorf("struct %q has the encoding %q: want array or map", name, s.Encoding)
		}
		seen := map[string]bool{}
		for _, f := range s.Fields {
			if seen[f.Name] {
				return fmt.Errorf("struct %q has the field %q twice", name, f.Name)
			}
			seen[f.Name] = true
		}
	}
	return nil
}
