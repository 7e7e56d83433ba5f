package kvtransfer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Params are the kv_transfer_params of a request.
type Params struct {
	Produce bool     // do_remote_decode: keep the KV cache for another engine
	Consume bool     // do_remote_prefill: pull it from another engine
	Cache   Cache    // to pull
	groups  int      // of layers, in remote_block_ids, that have blocks
	present []string // keys of cache that are there
}

// neededToPull are the keys without which nothing can be pulled.
var neededToPull = []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"}

// DecodeParams reads a msgpack map. Keys that it does not know are no error.
func DecodeParams(raw []byte) (*Params, error) {
	cur := pack.NewCursor(raw)
	if cur.Nil() {
		return nil, nil
	}
	n, err := cur.MapLen()
	if err != nil {
		return nil, err
	}
	t := &Params{}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return nil, err
		}
		if cur.Nil() {
			continue
		}
		if err := t.decode(&cur, key); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return t, nil
}

func (t *Params) decode(cur *pack.Cursor, key string) (err error) {
	switch key {
	case "do_remote_decode":
		t.Produce, err = cur.Bool()
	case "do_remote_prefill":
		t.Consume, err = cur.Bool()
	case "remote_engine_id":
		t.Cache.EngineID, err = cur.StrString()
	case "remote_request_id":
		t.Cache.RequestID, err = cur.StrString()
	case "remote_host":
		t.Cache.Host, err = cur.StrString()
	case "remote_port":
		t.Cache.Port, err = port(cur)
	case "remote_block_ids":
		t.groups, t.Cache.Blocks, err = blockIDs(cur)
	case "tp_size":
		t.Cache.TensorParallel, err = size(cur)
	case "pp_size":
		t.Cache.PipelineParallel, err = size(cur)
	default:
		return cur.Skip()
	}
	if slices.Contains(neededToPull, key) {
		t.present = append(t.present, key)
	}
	return err
}

func port(cur *pack.Cursor) (int, error) {
	n, err := cur.Int()
	if err == nil && (n < 1 || n > 65535) {
		err = fmt.Errorf("%d: want 1 to 65535", n)
	}
	return int(n), err
}

func size(cur *pack.Cursor) (int, error) {
	n, err := cur.Int()
	if err == nil && (n < 1 || n > 1024) {
		err = fmt.Errorf("%d: want 1 to 1024", n)
	}
	return int(n), err
}

// blockIDs reads a list of block ids, or of such lists for each group of layers: how many groups have blocks, and those of the first.
func blockIDs(cur *pack.Cursor) (groups int, ids []int, err error) {
	raw, err := cur.Raw()
	if err != nil {
		return 0, nil, err
	}
	lists, err := pack.Elements(raw)
	if len(lists) > 0 {
		if head := pack.NewCursor(lists[0]); head.Kind() != pack.Array {
			lists = [][]byte{raw}
		}
	}
	for i := 0; i < len(lists) && err == nil; i++ {
		var values [][]byte
		if values, err = pack.Elements(lists[i]); len(values) > 0 {
			groups++
		}
		for j := 0; j < len(values) && err == nil && groups == 1; j++ {
			value := pack.NewCursor(values[j])
			var id int64
			id, err = value.Int()
			ids = append(ids, int(id))
		}
	}
	return groups, ids, err
}

// Incomplete returns what is missing to pull, nil when all is there. A real engine fails
// an assertion without block ids, and without one of the others waits for ever.
func (t *Params) Incomplete() error {
	var missing []string
	for _, key := range neededToPull {
		if !slices.Contains(t.present, key) {
			missing = append(missing, key)
		}
	}
	if t.groups == 0 {
		missing = append(missing, "remote_block_ids")
	}
	if t.groups > 1 {
		return fmt.Errorf("remote_block_ids have blocks of %d groups of layers, and a player has one", t.groups)
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("kv_transfer_params have do_remote_prefill, but no %s: they have to name the engine that computed the prompt", strings.Join(missing, ", "))
}

// Offer is what an engine returns of a prompt that it has computed for another one.
type Offer struct {
	Cache  Cache
	Blocks []int // their ids
	// Computed is how many tokens are computed.
	Computed int
	// Cached are the tokens of the prompt that did not have to be computed, -1 if another output had them.
	Cached int
	// The sizes of the engine's groups; less than 1 counts as 1.
	TensorParallel, DecodeContextParallel, PipelineParallel int
}

// Encode writes the kv_transfer_params for the engine that goes on, with the keys of
// the line (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py).
func (o *Offer) Encode(line string) []byte {
	computed := 0
	if len(o.Blocks) > 0 {
		computed = o.Computed
	}
	ids := pack.AppendArrayHeader(pack.AppendArrayHeader(nil, 1), len(o.Blocks)) // a list for each group of layers
	for _, id := range o.Blocks {
		ids = pack.AppendInt(ids, int64(id))
	}
	number := func(n int) []byte { return pack.AppendInt(nil, int64(n)) }
	since := func(r protocol.LineRule, value []byte) []byte {
		if r.Holds(line) {
			return value
		}
		return nil // a key that the line does not write
	}
	type member struct {
		key   string
		value []byte
	}
	members := []member{
		{"do_remote_prefill", pack.AppendBool(nil, true)},
		{"do_remote_decode", pack.AppendBool(nil, false)},
		{"remote_block_ids", ids},
		{"remote_engine_id", pack.AppendString(nil, o.Cache.EngineID)},
		{"remote_request_id", pack.AppendString(nil, o.Cache.RequestID)},
		{"remote_host", pack.AppendString(nil, o.Cache.Host)},
		{"remote_port", number(o.Cache.Port)},
		{"tp_size", number(max(o.TensorParallel, 1))},
		{"dcp_size", since(protocol.TransferHasParallelSizes, number(max(o.DecodeContextParallel, 1)))},
		{"pp_size", since(protocol.TransferHasParallelSizes, number(max(o.PipelineParallel, 1)))},
		{"remote_num_tokens", number(computed)},
		{"remote_blocks_expiry_time", since(protocol.TransferHasExpiry, pack.AppendNil(nil))},
		{"remote_registration_generation", since(protocol.TransferHasGeneration, number(1))},
		{"transfer_mode", since(protocol.TransferHasMode, pack.AppendString(nil, "pull"))},
	}
	if o.Cached >= 0 { // added by the scheduler, behind what the connector says
		members = append(members, member{"remote_prefill_cached_tokens", since(protocol.TransferHasCached, number(o.Cached))})
	}
	n := 0
	var body []byte
	for _, m := range members {
		if m.value != nil {
			n++
			body = append(pack.AppendString(body, m.key), m.value...)
		}
	}
	return append(pack.AppendMapHeader(nil, n), body...)
}
