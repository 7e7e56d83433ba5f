package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
	"github.com/vllm-vcr/conformance/player"
)

// maxReplicas bounds how many servers one process runs.
const maxReplicas = 4096

// fleetOptions are the flags of several servers in one process.
type fleetOptions struct {
	count     int
	replicas  bool // --replicas is given
	discovery string
	labels    map[string]string

	all []replica

	mu     sync.Mutex // held while the first replica reads what all share
	shared *sharedParts
	groups []*player.Group
}

// replica is what distinguishes the server of a fleet from the others.
type replica struct {
	endpoint serve.Endpoint
	topic    string // of KV events
	host     string // for KV events to listen on; empty for all addresses
}

func (opts *fleetOptions) add(flags *pflag.FlagSet, at *edgeOptions) {
	flags.IntVar(&opts.count, "replicas", 1, "number of servers in this process, each with a frontend, engines, KV cache, metrics and KV events of its own, at --port and the ports behind it")
	flags.BoolVar(&at.perAddress, "address-per-replica", false, "give each of the --replicas an address of its own in place of a port: --host, and the addresses behind it; so have pods, and KV events too have the same port at each address")
	flags.StringVar(&opts.discovery, "discovery-file", "", "`FILE` to keep a list of the servers in that can be asked, as the plugin file-discovery of llm-d's endpoint picker reads it; without those that drain or have ended (default none)")
	flags.StringToStringVar(&opts.labels, "discovery-labels", nil, "`LABELS` of the servers in --discovery-file, such as llm-d.ai/role=decode (default none)")
	above0(flags, "replicas")
	needs(flags, "address-per-replica", "replicas")
	needs(flags, "discovery-labels", "discovery-file")
	exclusive(flags, "replicas", "port-per-rank")
	exclusive(flags, "replicas", "engine-handshake")
	exclusive(flags, "replicas", "engine-command")
	exclusive(flags, "discovery-file", "uds")
	grouped(flags, "Fleet")
}

func (opts *fleetOptions) on() bool { return opts.replicas }

// split makes the configurations of the servers. show makes the discovery file list them.
func (opts *fleetOptions) split(env *environment, of *serveOptions, cfg serve.Config) (configs []serve.Config, show func(), err error) {
	name, namespace := cmp.Or(env.getenv("POD_NAME"), "vllm-vcr"), cmp.Or(env.getenv("POD_NAMESPACE"), "default")
	var endpoints []serve.Endpoint
	for n, l := range cfg.Listeners {
		host, port, err := net.SplitHostPort(publicAddress(l.Addr()))
		if err != nil {
			host, port = l.Addr().String(), ""
		}
		if ip := net.ParseIP(of.host); ip == nil || ip.IsUnspecified() {
			host = cmp.Or(env.getenv("POD_IP"), host)
		}
		e := serve.Endpoint{Name: name, Namespace: namespace, Address: host, Port: port, Labels: opts.labels}
		if len(cfg.Listeners) > 1 {
			e.Name += "-" + strconv.Itoa(n)
		}
		if ip := net.ParseIP(host); opts.discovery != "" && (ip == nil || ip.To4() == nil) {
			return nil, nil, fmt.Errorf("--discovery-file: routers want IPv4 addresses, and a server is at %s: give another --host, or the variable POD_IP", host)
		}
		endpoints = append(endpoints, e)
	}
	show = func() {}
	var discovery *serve.Discovery
	if opts.discovery != "" {
		if discovery, err = serve.NewDiscovery(opts.discovery, endpoints, env.log); err != nil {
			return nil, nil, infra(fmt.Errorf("--discovery-file: %w", err))
		}
		show = discovery.Show
	}
	if !opts.on() {
		if discovery != nil {
			numbers := make([]int, len(endpoints))
			for n := range numbers {
				numbers[n] = n
			}
			cfg.Reachable = func(up bool) { discovery.Set(up, numbers...) }
		}
		return []serve.Config{cfg}, show, nil
	}
	model := cfg.Model.Name
	if len(cfg.Names) > 0 {
		model = cfg.Names[0]
	}
	for n, e := range endpoints {
		r := replica{endpoint: e, topic: "kv@" + net.JoinHostPort(e.Address, e.Port) + "@" + model}
		if of.edge.perAddress {
			r.host = e.Address
		}
		opts.all = append(opts.all, r)
		one := cfg
		one.Name, one.Listeners = e.Name, cfg.Listeners[n:n+1]
		one.HTTP.PodName, one.HTTP.PodNamespace = e.Name, e.Namespace
		fake := &simulator.Fake{Model: of.edge.fake.Model}
		fake.Set(of.edge.shown, env.now())
		one.HTTP.Settings, one.HTTP.Policy.Metrics = []edge.Settings{fake}, fake.Metrics
		one.Engines = func(ctx context.Context, handshake string, _ int) (*serve.Engines, error) {
			return cfg.Engines(ctx, handshake, n)
		}
		if discovery != nil {
			one.Reachable = func(up bool) { discovery.Set(up, n) }
		}
		configs = append(configs, one)
	}
	return configs, show, nil
}

// prepare makes the engines of replica number n. What they share is made by the first call.
func (opts *fleetOptions) prepare(ctx context.Context, env *environment, flags *pflag.FlagSet, play *playOptions, n int) (p *played, err error) {
	opts.mu.Lock()
	defer opts.mu.Unlock()
	if opts.shared == nil {
		if opts.shared, err = play.prepareShared(ctx, env, flags); err != nil {
			return nil, err
		}
	}
	play.peers.replica, play.peers.rank = &opts.all[n], n*play.engine.count
	if p, err = opts.shared.engines(env, play); err == nil {
		opts.groups = append(opts.groups, p.group)
	}
	return p, err
}

// report prints what is known of the answers and the faults of all replicas, when they have ended.
func (opts *fleetOptions) report(env *environment) {
	if opts.shared == nil {
		return
	}
	if f := opts.shared.found; f != nil && f.Text() != "" {
		fmt.Fprintf(env.stderr, "vllm-vcr: %s\n", f.Text())
	}
	var each []func() ([]player.Fault, int)
	for _, g := range opts.groups {
		each = append(each, g.UnmatchedFaults)
	}
	unmatched, requests := unmatchedByAll(each)
	reportUnmatched(env, unmatched, requests, "engine request", "the request ids")
}

// unmatchedByAll are the faults that have concerned no request of any server, and the requests of all.
func unmatchedByAll[F any](each []func() ([]F, int)) (unmatched []F, requests int) {
	count := map[string]int{}
	for _, of := range each {
		faults, n := of()
		requests += n
		for _, f := range faults {
			if count[fmt.Sprint(f)]++; count[fmt.Sprint(f)] == len(each) {
				unmatched = append(unmatched, f)
			}
		}
	}
	return unmatched, requests
}

// check refuses what no fleet can be.
func (opts *fleetOptions) check(flags *pflag.FlagSet) error {
	opts.replicas = flags.Changed("replicas")
	switch {
	case opts.count > maxReplicas:
		return fmt.Errorf("--replicas %d: want at most %d: start several processes", opts.count, maxReplicas)
	case opts.on() && flags.Changed("frontend-handshake"):
		return errors.New("--frontend-handshake: each of the --replicas has a port of its own: leave it out")
	}
	return nil
}
