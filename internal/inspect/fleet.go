package inspect

import (
	"math/rand/v2"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// A Router says which of several engines gets a request.
type Router string

// Routers, the first one is the default. PrefixAware prefers the engine that has had most blocks of the beginning of the prompt, and
// of several the one with the fewest requests. Without hashes of prompts, it is LeastLoaded.
const (
	LeastLoaded Router = "least-loaded"
	RoundRobin  Router = "round-robin"
	Random      Router = "random"
	PrefixAware Router = "prefix-aware"
)

// Routers are all of them.
var Routers = []Router{LeastLoaded, RoundRobin, Random, PrefixAware}

// fleet lets several engines answer a workload.
func fleet(w *Workload, e Engine, model latency.Learned, what WhatIf, seed uint64) ([]trace.Record, error) {
	l := newLoad(w, e)
	engines := make([]*simulation, what.Replicas)
	for i := range engines {
		var err error
		if engines[i], err = newSimulation(l, e, model.Again(), seed+uint64(i)); err != nil {
			return nil, err
		}
	}
	return l.run(len(w.asks), l.router(what.Router, seed), engines...)
}

func (l *load) router(kind Router, seed uint64) func(index int, engines []*simulation) int {
	rng, count := rand.New(rand.NewPCG(seed, 3)), -1
	type cached struct {
		hash   uint64
		engine int
	}
	has := map[cached]bool{}
	return func(index int, engines []*simulation) int {
		switch kind {
		case Random:
			return rng.IntN(len(engines))
		case RoundRobin:
			count++
			return count % len(engines)
		}
		best, most := 0, -1
		hashes := l.workload.asks[index].record.BlockHashes
		for i, s := range engines {
			blocks := 0
			for kind == PrefixAware && blocks < len(hashes) && has[cached{hashes[blocks], i}] {
				blocks++
			}
			if blocks > most || blocks == most && s.scheduler.Len() < engines[best].scheduler.Len() {
				best, most = i, blocks
			}
		}
		for _, hash := range hashes {
			has[cached{hash, best}] = true
		}
		return best
	}
}
