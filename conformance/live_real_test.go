package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// envEngines names the releases of real engines that the live suite is tested on,
// separated by spaces: "0.33.0 0.27.1". Each takes a minute and 2 GB of memory, so
// none is started unless somebody asks for it.
const envEngines = "VLLM_VCR_ENGINES"

// TestLiveRealEngine: what the live suite demands, the CPU engines of released vLLM
// versions do. Where one does not, the suite is wrong.
func TestLiveRealEngine(t *testing.T) {
	versions := strings.Fields(os.Getenv(envEngines))
	if len(versions) == 0 {
		t.Skipf("set %s to the releases to start, such as \"0.33.0 0.27.1\": .ci/peers engine installs them", envEngines)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			runner := liveRunner()
			runner.Timeouts = EngineTimeouts()
			runner.Engine = CommandEngine{Template: realEngine(t, version), Grace: time.Minute}.Engine
			report := runner.Run(t.Context(), livePlan(t, protocol.LineOf(version)))
			wantAllPass(t, report, nil)
			if got := report.Subject.Versions[protocol.LineOf(version)]; !strings.HasPrefix(got, version) {
				t.Errorf("it says that it is vLLM %q, want %s", got, version)
			}
		})
	}
}

// realEngine is the command of a CPU engine, as a capture on this machine starts it.
func realEngine(t *testing.T, version string) string {
	t.Helper()
	peers := os.Getenv("VLLM_VCR_PEERS")
	if peers == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		peers = filepath.Join(home, ".cache", "vllm-vcr", "peers")
	}
	home := filepath.Join(peers, "engines", version)
	python := filepath.Join(home, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("%v: install it with: .ci/peers engine %s", err, version)
	}
	return "env HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 " +
		"VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_CACHE_ROOT='" + home + "/cache' '" + python + "' " +
		"-m vllm.entrypoints.cli.main serve '" + testenv.ModelDir(t) + "' --served-model-name tiny --headless " +
		"--data-parallel-size 1 --data-parallel-address {handshake_host} --data-parallel-rpc-port {handshake_port} " +
		"--load-format dummy --dtype float32 --max-model-len 4096 --max-num-seqs 64 --block-size 128 --enforce-eager " +
		"--enable-prefix-caching"
}
