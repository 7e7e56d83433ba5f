package main

import (
	"github.com/vllm-vcr/conformance/internal/serve"
)

// simulate makes the server do as llm-d-inference-sim, if the flags want that.
func (opts *serveOptions) simulate(env *environment, cfg *serve.Config) (err error) {
	opts.edge.fake.Model = cfg.Model.Name
	if len(cfg.Names) > 0 {
		opts.edge.fake.Model = cfg.Names[0]
	}
	if !opts.sim.On {
		return nil
	}
	o, err := opts.sim.Builtin(env.getenv)
	if err != nil {
		return err
	}
	cfg.Builtin.Simulator = o
	settings := opts.sim.Settings(o)
	opts.sim.Apply(cfg, &opts.edge.fake, settings)
	after := cfg.Ready
	cfg.Ready = func(s serve.Started) {
		settings.Add(s.Builtin...)
		after(s)
	}
	opts.play.source.plans, opts.play.timing.now, opts.play.peers.hashSeed = opts.sim.Plans, opts.sim.Times, opts.sim.HashSeed()
	tls, err := opts.sim.TLS()
	if tls != nil {
		cfg.HTTP.TLS, opts.edge.tls = tls, true
	}
	return infra(err)
}

// rankAsSimulator sets up the engine behind the frontend number n.
func (opts *serveOptions) rankAsSimulator(env *environment, play *playOptions, n int) error {
	rank, err := opts.sim.Rank(env.getenv, n)
	play.peers.rank, play.engine.opt.EngineIndex, play.engine.opt.DataParallelSize, play.engine.alone = 0, rank.Index, 1, true
	if play.peers.kvEvents == "" && rank.KVEvents != "" {
		play.peers.firstBatch, play.peers.kvEvents = 1, rank.KVEvents
	}
	return err
}
