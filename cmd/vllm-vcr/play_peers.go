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

// peerFlags say whom the player talks to beside its frontend, and what goes wrong.
type peerFlags struct {
	kvEvents   string
	hash       string
	kvTransfer string
	faults     string
}

func (f *peerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kvEvents, "kv-events-config", "", "publish KV events, as vLLM with this JSON: enable_kv_cache_events, publisher, endpoint, replay_endpoint,\n"+
		"buffer_steps, hwm, max_queue_size, topic; VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES counts")
	flags.StringVar(&f.hash, "prefix-caching-hash-algo", "", "how blocks are hashed: sha256, sha256_cbor, xxhash or xxhash_cbor, as KV events tell; PYTHONHASHSEED counts")
	flags.StringVar(&f.kvTransfer, "kv-transfer-config", "", "be asked for KV caches, and ask for them, as vLLM's NixlConnector with this JSON;\n"+
		"VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT count")
	flags.StringVar(&f.faults, "faults", "", "what goes wrong, for whom: KIND[:VALUE][@PROBABILITY][~ID-PATTERN],… of the kinds refuse, fail:N,\n"+
		"delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], wrong-token[:AFTER], kill[:AFTER]")
}

// put puts what the flags say into the options of count engines. close ends what listens.
func (f *peerFlags) put(opt *player.Options, count int) (closeAll func(), err error) {
	if opt.Faults, err = player.ParseFaults(f.faults); err != nil {
		return nil, fmt.Errorf("--faults: %w", err)
	}
	if err := f.putKVEvents(opt); err != nil {
		return nil, err
	}
	if f.kvTransfer == "" {
		return func() {}, nil
	}
	t, err := player.ParseTransfer(f.kvTransfer, os.Getenv)
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

func (f *peerFlags) putKVEvents(opt *player.Options) (err error) {
	opt.HashSeed, opt.HashAlgorithm = os.Getenv("PYTHONHASHSEED"), kvcache.Algorithm(f.hash)
	if f.hash != "" {
		if _, err := chooseOne("--prefix-caching-hash-algo", opt.HashAlgorithm, kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash, kvcache.XXHashCBOR); err != nil {
			return err
		}
	}
	if f.kvEvents == "" {
		return nil
	}
	if opt.KVEvents, err = kvevents.ParseConfig(f.kvEvents); err != nil {
		return fmt.Errorf("--kv-events-config: %w", err)
	}
	if opt.KVEvents == nil {
		return nil
	}
	if opt.NoPrefixCaching {
		return errors.New("--kv-events-config: without prefix caching there is nothing to tell")
	}
	opt.KVEvents.Digests, err = kvevents.ParseIntHashes(os.Getenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"))
	return err
}
