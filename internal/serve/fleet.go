package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// A Fleet is several servers in one process. Each has listeners and engines of its own, and may end before the others.
type Fleet struct {
	servers []*Server
	log     *slog.Logger
	ready   func(Started)

	mu      sync.Mutex
	started []*Started // by server; nil before it is ready
}

// NewFleet makes the servers. ready is called when all of them answer, with what all of them run. The one of a fleet of
// one is also called after each restart.
func NewFleet(configs []Config, ready func(Started)) (*Fleet, error) {
	f := &Fleet{log: configs[0].Log, ready: ready, started: make([]*Started, len(configs))}
	for n, cfg := range configs {
		own := cfg.Ready
		cfg.Ready = func(s Started) {
			own(s)
			f.isReady(n, s)
		}
		s, err := New(cfg)
		if err != nil {
			for _, s := range f.servers {
				s.release()
			}
			return nil, named(cfg.Name, err)
		}
		f.servers = append(f.servers, s)
	}
	return f, nil
}

// Servers are those of the fleet.
func (f *Fleet) Servers() []*Server { return f.servers }

func named(name string, err error) error {
	if name == "" || err == nil {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (f *Fleet) isReady(n int, s Started) {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := f.started[n] != nil
	f.started[n] = &s
	switch {
	case slices.Contains(f.started, nil):
		return
	case again && len(f.started) > 1:
		f.log.Info("the replica answers again", "replica", f.servers[n].cfg.Name, "restarts", s.Restarts)
		return
	}
	all := *f.started[0]
	for _, s := range f.started[1:] {
		all.Pids, all.Upstreams, all.Builtin = append(all.Pids, s.Pids...), append(all.Upstreams, s.Upstreams...), append(all.Builtin, s.Builtin...)
	}
	f.ready(all)
}

// Run serves until ctx ends, as [Server.Run] does. A server that ends before is left out, unless not all have been ready:
// then all are stopped. The error is that of the last one that ended.
func (f *Fleet) Run(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make([]error, len(f.servers))
	over := make(chan int)
	for n, s := range f.servers {
		go func() {
			ended[n] = named(s.cfg.Name, s.Run(running))
			over <- n
		}()
	}
	var failed error
	for range f.servers {
		n := <-over
		if ended[n] == nil || running.Err() != nil && failed != nil {
			continue
		}
		failed = ended[n]
		f.mu.Lock()
		starting := slices.Contains(f.started, nil)
		f.mu.Unlock()
		if starting {
			stop()
		} else if len(f.servers) > 1 {
			f.log.Error("a replica has ended, the others go on", "error", failed)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return failed
}

// An Endpoint is a server as routers find it: an entry of the file that the plugin file-discovery of llm-d's endpoint
// picker reads.
type Endpoint struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Address   string            `json:"address"` // IPv4
	Port      string            `json:"port"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Discovery is a file with the endpoints to which requests can be sent. From the call of Show on, it is replaced at each
// change.
type Discovery struct {
	path string
	all  []Endpoint
	log  *slog.Logger

	mu      sync.Mutex
	shown   bool
	up      []bool
	changes int

	writing sync.Mutex
	written int // changes that the file has
}

// NewDiscovery writes a file without endpoints.
func NewDiscovery(path string, all []Endpoint, log *slog.Logger) (*Discovery, error) {
	d := &Discovery{path: path, all: all, log: log, up: make([]bool, len(all))}
	return d, d.write([]Endpoint{})
}

// Set notes whether requests can be sent to endpoints, which are given by their numbers.
func (d *Discovery) Set(up bool, numbers ...int) {
	d.mu.Lock()
	for _, n := range numbers {
		d.up[n] = up
	}
	d.mu.Unlock()
	d.update(false)
}

// Show writes all that were set before.
func (d *Discovery) Show() { d.update(true) }

func (d *Discovery) update(show bool) {
	d.mu.Lock()
	d.shown = d.shown || show
	d.changes++
	change, shown := d.changes, d.shown
	d.mu.Unlock()
	if !shown {
		return
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.written >= change {
		return // another call has written this one's too
	}
	d.mu.Lock()
	listed := []Endpoint{}
	for n, e := range d.all {
		if d.up[n] {
			listed = append(listed, e)
		}
	}
	d.written = d.changes
	d.mu.Unlock()
	if err := d.write(listed); err != nil {
		d.log.Error("the discovery file could not be written: routers see an old one", "error", err)
	}
}

func (d *Discovery) write(listed []Endpoint) error {
	file := struct {
		Endpoints []Endpoint `json:"endpoints"`
	}{listed}
	text, err := json.MarshalIndent(file, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(d.path, append(text, '\n'), 0o644)
}
