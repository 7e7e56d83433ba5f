package vllmrs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// Version returns the release of a vllm-rs binary, such as "0.33.0". It needs no engine, so that the answer can decide
// which line the engine speaks.
//
// Binaries tell by --version since 0.29. An older one is as old as the Python package that it lies in; one that was
// taken out of its package does not say it, and is an error. GET /version does not help: its "version" is what the engine
// registered as, and its "rust_frontend_version" is 0.1.0 up to 0.28.
func Version(ctx context.Context, binary string) (string, error) {
	p, err := process.Start(exec.Command(binary, "--version"), process.Options{})
	if err != nil {
		return "", fmt.Errorf("version of vllm-rs: %w", err)
	}
	if err := p.Wait(ctx); err == nil {
		versionLine := regexp.MustCompile(`(?m)^vllm-rs (\d+\.\d+\S*)$`)
		if found := versionLine.FindStringSubmatch(p.Tail()); found != nil {
			return found[1], nil
		}
	}
	if err := p.Stop(ctx); err != nil {
		return "", fmt.Errorf("version of vllm-rs: %w", err)
	}
	if err := context.Cause(ctx); err != nil {
		return "", fmt.Errorf("version of %s: %w", binary, err)
	}
	version, err := packageVersion(binary)
	if err != nil {
		return "", fmt.Errorf("version of %s: it does not tell by --version (none does before 0.29): %w: name the line", binary, err)
	}
	return version, nil
}

// packageVersion is the version of the Python package that the binary lies in: …/vllm/vllm-rs beside …/vllm-X.dist-info.
func packageVersion(binary string) (string, error) {
	path, err := filepath.EvalSymlinks(binary)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	site := filepath.Dir(filepath.Dir(path))
	entries, err := os.ReadDir(site)
	if err != nil {
		return "", err
	}
	distFolder := regexp.MustCompile(`^vllm-(\d+\.\d+[^-]*)\.dist-info$`)
	var versions []string
	for _, entry := range entries {
		if found := distFolder.FindStringSubmatch(entry.Name()); found != nil {
			versions = append(versions, found[1])
		}
	}
	if len(versions) != 1 {
		return "", fmt.Errorf("%d folders vllm-VERSION.dist-info in %s [%s], want 1", len(versions), site, strings.Join(versions, " "))
	}
	return versions[0], nil
}

// Version returns the release of the running binary, see the function [Version].
func (s *Server) Version(ctx context.Context) (string, error) { return Version(ctx, s.opt.Binary) }
