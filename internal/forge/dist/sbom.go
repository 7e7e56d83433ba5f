package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

const sbomSuffix = ".cdx.json"

// writeSBOM writes what a binary says it was linked from as CycloneDX JSON.
func (p *product) writeSBOM(ctx context.Context, version, binary, path string, env []string) error {
	_, err := output(ctx, p.tools, env, "go", "tool", "cyclonedx-gomod",
		"bin", "-json", "-noserial", "-std", "-version", "v"+version, "-output", path, binary)
	if err != nil {
		return fmt.Errorf("SBOM: %w", err)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	settled, err := settleSBOM(written)
	if err != nil {
		return fmt.Errorf("SBOM: %w", err)
	}
	return os.WriteFile(path, settled, 0o644)
}

// settleSBOM leaves out what another run would say otherwise: when it was written, and the digests of the program that
// wrote it, which each machine builds for itself.
func settleSBOM(written []byte) ([]byte, error) {
	var bom map[string]any
	if err := json.Unmarshal(written, &bom); err != nil {
		return nil, err
	}
	metadata, ok := bom["metadata"].(map[string]any)
	if components, _ := bom["components"].([]any); !ok || len(components) == 0 {
		return nil, errors.New("it has no metadata or lists no component")
	}
	delete(metadata, "timestamp")
	tools, _ := metadata["tools"].([]any)
	for _, tool := range tools {
		if tool, ok := tool.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	var settled bytes.Buffer
	enc := json.NewEncoder(&settled)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(bom)
	return settled.Bytes(), err
}
