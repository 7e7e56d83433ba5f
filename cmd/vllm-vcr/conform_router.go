package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/serve"
)

// routerFleet starts the engines behind a router under test, in this process.
func routerFleet(env *environment) func(context.Context, check.FleetOptions) ([]string, string, func(), error) {
	return func(ctx context.Context, o check.FleetOptions) ([]string, string, func(), error) {
		dir, err := acceptanceModel("")
		if err != nil {
			return nil, "", nil, err
		}
		args := []string{
			dir, "--served-model-name", "tiny", "--json", "--frontend", serve.Builtin, "--vllm-version", o.Line, "--host", "127.0.0.1", "--port", "0", "--replicas", strconv.Itoa(o.Engines),
			"--block-size", "16", "--shutdown-timeout", "0", "--frontend-env", "VLLM_SERVER_DEV_MODE=1", "--frontend-env", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
		}
		if o.Events > 0 {
			args = append(args, "--address-per-replica", "--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:%d"}`, o.Events))
		}
		if o.Transfer != "" {
			args = append(args, "--kv-transfer-config", o.Transfer)
		}
		transfer := map[string]string{"VLLM_NIXL_SIDE_CHANNEL_PORT": strconv.Itoa(check.FreePort())}
		served, stop, err := serveReady(ctx, env.silent(transfer), append(args, "--", "--enable-scale-out")...)
		if err != nil {
			return nil, "", nil, err
		}
		return served.URLs, served.Models[0], stop, nil
	}
}
