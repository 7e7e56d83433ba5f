package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/trace"
)

// DefaultIdle is the default of Config.Idle. The first requests of an engine for the CPU take up to 20 seconds.
const DefaultIdle = 2 * time.Minute

// Config configures [Run].
type Config struct {
	// URL is the base of the server, "http://HOST:PORT".
	URL string
	// Model is the name that the server knows the model by.
	Model string
	// Workload is what is played.
	Workload Workload
	// Shape is how much of it; what it leaves open is the workload's default.
	Shape Shape
	// Seed decides all that is asked.
	Seed uint64
	// Idle is the longest silence of the server within a request, from sending it to the end of its answer; default
	// DefaultIdle.
	Idle time.Duration
	// Each, if not nil, is given what became of each request when it has ended, one at a time. An error of it ends the
	// workload.
	Each func(Record) error
	// OpenTrace, if not nil, opens the trace of Shape.Arrivals, which is otherwise a file. It may be called twice.
	OpenTrace func(name string) (*trace.Reader, error)
	// Log gets each request at debug level, and refusals; nil logs nothing.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	base, err := url.Parse(c.URL)
	switch {
	case err != nil, base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return c, fmt.Errorf("server %q: want http://HOST:PORT", c.URL)
	case c.Model == "":
		return c, errors.New("--model is not given: want the name that the server knows it by")
	case c.Idle < 0:
		return c, fmt.Errorf("idle time %v: want more than 0", c.Idle)
	}
	c.URL = strings.TrimSuffix(c.URL, "/")
	c.Idle = cmp.Or(c.Idle, DefaultIdle)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Check returns what is wrong with a configuration, before anything is sent.
func (c Config) Check() error {
	c, _, err := c.ready()
	if err == nil && c.Workload == Arrivals {
		_, _, err = c.readArrivals()
	}
	return err
}

// ready is the configuration with all that it leaves open.
func (c Config) ready() (Config, kind, error) {
	c, err := c.withDefaults()
	if err != nil {
		return c, kind{}, err
	}
	k, err := c.Workload.kind()
	if err != nil {
		return c, kind{}, err
	}
	if err := c.Shape.Check(c.Workload); err != nil {
		return c, kind{}, err
	}
	c.Shape = c.Shape.or(k.usual)
	return c, k, nil
}

// Run plays a workload against a server and returns when every request has its answer. It ends at the first request
// that fails, with its name and cause: an answer that is cut off, late or incomplete, a status 5xx, or a refusal (4xx) of
// what every server takes. Refusals of the rest are in the report. The report is valid beside an error.
func Run(ctx context.Context, cfg Config) (Report, error) {
	return run(ctx, cfg, openai.NewTransport())
}

func run(ctx context.Context, cfg Config, http client) (Report, error) {
	report := Report{Workload: cfg.Workload, Seed: cfg.Seed, Model: cfg.Model}
	cfg, k, err := cfg.ready()
	if err != nil {
		return report, err
	}
	report.Shape = cfg.Shape
	defer http.CloseIdleConnections()
	l := &load{cfg: cfg, http: http, start: time.Now(), report: report}
	err = k.play(ctx, l)
	l.report.Duration = time.Since(l.start)
	return l.report, err
}

// load is a workload at work.
type load struct {
	cfg   Config
	http  client
	start time.Time

	mu     sync.Mutex
	report Report
}

// do sends a request, counts how it ended, and returns the text of the answer. An error ends the workload.
func (l *load) do(ctx context.Context, r request) (string, error) {
	sent := time.Now()
	got, err := l.send(ctx, r)
	if err == nil {
		err = r.check(got)
	}
	rec := l.recordOf(&r, got, sent, time.Now())
	var no *refusal
	switch {
	case err == nil && r.hangUp > 0:
		rec.Outcome = Aborted
	case err == nil:
		rec.Outcome = Completed
	case errors.As(err, &no) && r.optional:
		rec.Outcome, rec.Error, err = Refused, err.Error(), nil
	case ctx.Err() != nil:
		err = context.Cause(ctx) // its failure is that of another, or an interrupt
		rec.Outcome, rec.Error = Unfinished, err.Error()
	default:
		rec.Outcome, rec.Error = Failed, err.Error()
		err = fmt.Errorf("%s: %s: %w", l.cfg.Workload, r.name, err)
	}
	if failed := l.count(rec, got, no); err == nil {
		err = failed
	}
	if err != nil || rec.Outcome == Refused {
		return "", err
	}
	return got.text.String(), nil
}

// count enters a request into the report, and hands its record on.
func (l *load) count(rec Record, got *answer, no *refusal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	report := &l.report
	report.Requests++
	report.Tokens += got.tokens
	if rec.DueMs != nil {
		report.Late = max(report.Late, duration(rec.SentMs-*rec.DueMs))
	}
	switch rec.Outcome {
	case Completed:
		report.Completed++
	case Aborted:
		report.Aborted++
	case Refused:
		report.Refused = append(report.Refused, Refusal{Request: rec.Name, Status: no.status, Answer: no.answer})
		l.cfg.Log.Info("refused", "request", rec.Name, "status", no.status, "answer", no.answer)
	case Failed:
		report.Failed++
	case Unfinished:
		report.Unfinished++
	}
	l.cfg.Log.Debug("request", "id", rec.ID, "name", rec.Name, "outcome", rec.Outcome, "tokens", got.tokens, "events", got.events)
	if l.cfg.Each == nil {
		return nil
	}
	if err := l.cfg.Each(rec); err != nil {
		return fmt.Errorf("write down request %s: %w", rec.ID, err)
	}
	return nil
}

// recordOf is what the client saw of a request, but for its outcome.
func (l *load) recordOf(r *request, got *answer, sent, ended time.Time) Record {
	rec := Record{
		ID: r.id(), Name: r.name, SentMs: ms(sent.Sub(l.start)), DurationMs: ms(ended.Sub(sent)), Status: got.status,
		Choices: r.answers, PromptTokens: got.prompt, FinishReason: got.finish,
	}
	if r.due != nil {
		due := ms(*r.due)
		rec.DueMs = &due
	}
	if got.usage {
		rec.CompletionTokens = got.tokens
	}
	if got.streaming && got.events > 0 {
		ttft := ms(got.first.Sub(sent))
		rec.TTFTMs, rec.ITLMs = &ttft, got.gaps
	}
	_, rec.StopText = r.body["stop"]
	return rec
}

// parallel calls f for 0 to n-1, at most limit at a time, and returns when all have returned. The first error ends the
// context of the others and is the one that is returned.
func parallel(ctx context.Context, n, limit int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan struct{}, limit)
	var running sync.WaitGroup
	for i := range n {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-free }()
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}
