package kvtransfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

// Config describes an engine's KV connector: vLLM's NixlConnector, as far as a frontend
// and the router before it see it. Every engine that has one can compute prompts for
// others, and pull what others have computed.
type Config struct {
	// EngineID names this engine to others; default a random one. Of several
	// data-parallel ranks each adds its own number, as a real engine does.
	EngineID string
	// Host and Port are the address of the side channel; default localhost and 5600. Each
	// data-parallel rank adds its index to the port.
	Host string
	Port int
	// FailurePolicy is what becomes of a request whose KV cache does not come;
	// default FailOnLoadFailure, as in a real engine.
	FailurePolicy FailurePolicy
	// Lease is how long a KV cache is kept for one that does not ask for it; default
	// 30 seconds.
	Lease time.Duration
	// Peers are the addresses that the side channel calls and answers; nil are [DefaultPeers].
	Peers []netip.Prefix
	// IgnoreHash lets engines of other configurations in, as enforce_handshake_compat does.
	IgnoreHash bool
	// DataPlane moves the KV caches. Without one they count as moved when the time of
	// the latency model has passed, whether or not anybody has computed them.
	DataPlane DataPlane
	// Open, if it is set, makes the DataPlane of one engine, whose KV cache has this form. The engine closes it if it is an [io.Closer].
	Open func(engine *Config, form Form) (DataPlane, error)
}

// Form is the form of an engine's KV cache.
type Form struct {
	Line           string
	Blocks         int
	BlockSize      int // tokens
	TensorParallel int // workers, each of which has a part of each block
}

// DefaultPort is that of the side channel of the first rank, as in vLLM.
const DefaultPort = 5600

// FailurePolicy is vLLM's kv_load_failure_policy.
type FailurePolicy string

const (
	// FailOnLoadFailure ends the request with an error.
	FailOnLoadFailure FailurePolicy = "fail"
	// RecomputeOnLoadFailure computes its prompt here.
	RecomputeOnLoadFailure FailurePolicy = "recompute"
)

// DataPlane moves KV caches from engine to engine. Its methods are called by several
// goroutines.
type DataPlane interface {
	// Offer announces that the KV cache of a request is kept for another engine.
	Offer(cache Cache, events Events)
	// Withdraw ends the offer, when its lease has ended.
	Withdraw(cache Cache)
	// Await asks the engine that keeps a KV cache to keep it until stop is called, for a request that waits for its turn.
	Await(cache Cache) (stop func())
	// Pull fetches a KV cache, which its engine then frees. It returns when all of it
	// is here, or why it does not come.
	Pull(ctx context.Context, cache Cache) (Moved, error)
	// Release makes its engine free a KV cache that is not needed any more.
	Release(ctx context.Context, cache Cache) error
}

// Events are what becomes of an offer. They are called from any goroutine.
type Events struct {
	Taken    func() // another engine has pulled or released it; called once
	Extended func() // another engine still wants it
	Late     func() // another engine has pulled it after its lease ended
}

// Moved is what a pull has moved.
type Moved struct {
	Bytes, Descriptors int
	Posted             time.Duration // until the read had begun
	Wrong              int           // blocks that do not have the contents of their tokens
}

// ErrHandshake is in the error of a pull from an engine that did not answer a handshake, or that is of no use to this one.
var ErrHandshake = errors.New("no handshake")

// Cache names the KV cache of a prompt on the engine that computed it.
type Cache struct {
	EngineID, RequestID string
	Host                string
	Port                int
	TensorParallel      int // workers of that engine in each of its pipeline stages; less than 1 counts as 1
	PipelineParallel    int
	Blocks              []int // their ids there
	// Local are the ids of the blocks here that are pulled, which are the last ones.
	Local []int
	// Contents has a number for each of the blocks that are kept or pulled, by which both sides know their contents.
	Contents []uint64
}

// Address is where to ask for it.
func (c Cache) Address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// OfEngine is the configuration of one engine of a group, with defaults filled in.
func (t Config) OfEngine(index, ranks int) (*Config, error) {
	t.EngineID = cmp.Or(t.EngineID, strings.ToLower(rand.Text()))
	if ranks > 1 {
		t.EngineID += "_dp" + strconv.Itoa(index)
	}
	t = t.withAddress()
	t.Port += index
	t.Lease = cmp.Or(t.Lease, 30*time.Second)
	switch t.FailurePolicy {
	case "":
		t.FailurePolicy = FailOnLoadFailure
	case FailOnLoadFailure, RecomputeOnLoadFailure:
	default:
		return nil, fmt.Errorf("KV load failure policy %q: want %s or %s", t.FailurePolicy, FailOnLoadFailure, RecomputeOnLoadFailure)
	}
	if t.Port < 1 || t.Port > 65535 {
		return nil, fmt.Errorf("KV transfer port %d: want 1 to 65535", t.Port)
	}
	return &t, nil
}

