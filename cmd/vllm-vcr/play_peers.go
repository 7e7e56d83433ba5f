package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/player"
)

// peerOptions say whom the player talks to beside its frontend, and what goes wrong.
type peerOptions struct {
	kvEvents   string
	hash       string
	kvTransfer string
	faults     string
}

func (opts *peerOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.kvEvents, "kv-events-config", "", "publish KV events, as vLLM with this JSON: enable_kv_cache_events, publisher, endpoint, replay_endpoint,\n"+
		"buffer_steps, hwm, max_queue_size, topic; VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES counts")
	flags.StringVar(&opts.hash, "prefix-caching-hash-algo", "", "how blocks are hashed: sha256, sha256_cbor, xxhash or xxhash_cbor, as KV events tell; PYTHONHASHSEED counts")
	flags.StringVar(&opts.kvTransfer, "kv-transfer-config", "", "be asked for KV caches, and ask for them, as vLLM's NixlConnector with this JSON;\n"+
		"VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT count")
	flags.StringVar(&opts.faults, "faults", "", "what goes wrong, for whom: KIND[:VALUE][@PROBABILITY][~ID-PATTERN],… of the kinds refuse, fail:N,\n"+
		"delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], wrong-token[:AFTER], kill[:AFTER]")
}

// put puts what the flags say into the options of count engines. close ends what listens.
func (opts *peerOptions) put(opt *player.Options, count int) (closeAll func(), err error) {
	if opt.Faults, err = player.ParseFaults(opts.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	if err := opts.putKVEvents(opt); err != nil {
		return nil, err
	}
	if opts.kvTransfer == "" {
		return func() {}, nil
	}
	t, err := player.ParseTransfer(opts.kvTransfer, os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("--kv-transfer-config: %w", err)
	}
	if t == nil {
		return func() {}, nil
	}
	side, err := t.Listen(opt.EngineIndex, count)
	if network := (*net.OpError)(nil); errors.As(err, &network) {
		return nil, exitError{conformance.ExitInfra, err}
	}
	if err != nil {
		return nil, err
	}
	opt.Transfer = t
	return side.Close, nil
}

func (opts *peerOptions) putKVEvents(opt *player.Options) (err error) {
	opt.KVCache.HashSeed, opt.KVCache.HashAlgorithm = os.Getenv("PYTHONHASHSEED"), kvcache.Algorithm(opts.hash)
	if opts.hash != "" {
		if _, err := chooseOne("--prefix-caching-hash-algo", opt.KVCache.HashAlgorithm, kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash, kvcache.XXHashCBOR); err != nil {
			return err
		}
	}
	if opts.kvEvents == "" {
		return nil
	}
	if opt.KVCache.Events, err = kvevents.ParseConfig(opts.kvEvents); err != nil {
		return fmt.Errorf("--kv-events-config: %w", err)
	}
	if opt.KVCache.Events == nil {
		return nil
	}
	if opt.KVCache.NoPrefixCaching {
		return errors.New("--kv-events-config: without prefix caching there is nothing to tell")
	}
	opt.KVCache.Events.Digests, err = kvevents.ParseIntHashes(os.Getenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"))
	return err
}
