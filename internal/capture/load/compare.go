package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/trace"
)

const (
	// slackMs is how much earlier than at the tap something may have come to the client, whose clock is another's.
	slackMs = 5.0
	// maxFindings are told one by one.
	maxFindings = 20
)

// Compare holds what the client saw against what the tap recorded, and says in a sentence each where they differ: a
// completed request is in exactly one trace, with as many tokens as the client was told, and nothing came to the client
// before it passed the tap; no trace has a request that the client did not send. A request that was aborted, by its
// client or by a frontend that found a stop string, may be in a trace or not. The readers must keep extra keys; several
// are the traces of several engines. The error is that of a reader.
func Compare(records []Record, traces ...*trace.Reader) (findings []string, err error) {
	c := comparison{taps: map[string]*tapped{}}
	for _, tr := range traces {
		if err := c.read(tr); err != nil {
			return nil, err
		}
	}
	for i := range records {
		c.hold(&records[i])
	}
	for _, id := range slices.Sorted(maps.Keys(c.taps)) {
		c.find("%s: request %s is in the trace, but the client did not send a request with this id", c.taps[id].place, id)
	}
	if c.more > 0 {
		c.findings = append(c.findings, fmt.Sprintf("and %d more", c.more))
	}
	return c.findings, nil
}

// tapped is what traces have of one of the client's requests: a record for each of its choices.
type tapped struct {
	place                    string // of the first record
	choices, prompt, outputs int
	ttft, whole              float64 // ms
	aborted                  bool
}

type comparison struct {
	taps     map[string]*tapped // by the client's id
	findings []string
	more     int
}

func (c *comparison) find(format string, args ...any) {
	if len(c.findings) == maxFindings {
		c.more++
		return
	}
	c.findings = append(c.findings, strings.Map(printable, fmt.Sprintf(format, args...)))
}

// printable keeps what a server or a trace says from being a line of its own.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// clientID is the client's part of an engine's id.
var clientID = lazyregexp.New(`load-[0-9]{6,}`)

func (c *comparison) read(tr *trace.Reader) error {
	for {
		var rec trace.Record
		if err := tr.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		place := fmt.Sprintf("%s:%d", tr.Name(), rec.Line)
		var full string
		if err := json.Unmarshal(rec.Extra["request_id"], &full); err != nil {
			return fmt.Errorf("%s: no request_id to compare by: want a trace that record wrote", place)
		}
		id := clientID().FindString(full)
		if id == "" {
			c.find("%s: request %q is in the trace, but the load generator sent no request with this id", place, full)
			continue
		}
		c.add(id, place, &rec)
	}
	if tr.Truncated() {
		c.find("%s is cut off", tr.Name())
	}
	return nil
}

func (c *comparison) add(id, place string, rec *trace.Record) {
	t := c.taps[id]
	if t == nil {
		t = &tapped{place: place, ttft: rec.TTFTMs}
		c.taps[id] = t
	}
	t.choices++
	t.prompt = max(t.prompt, rec.PromptTokens)
	t.outputs += rec.OutputTokens
	t.ttft, t.whole = min(t.ttft, rec.TTFTMs), max(t.whole, rec.EndMs(0))
	t.aborted = t.aborted || rec.FinishReason == trace.FinishAbort
}

// hold compares one of the client's requests.
func (c *comparison) hold(rec *Record) {
	t := c.taps[rec.ID]
	delete(c.taps, rec.ID)
	who := fmt.Sprintf("request %s (%s)", rec.ID, rec.Name)
	switch {
	case rec.Outcome == Failed || rec.Outcome == Unfinished:
		c.find("%s: %s: %s", who, rec.Outcome, rec.Error)
		return
	case rec.Outcome != Completed || rec.Choices == 0:
		return
	case t == nil && rec.StopText:
		return
	case t == nil:
		c.find("%s: completed, but the recorder has no record of it", who)
		return
	case rec.StopText:
		// The engine may have gone on until the abort reached it.
		if t.outputs < rec.CompletionTokens && !t.aborted {
			c.find("%s: %d tokens came to the client, but %s has %d", who, rec.CompletionTokens, t.place, t.outputs)
		}
		return
	}
	c.holdCounts(who, rec, t)
	c.holdTimes(who, rec, t)
}

func (c *comparison) holdCounts(who string, rec *Record, t *tapped) {
	if t.choices != rec.Choices {
		c.find("%s: %d choices, but %s and others have %d", who, rec.Choices, t.place, t.choices)
		return
	}
	if t.outputs != rec.CompletionTokens {
		c.find("%s: %d tokens came to the client, but %s has %d", who, rec.CompletionTokens, t.place, t.outputs)
	}
	// Of several prompts the server counts the sum.
	if rec.Choices == 1 && t.prompt != rec.PromptTokens {
		c.find("%s: the prompt has %d tokens for the client, but %d in %s", who, rec.PromptTokens, t.prompt, t.place)
	}
}

func (c *comparison) holdTimes(who string, rec *Record, t *tapped) {
	if rec.TTFTMs != nil && t.ttft > *rec.TTFTMs+slackMs {
		c.find("%s: the first token came to the client after %.1f ms, but passed the recorder after %.1f ms, %s", who, *rec.TTFTMs, t.ttft, t.place)
	}
	if t.whole > rec.DurationMs+slackMs {
		c.find("%s: the client had all after %.1f ms, but the last token passed the recorder after %.1f ms, %s", who, rec.DurationMs, t.whole, t.place)
	}
}
