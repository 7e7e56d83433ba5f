package conformance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// capture reads the bytes of a capture to their end.
func (r *registrar) capture(raw []byte) (*check.Golden, error) {
	c := &check.Golden{Registered: manifest.Golden{Role: r.Role}, Location: r.Trace}
	var err error
	if c.Codec, err = check.CodecFor(r.line); err != nil {
		return nil, err
	}
	if r.Role.Raw() {
		c.Trace = &trace.Trace{Name: r.Trace}
		c.Trace.Meta, c.Frames, err = check.ReadFrames(raw, r.Trace)
		r.result.Messages = len(c.Frames)
		return c, err
	}
	reader, err := check.TraceReader(raw, r.Trace)
	if err != nil {
		return nil, err
	}
	if c.Trace, err = reader.ReadAll(); err != nil {
		return nil, err
	}
	if !reader.HasMeta() {
		return nil, fmt.Errorf("%s: line 1: no meta line, so what was captured is unknown: record it with `vllm-vcr record`", r.Trace)
	}
	c.Measure()
	return c, nil
}

// describe fills in the entry of the manifest.
func (r *registrar) describe(c *check.Golden) {
	sum := sha256.Sum256(r.data)
	meta := c.Trace.Meta
	g := &r.result.Golden
	*g = manifest.Golden{
		Line: r.line.Name, ID: r.ID, Workload: r.Workload, Role: r.Role, Scenario: r.Scenario, Seed: r.Seed,
		SHA256: hex.EncodeToString(sum[:]), Size: int64(len(r.data)),
		Records: len(c.Trace.Records), Streams: c.Streams, Tokens: c.Tokens,
		ConfigHash: trace.Or(meta.ConfigHash, ""), VLLMVersion: trace.Or(meta.VLLMVersion, ""),
		GPU: trace.Or(meta.GPU, ""), Model: trace.Or(meta.Model, ""), EngineConfig: trace.Or(meta.EngineConfig, ""),
		RecorderVersion: metaText(meta, "recorder_version"), EngineImage: r.EngineImage, EngineBuild: r.EngineBuild,
		CaptureRun: r.CaptureRun,
	}
	if c.Streams > 0 {
		g.TokensSHA256 = c.Digest
	}
	g.CapturedAt = r.CapturedAt
	if at := metaText(meta, "captured_at"); at != "" {
		g.CapturedAt, _ = time.Parse(time.RFC3339, at) // checked in check
	}
	g.BucketPath = r.path(g)
	r.result.Location = g.Location("", r.Goldens)
	if r.Upload != "" {
		g.BucketPath = strings.TrimRight(r.Upload, "/") + "/" + g.BucketPath
		r.result.Location = g.BucketPath
	}
}

// path is the key of the golden's bytes, which no others have:
// conformance/v0.33.0/cpu/tiny/multiturn-s7-4ff18b971fa3.jsonl.gz.
func (r *registrar) path(g *manifest.Golden) string {
	const digits = 12 // of the digest
	segments := []string{"conformance", pathSegment(trace.Or(r.meta.VLLMTag, r.line.Tag)), pathSegment(g.GPU)}
	for _, part := range strings.Split(g.Model, "/") {
		segments = append(segments, pathSegment(part))
	}
	return strings.Join(append(segments, pathSegment(r.ID+"-"+g.SHA256[:digits])+".jsonl.gz"), "/")
}

// pathSegment makes a text a part of a path that every store, every file system
// and go:embed take: the last leaves out what begins with a dot or an underscore.
func pathSegment(text string) string {
	text = strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
			return c
		}
		return '-'
	}, text)
	return cmp.Or(strings.TrimLeft(text, "._"), "-")
}

// metaText is a text of the meta line under a key of the recorder's own.
func metaText(meta trace.Meta, key string) string {
	var text string
	if json.Unmarshal(meta.Extra[key], &text) != nil {
		return ""
	}
	return text
}

// check returns everything that keeps a capture from becoming a golden, apart from
// its replay.
func (r *registrar) check(c *check.Golden) []error {
	meta := c.Trace.Meta
	f := replay.CheckLine(r.line, r.Trace, meta)
	r.checkPatch(&f, meta)
	r.checkConfig(&f, meta)
	r.checkReady(&f, c)
	r.checkRecords(&f, c)
	if at := metaText(meta, "captured_at"); at != "" && r.result.Golden.CapturedAt.IsZero() {
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.captured_at is %q, not a time as in 2026-01-31T12:00:00Z", r.Trace, at))
	}
	var problems []error
	for _, failure := range f.Failures {
		problems = append(problems, errors.New(failure.Message))
	}
	return problems
}

