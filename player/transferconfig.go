package player

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// transferConfig is vLLM's KVTransferConfig (vllm/config/kv_transfer.py), of any line.
type transferConfig struct {
	Connector     string         `json:"kv_connector"`
	EngineID      string         `json:"engine_id"`
	Role          string         `json:"kv_role"`
	FailurePolicy FailurePolicy  `json:"kv_load_failure_policy"`
	Extra         map[string]any `json:"kv_connector_extra_config"`

	// What says how the bytes move, which they do not here.
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
	transferConnectors = []string{"NixlConnector", "NixlPullConnector"}
	transferRoles      = []string{"kv_producer", "kv_consumer", "kv_both"}
	transferPolicies   = []FailurePolicy{"", FailOnLoadFailure, RecomputeOnLoadFailure}
)

// ParseTransfer reads what vLLM's --kv-transfer-config takes, a JSON object, for a
// connector that pulls by NIXL. Any role may be asked for both, as in vLLM. getenv
// looks up VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT, as [os.Getenv]
// does. Keys that say how bytes move have no meaning here; unknown ones are refused,
// but for those that a connector has for itself, in kv_connector_extra_config.
func ParseTransfer(text string, getenv func(string) string) (*Transfer, error) {
	var c transferConfig
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf(`KV transfer: %w: want a JSON object such as {"kv_connector":"NixlConnector","kv_role":"kv_both"}`, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("KV transfer: want one JSON object, and nothing behind it")
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("KV transfer: %w", err)
	}
	t := &Transfer{EngineID: c.EngineID, FailurePolicy: c.FailurePolicy, Host: getenv("VLLM_NIXL_SIDE_CHANNEL_HOST")}
	if lease, has := c.Extra["kv_lease_duration"]; has {
		seconds, ok := lease.(float64)
		if !ok || seconds < 1 || seconds != math.Trunc(seconds) || seconds > 1e9 {
			return nil, fmt.Errorf("KV transfer: kv_lease_duration %v: want a whole number of seconds", lease)
		}
		t.Lease = time.Duration(seconds) * time.Second
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
func (c *transferConfig) check() error {
	if !slices.Contains(transferConnectors, c.Connector) {
		return fmt.Errorf("kv_connector %q: a player has %s", c.Connector, strings.Join(transferConnectors, " and "))
	}
	if !slices.Contains(transferRoles, c.Role) {
		return fmt.Errorf("kv_role %q: want one of %s", c.Role, strings.Join(transferRoles, ", "))
	}
	if !slices.Contains(transferPolicies, c.FailurePolicy) {
		return fmt.Errorf("kv_load_failure_policy %q: want %s or %s", c.FailurePolicy, FailOnLoadFailure, RecomputeOnLoadFailure)
	}
	if both, _ := c.Extra["bidirectional_kv_xfer"].(bool); both {
		return errors.New("kv_connector_extra_config.bidirectional_kv_xfer: a player does not send back what it computed of an answer")
	}
	return nil
}

// Listen opens a [SideChannel] for count engines with consecutive indexes, beginning
// with first, and makes it the plane. Close ends it, after the players have ended.
func (t *Transfer) Listen(first, count int) (*SideChannel, error) {
	filled := t.withAddress()
	if last := filled.Port + first + count - 1; last > math.MaxUint16 {
		return nil, fmt.Errorf("side channel: there is no port %d for engine %d: give VLLM_NIXL_SIDE_CHANNEL_PORT a lower one", last, first+count-1)
	}
	s, err := ListenSideChannel(filled.Host, filled.Port+first, count)
	if err == nil {
		t.Plane = s
	}
	return s, err
}
