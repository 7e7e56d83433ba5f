package process_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// secrets and settings are what a job may have in its environment.
const (
	secrets = `ACTIONS_RUNTIME_TOKEN ACTIONS_ID_TOKEN_REQUEST_URL ACTIONS_CACHE_URL INPUT_GITHUB_TOKEN GITHUB_TOKEN GH_TOKEN
		GITHUB_ENV GITHUB_OUTPUT GITHUB_PATH AWS_ACCESS_KEY_ID AWS_PROFILE AWS_WEB_IDENTITY_TOKEN_FILE AZURE_CLIENT_SECRET
		ARM_CLIENT_ID GOOGLE_APPLICATION_CREDENTIALS HF_TOKEN HUGGING_FACE_HUB_TOKEN VLLM_API_KEY OPENAI_API_KEY DB_PASSWORD
		SIGNING_KEY_PEM SSH_AUTH_SOCK NPM_TOKEN_2 github_token CI_JOB_JWT_V2 KUBECONFIG SLACK_WEBHOOK_URL S3_SECRET_ACCESS_KEY
		REGISTRY_PASS SENTRY_DSN TOKEN`
	settings = `PATH HOME TMPDIR LANG LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES PYTHONPATH VIRTUAL_ENV HF_HOME
		HF_HUB_OFFLINE TOKENIZERS_PARALLELISM VLLM_LOGGING_LEVEL VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE
		VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD VLLM_VCR_TIME_TO_FIRST_TOKEN VLLM_VCR_PREFILL_TIME_PER_TOKEN OMP_NUM_THREADS
		NCCL_SOCKET_IFNAME GITHUB_REPOSITORY GITHUB_WORKSPACE RUNNER_TRACKING_ID CI SSL_CERT_FILE HTTPS_PROXY XAUTHORITY
		KEYBOARD MONKEY_PATCH OLDPWD BYPASS`
)

func TestSecret(t *testing.T) {
	for _, name := range strings.Fields(secrets) {
		require.True(t, process.Secret(name, "x"), "%s is handed on", name)
	}
	for _, name := range strings.Fields(settings) {
		require.True(t, !process.Secret(name, "x"), "%s is withheld", name)
	}
	for value, want := range map[string]bool{
		"postgres://app:hunter2@db/x":                                true,
		"https://ghp_x@github.com/a/b":                               true,
		"https://pypi.org/simple https://u:p@index.example.com/pypi": true,
		"https://pypi.org/simple":                                    false,
		"http://proxy.example.com:3128":                              false,
		"me@example.com":                                             false,
		"https://example.com/@scope":                                 false,
	} {
		require.Equal(t, process.Secret("SOME_URL", value), want, "a variable with the value %s: secret", value)
	}
}

func TestEnvironment(t *testing.T) {
	inherited := []string{"=C:=C:\\work", "PATH=/bin", "HF_TOKEN=a", "GH_TOKEN=b", "AWS_REGION=c"}
	got := process.Environment(inherited, process.WithoutSecrets("HF_TOKEN"), "PATH=/usr/bin")
	require.NoDiff(t, cmp.Diff([]string{"=C:=C:\\work", "PATH=/bin", "HF_TOKEN=a", "PATH=/usr/bin"}, got), "(-want +got)")
	require.NoDiff(t, cmp.Diff([]string{"AWS_REGION", "GH_TOKEN"}, process.Withheld(inherited, "HF_TOKEN")), "withheld (-want +got)")
}

// TestStartWithholds starts a program as most callers do, without a word about its environment.
func TestStartWithholds(t *testing.T) {
	env, err := exec.LookPath("env")
	if err != nil {
		t.Skip("no env on this machine")
	}
	t.Setenv("HF_TOKEN", "hunter2")
	t.Setenv("VLLM_LOGGING_LEVEL", "DEBUG")
	p, err := process.Start(exec.Command(env), process.Options{Tail: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, p.Wait(t.Context()))
	lines := strings.Split(p.Tail(), "\n")
	if slices.Contains(lines, "HF_TOKEN=hunter2") || !slices.Contains(lines, "VLLM_LOGGING_LEVEL=DEBUG") {
		t.Errorf("the process has the environment\n%s", p.Tail())
	}
}
