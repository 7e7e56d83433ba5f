package recorder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/vllm-vcr/conformance/trace"
)

// FrameOptions returns the options under which the frames file at path was
// written: with them [Derive] gives the very trace that was recorded then.
// A file without a meta line has the zero Options.
func FrameOptions(path string) (Options, error) {
	r, err := trace.OpenFrames(path, trace.Options{})
	if err != nil {
		return Options{}, err
	}
	defer r.Close()
	var opt Options
	if meta := r.Meta(); meta != nil {
		if err := json.Unmarshal(meta, &opt); err != nil {
			return Options{}, fmt.Errorf("%s: the meta line: %w", path, err)
		}
	}
	return opt, nil
}

// Derive reads the frames file at path and writes the traces of its engines,
// as if they were recorded now. sinks makes the outputs of a rank when its first
// message is met.
//
// A gzip stream that ends early, as a killed tap leaves it, is read to its last
// whole line, with a warning. On any other fault, or when ctx ends, no output
// comes to its place. counts and log may be nil.
func Derive(ctx context.Context, path string, opt Options, sinks func(rank int) (Sinks, error), counts *Counts, log *slog.Logger) error {
	r, err := trace.OpenFrames(path, trace.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	d := &derivation{opt: opt, sinks: sinks, counts: counts, log: log, observers: make(map[int]*Observer)}
	if err := d.run(ctx, r); err != nil {
		return d.abandon(err)
	}
	for _, warning := range r.Warnings() {
		log.Warn(warning)
	}
	if len(d.order) == 0 {
		return fmt.Errorf("%s has no messages, so no trace can be derived from it", path)
	}
	var errs []error
	for _, o := range d.order {
		errs = append(errs, o.Close())
	}
	return errors.Join(errs...)
}

// derivation is a run of Derive.
type derivation struct {
	opt       Options
	sinks     func(rank int) (Sinks, error)
	counts    *Counts
	log       *slog.Logger
	observers map[int]*Observer
	order     []*Observer // as ranks were met
}

func (d *derivation) run(ctx context.Context, r *trace.FrameReader) error {
	var m trace.Message
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.Next(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if m.Note != "" {
			if o := d.observers[m.Rank]; o != nil {
				o.Note(m.At, m.Note)
			}
			continue
		}
		o, err := d.observer(m.Rank)
		if err != nil {
			return err
		}
		ev := eventOf(&m)
		o.Observe(&ev)
	}
}

func (d *derivation) observer(rank int) (*Observer, error) {
	if o := d.observers[rank]; o != nil {
		return o, nil
	}
	sinks, err := d.sinks(rank)
	if err != nil {
		return nil, fmt.Errorf("outputs of rank %d: %w", rank, err)
	}
	o := NewObserver(d.opt, sinks, d.counts, d.log.With("engine", rank))
	d.observers[rank] = o
	d.order = append(d.order, o)
	return o, nil
}

// abandon ends the outputs without giving them their names.
func (d *derivation) abandon(err error) error {
	for _, o := range d.order {
		if partial := o.files.abandon(); len(partial) > 0 {
			err = fmt.Errorf("%w; what was derived before is in %q", err, partial)
		}
	}
	return err
}

// eventOf is the event of a line of a frames file; its frames are those of m.
func eventOf(m *trace.Message) Event {
	ev := Event{
		At: m.At, Rank: m.Rank, Client: m.Client, Direction: FromEngine,
		Frames: m.Frames, Elided: m.Elided,
	}
	for i, name := range channelNames {
		if name == m.Channel {
			ev.Channel = Channel(i)
		}
	}
	if m.Direction == trace.FrontendToEngine {
		ev.Direction = FromFrontend
	}
	return ev
}

// abandon ends all files without putting them in their places.
func (c *fileSet) abandon() (partial []string) {
	c.closed = true
	for _, s := range c.sinks {
		if s == nil {
			continue
		}
		if name := s.file.Abandon(); name != "" {
			partial = append(partial, name)
		}
	}
	return partial
}