// withAddress fills in where the first engine of a group listens.
func (t Config) withAddress() Config {
	t.Host, t.Port = cmp.Or(t.Host, "localhost"), cmp.Or(t.Port, DefaultPort)
	return t
}

// vllmConfig is vLLM's KVTransferConfig (vllm/config/kv_transfer.py), of any line.
type vllmConfig struct {
	Connector     string         `json:"kv_connector"`
	EngineID      string         `json:"engine_id"`
	Role          string         `json:"kv_role"`
	FailurePolicy FailurePolicy  `json:"kv_load_failure_policy"`
	Extra         map[string]any `json:"kv_connector_extra_config"`

	// How the bytes move, which they do not here.
	BufferDevice any `json:"kv_buffer_device"`
	BufferSize   any `json:"kv_buffer_size"`
	Rank         any `json:"kv_rank"`
	ParallelSize any `json:"kv_parallel_size"`
	IP           any `json:"kv_ip"`
	Port         any `json:"kv_port"`
	ModulePath   any `json:"kv_connector_module_path"`
	Permute      any `json:"enable_permute_local_kv"`
}

var (
	connectors = []string{"NixlConnector", "NixlPullConnector"}
	roles      = []string{"kv_producer", "kv_consumer", "kv_both"}
	policies   = []FailurePolicy{"", FailOnLoadFailure, RecomputeOnLoadFailure}
)

// Parse reads what vLLM's --kv-transfer-config takes, a JSON object, for a
// connector that pulls by NIXL. Any role may be asked for both, as in vLLM. getenv
// looks up VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT, as [os.Getenv]
// does. Keys that say how bytes move have no meaning here; unknown ones are refused,
// but for those that a connector has for itself, in kv_connector_extra_config.
func Parse(text string, getenv func(string) string) (*Config, error) {
	var c vllmConfig
	if err := jsonout.ReadObject(text, &c); err != nil {
		return nil, fmt.Errorf(`KV transfer: %w: want a JSON object such as {"kv_connector":"NixlConnector","kv_role":"kv_producer"}`, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("KV transfer: %w", err)
	}
	t := &Config{EngineID: c.EngineID, FailurePolicy: c.FailurePolicy, Host: getenv("VLLM_NIXL_SIDE_CHANNEL_HOST")}
	if lease, has := c.Extra["kv_lease_duration"]; has {
		seconds, ok := lease.(float64)
		if !ok || seconds < 1 || seconds != math.Trunc(seconds) || seconds > 1e9 {
			return nil, fmt.Errorf("KV transfer: kv_lease_duration %v: want a whole number of seconds", lease)
		}
		t.Lease = time.Duration(seconds) * time.Second
	}
	if enforced, has := c.Extra["enforce_handshake_compat"]; has {
		t.IgnoreHash = enforced == false
	}
	if port := getenv("VLLM_NIXL_SIDE_CHANNEL_PORT"); port != "" {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("VLLM_NIXL_SIDE_CHANNEL_PORT %q: want 1 to 65535", port)
		}
		t.Port = n
	}
	return t, nil
}

// check refuses what vLLM does, and what only a real engine can do.
func (c *vllmConfig) check() error {
	if !slices.Contains(connectors, c.Connector) {
		return fmt.Errorf("kv_connector %q: a player has %s", c.Connector, strings.Join(connectors, " and "))
	}
	if !slices.Contains(roles, c.Role) {
		return fmt.Errorf("kv_role %q: want one of %s", c.Role, strings.Join(roles, ", "))
	}
	if !slices.Contains(policies, c.FailurePolicy) {
		return fmt.Errorf("kv_load_failure_policy %q: want %s or %s", c.FailurePolicy, FailOnLoadFailure, RecomputeOnLoadFailure)
	}
	if both, _ := c.Extra["bidirectional_kv_xfer"].(bool); both {
		return errors.New("kv_connector_extra_config.bidirectional_kv_xfer: a player does not send back what it computed of an answer")
	}
	return nil
}

// Listen opens a [SideChannel] for count engines with consecutive indexes, beginning
// with first, and makes it the data plane. Close ends it, after the players have ended.
func (t *Config) Listen(first, count int) (*SideChannel, error) {
	filled := t.withAddress()
	if last := filled.Port + first + count - 1; last > math.MaxUint16 {
		return nil, fmt.Errorf("side channel: there is no port %d for engine %d: give VLLM_NIXL_SIDE_CHANNEL_PORT a lower one", last, first+count-1)
	}
	s, err := ListenSideChannel(filled.Host, filled.Port+first, count, t.Peers)
	if err == nil {
		t.DataPlane = s
	}
	return s, err
}
