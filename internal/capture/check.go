package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/trace"
)

// check returns what a recording's cassette comes to, and everything that is against the recording apart from its
// replay.
func check(rec Recording) (measure, []string) {
	c := checker{rec: rec}
	c.checkLoad()
	c.checkImage()
	c.checkFolder()
	c.checkCassette()
	c.checkSteps()
	c.checkFrames()
	c.checkClient()
	return c.cassette, c.findings
}

// A checker gathers what is against a recording.
type checker struct {
	rec      Recording
	cassette measure
	whole    bool // the cassette could be read to its end
	findings []string
}

func (c *checker) fail(format string, args ...any) {
	c.findings = append(c.findings, fmt.Sprintf(format, args...))
}

// checkLoad wants a client that was answered all that it asked, and that asked what the target says.
func (c *checker) checkLoad() {
	t, l := c.rec.Target, c.rec.Load
	where := filepath.Join(c.rec.Dir, target.LoadFile)
	if l.Workload != t.Workload.Kind || l.Seed != t.Seed {
		c.fail("%s: %s with seed %d was played, but the target asks for %s with seed %d", where, l.Workload, l.Seed, t.Workload.Kind, t.Seed)
	}
	if l.Failed > 0 || l.Unfinished > 0 {
		c.fail("%s: %d requests failed and %d were not finished: what the engine said to them is no golden", where, l.Failed, l.Unfinished)
	}
	if l.Completed == 0 {
		c.fail("%s: no request was completed", where)
	}
}

// checkImage wants the engine that ran to be the one that the target names.
func (c *checker) checkImage() {
	_, wanted := splitDigest(c.rec.Target.Images.Engine)
	image, ran := splitDigest(c.rec.EngineImage)
	switch {
	case ran == "" && strings.Contains(image, "@"):
		c.fail("engine image %q: want one with its digest", image)
	case wanted != "" && image == "":
		c.fail("nobody knows which image the engine ran: the target asks for %s", wanted)
	case wanted != "" && ran != "" && wanted != ran:
		c.fail("the engine ran %s, but the target asks for %s: the registry has other bytes under this name", ran, wanted)
	}
}

// checkFolder looks for traces of a second engine, or of a tap that did not finish.
func (c *checker) checkFolder() {
	entries, err := os.ReadDir(c.rec.Dir)
	if err != nil {
		c.fail("%v", err)
		return
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.Contains(name, ".partial-"):
			c.fail("%s: the tap did not finish it", filepath.Join(c.rec.Dir, name))
		case strings.Contains(name, ".rank"):
			c.fail("%s: a second engine was recorded: want one", filepath.Join(c.rec.Dir, name))
		}
	}
}

// checkCassette wants the cassette to be of the target's engine, and to have every answer with its tokens.
func (c *checker) checkCassette() {
	path, t := c.rec.Trace, c.rec.Target
	m, err := measureCassette(path)
	c.cassette = m
	if err != nil {
		c.fail("%v", err)
		return
	}
	c.whole = true
	release, _, _ := strings.Cut(orEmpty(m.Meta.VLLMVersion), "+") // 0.33.0+cpu is a build of 0.33.0
	if nightly := t.Release() == "nightly"; release != t.Release() && !nightly {
		c.fail("%s: the engine said it is %q, but the target is of vLLM %s", path, orEmpty(m.Meta.VLLMVersion), t.Release())
	}
	if got, want := orEmpty(m.Meta.ConfigHash), t.ConfigHash(); got != want {
		c.fail("%s: meta.config_hash is %q, but the configuration of the target gives %s (recorded engine_config %q, wanted %q)",
			path, got, want, orEmpty(m.Meta.EngineConfig), t.EngineConfig())
	}
	switch {
	case m.Records == 0:
		c.fail("%s: the tap recorded no request: was the client connected to the frontend behind it?", path)
	case m.Bare > 0:
		c.fail("%s:%d: a request that was aborted, or has no tokens: record with --record-tokens and without aborted ones", path, m.Bare)
	}
	// Of edge cases some requests do not reach the engine.
	if done := c.rec.Load.Completed; t.Workload.Kind != load.Edge && m.Records > 0 && m.Records < done {
		c.fail("%s: has %d requests, but the client completed %d", path, m.Records, done)
	}
}

