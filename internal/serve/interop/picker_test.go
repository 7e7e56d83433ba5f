package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A picker is llm-d's endpoint picker, which is asked as Envoy asks it.
type picker struct {
	t       *testing.T
	client  extproc.ExternalProcessorClient
	metrics string // its URL
}

// startPicker starts it before a fleet, with the configuration of the documentation.
func startPicker(t *testing.T, f *fleet, events string) *picker {
	t.Helper()
	text, err := os.ReadFile("testdata/picker.yaml")
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "picker.yaml")
	changed := strings.NewReplacer("/tmp/endpoints.json", f.list, "my-model", f.Models[0], "http://127.0.0.1:8000", f.URLs[0], "5557", events).Replace(string(text))
	require.NoError(t, os.WriteFile(config, []byte(changed), 0o644))
	ports := freePorts(t, 3)
	start(t, peer(t, "epp"), "--config-file", config, "--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2],
		"--secure-serving=false", "--metrics-endpoint-auth=false", "--tracing=false", "--enable-pprof=false", "--pool-name", "pool", "--pool-namespace", "default", "-v", "1")
	conn, err := grpc.NewClient("127.0.0.1:"+ports[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	p := &picker{t, extproc.NewExternalProcessorClient(conn), "http://127.0.0.1:" + ports[2] + "/metrics"}
	eventually(t, "the picker knows all servers and subscribes to their KV events", func() bool {
		return p.metric("llm_d_epp_ready_endpoints") == len(f.URLs) && p.metric("llm_d_epp_kv_cache_events_active_subscribers") == len(f.URLs)
	})
	return p
}

// metric is the sum of the samples of a metric; -1 without any.
func (p *picker) metric(name string) int { return metricAt(p.t, p.metrics, name) }

// pick asks which server gets a request. It is empty if the picker refuses the request.
func (p *picker) pick(body string) string {
	p.t.Helper()
	stream, err := p.client.Process(p.t.Context(), grpc.WaitForReady(true))
	require.NoError(p.t, err)
	headers := &core.HeaderMap{}
	for name, value := range map[string]string{":method": "POST", ":path": "/v1/completions", "content-type": "application/json"} {
		headers.Headers = append(headers.Headers, &core.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	require.NoError(p.t, stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headers}}}))
	require.NoError(p.t, stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: true}}}))
	for {
		answer, err := stream.Recv()
		require.NoError(p.t, err)
		if answer.GetImmediateResponse() != nil {
			return ""
		}
		for _, set := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if set.Header.Key == "x-gateway-destination-endpoint" {
				_ = stream.CloseSend()
				return "http://" + string(set.Header.RawValue)
			}
		}
	}
}

// Later turns of a conversation go to the server that has the turns before; a server that drains or ends is left.
func TestEndpointPicker(t *testing.T) {
	t.Parallel()
	_ = peer(t, "epp")
	events := freePorts(t, 1)[0]
	f := startFleet(t, 4, "--address-per-replica", "--port", freePorts(t, 1)[0], "--kv-events-config",
		`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:`+events+`"}`, "--inter-token-latency", "5ms", "--", "--enable-scale-out")
	p := startPicker(t, f, events)

	const conversations, turns = 10, 5
	first, blocks, warm := "", 0, map[string]int{}
	for c := range conversations {
		prompt, home, known := fmt.Sprintf("Conversation %d begins.", c), "", 0
		for turn := range turns {
			prompt += fmt.Sprintf(" In turn %d of conversation %d, a user asks for a long story about a ship, a storm, two sailors and a lighthouse.", turn, c)
			body := completion(prompt, 1)
			at := p.pick(body)
			switch {
			case turn == 0:
				home = at
			case at != home:
				t.Fatalf("turn %d of conversation %d goes to %s, and %s has the turns before", turn, c, at, home)
			default:
				warm[home]++
			}
			full := ask(t, at, body) / 16
			blocks, known = blocks+full-known, full
			eventually(t, "the picker has the blocks of the turn", func() bool { return p.metric("kvcache_index_admissions_total") >= blocks })
			if c == 0 {
				first = body
			}
		}
	}
	t.Logf("%d later turns went to the server with the turns before: %v", conversations*(turns-1), warm)
	if hits := f.sum(t, "vllm:prefix_cache_hits_total"); hits < conversations*(turns-1)*16 {
		t.Errorf("only %d tokens were in a cache", hits)
	}

	// A server that drains finishes what it has, gets nothing new, and loses nothing when it ends.
	gone := p.pick(first)
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() { ask(t, gone, completion("Before the end", 200)) })
	}
	eventually(t, "the requests run", func() bool { return metricAt(t, gone+"/metrics", "vllm:num_requests_running") == 8 })
	f.admin(t, gone, `{"draining": true}`)
	eventually(t, "the picker knows that a server drains", func() bool { return p.metric("llm_d_epp_ready_endpoints") == 3 })
	for range 20 {
		at := p.pick(first)
		if at == gone || at == "" {
			t.Fatalf("a request goes to %q, and %s drains", at, gone)
		}
		running.Go(func() { ask(t, at, first) })
	}
	running.Wait()
	f.kill(t, gone)

	// One that ends without notice is left as well.
	f.kill(t, p.pick(first))
	eventually(t, "the picker knows that a server has ended", func() bool { return p.metric("llm_d_epp_ready_endpoints") == 2 })
	for range 20 {
		ask(t, p.pick(first), first)
	}
	if errors := p.metric("llm_d_epp_datalayer_extract_errors_total"); errors > 0 {
		t.Errorf("the picker could not read %d metrics", errors)
	}
}
