package drift

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check/httpdiff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Builtin is the layer builtin: requests to the builtin frontend of serve and to the vllm-rs of the release, each with
// a player behind it. Answers that differ, and are not in the table of known differences, are drift.
type Builtin struct {
	VCR    string // the path of vllm-vcr, which serves
	Binary string // vllm-rs
	Line   string // the line of the players
	Model  string // a model directory
	Known  []httpdiff.Known
	// Requests are those that are sent; nil for all.
	Requests []httpdiff.Request
	// Step gets what is being done; may be nil.
	Step func(step string)
}

// builtinRelease is the release whose vllm-rs the builtin frontend answers like: that of the newest line.
func builtinRelease() string {
	newest := compat.Version{}
	for _, line := range protocol.Lines() {
		p, err := protocol.LoadProfile(line)
		if err != nil {
			continue
		}
		if build, err := compat.ParseBuild(p.Version); err == nil && build.IsRelease() && build.Version.Compare(newest) > 0 {
			newest = build.Version
		}
	}
	return newest.String()
}

// isBuiltins reports whether the builtin frontend is to answer like the vllm-rs of a release.
func isBuiltins(build compat.Build) bool {
	since, err := compat.ParseBuild(builtinRelease())
	return err == nil && build.Version.Compare(since.Version) >= 0
}

// serveTime is how long a server may take to start.
const serveTime = 2 * time.Minute

// Run starts both servers and compares their answers.
func (b Builtin) Run(ctx context.Context) Layer {
	var urls [2]string
	for i, frontend := range []string{"builtin", b.Binary} {
		if b.Step != nil {
			b.Step("start serve --frontend " + []string{"builtin", "vllm-rs"}[i])
		}
		url, stop, err := b.serve(ctx, frontend)
		if err != nil {
			return Unjudged(BuiltinLayer, fmt.Errorf("serve with %s: %w", []string{"the builtin frontend", "its vllm-rs"}[i], err))
		}
		defer stop()
		urls[i] = url
	}
	if b.Step != nil {
		b.Step("send the same requests to both")
	}
	options := httpdiff.Options{
		A: httpdiff.Side{URL: urls[0]}, B: httpdiff.Side{URL: urls[1]}, Known: b.Known, Requests: b.Requests, Partial: b.Requests != nil, Settle: 10 * time.Second,
	}
	report, err := httpdiff.Run(ctx, options)
	if report == nil {
		return Unjudged(BuiltinLayer, err)
	}
	unknown := report.Unknown()
	if err == nil && len(unknown) > 0 {
		unknown = b.again(ctx, options, unknown)
	}
	layer := Layer{
		Name: BuiltinLayer, Verdict: None,
		Compared: fmt.Sprintf("the answers of serve --frontend builtin with those of its vllm-rs to %s, both with a player of line %s", safetext.Count(report.Requests, "request"), b.Line),
	}
	different := map[string]*LayerCase{}
	var cases []*LayerCase
	for _, d := range unknown {
		c := different[d.Request]
		if c == nil {
			c = &LayerCase{Name: d.Request, Verdict: Found}
			different[d.Request], cases = c, append(cases, c)
		} else {
			c.Message += "; "
		}
		c.Message = safetext.Clip(c.Message+safetext.Line(fmt.Sprintf("%s: builtin %s, vllm-rs %s", d.What, d.A, d.B)), maxReason)
	}
	for _, c := range cases {
		layer.Cases = append(layer.Cases, *c)
	}
	for _, k := range report.Unused {
		layer.Notes = append(layer.Notes, fmt.Sprintf("the known difference %s of %s does not occur any more", k.What, k.Request))
	}
	same := report.Requests - len(cases)
	switch {
	case err != nil:
		layer.Verdict, layer.Reason = Unknown, firstLine(err.Error())
	case len(cases) > 0:
		layer.Verdict, layer.Reason = Found, fmt.Sprintf("%s answered alike, %d not, first %s (%s)", safetext.Count(same, "request"), len(cases), cases[0].Name, unknown[0].What)
	case report.Answered == 0:
		layer.Verdict, layer.Vacuous, layer.Reason = Unknown, true, "nothing was compared: the servers refused every request to generate"
	default:
		layer.Reason = fmt.Sprintf("%s answered alike, %d of them with known differences", safetext.Count(same, "request"), report.Expected)
	}
	return layer
}

