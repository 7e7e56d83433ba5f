package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// exportKVEvents writes the vectors of each selected line into a folder of its own.
func exportKVEvents(ctx context.Context, env *environment, opts *exportOptions) error {
	run, err := beginFetch(env, &opts.fetch)
	if err != nil {
		return err
	}
	var lines []string
	vectors := map[string][]kvevents.Vector{}
	for _, g := range run.goldens {
		if !slices.Contains(lines, g.Line) {
			profile, err := protocol.LoadProfile(g.Line)
			if err != nil {
				return err
			}
			lines = append(lines, g.Line)
			if vectors[g.Line], err = kvevents.Vectors(profile); err != nil {
				return err
			}
		}
		if g.Role != manifest.Frames {
			continue
		}
		data, _, err := run.store.Fetch(ctx, g)
		if err == nil {
			vectors[g.Line], err = sentKVEvents(vectors[g.Line], g, data)
		}
		if err != nil {
			return exitError{worseCode(conformance.ExitOK, err), fmt.Errorf("golden %s/%s: %w", g.Line, g.ID, err)}
		}
	}
	for _, line := range lines {
		folder := filepath.Join(opts.kvEvents, line)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return infra(err)
		}
		for _, v := range vectors[line] {
			for suffix, data := range map[string][]byte{".msgpack": v.Payload(), ".json": v.Meaning()} {
				if err := atomicfile.Write(filepath.Join(folder, v.Name+suffix), data, 0o644); err != nil {
					return infra(err)
				}
			}
		}
		if _, err := fmt.Fprintf(env.stdout, "%s: %s\n", safetext.Line(filepath.ToSlash(folder)), safetext.Count(len(vectors[line]), "message")); err != nil {
			return err
		}
	}
	return nil
}

// sentKVEvents adds the first message of each kind that the engine of a golden sent.
func sentKVEvents(vectors []kvevents.Vector, g manifest.Golden, data []byte) ([]kvevents.Vector, error) {
	r, err := trace.NewFrameReader(bytes.NewReader(data), g.ID, true, trace.Options{Strict: true})
	if err != nil {
		return nil, err
	}
	for {
		var m trace.Message
		if err := r.Next(&m); errors.Is(err, io.EOF) {
			return vectors, nil
		} else if err != nil {
			return nil, err
		}
		if m.Channel != "kv_events" || len(m.Frames) < 2 {
			continue
		}
		for _, kind := range kvevents.Shown(m.Frames[len(m.Frames)-1]) {
			name := "engine-" + kind
			if slices.ContainsFunc(vectors, func(v kvevents.Vector) bool { return v.Name == name }) {
				continue
			}
			what := fmt.Sprintf("the first event of this kind in the session of golden %s", g.ID)
			vectors = append(vectors, kvevents.Vector{Name: name, What: what, MadeBy: "vLLM " + g.VLLMVersion, Line: g.Line, Frames: m.Clone().Frames})
			break // one vector for a message
		}
	}
}
