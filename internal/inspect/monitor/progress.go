package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/recorder"
)

const (
	// drawEvery is how often a line is redrawn.
	drawEvery = 500 * time.Millisecond
	// logEvery is how often the state is logged where there is no line.
	logEvery = 30 * time.Second
	// rateWindow is how far back tokens per second look, in drawings: five seconds.
	rateWindow = 10
)

// Progress shows how far a recording is.
type Progress struct {
	// Stats are the counters now.
	Stats func() recorder.Stats
	// Screen shows them on one line, every 500 ms. Without one they are logged every 30 s.
	Screen *Screen
	// Log is not nil. The state is logged at info.
	Log *slog.Logger
}

// Run shows progress until ctx ends, and takes the line away then.
func (p Progress) Run(ctx context.Context) {
	show, every := p.logged, logEvery
	if p.Screen != nil {
		show, every = p.draw(), drawEvery
		show()
		defer p.Screen.Draw("", "")
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			show()
		}
	}
}

func (p Progress) draw() func() {
	var rate rate
	start := time.Now()
	return func() {
		s, since := p.Stats(), time.Since(start)
		alarm := ""
		if s.Stopped > 0 {
			alarm = "RECORDING STOPPED"
		}
		p.Screen.Draw(alarm, line(s, since, rate.add(since, s.Tokens)))
	}
}

func (p Progress) logged() {
	s := p.Stats()
	attrs := []any{
		"engines", s.Engines, "in_flight", s.InFlight, "done", s.Done, "aborted", s.Aborted,
		"records", s.Records, "tokens", s.Tokens, "queued_bytes", s.Queued,
		"bytes_from_engine", s.Bytes[recorder.FromEngine], "bytes_from_frontend", s.Bytes[recorder.FromFrontend],
	}
	for _, m := range misses(s) {
		if m.count > 0 {
			attrs = append(attrs, m.name, m.count)
		}
	}
	if s.Stopped > 0 {
		p.Log.Warn("recording has stopped; messages are still forwarded", attrs...)
		return
	}
	p.Log.Info("recording", attrs...)
}

// line is the state in a line, what matters most first: the end of it is cut off on a narrow terminal.
func line(s recorder.Stats, since time.Duration, tokensPerSecond float64) string {
	parts := []string{clock(since)}
	if s.Engines == 0 {
		return parts[0] + " | waiting for an engine"
	}
	parts = append(parts,
		fmt.Sprintf("%d in flight, %d done", s.InFlight, s.Done),
		fmt.Sprintf("%.0f tok/s", tokensPerSecond),
		safetext.Count(int(s.Records), "record"))
	if s.Aborted > 0 {
		parts[1] += fmt.Sprintf(", %d aborted", s.Aborted)
	}
	for _, m := range misses(s) {
		if m.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", m.count, m.short))
		}
	}
	parts = append(parts, fmt.Sprintf("engine %s, frontend %s",
		size(s.Bytes[recorder.FromEngine]), size(s.Bytes[recorder.FromFrontend])))
	if s.Queued > 0 {
		parts = append(parts, size(uint64(s.Queued))+" queued")
	}
	return strings.Join(parts, " | ")
}

// rate is tokens per second over the last drawings.
type rate struct {
	samples []drawing
}

type drawing struct {
	since  time.Duration
	tokens uint64
}

func (r *rate) add(since time.Duration, tokens uint64) float64 {
	r.samples = append(r.samples, drawing{since, tokens})
	if len(r.samples) > rateWindow+1 {
		r.samples = r.samples[1:]
	}
	first := r.samples[0]
	if since <= first.since {
		return 0
	}
	return (float64(tokens) - float64(first.tokens)) / (since - first.since).Seconds()
}

// clock is a duration as 2:05 or 1:02:05.
func clock(d time.Duration) string {
	seconds := int64(d / time.Second)
	if seconds < 3600 {
		return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

// size is a number of bytes with three or more digits: 999 B, 12.3 kB, 1.0 MB.
func size(bytes uint64) string {
	if bytes < 1000 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1000, 0
	for value >= 999.95 && unit < len(units)-1 {
		value, unit = value/1000, unit+1
	}
	return fmt.Sprintf("%.1f %cB", value, units[unit])
}

// units are the prefixes of a kilobyte and above.
const units = "kMGTPE"