// checkPatch compares the captured release with the one of the line.
func (r *registrar) checkPatch(f *check.Outcome, meta trace.Meta) {
	release, err := compat.ParseVersion(r.line.Tag)
	captured := trace.Or(meta.VLLMVersion, "")
	if err != nil || release.IsCandidate() || r.line.IsTracker() || r.AllowPatchDrift || len(f.Failures) > 0 {
		return
	}
	public, _, _ := strings.Cut(captured, "+") // 0.33.0+cpu is a build of 0.33.0
	got, err := compat.ParseVersion(public)
	if err != nil || got.Major != release.Major || got.Minor != release.Minor || got.Patch != release.Patch || got.IsCandidate() {
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.vllm_version is %q, but %s stands for line %s: capture that release, or allow patch drift",
			r.Trace, captured, r.line.Tag, r.line.Name))
		return
	}
	if tag := trace.Or(meta.VLLMTag, r.line.Tag); tag != r.line.Tag {
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.vllm_tag is %q, but line %s is %s: record with --vllm-version %s", r.Trace, tag, r.line.Name, r.line.Tag, r.line.Tag))
	}
}

// checkConfig wants the fingerprint of the engine's configuration and everything
// that it is made of.
func (r *registrar) checkConfig(f *check.Outcome, meta trace.Meta) {
	complete := true
	for _, needed := range []struct {
		key, flag string
		value     *string
	}{
		{"config_hash", "", meta.ConfigHash},
		{"gpu", "--gpu", meta.GPU},
		{"model", "--model", meta.Model},
		{"vllm_tag", "--vllm-version", meta.VLLMTag},
		{"engine_config", "--engine-config", meta.EngineConfig},
	} {
		if trace.Or(needed.value, "") != "" {
			continue
		}
		complete = false
		hint := ""
		if needed.flag != "" {
			hint = ": record with " + needed.flag
			if r.Role.Raw() {
				hint += ", or give it to golden add"
			}
		}
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.%s is missing%s", r.Trace, needed.key, hint))
	}
	if !complete {
		return
	}
	if want := trace.ConfigHash(*meta.GPU, *meta.VLLMTag, *meta.EngineConfig); want != *meta.ConfigHash {
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.config_hash is %q, but gpu, vllm_tag and engine_config of the same meta give %s: record without --config-hash",
			r.Trace, *meta.ConfigHash, want))
	}
}

// checkReady wants a registration of the engine that has all that the line's
// frontends require, and that is of the engine which the meta line names.
func (r *registrar) checkReady(f *check.Outcome, c *check.Golden) {
	for _, m := range c.Frames {
		if len(m.Frames) == 1 && protocol.IsPlayer(m.Frames[0]) {
			f.Fail(r.notReleased(fmt.Sprintf("line %d", m.Line)))
			return
		}
	}
	if trace.Or(c.Trace.Meta.ReadyResponseHex, "") == "" {
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.ready_response_hex is missing: what the engine registered with was not recorded", r.Trace))
		return
	}
	failures := len(f.Failures)
	shape := check.CapturedShape(f, c)
	if len(f.Failures) > failures {
		return
	}
	declared := c.Codec.Profile().Structs["EngineCoreReadyResponse"]
	for _, field := range declared.Fields {
		if _, ok := shape[field.Name]; field.Required && !ok {
			f.Fail(check.Failed(check.CodeRegistration, "%s: meta.ready_response_hex has no %s, which frontends of line %s require (%s)", r.Trace, field.Name, r.line.Name, declared.Module))
		}
	}
	raw, _ := hex.DecodeString(*c.Trace.Meta.ReadyResponseHex) // it has a shape
	ready, err := protocol.DecodeReady(raw)
	switch {
	case protocol.IsPlayer(raw):
		f.Fail(r.notReleased("meta.ready_response_hex"))
	case err != nil:
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.ready_response_hex: %v", r.Trace, err))
	case ready.VLLMVersion != trace.Or(c.Trace.Meta.VLLMVersion, ""):
		f.Fail(check.Failed(check.CodeRegistration, "%s: meta.vllm_version is %q, but in meta.ready_response_hex the engine says %q", r.Trace, trace.Or(c.Trace.Meta.VLLMVersion, ""), ready.VLLMVersion))
	}
}

// notReleased refuses what the player of this project said: it repeats goldens, and proves nothing of an engine.
func (r *registrar) notReleased(place string) check.Failure {
	return check.Failed(check.CodeRegistration, "%s: %s: the engine registered with an instance_id that begins with %q, so it was the player of this project: "+
		"a golden is what a released vLLM engine said: put the recorder in front of one", r.Trace, place, protocol.PlayerInstance)
}

// checkRecords wants streams that a replay can tell right from wrong.
func (r *registrar) checkRecords(f *check.Outcome, c *check.Golden) {
	if r.Role != manifest.Fidelity {
		return
	}
	if c.Streams == 0 {
		f.Fail(check.Failed(check.CodeRegistration, "%v: record with --record-tokens", replay.NothingToReplay(c)))
	}
	for index, i := range trace.ReplaySubset(c.Trace.Records) {
		rec := &c.Trace.Records[i]
		// After which token an engine gives up, as when it is paused, depends on the moment.
		if rec.FinishReason == trace.FinishAbort && !rec.EndedByFrontend && rec.OutputTokenIDs != nil {
			f.Fail(check.Failed(check.CodeRegistration, "%s: line %d: the engine aborted the request, so a replay cannot tell what it should say: record without aborted requests", r.Trace, rec.Line).Of(index))
		}
	}
}
