package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
		read, write := io.Pipe()
		inner := *env
		inner.stdout, inner.stderr = write, io.Discard
		transfer := strconv.Itoa(check.FreePort())
		inner.lookupEnv = func(name string) (string, bool) {
			if name == "VLLM_NIXL_SIDE_CHANNEL_PORT" {
				return transfer, true
			}
			value, _ := env.lookupEnv(name)
			return value, name == "GOGC" || value != "" // so serve leaves the heap of this process as it is
		}
		inner.openLog()
		running, cancel := context.WithCancel(ctx)
		ended := serveHere(running, &inner, append(args, "--", "--enable-scale-out")...)
		var failed error
		over := make(chan struct{})
		go func() {
			failed = <-ended
			write.Close()
			close(over)
		}()
		stop := func() {
			cancel()
			<-over
		}
		line, err := bufio.NewReader(read).ReadBytes('\n')
		var ready struct{ URLs, Models []string }
		if err == nil {
			err = json.Unmarshal(line, &ready)
		}
		if err != nil {
			stop()
			return nil, "", nil, fmt.Errorf("%w; %w", err, failed)
		}
		go func() { _, _ = io.Copy(io.Discard, read) }()
		return ready.URLs, ready.Models[0], stop, nil
	}
}