// again sends the groups of the requests whose answers differ once more, and returns the differences that occur again:
// whether an answer is complete before its client leaves is chance.
func (b Builtin) again(ctx context.Context, options httpdiff.Options, unknown []httpdiff.Difference) (same []httpdiff.Difference) {
	groups := map[string]bool{}
	for _, d := range unknown {
		group, _, _ := strings.Cut(d.Request, "/")
		groups[group] = true
	}
	all := options.Requests
	if all == nil {
		all = httpdiff.Corpus()
	}
	options.Requests, options.Partial = nil, true
	for _, r := range all {
		if group, _, _ := strings.Cut(r.Name, "/"); groups[group] {
			options.Requests = append(options.Requests, r)
		}
	}
	report, err := httpdiff.Run(ctx, options)
	if err != nil {
		return unknown
	}
	for _, d := range unknown {
		if slices.ContainsFunc(report.Unknown(), func(e httpdiff.Difference) bool { return d.Request == e.Request && d.What == e.What }) {
			same = append(same, d)
		}
	}
	return same
}

// serve starts a server and returns the URL of its frontend.
func (b Builtin) serve(ctx context.Context, frontend string) (url string, stop func(), err error) {
	args := []string{
		"serve", "--port", "0", "--json", "--quiet", "--vllm-version", b.Line, "--frontend", frontend, "--served-model-name", modelKey,
		"--frontend-env", "VLLM_SERVER_DEV_MODE=1", "--frontend-env", "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1", "--shutdown-timeout", "1s", b.Model,
	}
	if frontend != "builtin" { // it chooses parsers by the name of the folder
		args = append(args, "--", "--tool-call-parser", "hermes", "--reasoning-parser", "none")
		if protocol.RustScalesOut.Holds(b.Line) {
			args = append(args, "--enable-scale-out")
		}
	}
	cmd := exec.Command(b.VCR, args...)
	cmd.Env = process.Environment(os.Environ(), func(name, value string) bool {
		return !strings.HasPrefix(name, "VLLM_") && !process.Secret(name, value) // those of vLLM would change what is served
	})
	out, in := io.Pipe()
	cmd.Stdout = in
	p, err := process.Start(cmd, process.Options{Tail: 4 << 10, Guarded: true})
	if err != nil {
		return "", nil, err
	}
	stop = func() { _ = p.Stop(context.WithoutCancel(ctx)) }
	lines := make(chan []byte, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadBytes('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, out)
	}()
	limited, cancel := p.Patience(ctx, serveTime, fmt.Errorf("it does not serve within %v", serveTime))
	defer cancel()
	var served struct {
		URL    string   `json:"url"`
		Direct []string `json:"frontend_urls"`
	}
	select {
	case line := <-lines:
		if err := json.Unmarshal(line, &served); err != nil {
			stop()
			return "", nil, fmt.Errorf("it printed %s", safetext.Line(string(line)))
		}
	case <-p.Done():
		in.Close()
		return "", nil, errors.Join(p.Exit())
	case <-limited.Done():
		stop()
		return "", nil, context.Cause(limited)
	}
	if len(served.Direct) > 0 {
		return served.Direct[0], stop, nil // the edge before it would be seen
	}
	return served.URL, stop, nil
}

// builtin compares the builtin frontend with the frontend of the release.
func (r *running) builtin(ctx context.Context) Layer {
	r.mu.Lock() // static runs at the same time
	live := r.layers[LiveLayer]
	r.mu.Unlock()
	switch {
	case r.absent != nil:
		return notLooked(BuiltinLayer, "there is no frontend to compare it with")
	case !isBuiltins(r.Build):
		return notLooked(BuiltinLayer, "the builtin frontend answers as vLLM %s does, and not as an older release", builtinRelease())
	}
	if !live.serves() {
		return notLooked(BuiltinLayer, "the frontend does not serve, see %s", LiveLayer)
	}
	if err := Runs(ctx, r.Live.Binary); err != nil {
		return Unjudged(BuiltinLayer, err)
	}
	return Builtin{
		VCR: r.VCR, Binary: r.Live.Binary, Line: r.Line.Name, Model: r.Live.Model, Known: httpdiff.BuiltinKnown(),
		Step: func(step string) { r.step(BuiltinLayer, step) },
	}.Run(ctx)
}
