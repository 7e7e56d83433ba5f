package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"
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
	// Seed decides all that is asked.
	Seed uint64
	// Idle is the longest silence of the server within a request, from sending it to the end of its answer; default
	// DefaultIdle.
	Idle time.Duration
	// Log tells of each request at debug level and of refusals; nil logs nothing.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	base, err := url.Parse(c.URL)
	switch {
	case err != nil, base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return c, fmt.Errorf("server %q: want http://HOST:PORT", c.URL)
	case c.Model == "":
		return c, errors.New("no model: want the name that the server knows it by")
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

// Check tells what is wrong with a configuration, before anything is sent.
func (c Config) Check() error {
	_, err := c.withDefaults()
	if err == nil {
		_, err = c.Workload.play()
	}
	return err
}

// Run plays a workload against a server and returns when every request has its answer. It ends at the first request
// that fails, with its name and cause: an answer that is cut off, late or incomplete, a status 5xx, or a refusal (4xx) of
// what every server takes. Refusals of the rest are in the report. The report is valid beside an error.
func Run(ctx context.Context, cfg Config) (Report, error) {
	report := Report{Workload: cfg.Workload, Seed: cfg.Seed, Model: cfg.Model}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return report, err
	}
	play, err := cfg.Workload.play()
	if err != nil {
		return report, err
	}
	l := &load{cfg: cfg, http: newTransport(), report: report}
	defer l.http.CloseIdleConnections()
	start := time.Now()
	err = play(ctx, l)
	l.report.Duration = time.Since(start)
	return l.report, err
}

// load is a workload at work.
type load struct {
	cfg  Config
	http client

	mu     sync.Mutex
	report Report
}

// do sends a request, counts how it ended, and returns the text of the answer. An error ends the workload.
func (l *load) do(ctx context.Context, r request) (string, error) {
	got, err := l.send(ctx, r)
	var no *refusal
	refused := errors.As(err, &no)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Requests++
	l.report.Tokens += got.tokens
	switch {
	case err == nil && r.hangUp > 0:
		l.report.Aborted++
	case err == nil:
		l.report.Completed++
	case refused && r.optional:
		l.report.Refused = append(l.report.Refused, Refusal{Request: r.name, Status: no.status, Answer: no.answer})
		l.cfg.Log.Info("refused", "request", r.name, "status", no.status, "answer", no.answer)
		return "", nil
	case ctx.Err() != nil:
		l.report.Unfinished++ // its failure is that of another, or an interrupt
		return "", context.Cause(ctx)
	default:
		l.report.Failed++
		return "", fmt.Errorf("%s: %s: %w", l.cfg.Workload, r.name, err)
	}
	l.cfg.Log.Debug("answered", "request", r.name, "tokens", got.tokens, "events", got.events)
	return got.text.String(), nil
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

// discard reads what is left of a body, within reason, so that its connection can serve again.
func discard(r io.Reader) { _, _ = io.Copy(io.Discard, io.LimitReader(r, maxQuote)) }
