package kvtransfer

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Each rank of a group is known by its own id and asked at its own port, as a real one.
func TestOfEngine(t *testing.T) {
	for i, want := range []string{"me_dp0 h 5600", "me_dp1 h 5601"} {
		got, err := Config{EngineID: "me", Host: "h"}.OfEngine(i, 2)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s %s %d", got.EngineID, got.Host, got.Port), want, "engine and address")
	}
}

func TestParse(t *testing.T) {
	const least = `{"kv_connector":"NixlConnector","kv_role":"kv_both"`
	for _, tt := range []struct {
		name, text string
		env        map[string]string
		want       *Config
		err        string
	}{
		{name: "the least", text: least + `}`, want: &Config{}},
		{
			name: "all", text: least + `,"engine_id":"e","kv_load_failure_policy":"recompute","kv_buffer_device":"cpu","kv_buffer_size":1e9,` +
				`"kv_rank":0,"kv_parallel_size":1,"kv_ip":"::1","kv_port":14579,"kv_connector_module_path":null,` +
				`"enable_permute_local_kv":false,"kv_connector_extra_config":{"backends":["UCX"],"kv_lease_duration":7}}`,
			env:  map[string]string{"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5700"},
			want: &Config{EngineID: "e", Host: "10.0.0.1", Port: 5700, FailurePolicy: RecomputeOnLoadFailure, Lease: 7 * time.Second},
		},
		{name: "not JSON", text: "x", err: "KV transfer: invalid character"},
		{name: "two", text: least + `}{}`, err: "something follows the object"},
		{name: "unknown key", text: least + `,"kv_rol":1}`, err: `unknown field "kv_rol"`},
		{name: "another connector", text: `{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}`, err: `kv_connector "MooncakeConnector": a player has NixlConnector and NixlPullConnector`},
		{name: "no role", text: `{"kv_connector":"NixlConnector"}`, err: `kv_role "": want one of kv_producer, kv_consumer, kv_both`},
		{name: "no policy", text: least + `,"kv_load_failure_policy":"retry"}`, err: `kv_load_failure_policy "retry"`},
		{name: "no lease", text: least + `,"kv_connector_extra_config":{"kv_lease_duration":"7"}}`, err: "kv_lease_duration 7: want a whole number"},
		{name: "both ways", text: least + `,"kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`, err: "bidirectional_kv_xfer"},
		{name: "no port", text: least + `}`, env: map[string]string{"VLLM_NIXL_SIDE_CHANNEL_PORT": "http"}, err: `VLLM_NIXL_SIDE_CHANNEL_PORT "http"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.text, func(name string) string { return tt.env[name] })
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestSideChannel(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	s, err := ListenSideChannel("127.0.0.1", 0, 2, nil)
	require.NoError(t, err)
	cache := Cache{EngineID: "e", RequestID: "r", Host: "127.0.0.1", Port: s.Port(1)}
	taken := 0
	s.Offer(cache, Events{Taken: func() { taken++ }})
	pull := func(c Cache) string {
		_, err := s.Pull(t.Context(), c)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	other := cache
	other.EngineID = "f"
	require.Contains(t, pull(other), `engine "f" at `+cache.Address()+` keeps no KV cache of request "r" (404)`)
	if got := pull(cache); got != "" || taken != 1 {
		t.Errorf("%s; taken %d times, want once", got, taken)
	}
	if got := pull(cache); !strings.Contains(got, "(404)") || taken != 1 {
		t.Errorf("the second time: %q, taken %d times", got, taken)
	}
	s.Offer(cache, Events{Taken: func() { taken++ }})
	s.Withdraw(cache)
	if got := pull(cache); !strings.Contains(got, "(404)") || taken != 1 {
		t.Errorf("withdrawn: %q, taken %d times", got, taken)
	}
	for path, want := range map[string]int{"/": http.StatusNotFound, "/kv/pull": http.StatusBadRequest} {
		resp, err := http.Post("http://"+cache.Address()+path, "application/json", strings.NewReader("x"))
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, resp.StatusCode, want, "POST %s: status", path)
	}
	http.DefaultClient.CloseIdleConnections()
	s.Close()
	require.Contains(t, pull(cache), "connection refused")
}

// A request names the address that is asked, and gets the error: that must not make the player a way into its network.
func TestSideChannelIsNoProxy(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	var asked []string
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		if r.URL.Path == "/kv/pull" {
			w.Header().Set("X-Secret", "hunter2")
			w.Header().Set("Location", "/admin/hunter2")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
		fmt.Fprint(w, "hunter2")
	}))
	defer inside.Close()
	speaks, err := net.Listen("tcp", "127.0.0.1:0") // something that is no HTTP server
	require.NoError(t, err)
	var greeting sync.WaitGroup
	greeting.Go(func() {
		for {
			conn, err := speaks.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "SSH-2.0-hunter2\r\n")
			conn.Close()
		}
	})
	defer greeting.Wait()
	defer speaks.Close()
	portOf := func(address string) int { return int(netip.MustParseAddrPort(address).Port()) }
	web := portOf(inside.Listener.Addr().String())

	loopback, elsewhere := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.9.0.0/16")
	for _, tt := range []struct {
		name  string
		peers []netip.Prefix
		host  string
		port  int
		want  string // in the error
		asked []string
	}{
		{name: "redirects are not followed", peers: []netip.Prefix{loopback}, host: "127.0.0.1", port: web, want: "it answers with status 307", asked: []string{"POST /kv/pull"}},
		{name: "what is no HTTP is not quoted", peers: []netip.Prefix{loopback}, host: "127.0.0.1", port: portOf(speaks.Addr().String()), want: "it does not answer as a player"},
		{name: "others than peers are not dialled", peers: []netip.Prefix{elsewhere}, host: "127.0.0.1", port: web, want: "it is not one of the peers of this engine: add it to --kv-transfer-peers"},
		{name: "nor by a name", peers: []netip.Prefix{elsewhere}, host: "localhost", port: web, want: "it is not one of the peers"},
		{name: "nor as IPv4 in IPv6", peers: []netip.Prefix{elsewhere}, host: "::ffff:127.0.0.1", port: web, want: "it is not one of the peers"},
		{name: "the metadata of a cloud is no peer", host: "169.254.169.254", port: 80, want: "it is not one of the peers"},
		{name: "a host is no path", peers: []netip.Prefix{loopback}, host: "localhost/admin?", port: web, want: `remote_host "localhost/admin?" is neither a name nor an address`},
		{name: "nor a user", peers: []netip.Prefix{loopback}, host: "root@localhost", port: web, want: "is neither a name nor an address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked = nil
			s, err := ListenSideChannel("127.0.0.1", 0, 1, tt.peers)
			require.NoError(t, err)
			defer s.Close()
			_, err = s.Pull(t.Context(), Cache{EngineID: "e", RequestID: "r", Host: tt.host, Port: tt.port})
			require.True(t, err != nil && strings.Contains(err.Error(), tt.want) && !strings.Contains(err.Error(), "hunter2"), "error %v, want %q", err, tt.want)
			require.NoDiff(t, cmp.Diff(tt.asked, asked), "asked (-want +got)")
		})
	}
}

// A peer is also who may ask.
func TestSideChannelAnswersPeers(t *testing.T) {
	s, err := ListenSideChannel("127.0.0.1", 0, 1, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	require.NoError(t, err)
	defer s.Close()
	pulled := ""
	for from, want := range map[string]int{"127.0.0.1:4000": http.StatusForbidden, "10.9.1.1:4000": http.StatusOK} {
		s.Offer(Cache{EngineID: "e", RequestID: "r"}, Events{Taken: func() { pulled += from }})
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/kv/pull", strings.NewReader(`{"engine_id":"e","request_id":"r"}`))
		r.RemoteAddr = from
		if s.ServeHTTP(w, r); w.Code != want {
			t.Errorf("from %s: status %d, want %d", from, w.Code, want)
		}
	}
	require.Equal(t, pulled, "10.9.1.1:4000", "has pulled")
}

func TestParsePeers(t *testing.T) {
	got, err := ParsePeers([]string{"10.1.2.3", "10.1.0.0/16", "fd00::/8", "::1"})
	require.True(t, err == nil && fmt.Sprint(got) == "[10.1.2.3/32 10.1.0.0/16 fd00::/8 ::1/128]", "%v, %v", got, err)
	for _, word := range []string{"", "prefill", "10.1.2", "10.1.2.3:5600", "fe80::1%eth0", "10.0.0.0/33"} {
		if got, err := ParsePeers([]string{word}); err == nil {
			t.Errorf("%q is read as %v", word, got)
		}
	}
}
