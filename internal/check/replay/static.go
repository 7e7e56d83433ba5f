package replay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// WrongBytes is what a golden's integrity finds when its store did.
func WrongBytes(mismatch error) (f check.Outcome) {
	f.Asserted = 1
	wrong := check.Failed(check.CodeDigest, "%v", mismatch)
	var m *golden.MismatchError
	switch {
	case !errors.As(mismatch, &m):
	case m.GotSHA256 == m.WantSHA256:
		wrong.Code = check.CodeSize
		wrong = wrong.Compared(m.WantSize, m.GotSize)
	default:
		wrong = wrong.Compared(m.WantSHA256, m.GotSHA256)
	}
	f.Fail(wrong)
	return f
}

// CheckIntegrity compares the stored bytes with the registered digest and size.
func CheckIntegrity(g manifest.Golden, location string, data []byte) (f check.Outcome) {
	f.Asserted = 1
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, g.SHA256) {
		f.Fail(check.Failed(check.CodeDigest, "%s: sha256 of %d bytes is %s, the manifest has %s: the file is not the one that was registered",
			location, len(data), got, g.SHA256).Compared(g.SHA256, got))
	}
	if g.Size != 0 && g.Size != int64(len(data)) {
		f.Fail(check.Failed(check.CodeSize, "%s: %d bytes, the manifest has size = %d", location, len(data), g.Size).Compared(g.Size, len(data)))
	}
	return f
}

// integrity is what came of the bytes when they were fetched.
func integrity(_ context.Context, _ *check.Env, g *check.Golden, _ check.Case) (check.Outcome, error) {
	return g.Integrity, nil
}

func sameLine(_ context.Context, _ *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	return CheckLine(c.Line, g.Location, g.Trace.Meta), nil
}

func provenance(_ context.Context, _ *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	return checkProvenance(g.Registered, c.Line, g.Location, g.Trace.Meta), nil
}

// CheckLine compares the version that the captured engine reported with the
// line. A tracker stands for any version.
func CheckLine(line compat.Line, location string, meta trace.Meta) (f check.Outcome) {
	f.Asserted = 1
	captured := trace.Or(meta.VLLMVersion, "")
	if captured == "" {
		f.Fail(check.Failed(check.CodeNoVersion, "%s: meta.vllm_version is missing, so the captured engine's line is unknown", location))
		return f
	}
	if compat.IsTracker(line.Name) {
		return f
	}
	if got, ok := compat.MinorLine(captured); !ok || got != line.Name {
		f.Fail(check.Failed(check.CodeOtherLine, "%s: meta.vllm_version is %q, which is not of line %s", location, captured, line.Name).Compared(line.Name, captured))
	}
	return f
}

// checkProvenance compares the stamped config hash with the registered one, and
// both with what follows from the configuration, where the trace or the
// manifest names it.
func checkProvenance(g manifest.Golden, line compat.Line, location string, meta trace.Meta) (f check.Outcome) {
	f.Asserted = 1
	stamped := trace.Or(meta.ConfigHash, "")
	if stamped == "" {
		f.Fail(check.Failed(check.CodeNoConfigHash, "%s: meta.config_hash is missing", location))
		return f
	}
	if stamped != g.ConfigHash {
		f.Fail(check.Failed(check.CodeOtherConfigHash, "%s: meta.config_hash is %q, the manifest has %s", location, stamped, g.ConfigHash).Compared(g.ConfigHash, stamped))
	}
	if meta.GPU != nil && meta.VLLMTag != nil && meta.EngineConfig != nil {
		f.Asserted++
		if want := trace.ConfigHash(*meta.GPU, *meta.VLLMTag, *meta.EngineConfig); want != stamped {
			f.Fail(check.Failed(check.CodeTraceConfig, "%s: meta.config_hash is %q, but gpu, vllm_tag and engine_config of the same meta give %s", location, stamped, want).Compared(want, stamped))
		}
	}
	if g.GPU != "" && g.EngineConfig != "" {
		f.Asserted++
		tag := trace.Or(meta.VLLMTag, line.Tag)
		if want := trace.ConfigHash(g.GPU, tag, g.EngineConfig); want != g.ConfigHash {
			f.Fail(check.Failed(check.CodeManifestConfig, "%s: gpu, engine_config and tag %s of the manifest give config_hash %s, the manifest has %s", location, tag, want, g.ConfigHash).Compared(want, g.ConfigHash))
		}
	}
	return f
}