// stepSlack is how far the last statistics may be before the end of the last answer, in ms: both are of the same message,
// or of the one behind it.
const stepSlack = 1000

// checkSteps wants the statistics of the same engine's steps, over all of the cassette's time.
func (c *checker) checkSteps() {
	if c.rec.Steps == "" {
		c.fail("%s: there are no statistics of steps: record with --step-stats-out", c.rec.Dir)
		return
	}
	lines, busy, last, err := readSteps(c.rec.Steps)
	switch {
	case err != nil:
		c.fail("%v", err)
	case lines == 0:
		c.fail("%s: there are no statistics in it: does the engine run with --disable-log-stats?", c.rec.Steps)
	case !c.whole || c.cassette.Records == 0:
	case busy == 0:
		c.fail("%s: in none of %d steps was a request running, but the cassette has %d: they are of another engine",
			c.rec.Steps, lines, c.cassette.Records)
	case last+stepSlack < c.cassette.Ends:
		c.fail("%s: ends at %s ms, but the last answer at %s ms: they are of another engine, or cut off",
			c.rec.Steps, ms(last), ms(c.cassette.Ends))
	}
}

// readSteps counts the statistics of a sidecar, and those with a running request, and tells the time of the last.
func readSteps(path string) (lines, busy int, last float64, err error) {
	r, err := trace.OpenSteps(path, trace.Options{Strict: true})
	if err != nil {
		return 0, 0, 0, err
	}
	defer r.Close()
	var s trace.StepStats
	for {
		err := r.Next(&s)
		if errors.Is(err, io.EOF) {
			return lines, busy, last, nil
		}
		if err != nil {
			return lines, busy, last, err
		}
		lines++
		last = s.TsMs
		if s.Scheduler.NumRunningReqs > 0 {
			busy++
		}
	}
}

// checkFrames wants one life of one engine: it says HELLO once.
func (c *checker) checkFrames() {
	if c.rec.Frames == "" {
		c.fail("%s: there are no raw frames: record with --frames-out", c.rec.Dir)
		return
	}
	hellos, ranks, err := countHellos(c.rec.Frames)
	switch {
	case err != nil:
		c.fail("%v", err)
	case hellos != 1 || ranks != 1:
		c.fail("%s: %d engines came %d times: a golden is one life of one engine", c.rec.Frames, ranks, hellos)
	}
}

func countHellos(path string) (hellos, ranks int, err error) {
	r, err := trace.OpenFrames(path, trace.Options{Strict: true})
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	seen := map[int]bool{}
	var m trace.Message
	for {
		err := r.Next(&m)
		if errors.Is(err, io.EOF) {
			return hellos, len(seen), nil
		}
		if err != nil {
			return hellos, len(seen), err
		}
		isHello := func(frame []byte) bool { return bytes.Contains(frame, []byte("HELLO")) }
		if m.Channel == "handshake" && m.Direction == trace.EngineToFrontend && slices.ContainsFunc(m.Frames, isHello) {
			hellos++
			seen[m.Rank] = true
		}
	}
}

// checkClient holds what the client saw against what the tap recorded.
func (c *checker) checkClient() {
	if c.rec.Requests == "" || !c.whole {
		return
	}
	records, err := load.ReadRecords(c.rec.Requests)
	if err != nil {
		c.fail("%v", err)
		return
	}
	tap, err := trace.Open(c.rec.Trace, trace.Options{Strict: true, KeepExtra: true})
	if err != nil {
		c.fail("%v", err)
		return
	}
	defer tap.Close()
	findings, err := load.Compare(records, tap)
	if err != nil {
		c.fail("%v", err)
	}
	for _, finding := range findings {
		c.fail("%s: %s", c.rec.Requests, finding)
	}
}

func orEmpty(text *string) string { return trace.Or(text, "") }
