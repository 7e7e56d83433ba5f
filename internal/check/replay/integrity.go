package replay

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// Codes of what the check reports.
const (
	CodeDigest check.Code = "I001" // the sha256 is not the registered one
	CodeSize   check.Code = "I002" // the size is not the registered one
)

//go:embed integrity.md
var integrityCheckCodes string

var integrityCheck = check.Check{Name: check.Integrity, Codes: integrityCheckCodes, Run: integrity}

// integrity is what came of the bytes when they were fetched.
func integrity(_ context.Context, _ *check.Env, g *check.Golden, _ check.Case) (check.Outcome, error) {
	return g.Integrity, nil
}

// CheckIntegrity compares the stored bytes with the registered digest and size.
func CheckIntegrity(g manifest.Golden, location string, data []byte) (f check.Outcome) {
	f.Asserted = 1
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, g.SHA256) {
		f.Fail(check.Failed(CodeDigest, "%s: sha256 of %d bytes is %s, the manifest has %s: the file is not the one that was registered",
			location, len(data), got, g.SHA256).Compared(g.SHA256, got))
	}
	if g.Size != 0 && g.Size != int64(len(data)) {
		f.Fail(check.Failed(CodeSize, "%s: %d bytes, the manifest has size = %d", location, len(data), g.Size).Compared(g.Size, len(data)))
	}
	return f
}

// WrongBytes is what a golden's integrity finds when its store did.
func WrongBytes(mismatch error) (f check.Outcome) {
	f.Asserted = 1
	wrong := check.Failed(CodeDigest, "%v", mismatch)
	var m *golden.MismatchError
	switch {
	case !errors.As(mismatch, &m):
	case m.GotSHA256 == m.WantSHA256:
		wrong.Code = CodeSize
		wrong = wrong.Compared(m.WantSize, m.GotSize)
	default:
		wrong = wrong.Compared(m.WantSHA256, m.GotSHA256)
	}
	f.Fail(wrong)
	return f
}
